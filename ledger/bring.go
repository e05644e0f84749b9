package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"tollgate/lua"
	"tollgate/quota"
)

// An account's adjustments are brought to Redis by one node at a time, the
// holder of the account's claim. Two that decide the same number may come to
// different outcomes: a cut refused now fits a moment later.
const (
	claimUse   = 8 * time.Second       // how long a holder works at most
	claimTTL   = 15 * time.Second      // after which another may take over; the rest is for clocks that differ and calls under way
	claimPause = 20 * time.Millisecond // between looks at a claim that another holds
)

// bringStepsMax bounds the work of one BringAdjusts: ask and confirm each
// pending adjustment, and as many that come meanwhile. The rest is for the next.
const bringStepsMax = 4 * pendingAdjustsMax

// Subject names an account with adjustments.
type Subject struct {
	Tenant string
	Scope  quota.Scope
	ID     string // of the scope
}

// AdjustReply is what Redis said to a numbered adjustment.
type AdjustReply struct {
	Outcome lua.Outcome     // Done, Repeat, Below, TooLarge or NoTotal; any other is an error of the sender
	Total   int64           // the account's total there, after it
	Answer  json.RawMessage // kept with the adjustment, at most 16 KiB: the numbers to answer with; may be nil
}

// SendAdjust has Redis apply an adjustment under its number, once. It brings
// the tenant's publications there first, so that values which SQL no longer
// holds cannot be loaded any more. force: it is decided, Redis must not refuse
// a cut below usage. An error means that the outcome is unknown.
type SendAdjust func(ctx context.Context, a Adjustment, force bool) (AdjustReply, error)

// BringAdjusts brings an account's open adjustments to Redis, in their order,
// until none is left, and records the outcomes. It may be interrupted anywhere
// and called by any number of nodes: the next call goes on where the last one
// stopped. While another node holds the account's claim it waits, until ctx
// ends or the claim expires: ErrClaimed.
//
// Per adjustment: Redis is asked; the outcome and, if applied, the new total go
// to SQL in one transaction; then Redis is asked again, by force. For it may
// have lost the account after it applied the number, and loaded it from SQL
// before that knew. Only then the next one is sent.
func (db *DB) BringAdjusts(ctx context.Context, s Subject, send SendAdjust) error {
	claim, err := db.claim(ctx, s)
	if err != nil || claim == "" {
		return err
	}
	err = db.bring(ctx, s, claim, send)
	releaseCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.opt.WriteTimeout)
	defer cancel()
	return errors.Join(err, db.release(releaseCtx, s, claim))
}

func (db *DB) bring(ctx context.Context, s Subject, claim string, send SendAdjust) error {
	ctx, cancel := context.WithTimeout(ctx, claimUse)
	defer cancel()
	for range bringStepsMax {
		list, err := db.OpenAdjusts(ctx, s)
		if err != nil || len(list) == 0 {
			return err
		}
		a := list[0]
		reply, err := send(ctx, a, a.State == AdjustApplied)
		if err != nil {
			return fmt.Errorf("ledger: adjustment %d of %s %s: %w", a.Num, s.Scope, s.ID, err)
		}
		if err := db.record(ctx, claim, a, reply); err != nil {
			return err
		}
	}
	return nil
}

// record writes what Redis said to the account's first open adjustment.
func (db *DB) record(ctx context.Context, claim string, a Adjustment, reply AdjustReply) error {
	if a.State == AdjustApplied {
		if reply.Outcome != lua.Done && reply.Outcome != lua.Repeat {
			return fmt.Errorf("ledger: adjustment %d of %s %s was applied, and Redis refuses it: %s", a.Num, a.Scope, a.ID, reply.Outcome)
		}
		return db.confirmAdjust(ctx, a)
	}
	outcome, reason := AdjustRefused, ""
	switch reply.Outcome {
	case lua.Done:
		outcome = AdjustApplied
	case lua.Repeat:
		// Sent before by someone who could not record the outcome. Nothing later
		// was sent since, so the total tells it.
		switch reply.Total {
		case a.Before + a.Delta:
			outcome = AdjustApplied
		case a.Before:
			reason = RefusedBelowUsage
		default:
			return fmt.Errorf("ledger: adjustment %d of %s %s: Redis has total %d, neither %d nor %d",
				a.Num, a.Scope, a.ID, reply.Total, a.Before, a.Before+a.Delta)
		}
	case lua.Below:
		reason = RefusedBelowUsage
	case lua.TooLarge:
		reason = RefusedTooLarge
	case lua.NoTotal:
		reason = RefusedUnlimited
	default:
		return fmt.Errorf("ledger: adjustment %d of %s %s: Redis answered %q", a.Num, a.Scope, a.ID, reply.Outcome)
	}
	return db.finishAdjust(ctx, claim, a, outcome, reason, reply.Answer)
}

