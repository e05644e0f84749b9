package quota

import (
	"fmt"
	"time"
)

// How long a refused client is told to wait where no clock says when it will fit.
const (
	retryEver    = 60 * time.Second // somebody has to top up; do not hammer meanwhile
	retryPending = time.Second      // other nodes are asked to give back idle credits
	retrySlot    = time.Second      // any running request may end
)

// retryMaxSeconds bounds a Retry-After; a longer wait is shortened to it.
const retryMaxSeconds = 366 * 24 * 60 * 60

// Judge says whether need more credits fit every account of the chain, one more
// request its slots, and each bucket its own need. states is beside chain;
// slots is by scope. need is an amount (see CheckAmount).
//
// Of several short limits it names the one whose wait is hopeless first, then
// the longest wait, so that a client never waits for one limit only to meet a
// worse one:
//
//  1. one that can never fit: Never
//  2. a negative `ever` account: PaymentRequired
//  3. a short `ever` account: PaymentRequired if it has overage, else InsufficientQuota
//  4. a short month, then a short day: InsufficientQuota until the window ends
//  5. a scope with no free slot: RateExceeded
//  6. the bucket with the longest wait: RateExceeded
//
// Within 1 accounts come before slots before buckets; otherwise the first in
// order wins. It does not allocate.
func Judge(chain Chain, states []AccountState, need int64, buckets []BucketState, slots [3]SlotState, nowMillis int64) Refusal {
	if len(chain) != len(states) {
		panic(fmt.Sprintf("BUG: quota: %d accounts with %d states", len(chain), len(states)))
	}
	if r := judgeNever(chain, states, need, buckets, slots); r.Never {
		return r
	}
	if i := firstAccount(chain, states, Ever, AccountState.Negative); i >= 0 {
		return refuseAccount(chain[i], states[i], need, PaymentRequired, 0)
	}
	short := func(a AccountState) bool { return !a.Fits(need) }
	if i := firstAccount(chain, states, Ever, short); i >= 0 {
		if states[i].OverageLimit > 0 {
			return refuseAccount(chain[i], states[i], need, PaymentRequired, 0)
		}
		return refuseAccount(chain[i], states[i], need, InsufficientQuota, retryEver)
	}
	for _, p := range [...]Period{Month, Day} {
		if i := firstAccount(chain, states, p, short); i >= 0 {
			wait := retrySeconds(ceilDiv(chain[i].Window.End-nowMillis, 1000))
			return refuseAccount(chain[i], states[i], need, InsufficientQuota, wait)
		}
	}
	for i, s := range slots {
		if s.short() {
			return refuseSlot(Scopes[i], s, RateExceeded, retrySlot)
		}
	}
	var longest Refusal
	for _, b := range buckets {
		if b.short() {
			if r := refuseBucket(b, RateExceeded, b.wait()); r.RetryAfter > longest.RetryAfter {
				longest = r
			}
		}
	}
	return longest
}

// judgeNever finds the first limit that no waiting will help, else the zero Refusal.
func judgeNever(chain Chain, states []AccountState, need int64, buckets []BucketState, slots [3]SlotState) (r Refusal) {
	for i := range states {
		if states[i].NeverFits(need) {
			r = refuseAccount(chain[i], states[i], need, InsufficientQuota, 0)
			r.Never, r.Pending, r.RetryAfter = true, false, 0
			return r
		}
	}
	for i, s := range slots {
		if s.Max == 0 {
			r = refuseSlot(Scopes[i], s, InsufficientQuota, 0)
			r.Never, r.Pending = true, false
			return r
		}
	}
	for _, b := range buckets {
		if b.Need > b.Limit.Burst || (b.short() && b.Limit.Rate == 0) {
			r = refuseBucket(b, InsufficientQuota, 0)
			r.Never = true
			return r
		}
	}
	return Refusal{}
}

// firstAccount is the index of the first account of the period for which is holds, or -1.
func firstAccount(chain Chain, states []AccountState, p Period, is func(AccountState) bool) int {
	for i := range chain {
		if chain[i].Period == p && is(states[i]) {
			return i
		}
	}
	return -1
}

// refuseAccount counts overage into the limit, and credits that wait in leases
// as remaining: they make the refusal pending.
func refuseAccount(a Account, s AccountState, need int64, why Reason, wait time.Duration) Refusal {
	pending := s.Leased > 0
	if pending {
		wait = retryPending
	}
	return Refusal{
		Reason: why, Scope: a.Scope, Period: a.Period, Unit: UnitCredits,
		Need: need, Limit: s.Total + s.OverageLimit, Remaining: max(0, s.Remaining()+s.OverageLimit),
		RetryAfter: wait, Pending: pending,
	}
}

func refuseSlot(scope Scope, s SlotState, why Reason, wait time.Duration) Refusal {
	return Refusal{
		Reason: why, Scope: scope, Unit: UnitConcurrency,
		Need: 1, Limit: s.Max, Remaining: max(0, s.Max-s.InUse),
		RetryAfter: wait, Pending: s.Leased > 0,
	}
}

func refuseBucket(b BucketState, why Reason, wait time.Duration) Refusal {
	return Refusal{
		Reason: why, Scope: b.Scope, Unit: b.Unit,
		Need: b.Need, Limit: b.Limit.Burst, Remaining: max(0, b.Remaining),
		RetryAfter: wait,
	}
}

// short says that one more request has no slot.
func (s SlotState) short() bool { return s.Max >= 0 && s.InUse+s.Leased >= s.Max }

// short says that the bucket lacks what was asked of it. A bucket in debt (a
// correction took more than it had) is short even of nothing.
func (b BucketState) short() bool { return b.Need > b.Remaining }

// wait is until the missing tokens have flowed in, in whole seconds. The rate is above 0.
func (b BucketState) wait() time.Duration {
	missing := min(b.Need-max(b.Remaining, -CreditsMax), CreditsMax)
	return retrySeconds(ceilDiv(missing*b.Unit.Seconds(), b.Limit.Rate))
}

// Seconds is the time in which a bucket of this unit gets its rate; 0 for what is no bucket.
func (u Unit) Seconds() int64 {
	switch u {
	case UnitRPS:
		return 1
	case UnitRPM, UnitTPM:
		return 60
	}
	return 0
}

// retrySeconds makes a Retry-After of whole seconds, 1 … retryMaxSeconds.
func retrySeconds(seconds int64) time.Duration {
	return time.Duration(min(max(seconds, 1), retryMaxSeconds)) * time.Second
}

// ceilDiv is ⌈a/b⌉ for b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
