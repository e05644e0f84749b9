package lua

import (
	"context"

	"tollgate/quota"
)

// TakeReply is the answer to a Take.
type TakeReply struct {
	Outcome   Outcome // Done, Short, Expired, TooLarge
	NowMillis int64
	Tokens    int64 // taken from each bucket
	Buckets   []quota.BucketState
}

// Take draws the same number of tokens, at least least and at most most, from
// all of a tenant's buckets: the most that all of them have, or nothing.
func (s *Store) Take(ctx context.Context, tenant string, buckets []BucketArg, least, most, notAfter int64) (TakeReply, error) {
	return s.bucket(ctx, tenant, buckets, "take", least, most, notAfter)
}

// Give returns unused tokens to all of a tenant's buckets.
func (s *Store) Give(ctx context.Context, tenant string, buckets []BucketArg, tokens, notAfter int64) (TakeReply, error) {
	return s.bucket(ctx, tenant, buckets, "give", tokens, tokens, notAfter)
}

func (s *Store) bucket(ctx context.Context, tenant string, buckets []BucketArg, op string, least, most, notAfter int64) (TakeReply, error) {
	keys := make([]string, 0, len(buckets))
	args := append(make([]string, 0, 4+3*len(buckets)), op, itoa64(least), itoa64(most), itoa64(notAfter))
	for _, b := range buckets {
		keys = append(keys, BucketKey(tenant, b))
		args = append(args, itoa64(b.Limit.Burst), itoa64(b.Limit.Rate), bucketSeconds(b.Unit))
	}
	r, err := s.run(ctx, bucketScript, keys, args)
	if err != nil {
		return TakeReply{}, err
	}
	out := TakeReply{Outcome: Outcome(r.text()), NowMillis: r.int(), Tokens: r.int()}
	s.sawTime(out.NowMillis)
	if out.Outcome == Done || out.Outcome == Short {
		out.Buckets = r.buckets(buckets)
	}
	return out, r.err(bucketScript)
}
