package ledger

import (
	"context"
	"encoding/json"
	"errors"
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

// pendingAdjustsMax bounds the adjustments of one account whose outcome is
// open. More are refused with ErrTooMany until the repair has ended some.
const pendingAdjustsMax = 100

// Adjustment is one numbered change of an account's `ever` total.
//
// The order of steps, and what a crash between them leaves: BeginAdjust makes a
// pending row; the caller sends it to Redis under its number; FinishAdjust
// records the outcome, and raises the total in the same transaction; the
// publication of kind PublishAdjust has Redis confirm it. A pending row is sent
// again by whoever finds it, in the order of PendingAdjusts.
type Adjustment struct {
	Tenant string          `json:"tenant"`
	Scope  quota.Scope     `json:"scope"`
	ID     string          `json:"id"`    // of the scope
	Num    int64           `json:"num"`   // from 1, per account, in the order of BeginAdjust
	Delta  int64           `json:"delta"` // credits; never 0
	State  AdjustState     `json:"state"`
	Reason string          `json:"reason,omitempty"` // of a refusal
	Reply  json.RawMessage `json:"reply,omitempty"`  // what FinishAdjust was given: the numbers to answer with
	// Before is the account's total in SQL when the row was read: without this
	// adjustment if it is pending, and without those before it that are.
	Before int64 `json:"-"`
}

// Judge tells what Redis did with this pending adjustment, from the account's
// total there once its `adj` has reached Num. It holds for the first pending
// adjustment of an account; known is false if the total fits neither outcome.
func (a *Adjustment) Judge(redisTotal int64) (applied, known bool) {
	return redisTotal == a.Before+a.Delta, redisTotal == a.Before || redisTotal == a.Before+a.Delta
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
	err = t.row(ctx, `SELECT COUNT(*) FROM adjustment WHERE state = 'pending' AND tenant = ? AND scope = ? AND scope_id = ?`,
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
	ended := int64(0)
	if a.State != AdjustPending {
		ended = t.now
	}
	_, err = t.exec(ctx, `INSERT INTO adjustment (tenant, scope, scope_id, num, delta, state, reason, reply, op_id, created_at, ended_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?)`, tenant, scope.String(), id, a.Num, delta, string(a.State), a.Reason, op.ID, t.now, ended)
	if err != nil {
		return a, err
	}
	return a, t.log(ctx, op, tenant, id, nil, map[string]any{
		"scope": scope.String(), "num": a.Num, "delta": delta, "state": a.State, "reason": a.Reason,
	})
}

// pendingRaise sums the raises of an account whose outcome is open.
func (t *tx) pendingRaise(ctx context.Context, tenant string, scope quota.Scope, id string) (credits int64, err error) {
	deltas, err := collect(ctx, t, `SELECT delta FROM adjustment WHERE state = 'pending' AND tenant = ? AND scope = ? AND scope_id = ? AND delta > 0`,
		[]any{tenant, scope.String(), id}, func(row scanner) (delta int64, err error) {
			err = row.Scan(&delta)
			return delta, err
		})
	for _, delta := range deltas {
		credits += delta
	}
	return credits, err
}

// FinishAdjust records what Redis said to a pending adjustment, and gives the
// adjustment as it stands: if another caller was first, its outcome. Applied,
// it becomes part of account.total in the same transaction. reply, a JSON value
// or nil, is kept for repeats of the operation. Finishing one while a lower
// number is pending is ErrAdjustOrder and changes nothing.
func (db *DB) FinishAdjust(ctx context.Context, a Adjustment, outcome AdjustState, reason string, reply json.RawMessage) (now Adjustment, err error) {
	if outcome != AdjustApplied && outcome != AdjustRefused {
		return a, invalid("state", "an adjustment ends applied or refused")
	}
	if len(reason) > 200 || len(reply) > policyBytesMax || (len(reply) > 0 && !json.Valid(reply)) {
		return a, invalid("reply", "want JSON of at most %d bytes and a reason of at most 200", policyBytesMax)
	}
	_, err = db.write(ctx, Op{}, &now, func(t *tx) error {
		now, err = t.finishAdjust(ctx, a, outcome, reason, reply)
		return err
	})
	return now, err
}

func (t *tx) finishAdjust(ctx context.Context, a Adjustment, outcome AdjustState, reason string, reply json.RawMessage) (Adjustment, error) {
	if _, err := t.exec(ctx, `UPDATE tenant SET updated_at = ? WHERE id = ?`, t.now, a.Tenant); err != nil {
		return a, err
	}
	now, err := t.adjust(ctx, a.Tenant, a.Scope, a.ID, a.Num)
	if err != nil || now.State != AdjustPending {
		return now, err
	}
	var earlier int64
	err = t.row(ctx, `SELECT COUNT(*) FROM adjustment WHERE state = 'pending' AND tenant = ? AND scope = ? AND scope_id = ? AND num < ?`,
		[]any{a.Tenant, a.Scope.String(), a.ID, a.Num}, &earlier)
	if err != nil {
		return now, err
	}
	if earlier > 0 {
		return now, ErrAdjustOrder
	}
	add := int64(0)
	if outcome == AdjustApplied {
		add = now.Delta
		if total := now.Before + add; now.Before < 0 || total < 0 || total > quota.CreditsMax {
			return now, invalid("delta", "the total would be %d", total)
		}
	}
	now.State, now.Reason, now.Reply, now.Before = outcome, reason, reply, now.Before+add
	_, err = t.exec(ctx, `UPDATE adjustment SET state = ?, reason = ?, reply = ?, ended_at = ? WHERE tenant = ? AND scope = ? AND scope_id = ? AND num = ?`,
		string(outcome), reason, string(reply), t.now, a.Tenant, a.Scope.String(), a.ID, a.Num)
	if err != nil {
		return now, err
	}
	// adj covers the refused ones too: whatever of them is still on its way to Redis is then a repeat there.
	_, err = t.exec(ctx, `UPDATE account SET total = total + ?, adj = ? WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = ''`,
		add, a.Num, a.Tenant, a.Scope.String(), a.ID)
	if err != nil || outcome == AdjustRefused {
		return now, err
	}
	return now, t.publishAdjust(ctx, &now)
}

// publishAdjust has Redis confirm an applied adjustment: it may have lost the
// account after it applied it, and loaded it again before the total was raised
// here. The new version keeps out loads that were read before.
func (t *tx) publishAdjust(ctx context.Context, a *Adjustment) error {
	version, store, err := t.bump(ctx, a.Tenant)
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, `UPDATE tenant SET doc_version = version WHERE id = ?`, a.Tenant); err != nil {
		return err
	}
	if err := t.publish(ctx, Publication{Tenant: a.Tenant, Kind: PublishTenant, Item: a.Tenant, Store: store, Version: version}); err != nil {
		return err
	}
	return t.publish(ctx, Publication{Tenant: a.Tenant, Kind: PublishAdjust, Item: adjustItem(a), Store: store, Version: version})
}

const adjustColumns = `j.tenant, j.scope, j.scope_id, j.num, j.delta, j.state, j.reason, j.reply, c.total FROM adjustment j
	JOIN account c ON c.tenant = j.tenant AND c.scope = j.scope AND c.scope_id = j.scope_id AND c.window_name = ''`

func scanAdjust(row scanner) (a Adjustment, err error) {
	var scope, reply string
	if err = row.Scan(&a.Tenant, &scope, &a.ID, &a.Num, &a.Delta, &a.State, &a.Reason, &reply, &a.Before); err != nil {
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

// PendingAdjusts reads the account's adjustments that Redis still has to be
// told, in their order: applied ones whose confirmation is outstanding (send
// each again under its number, forced, then DonePublication), then pending ones
// (send, then FinishAdjust). Stop at the first that fails.
func (db *DB) PendingAdjusts(ctx context.Context, tenant string, scope quota.Scope, id string) (list []Adjustment, err error) {
	err = db.read(ctx, func(t *tx) error {
		items, err := collect(ctx, t, `SELECT item FROM publication WHERE tenant = ? AND kind = 'adjust' ORDER BY version`, []any{tenant}, scanString)
		if err != nil {
			return err
		}
		for _, item := range items {
			s, i, num, err := parseAdjustItem(item)
			if err != nil {
				return err
			}
			if s != scope || i != id {
				continue
			}
			a, err := t.adjust(ctx, tenant, s, i, num)
			if err != nil {
				return err
			}
			list = append(list, a)
		}
		pending, err := collect(ctx, t, `SELECT `+adjustColumns+` WHERE j.state = 'pending' AND j.tenant = ? AND j.scope = ? AND j.scope_id = ? ORDER BY j.num`,
			[]any{tenant, scope.String(), id}, scanAdjust)
		list = append(list, pending...)
		return err
	})
	return list, err
}

// Subject names an account with pending adjustments.
type Subject struct {
	Tenant string
	Scope  quota.Scope
	ID     string
}

// PendingSubjects reads up to limit (at most 1000) accounts of a store's tenants that
// have pending adjustments older than the given time (ms), for the repair.
func (db *DB) PendingSubjects(ctx context.Context, store string, olderThan int64, limit int) (list []Subject, err error) {
	err = db.read(ctx, func(t *tx) error {
		list, err = collect(ctx, t, `SELECT DISTINCT j.tenant, j.scope, j.scope_id FROM adjustment j JOIN tenant t ON t.id = j.tenant
			WHERE j.state = 'pending' AND t.store = ? AND j.created_at < ? ORDER BY j.tenant, j.scope, j.scope_id LIMIT ?`,
			[]any{store, olderThan, page(limit)}, func(row scanner) (s Subject, err error) {
				var scope string
				if err = row.Scan(&s.Tenant, &scope, &s.ID); err != nil {
					return s, err
				}
				s.Scope, err = parseScope(scope)
				return s, err
			})
		return err
	})
	return list, err
}

var errItem = errors.New("ledger: malformed publication item in the database")
