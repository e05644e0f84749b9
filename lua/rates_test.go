package lua

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/quota"
)

// rated is one bucket on a bench, drawn on by the reserve script.
type rated struct {
	*bench
	arg    BucketArg
	calls  int
	tenant string
}

func newRated(t require.TestingT, b *bench, limit quota.Bucket, unit quota.Unit) *rated {
	_, err := b.redis.Do("FLUSHALL")
	require.NoError(t, err)
	b.setClock(t, 1_790_000_000_000_000)
	return &rated{bench: b, tenant: "t_rate", arg: BucketArg{Scope: quota.Key, ID: "k_1", Unit: unit, Limit: limit}}
}

// draw asks for tokens, and says whether it got them and what is left.
func (r *rated) draw(t require.TestingT, s *Store, tokens int64) (bool, int64) {
	r.calls++
	a := &ReserveArgs{
		Target: Target{Tenant: r.tenant, ID: str(int64(r.calls)), Chain: chainOf(r.tenant), Buckets: []BucketArg{r.arg}},
		TTL:    time.Minute, Consume: true, Fingerprint: "f", Attempt: "t", NotAfter: 1 << 52,
	}
	a.Loads = &Loads{Version: 1}
	for range 3 {
		a.Loads.Accounts = append(a.Loads.Accounts, AccountLoad{Total: -1, MaxInflight: -1})
	}
	a.Buckets[0].Need = tokens
	got, err := s.Reserve(context.Background(), a)
	require.NoError(t, err)
	require.Contains(t, []Outcome{Done, Short}, got.Outcome)
	require.Len(t, got.Buckets, 1)
	return got.Outcome == Done, got.Buckets[0].Remaining
}

// Whatever is drawn when: never more than rate × time + burst, and what is left is never negative.
func TestBucketNeverExceedsItsRate(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(rt *rapid.T) {
		limit := quota.Bucket{Rate: rapid.Int64Range(0, 200).Draw(rt, "rate"), Burst: rapid.Int64Range(0, 50).Draw(rt, "burst")}
		unit := rapid.SampledFrom([]quota.Unit{quota.UnitRPS, quota.UnitRPM}).Draw(rt, "unit")
		period := map[quota.Unit]int64{quota.UnitRPS: 1, quota.UnitRPM: 60}[unit]
		r := newRated(rt, b, limit, unit)
		var start, latest, admitted int64 // start: of the first write, before which a bucket is full
		for range 40 {
			step := rapid.OneOf(rapid.Int64Range(0, 50_000), rapid.Int64Range(-3_000_000, 3_000_000)).Draw(rt, "step, µs")
			b.setClock(rt, b.now+step)
			tokens := rapid.Int64Range(0, 9).Draw(rt, "tokens")
			ok, left := r.draw(rt, b.store, tokens)
			require.GreaterOrEqual(rt, left, int64(0))
			require.LessOrEqual(rt, left, limit.Burst)
			if ok && start == 0 {
				start = b.now
			}
			if ok {
				admitted += tokens
			}
			latest = max(latest, b.now, start)
			// In tokens × µs × period, so that nothing is rounded. Only time that was never seen before counts.
			if start > 0 {
				require.LessOrEqual(rt, admitted*1_000_000*period, limit.Rate*(latest-start)+limit.Burst*1_000_000*period)
			}
		}
	})
}

// A bucket that is hammered refills as exactly as one that is left alone.
func TestHammeredBucketKeepsItsRate(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		name   string
		limit  quota.Bucket
		unit   quota.Unit
		every  int64 // µs between two calls
		calls  int64
		admits int64
	}{
		{"10 per second, 1000 calls per second", quota.Bucket{Rate: 10, Burst: 10}, quota.UnitRPS, 1000, 3000, 10 + 29},
		{"7 per minute, every 7 ms: no step brings a whole micro-token share", quota.Bucket{Rate: 7, Burst: 3}, quota.UnitRPM, 7001, 4000, 3 + 3},
		{"1 per minute, every ms for 3 s", quota.Bucket{Rate: 1, Burst: 1}, quota.UnitRPM, 1000, 3000, 1},
		{"59 per minute, every 13 µs", quota.Bucket{Rate: 59, Burst: 0}, quota.UnitRPM, 13, 1000, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRated(t, b, tc.limit, tc.unit)
			var admitted int64
			for range tc.calls {
				if ok, _ := r.draw(t, b.store, 1); ok {
					admitted++
				}
				b.setClock(t, b.now+tc.every)
			}
			require.Equal(t, tc.admits, admitted)
			// Afterwards it stands where one that nobody touched in between would stand, to the micro-token.
			period := map[quota.Unit]int64{quota.UnitRPS: 1, quota.UnitRPM: 60}[tc.unit]
			fields := dump(t, b.redis)[BucketKey(r.tenant, r.arg)]
			if fields == nil {
				return // nothing was ever taken
			}
			elapsed := num(fields["at"]) - 1_790_000_000_000_000
			level := num(fields["v"])*period + num(fields["rem"])
			require.Equal(t, tc.limit.Burst*1_000_000*period+elapsed*tc.limit.Rate-admitted*1_000_000*period, level)
		})
	}
}

// Setting a limit again, the same or another, gives nobody new tokens.
func TestRateChangeKeepsTheBalance(t *testing.T) {
	b := newBench(t)
	r := newRated(t, b, quota.Bucket{Rate: 60, Burst: 100}, quota.UnitRPM)
	ok, left := r.draw(t, b.store, 100)
	require.True(t, ok)
	require.Zero(t, left)
	for _, limit := range []quota.Bucket{{Rate: 60, Burst: 100}, {Rate: 600, Burst: 1000}, {Rate: 1, Burst: 1}, {Rate: 60, Burst: 100}} {
		r.arg.Limit = limit
		ok, left = r.draw(t, b.store, 1)
		require.False(t, ok, "%+v", limit)
		require.Zero(t, left, "%+v", limit)
	}
	b.setClock(t, b.now+50_000_000)
	_, left = r.draw(t, b.store, 0)
	require.EqualValues(t, 50, left)
	r.arg.Limit = quota.Bucket{Rate: 60, Burst: 20}
	_, left = r.draw(t, b.store, 0)
	require.EqualValues(t, 20, left, "a smaller capacity cuts what is above it")
}

// Many callers on Redis' own clock: no more than burst + rate × the time it took.
func TestBucketUnderConcurrency(t *testing.T) {
	b := newBench(t)
	b.store.instead = nil // the shipped scripts
	r := newRated(t, b, quota.Bucket{Rate: 100, Burst: 50}, quota.UnitRPS)
	start := time.Now()
	results := make(chan int64, 32)
	for w := range 32 {
		go func() {
			mine := &rated{bench: b, tenant: r.tenant, arg: r.arg, calls: w * 1000}
			var n int64
			defer func() { results <- n }()
			for range 100 {
				if ok, _ := mine.draw(t, b.store, 1); ok {
					n++
				}
			}
		}()
	}
	var admitted int64
	for range 32 {
		admitted += <-results
	}
	seconds := time.Since(start).Seconds()
	require.GreaterOrEqual(t, admitted, int64(50))
	require.LessOrEqual(t, float64(admitted), 50+100*seconds)
}
