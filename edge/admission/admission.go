package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

// Options of an Engine.
type Options struct {
	Node    string // this node's id, written into holds
	Loader  ledger.AccountLoader
	Settler *ledger.Settler
	Served  func(store *lua.Store, tenant string, nowMillis int64) // hears of every hold made here; nil: nobody does
	// Epoch changes whenever a tenant's documents or totals did (identity.Feed.Epoch of its conf).
	Epoch    func(store *lua.Store, tenant string) uint64
	Decision time.Duration // budget of one decision; 0: the store's own estimate
	Loads    *rate.Limiter // paces reads of SQL, together with whatever else reads it for known tenants
	Load     time.Duration // budget of one read of accounts from SQL
}

// Engine decides on the direct path. Safe for concurrent use.
type Engine struct {
	opt   Options
	short *shortCache
}

// New returns an Engine. Close it.
func New(o Options) *Engine { return &Engine{opt: o, short: newShortCache(time.Now)} }

// Close frees the cache of short accounts.
func (e *Engine) Close() { e.short.close() }

// Request is one need to be decided.
type Request struct {
	Principal   quota.Principal
	Budgets     [3]quota.Budget // by scope
	Zone        *time.Location
	Store       *lua.Store
	ID          string        // of the hold
	Fingerprint string        // of the content; for ids that a caller chose
	Amount      int64         // credits, 1 … quota.CreditsMax
	Requests    int64         // what the request buckets are charged; 0: 1
	Tokens      int64         // what the tpm buckets are charged
	TTL         time.Duration // life of the hold
	PriceID     string
	Consume     bool     // settle at once
	Mark        lua.Mark // once-only mark of an Idempotency-Key; zero: none
	Fresh       bool     // the id was made for this call: Redis cannot know it yet
	OwnID       bool     // and it never leaves the node: nobody can repeat it
}

// tries bounds how often one decision asks Redis: first, after a load, after a
// correction of the time, and once more for a race of these.
const tries = 5

// Reserve decides one request. A refusal is a Decision, not an error; on an
// error nothing stays charged or frozen. The Hold is nil for a refusal, for a
// repeat and for a consume.
func (e *Engine) Reserve(ctx context.Context, r *Request) (quota.Decision, *Hold, error) {
	start := time.Now()
	d, hold, err := e.reserve(ctx, r)
	directSeconds.Update(time.Since(start).Seconds())
	count(&d, err)
	return d, hold, err
}

