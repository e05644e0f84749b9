package lua

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Receipts expire this long after the settler has confirmed that it has the
// answer; unconfirmed ones stay 7 days.
const (
	settledReceiptTTL  = 15 * time.Minute
	refundedReceiptTTL = 24 * time.Hour
)

// Confirmation says that the end of a hold is known here, so that its receipt may go.
type Confirmation struct {
	Tenant, ID string
	Refunded   bool // it ended without a charge: the receipt stays longer
	Forget     bool // nobody can repeat it (the id never left the node): the receipt goes at once
}

// Confirm lets receipts expire. A lost confirmation costs memory, never an amount.
func (s *Store) Confirm(ctx context.Context, list []Confirmation) error {
	if len(list) == 0 {
		return nil
	}
	commands := make([]rueidis.Completed, len(list))
	for i, c := range list {
		key := HoldKey(c.Tenant, c.ID)
		switch {
		case c.Forget:
			commands[i] = s.decide.B().Unlink().Key(key).Build()
		case c.Refunded:
			commands[i] = s.decide.B().Pexpire().Key(key).Milliseconds(refundedReceiptTTL.Milliseconds()).Build()
		default:
			commands[i] = s.decide.B().Pexpire().Key(key).Milliseconds(settledReceiptTTL.Milliseconds()).Build()
		}
	}
	_, err := s.doMulti(ctx, "confirm", commands)
	return err
}

// DueHold is a hold past its deadline. Its record is zero when Redis has lost it:
// releasing it as expired then removes the index entry.
type DueHold struct {
	Tenant, ID string
	Record     HoldRecord
}

// Due lists up to most holds per tenant whose deadline is not after nowMillis.
func (s *Store) Due(ctx context.Context, tenants []string, nowMillis int64, most int64) ([]DueHold, error) {
	commands := make([]rueidis.Completed, len(tenants))
	for i, t := range tenants {
		commands[i] = s.decide.B().Zrangebyscore().Key(DeadlinesKey(t)).Min("-inf").Max(itoa64(nowMillis)).Limit(0, most).Build()
	}
	results, err := s.doMulti(ctx, "due", commands)
	if err != nil {
		return nil, err
	}
	var due []DueHold
	for i := range results {
		names, err := results[i].AsStrSlice()
		if err != nil {
			return nil, fmt.Errorf("%w: deadlines", ErrReply)
		}
		for _, name := range names {
			if id, ok := strings.CutPrefix(name, "req:"); ok {
				due = append(due, DueHold{Tenant: tenants[i], ID: id})
			}
		}
	}
	if len(due) == 0 {
		return nil, nil
	}
	commands = make([]rueidis.Completed, len(due))
	for i, d := range due {
		commands[i] = s.holdCommand(d.Tenant, d.ID)
	}
	results, err = s.doMulti(ctx, "read_hold", commands)
	if err != nil {
		return nil, err
	}
	for i := range results {
		if due[i].Record, _, err = parseHold(results[i]); err != nil {
			return nil, err
		}
	}
	return due, nil
}

// TryLock takes a lock with a deadline for owner, or says that another has it. The holder extends it by taking it again.
func (s *Store) TryLock(ctx context.Context, key, owner string, ttl time.Duration) (bool, error) {
	res, err := s.do(ctx, "lock", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.decide.B().Set().Key(key).Value(owner).Nx().Px(ttl).Build())
	})
	if err != nil {
		return false, err
	}
	if ok, err := res.ToString(); err == nil && ok == "OK" {
		return true, nil
	}
	res, err = s.do(ctx, "lock", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.decide.B().Get().Key(key).Build())
	})
	if err != nil {
		return false, err
	}
	holder, _ := res.ToString()
	if holder != owner {
		return false, nil
	}
	_, err = s.do(ctx, "lock", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.decide.B().Pexpire().Key(key).Milliseconds(ttl.Milliseconds()).Build())
	})
	return err == nil, err
}

// doMulti is do for a pipeline: one bound, one guard, and an error if any command failed.
func (s *Store) doMulti(ctx context.Context, name string, commands []rueidis.Completed) ([]rueidis.RedisResult, error) {
	answer := make(chan []rueidis.RedisResult, 1)
	_, err := s.do(ctx, name, func(ctx context.Context) rueidis.RedisResult {
		results := s.decide.DoMulti(ctx, commands...)
		for i := range results {
			if err := results[i].Error(); err != nil && !rueidis.IsRedisNil(err) {
				return results[i]
			}
		}
		answer <- results
		return rueidis.RedisResult{}
	})
	if err != nil {
		return nil, err
	}
	return <-answer, nil
}