// claim waits for the account's claim; "" means that nothing is open any more.
func (db *DB) claim(ctx context.Context, s Subject) (string, error) {
	random, err := uuid.NewRandom()
	if err != nil {
		return "", err
	}
	claim := random.String()
	ctx, cancel := context.WithTimeout(ctx, claimTTL+claimUse)
	defer cancel()
	for {
		list, err := db.OpenAdjusts(ctx, s)
		if err != nil || len(list) == 0 {
			return "", err
		}
		var n int64
		err = db.writeOnce(ctx, func(t *tx) error {
			n, err = t.exec(ctx, `UPDATE account SET claim = ?, claim_until = ? WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = ''
				AND (claim = '' OR claim_until < ?)`, claim, t.now+claimTTL.Milliseconds(), s.Tenant, s.Scope.String(), s.ID, t.now)
			return err
		})
		if err != nil {
			return "", err
		}
		if n == 1 {
			return claim, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", ErrClaimed, ctx.Err())
		case <-time.After(claimPause):
		}
	}
}

func (db *DB) release(ctx context.Context, s Subject, claim string) error {
	return db.writeOnce(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `UPDATE account SET claim = '', claim_until = 0 WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = '' AND claim = ?`,
			s.Tenant, s.Scope.String(), s.ID, claim)
		return err
	})
}

// finishAdjust ends a pending adjustment. Applied, it becomes part of
// account.total in the same transaction, and stays open until confirmed.
func (db *DB) finishAdjust(ctx context.Context, claim string, a Adjustment, outcome AdjustState, reason string, reply json.RawMessage) error {
	if len(reply) > policyBytesMax || (len(reply) > 0 && !json.Valid(reply)) {
		return invalid("reply", "want JSON of at most %d bytes", policyBytesMax)
	}
	return db.writeOnce(ctx, func(t *tx) error {
		version, store, err := t.bump(ctx, a.Tenant)
		if err != nil {
			return err
		}
		var holder string
		err = t.row(ctx, `SELECT claim FROM account WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = ''`,
			[]any{a.Tenant, a.Scope.String(), a.ID}, &holder)
		if err != nil {
			return err
		}
		if holder != claim {
			return ErrClaimed
		}
		add, open := int64(0), 0
		if outcome == AdjustApplied {
			add, open = a.Delta, 1
			if total := a.Before + add; a.Before < 0 || total < 0 || total > quota.CreditsMax {
				return fmt.Errorf("ledger: adjustment %d of %s %s: Redis applied %d to a total that is %d here", a.Num, a.Scope, a.ID, add, a.Before)
			}
		}
		n, err := t.exec(ctx, `UPDATE adjustment SET state = ?, is_open = ?, reason = ?, reply = ?, ended_at = ?
			WHERE tenant = ? AND scope = ? AND scope_id = ? AND num = ? AND state = 'pending'`,
			string(outcome), open, reason, string(reply), t.now, a.Tenant, a.Scope.String(), a.ID, a.Num)
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrClaimed // somebody else ended it
		}
		// adj covers the refused ones too: whatever of them is still on its way to Redis is then a repeat there.
		_, err = t.exec(ctx, `UPDATE account SET total = total + ?, adj = ? WHERE tenant = ? AND scope = ? AND scope_id = ? AND window_name = ''`,
			add, a.Num, a.Tenant, a.Scope.String(), a.ID)
		if err != nil {
			return err
		}
		// A new version keeps out loads that were read before.
		if _, err := t.exec(ctx, `UPDATE tenant SET doc_version = version WHERE id = ?`, a.Tenant); err != nil {
			return err
		}
		return t.publish(ctx, Publication{Tenant: a.Tenant, Kind: PublishTenant, Item: a.Tenant, Store: store, Version: version})
	})
}

func (db *DB) confirmAdjust(ctx context.Context, a Adjustment) error {
	return db.writeOnce(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `UPDATE adjustment SET is_open = 0 WHERE tenant = ? AND scope = ? AND scope_id = ? AND num = ? AND state = 'applied'`,
			a.Tenant, a.Scope.String(), a.ID, a.Num)
		return err
	})
}

// OpenAdjusts reads the account's adjustments that Redis is not known to hold,
// in their order: pending ones, and before them at most one that is applied but
// not confirmed.
func (db *DB) OpenAdjusts(ctx context.Context, s Subject) (list []Adjustment, err error) {
	err = db.read(ctx, func(t *tx) error {
		list, err = collect(ctx, t, `SELECT `+adjustColumns+` WHERE j.is_open = 1 AND j.tenant = ? AND j.scope = ? AND j.scope_id = ? ORDER BY j.num`,
			[]any{s.Tenant, s.Scope.String(), s.ID}, scanAdjust)
		return err
	})
	return list, err
}

// OpenSubjects reads up to limit (at most 1000) accounts of a store's tenants
// that have open adjustments made before the given time (ms), for the repair.
func (db *DB) OpenSubjects(ctx context.Context, store string, before int64, limit int) (list []Subject, err error) {
	err = db.read(ctx, func(t *tx) error {
		list, err = collect(ctx, t, `SELECT DISTINCT j.tenant, j.scope, j.scope_id FROM adjustment j JOIN tenant t ON t.id = j.tenant
			WHERE j.is_open = 1 AND t.store = ? AND j.created_at < ? ORDER BY j.tenant, j.scope, j.scope_id LIMIT ?`,
			[]any{store, before, page(limit)}, func(row scanner) (s Subject, err error) {
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
