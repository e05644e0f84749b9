package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"tollgate/quota"
)

// AdjustState is how far an adjustment came.
type AdjustState string

// The states. Applied and refused are final.
const (
	AdjustPending AdjustState = "pending" // Redis has not been asked, or its answer is not known here
	AdjustApplied AdjustState = "applied" // it counts: account.total contains it
	AdjustRefused AdjustState = "refused" // it never counts
)

// Reasons of refusals that need no question to Redis.
const (
	RefusedUnlimited  = "unlimited"   // the account has no total to adjust
	RefusedTooLarge   = "too_large"   // the total would leave 2^53-1, with the overage limit and all pending raises
	RefusedBelowUsage = "below_usage" // the cut is deeper than the total and all pending raises
)

// pendingAdjustsMax bounds the pending adjustments of one account. More are refused with ErrTooMany until the repair has ended some.
const pendingAdjustsMax = 100

// Adjustment is one numbered change of an account's `ever` total. BeginAdjust
// makes the row; BringAdjusts asks Redis and records the outcome.
type Adjustment struct {
	Tenant string          `json:"tenant"`
	Scope  quota.Scope     `json:"scope"`
	ID     string          `json:"id"`    // of the scope
	Num    int64           `json:"num"`   // from 1, per account, in the order of BeginAdjust
	Delta  int64           `json:"delta"` // credits; never 0
	State  AdjustState     `json:"state"`
	Reason string          `json:"reason,omitempty"` // of a refusal
	Reply  json.RawMessage `json:"reply,omitempty"`  // what FinishAdjust was given: the numbers to answer with
	// Before is the account's total in SQL when the row was read: with all that is applied, without what is pending.
	Before int64 `json:"-"`
	open   bool  // Redis is not known to hold the outcome
}

// BeginAdjust records the wish to change an account's total by delta. What
// cannot be is refused here, with a Reason; anything else is pending and up to
// Redis. A repeat gives the adjustment as it stands now.
func (db *DB) BeginAdjust(ctx context.Context, op Op, tenant string, scope quota.Scope, id string, delta int64) (a Adjustment, repeat bool, err error) {
	if delta == 0 || delta > quota.CreditsMax || delta < -quota.CreditsMax {
		return Adjustment{}, false, invalid("delta", "must be a whole number other than 0, of at most 2^53-1 either way")
	}
	repeat, err = db.write(ctx, op, &a, func(t *tx) error {
		a, err = t.beginAdjust(ctx, op, tenant, scope, id, delta)
		return err
	})
	if err == nil && repeat {
		a, err = db.GetAdjust(ctx, a.Tenant, a.Scope, a.ID, a.Num)
	}
	return a, repeat, err
}

