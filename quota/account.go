package quota

import (
	"fmt"
	"time"
)

// Period is how long an account lives.
type Period uint8

// The periods, in the order in which a chain lists them.
const (
	Ever Period = iota
	Month
	Day
)

// String gives the period's name as used in JSON and refusals.
func (p Period) String() string {
	switch p {
	case Ever:
		return "ever"
	case Month:
		return "month"
	case Day:
		return "day"
	}
	return fmt.Sprintf("period(%d)", uint8(p))
}

// Account names what one scope may spend in one period.
type Account struct {
	Scope  Scope
	ID     string // the scope's id: t_…, a_… or k_…
	Period Period
	Window Window // zero for Ever
}

// Chain is all accounts that one request touches, `ever` accounts first
// (org, app, key), then the configured month and day accounts in the same
// order of scopes. The org's `ever` account is always first.
type Chain []Account

// ChainMax bounds a chain: 3 scopes × 3 periods.
const ChainMax = 9

// NewChain lists what a request of the principal touches: the three `ever`
// accounts, then the month accounts and then the day accounts of the scopes
// that have such a budget; budgets is by scope. Windows are those that contain
// nowMillis in the zone (see WindowAt).
func NewChain(who Principal, budgets [3]Budget, nowMillis int64, zone *time.Location) Chain {
	chain := make(Chain, 0, ChainMax)
	for _, p := range [...]Period{Ever, Month, Day} {
		var w Window
		for _, s := range Scopes {
			if !budgets[s].limits(p) {
				continue
			}
			if p != Ever && w.Name == "" {
				w = WindowAt(p, nowMillis, zone)
			}
			chain = append(chain, Account{Scope: s, ID: who.ID(s), Period: p, Window: w})
		}
	}
	return chain
}

// AccountState is an account as Redis last told it. All in credits.
type AccountState struct {
	Total        int64 // Unlimited (-1) or 0 … CreditsMax
	OverageLimit int64 // what may be spent beyond Total
	Spent        int64
	Prepaid      int64 // held amounts plus frozen amounts of tabs
	Leased       int64 // the tabs' part of Prepaid
}

// Limited says whether the account has a total.
func (a AccountState) Limited() bool { return a.Total >= 0 }

// Available is what admission may still freeze without overage:
// total − prepaid − spent. Meaningless for an unlimited account.
func (a AccountState) Available() int64 { return a.Total - a.Prepaid - a.Spent }

// InFlight is what running requests hold: prepaid − leased.
func (a AccountState) InFlight() int64 { return a.Prepaid - a.Leased }

// Remaining is what a person is told is left: total − spent − in flight.
// Credits that wait in leases are not used. Meaningless for an unlimited account.
func (a AccountState) Remaining() int64 { return a.Total - a.Spent - a.InFlight() }

// Fits says whether need more credits may be frozen: spent + prepaid + need ≤ total + overage limit.
func (a AccountState) Fits(need int64) bool {
	return !a.Limited() || need <= a.Total+a.OverageLimit-a.Prepaid-a.Spent
}

// NeverFits says that need is above all the account could ever carry.
func (a AccountState) NeverFits(need int64) bool {
	return a.Limited() && need > a.Total+a.OverageLimit
}

// Negative says that more is spent and frozen than was ever allowed.
func (a AccountState) Negative() bool {
	return a.Limited() && a.Spent+a.Prepaid > a.Total+a.OverageLimit
}
