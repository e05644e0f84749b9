package lua

import (
	"time"

	"tollgate/quota"
)

// AccountLimit is what a document sets on one account that Redis holds; nil leaves it.
type AccountLimit struct {
	Account      quota.Account
	Total        *int64 // month and day accounts; quota.Unlimited for none
	OverageLimit *int64
	MaxInflight  *int64
}

// boundarySlack is how near to the end or start of a day or month the
// neighbouring period's account gets its limits too: what Redis' clock may be
// away from what a node takes it for.
const boundarySlack = 5 * time.Second

// LimitsOf are what a scope's document sets on its accounts that exist at
// nowMillis of Redis' time. The total of the `ever` account is not among them:
// only adjustments change it. overage is nil but for a tenant's document.
func LimitsOf(scope quota.Scope, id string, b *quota.Budget, overage *int64, nowMillis int64, zone *time.Location) []AccountLimit {
	limits := []AccountLimit{{
		Account: quota.Account{Scope: scope, ID: id}, OverageLimit: overage, MaxInflight: orUnlimited(b.Limits.Concurrency),
	}}
	for _, at := range []struct {
		period quota.Period
		total  *int64
	}{{quota.Month, orUnlimited(b.Month)}, {quota.Day, orUnlimited(b.Day)}} {
		for _, window := range windowsAround(at.period, nowMillis, zone) {
			limits = append(limits, AccountLimit{
				Account: quota.Account{Scope: scope, ID: id, Period: at.period, Window: window}, Total: at.total,
			})
		}
	}
	return limits
}

// windowsAround are the period's windows of the instant, and within
// boundarySlack of a boundary also that of its other side.
func windowsAround(p quota.Period, nowMillis int64, zone *time.Location) []quota.Window {
	slack := boundarySlack.Milliseconds()
	list := []quota.Window{quota.WindowAt(p, nowMillis-slack, zone)}
	if last := list[0]; last.End <= nowMillis+slack {
		list = append(list, quota.WindowAt(p, nowMillis+slack, zone))
	}
	return list
}

func orUnlimited(limit *int64) *int64 {
	if limit == nil {
		return new(quota.Unlimited)
	}
	return limit
}