func (e *Engine) reserve(ctx context.Context, r *Request) (quota.Decision, *Hold, error) {
	if e.opt.Settler.Full(r.Store) {
		return quota.Decision{}, nil, ErrBusy
	}
	budget := e.Budget(r.Store)
	args := lua.ReserveArgs{
		Target: lua.Target{Tenant: r.Principal.Tenant, ID: r.ID, Buckets: buckets(r), Mark: r.Mark},
		Amount: r.Amount, TTL: r.TTL, Consume: r.Consume, Fingerprint: r.Fingerprint, Attempt: attemptID(),
		PriceID: r.PriceID, Node: e.opt.Node, Tokens: r.Tokens,
	}
	args.Chain = quota.NewChain(r.Principal, r.Budgets, r.Store.Now(), r.Zone)
	epoch := e.opt.Epoch(r.Store, args.Tenant) // before Redis is asked for what may be learnt
	var doubted *shortEntry
	if r.Fresh { // a caller's id may name a call that was admitted before
		d, refused, doubt := e.short.refuses(args.Tenant, epoch, args.Chain, r.Amount, r.Store.Now())
		if refused {
			return d, nil, nil
		}
		doubted = doubt
	}
	for range tries {
		args.NotAfter = r.Store.Now() + budget.Milliseconds() + 1000
		reply, err := e.call(ctx, r.Store, budget, &args)
		if err != nil {
			if errors.Is(err, lua.ErrUnknown) {
				e.void(r, &args)
			}
			return quota.Decision{}, nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		switch reply.Outcome {
		case lua.Done:
			if doubted != nil {
				doubted.over.Store(true)
			}
			d := decision(&args, &reply)
			return d, e.hold(r, &args, &reply), nil
		case lua.Short:
			d := decision(&args, &reply)
			d.Reserved = 0
			d.Refusal = quota.Judge(args.Chain, reply.States, r.Amount, reply.Buckets, slots(r, &reply), reply.NowMillis)
			if d.Refusal.Reason == quota.Admitted {
				return quota.Decision{}, nil, fmt.Errorf("%w: redis refused what fits by its own numbers", ErrUnavailable)
			}
			e.short.learn(args.Tenant, epoch, &d, r.Amount)
			return d, nil, nil
		case lua.NeedLoad:
			loads, err := e.load(ctx, r.Principal.Tenant, args.Chain)
			if err != nil {
				return quota.Decision{}, nil, err
			}
			args.Loads = &loads
		case lua.WrongTime:
			args.Chain = quota.NewChain(r.Principal, r.Budgets, reply.NowMillis, r.Zone)
			args.Loads = nil
		case lua.Expired:
			// Our idea of Redis' time was behind; the reply has corrected it.
		case lua.Conflict:
			return quota.Decision{}, nil, ErrConflict
		case lua.InFlight:
			return quota.Decision{}, nil, ErrInFlight
		case lua.Replayed:
			return quota.Decision{}, nil, ErrReplayed
		case lua.TooLarge:
			return quota.Decision{}, nil, ErrTooLarge
		default:
			return quota.Decision{}, nil, fmt.Errorf("%w: reserve answered %q", ErrUnavailable, reply.Outcome)
		}
	}
	return quota.Decision{}, nil, fmt.Errorf("%w: no stable answer in %d tries", ErrUnavailable, tries)
}

// Pass decides a call that is free but counted: it draws on the request buckets alone.
func (e *Engine) Pass(ctx context.Context, r *Request) (quota.Decision, error) {
	d := quota.Decision{NowMillis: r.Store.Now()}
	var requests []lua.BucketArg
	for _, b := range buckets(r) {
		if b.Unit != quota.UnitTPM {
			requests = append(requests, b)
		}
	}
	if len(requests) == 0 {
		return d, nil
	}
	budget := e.Budget(r.Store)
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	need := max(r.Requests, 1)
	reply, err := r.Store.Take(ctx, r.Principal.Tenant, requests, need, need, r.Store.Now()+budget.Milliseconds()+1000)
	if err != nil {
		return d, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if reply.Outcome == lua.Expired {
		return d, fmt.Errorf("%w: the answer came too late", ErrUnavailable)
	}
	d.NowMillis, d.Buckets = reply.NowMillis, reply.Buckets
	if reply.Outcome == lua.Short {
		d.Refusal = quota.Judge(nil, nil, 0, reply.Buckets, noSlots, reply.NowMillis)
	}
	count(&d, nil)
	return d, nil
}

// Budget is what one decision may take on a store.
func (e *Engine) Budget(s *lua.Store) time.Duration {
	if e.opt.Decision > 0 {
		return e.opt.Decision
	}
	return s.Budget()
}

func (e *Engine) call(ctx context.Context, s *lua.Store, budget time.Duration, args *lua.ReserveArgs) (lua.ReserveReply, error) {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	return s.Reserve(ctx, args)
}

func (e *Engine) load(ctx context.Context, tenant string, chain quota.Chain) (lua.Loads, error) {
	ctx, cancel := context.WithTimeout(ctx, e.opt.Load)
	defer cancel()
	if err := e.opt.Loads.Wait(ctx); err != nil {
		loadsRefused.Inc()
		return lua.Loads{}, fmt.Errorf("%w: too many accounts are read from SQL: %w", ErrUnavailable, err)
	}
	loads, err := e.opt.Loader.LoadAccounts(ctx, tenant, chain)
	if err != nil {
		return loads, fmt.Errorf("%w: loading accounts: %w", ErrUnavailable, err)
	}
	return loads, nil
}

// void sees to it that a script whose answer did not come has no effect: the
// caller was refused.
func (e *Engine) void(r *Request, args *lua.ReserveArgs) {
	target := args.Target
	target.Buckets = tpmOnly(args.Buckets)
	e.opt.Settler.Submit(ledger.End{
		Store: r.Store, Target: target, Kind: ledger.Void, Attempt: args.Attempt, Fingerprint: args.Fingerprint,
		Undo: true, Forget: r.OwnID,
	})
}

func (e *Engine) hold(r *Request, args *lua.ReserveArgs, reply *lua.ReserveReply) *Hold {
	if reply.Duplicate {
		return nil
	}
	if r.Consume {
		e.opt.Settler.Acknowledge(r.Store, lua.Confirmation{Tenant: args.Tenant, ID: args.ID, Forget: r.OwnID})
		return nil
	}
	if e.opt.Served != nil {
		e.opt.Served(r.Store, args.Tenant, reply.NowMillis)
	}
	target := args.Target
	target.Loads = nil
	target.Buckets = tpmOnly(args.Buckets)
	return newHold(e.opt.Settler, r, target, reply)
}

func decision(args *lua.ReserveArgs, reply *lua.ReserveReply) quota.Decision {
	d := quota.Decision{
		Duplicate: reply.Duplicate, Reserved: reply.Amount, NowMillis: reply.NowMillis, Deadline: reply.Deadline,
		Chain: args.Chain, States: reply.States, Buckets: reply.Buckets,
	}
	for _, s := range reply.States {
		if s.Limited() && s.Available() < 0 {
			d.Overage = true
		}
	}
	return d
}

// slots are the concurrency limits that a reserve was held against; a consume takes none.
func slots(r *Request, reply *lua.ReserveReply) [3]quota.SlotState {
	if r.Consume {
		return noSlots
	}
	return reply.Slots
}

var noSlots = [3]quota.SlotState{{Max: -1}, {Max: -1}, {Max: -1}}

func buckets(r *Request) []lua.BucketArg {
	var list []lua.BucketArg
	requests := max(r.Requests, 1)
	for _, scope := range quota.Scopes {
		l := &r.Budgets[scope].Limits
		add := func(unit quota.Unit, limit *quota.Bucket, need int64) {
			if limit != nil {
				list = append(list, lua.BucketArg{Scope: scope, ID: r.Principal.ID(scope), Unit: unit, Limit: *limit, Need: need})
			}
		}
		add(quota.UnitRPS, l.RPS, requests)
		add(quota.UnitRPM, l.RPM, requests)
		add(quota.UnitTPM, l.TPM, r.Tokens)
	}
	return list
}

func tpmOnly(all []lua.BucketArg) []lua.BucketArg {
	var list []lua.BucketArg
	for _, b := range all {
		if b.Unit == quota.UnitTPM {
			b.Need = 0
			list = append(list, b)
		}
	}
	return list
}

// attemptID names one try of a call; 96 random bits after the time of UUIDv7.
func attemptID() string { return uuid.Must(uuid.NewV7()).String() }

var directSeconds = metrics.NewPrometheusHistogramExt(`tollgate_decision_duration_seconds{path="direct"}`, lua.DurationBuckets)

// count counts a decision by its result; the scope says which level was short.
func count(d *quota.Decision, err error) {
	result, scope := "admitted", "none"
	switch {
	case errors.Is(err, ErrConflict):
		result = "conflict"
	case errors.Is(err, ErrInFlight), errors.Is(err, ErrReplayed):
		result = "repeat"
	case errors.Is(err, ErrTooLarge):
		result = "too_large"
		amountRejected.Inc()
	case err != nil:
		result = "unavailable"
	case d.Refusal.Reason != quota.Admitted:
		result, scope = string(d.Refusal.Reason), d.Refusal.Scope.String()
	case d.Duplicate:
		result = "duplicate"
	}
	metrics.GetOrCreateCounter(`tollgate_decisions_total{path="direct",result="` + result + `",scope="` + scope + `"}`).Inc()
}

var loadsRefused = metrics.NewCounter(`tollgate_account_loads_refused_total`)

var amountRejected = metrics.GetOrCreateCounter(`tollgate_amount_rejected_total`)
