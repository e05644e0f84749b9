package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of the Adjuster.
const (
	adjustTimeout     = 2 * time.Second        // how long a caller waits for the outcome; then it is pending and the repair's
	adjustSendTimeout = 500 * time.Millisecond // one question to Redis
	adjustLoadTries   = 5                      // loads that a change of the tenant overtook; then the adjustment is left to the repair
	adjustEvery       = time.Second            // between two looks for what was left behind
	adjustGrace       = 3 * time.Second        // age of an adjustment that the repair takes up: longer than adjustTimeout
	adjustBatch       = 100                    // accounts of one look and store; the rest is for the next
)

var (
	adjustsApplied = metrics.NewCounter(`tollgate_adjustments_total{outcome="applied"}`)
	adjustsRefused = metrics.NewCounter(`tollgate_adjustments_total{outcome="refused"}`)
	adjustsPending = metrics.NewCounter(`tollgate_adjustments_total{outcome="pending"}`) // as answered; the repair ends them
)

// Adjuster changes totals: it records an adjustment in SQL, has Redis apply it
// once under its number, and records the outcome. A loop per store goes on with
// what a crash or an outage left open. See BringAdjusts for why each counts
// once whatever happens in between.
type Adjuster struct {
	outbox
	stop  context.CancelFunc
	loops sync.WaitGroup
}

// AdjustAnswer is what Redis held when it decided an adjustment: what
// Adjustment.Reply carries. All in credits; Total is after it if it was applied.
type AdjustAnswer struct {
	Total   int64 `json:"total"`
	Prepaid int64 `json:"prepaid"`
	Spent   int64 `json:"spent"`
}

// Answer decodes Reply; nil where the adjustment was refused without a question to Redis, or is pending.
func (a *Adjustment) Answer() *AdjustAnswer {
	var answer AdjustAnswer
	if len(a.Reply) == 0 || json.Unmarshal(a.Reply, &answer) != nil {
		return nil
	}
	return &answer
}

// NewAdjuster starts a repair loop for each store, by its name in the
// configuration. Close it.
func NewAdjuster(db *DB, stores map[string]*lua.Store) *Adjuster {
	a := &Adjuster{outbox: outbox{db: db, stores: stores}}
	life, stop := context.WithCancel(context.Background())
	a.stop = stop
	for name := range stores {
		a.loops.Go(func() { every(life, adjustEvery, func() { a.repair(life, name) }) })
	}
	return a
}

// Close stops the repair and waits for it.
func (a *Adjuster) Close() {
	a.stop()
	a.loops.Wait()
}

// Adjust changes the `ever` total of one account by delta credits. The state of
// what it returns says how it went: applied, refused (with a Reason), or
// pending when Redis could not be asked in time: then it will be, in order. An
// error means that nothing was recorded. Once recorded, it goes on although ctx
// ends, for adjustTimeout at most.
func (a *Adjuster) Adjust(ctx context.Context, op Op, tenant string, scope quota.Scope, id string, delta int64) (adj Adjustment, repeat bool, err error) {
	adj, repeat, err = a.db.BeginAdjust(ctx, op, tenant, scope, id, delta)
	if err != nil {
		return adj, repeat, err
	}
	if adj.State == AdjustPending {
		ctx := context.WithoutCancel(ctx)
		if err := a.bringBounded(ctx, Subject{tenant, scope, id}); err != nil {
			slog.Warn("an adjustment is left to the repair", "tenant", tenant, "scope", scope, "id", id, "number", adj.Num, "error", err)
		}
		ctx, cancel := context.WithTimeout(ctx, adjustTimeout)
		defer cancel()
		if now, err := a.db.GetAdjust(ctx, tenant, scope, id, adj.Num); err == nil {
			adj = now
		}
	}
	if !repeat {
		map[AdjustState]*metrics.Counter{
			AdjustApplied: adjustsApplied, AdjustRefused: adjustsRefused, AdjustPending: adjustsPending,
		}[adj.State].Inc()
	}
	return adj, repeat, nil
}

// bring carries the account's open adjustments to Redis, and tells it the version that this makes.
func (a *Adjuster) bring(ctx context.Context, s Subject) error {
	err := a.db.BringAdjusts(ctx, s, a.send)
	if away(err) {
		return err
	}
	return errors.Join(err, a.publishTenant(ctx, s.Tenant, inHome))
}

// inHome wants what is written where the tenant's accounts live.
func inHome(p *Publication) bool { return p.Kind != PublishSecret }

// send is the SendAdjust of real stores.
func (a *Adjuster) send(ctx context.Context, adj Adjustment, force bool) (AdjustReply, error) {
	tenant, err := a.db.GetTenant(ctx, adj.Tenant)
	if err != nil {
		return AdjustReply{}, err
	}
	store, ok := a.stores[tenant.Store]
	if !ok {
		return AdjustReply{}, fmt.Errorf("no store %q is configured here", tenant.Store)
	}
	account := quota.Account{Scope: adj.Scope, ID: adj.ID}
	for range adjustLoadTries {
		if err := a.publishTenant(ctx, adj.Tenant, inHome); err != nil {
			return AdjustReply{}, err
		}
		loads, err := a.db.LoadAccounts(ctx, adj.Tenant, quota.Chain{account})
		if err != nil {
			return AdjustReply{}, err
		}
		reply, err := ask(ctx, store, adj, account, &loads, force)
		if err != nil {
			return AdjustReply{}, err
		}
		if reply.Outcome == lua.NeedLoad {
			continue // the tenant changed since: read again
		}
		if len(reply.States) != 1 {
			return AdjustReply{}, fmt.Errorf("%w: adjustment of %s", lua.ErrReply, adj.Tenant)
		}
		state := reply.States[0]
		answer, err := json.Marshal(AdjustAnswer{Total: state.Total, Prepaid: state.Prepaid, Spent: state.Spent})
		return AdjustReply{Outcome: reply.Outcome, Total: state.Total, Answer: answer}, err
	}
	return AdjustReply{}, fmt.Errorf("the tenant changed %d times while its account was read", adjustLoadTries)
}

func ask(ctx context.Context, store *lua.Store, adj Adjustment, account quota.Account, loads *lua.Loads, force bool) (lua.AccountReply, error) {
	ctx, cancel := context.WithTimeout(ctx, adjustSendTimeout)
	defer cancel()
	return store.Adjust(ctx, adj.Tenant, account, loads, adj.Num, adj.Delta, force)
}

// repair goes on with what is open in one store, until the store is away.
func (a *Adjuster) repair(ctx context.Context, store string) {
	list, err := a.db.OpenSubjects(ctx, store, a.db.opt.Now().Add(-adjustGrace).UnixMilli(), adjustBatch)
	if err != nil {
		if ctx.Err() == nil {
			slog.Warn("cannot read open adjustments", "store", store, "error", err)
		}
		return
	}
	for _, s := range list {
		err := a.bringBounded(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			slog.Warn("an adjustment waits", "tenant", s.Tenant, "scope", s.Scope, "id", s.ID, "error", err)
			if away(err) {
				return
			}
		}
	}
}

func (a *Adjuster) bringBounded(ctx context.Context, s Subject) error {
	ctx, cancel := context.WithTimeout(ctx, adjustTimeout)
	defer cancel()
	return a.bring(ctx, s)
}