func (t *tx) beginAdjust(ctx context.Context, op Op, tenant string, scope quota.Scope, id string, delta int64) (Adjustment, error) {
	a := Adjustment{Tenant: tenant, Scope: scope, ID: id, Delta: delta, State: AdjustPending}
	// The same lock as bump, without a new version: nothing that a load reads changes.
	if _, err := t.exec(ctx, `UPDATE tenant SET updated_at = ? WHERE id = ?`, t.now, tenant); err != nil {
		return a, err
	}
	_, err := t.exec(ctx, `UPDATE account SET adj_issued = adj_issued + 1 WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = ''`,
		tenant, scope.String(), id)
	if err != nil {
		return a, err
	}
	err = t.row(ctx, `SELECT total, adj_issued FROM account WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = ''`,
		[]any{tenant, scope.String(), id}, &a.Before, &a.Num)
	if err != nil {
		return a, err
	}
	var overage, pending int64
	if scope == quota.Org {
		if err := t.row(ctx, `SELECT overage_limit FROM tenant WHERE id = ?`, []any{tenant}, &overage); err != nil {
			return a, err
		}
	}
	err = t.row(ctx, `SELECT COUNT(*) FROM adjustment WHERE is_open = 1 AND state = 'pending' AND tenant = ? AND scope = ? AND scope_id = ?`,
		[]any{tenant, scope.String(), id}, &pending)
	if err != nil {
		return a, err
	}
	if pending >= pendingAdjustsMax {
		return a, fmt.Errorf("%w: %d adjustments of the account are pending, the most there may be", ErrTooMany, pending)
	}
	raise, err := t.pendingRaise(ctx, tenant, scope, id)
	if err != nil {
		return a, err
	}
	// No sum here can wrap: each operand is within 2^53, and pendingRaise within 100 · 2^53.
	switch most := a.Before + raise + delta; {
	case a.Before == quota.Unlimited:
		a.State, a.Reason = AdjustRefused, RefusedUnlimited
	case delta > 0 && most > quota.CreditsMax-overage:
		a.State, a.Reason = AdjustRefused, RefusedTooLarge
	case most < 0:
		a.State, a.Reason = AdjustRefused, RefusedBelowUsage
	}
	a.open = a.State == AdjustPending
	open, ended := 1, int64(0)
	if !a.open {
		open, ended = 0, t.now
	}
	_, err = t.exec(ctx, `INSERT INTO adjustment (tenant, scope, scope_id, num, delta, state, is_open, reason, reply, op_id, created_at, ended_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)`, tenant, scope.String(), id, a.Num, delta, string(a.State), open, a.Reason, op.ID, t.now, ended)
	if err != nil {
		return a, err
	}
	return a, t.log(ctx, op, tenant, id, nil, map[string]any{
		"scope": scope.String(), "num": a.Num, "delta": delta, "state": a.State, "reason": a.Reason,
	})
}

// pendingRaise sums the raises of an account whose outcome is open.
func (t *tx) pendingRaise(ctx context.Context, tenant string, scope quota.Scope, id string) (credits int64, err error) {
	deltas, err := collect(ctx, t, `SELECT delta FROM adjustment WHERE is_open = 1 AND state = 'pending' AND tenant = ? AND scope = ? AND scope_id = ? AND delta > 0`,
		[]any{tenant, scope.String(), id}, func(row scanner) (delta int64, err error) {
			err = row.Scan(&delta)
			return delta, err
		})
	for _, delta := range deltas {
		credits += delta
	}
	return credits, err
}

const adjustColumns = `j.tenant, j.scope, j.scope_id, j.num, j.delta, j.state, j.is_open, j.reason, j.reply, c.total FROM adjustment j
	JOIN account c ON c.tenant = j.tenant AND c.scope = j.scope AND c.scope_id = j.scope_id AND c.window_name = ''`

func scanAdjust(row scanner) (a Adjustment, err error) {
	var scope, reply string
	if err = row.Scan(&a.Tenant, &scope, &a.ID, &a.Num, &a.Delta, &a.State, &a.open, &a.Reason, &reply, &a.Before); err != nil {
		return a, err
	}
	if reply != "" {
		a.Reply = json.RawMessage(reply)
	}
	a.Scope, err = parseScope(scope)
	return a, err
}

func parseScope(name string) (quota.Scope, error) {
	for _, scope := range quota.Scopes {
		if scope.String() == name {
			return scope, nil
		}
	}
	return 0, fmt.Errorf("ledger: unknown scope %q in the database", name)
}

func (t *tx) adjust(ctx context.Context, tenant string, scope quota.Scope, id string, num int64) (Adjustment, error) {
	list, err := collect(ctx, t, `SELECT `+adjustColumns+` WHERE j.tenant = ? AND j.scope = ? AND j.scope_id = ? AND j.num = ?`,
		[]any{tenant, scope.String(), id, num}, scanAdjust)
	return one(list, err)
}

// GetAdjust reads one adjustment.
func (db *DB) GetAdjust(ctx context.Context, tenant string, scope quota.Scope, id string, num int64) (a Adjustment, err error) {
	err = db.read(ctx, func(t *tx) error {
		a, err = t.adjust(ctx, tenant, scope, id, num)
		return err
	})
	return a, err
}
