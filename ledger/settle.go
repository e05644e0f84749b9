package ledger

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"tollgate/lua"
	"tollgate/quota"
)

// EndKind is how a hold ends.
type EndKind uint8

// The ends of a hold.
const (
	Charge EndKind = iota // the actual is charged, the hold freed
	Free                  // nothing is charged
	Void                  // the reserve's outcome is unknown: free it if it ran, keep it from running if not
)

// End is one hold's end, to be carried out in Redis until it is acknowledged.
// The target's chain is exactly the hold's.
type End struct {
	Store       *lua.Store
	Target      lua.Target
	Kind        EndKind
	Actual      int64  // Charge: credits
	Tokens      int64  // Charge: actual tokens, to correct tpm buckets; -1: no correction
	Attempt     string // Void: whose outcome is unknown
	Fingerprint string // Void: remembered by a tombstone
	Undo        bool   // Void: take back a consume that ran
	Forget      bool   // nobody can repeat the id: its receipt goes once the end is acknowledged
	tries       int
}

// Bounds of the Settler.
const (
	// backlogMax is the most ends that wait in memory, per store. At this bound
	// Full says so and the node stops admitting; what is already running is
	// still taken. Lower refuses earlier in an outage, higher costs about 0.5 kB each.
	backlogMax = 100_000
	// settleWorkers is how many ends of one store travel at once.
	settleWorkers = 16
	// settleTimeout bounds one try.
	settleTimeout = 500 * time.Millisecond
	// retryFirst and retryMost bound the pause before the next try, which doubles.
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
	// confirmEvery and confirmMost: receipts are confirmed in batches.
	confirmEvery = 200 * time.Millisecond
	confirmMost  = 256
)

// AccountLoader gives accounts as SQL knows them, for those that Redis does not hold.
type AccountLoader interface {
	LoadAccounts(ctx context.Context, tenant string, chain quota.Chain) (lua.Loads, error)
}

// Settler carries the ends of holds to Redis and repeats each until Redis has
// acknowledged it. Keeps I1 and I3 together with the scripts: a repeat of an
// end has no second effect, and no end is dropped while the process lives.
// (With the journal, ends also survive the process.)
type Settler struct {
	loader  AccountLoader
	lanes   map[*lua.Store]*lane
	life    context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup
}

// lane is the queue of one store, so that a frozen store holds up only its own ends.
type lane struct {
	store   *lua.Store
	queue   chan *End
	pending atomic.Int64 // submitted and not yet acknowledged
	mu      struct {
		sync.Mutex
		receipts []lua.Confirmation
	}
}

var (
	unknownOutcomes = metrics.NewCounter(`tollgate_unknown_outcomes_total`)
	overrunCredits  = metrics.NewCounter(`tollgate_overrun_credits_total`)
	lostHolds       = metrics.NewCounter(`tollgate_lost_holds_total`)
	stuckEnds       = metrics.NewCounter(`tollgate_settle_refused_total`)
)

func releases(outcome lua.State) *metrics.Counter {
	return metrics.GetOrCreateCounter(`tollgate_releases_total{outcome="` + string(outcome) + `"}`)
}

// NewSettler starts the workers for the given stores. Close it.
func NewSettler(loader AccountLoader, stores ...*lua.Store) *Settler {
	s := &Settler{loader: loader, lanes: map[*lua.Store]*lane{}}
	s.life, s.stop = context.WithCancel(context.Background())
	for _, store := range stores {
		// Twice the bound: running requests may still end after Full stopped new ones.
		l := &lane{store: store, queue: make(chan *End, 2*backlogMax)}
		s.lanes[store] = l
		for range settleWorkers {
			s.workers.Go(func() { s.work(l) })
		}
		s.workers.Go(func() { s.confirm(l) })
	}
	return s
}

// Submit takes over one end. It never blocks and never refuses.
func (s *Settler) Submit(e End) {
	l := s.lanes[e.Store]
	l.pending.Add(1)
	if e.Kind == Void {
		unknownOutcomes.Inc()
	}
	s.enqueue(l, &e)
}

func (s *Settler) enqueue(l *lane, e *End) {
	select {
	case l.queue <- e:
	default:
		// More running requests than twice the bound: let it wait outside the queue.
		time.AfterFunc(retryMost, func() { s.enqueue(l, e) })
	}
}

// Full says that a store's backlog is at its bound: admit nothing more on it.
func (s *Settler) Full(store *lua.Store) bool { return s.lanes[store].pending.Load() >= backlogMax }

// Pending is the number of ends of a store that Redis has not acknowledged.
func (s *Settler) Pending(store *lua.Store) int64 { return s.lanes[store].pending.Load() }

// Close waits until every end is acknowledged or ctx ends, then stops the
// workers. It returns how many ends were left.
func (s *Settler) Close(ctx context.Context) (left int64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil && s.total() > 0 {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	left = s.total()
	s.stop()
	s.workers.Wait()
	return left
}

func (s *Settler) total() (n int64) {
	for _, l := range s.lanes {
		n += l.pending.Load()
	}
	return n
}

func (s *Settler) work(l *lane) {
	for {
		select {
		case <-s.life.Done():
			return
		case e := <-l.queue:
			if s.try(l, e) {
				l.pending.Add(-1)
				continue
			}
			e.tries++
			time.AfterFunc(retryPause(e.tries), func() { s.enqueue(l, e) })
		}
	}
}

// retryPause doubles from retryFirst to retryMost.
func retryPause(tries int) time.Duration {
	pause := retryFirst << min(tries-1, 16)
	return min(pause, retryMost)
}

// try carries out one end; true when it is over.
func (s *Settler) try(l *lane, e *End) bool {
	ctx, cancel := context.WithTimeout(s.life, settleTimeout)
	defer cancel()
	if e.Kind == Charge {
		return s.charge(ctx, l, e)
	}
	args := &lua.ReleaseArgs{Target: e.Target, As: lua.StateReleased, Attempt: e.Attempt, Undo: e.Undo, Fingerprint: e.Fingerprint}
	if e.Kind == Void {
		args.As = lua.StateVoid
	}
	r, err := l.store.Release(ctx, args)
	if err != nil {
		return false
	}
	switch r.Outcome {
	case lua.Done:
		releases(r.State).Inc()
		l.acknowledge(e, true)
	case lua.Settled, lua.Shared, lua.Unknown:
		// Charged, another's, or lost by Redis together with its freeze: nothing is frozen for it any more.
	default:
		stuck(e, r.Outcome)
	}
	return true
}

func (s *Settler) charge(ctx context.Context, l *lane, e *End) bool {
	args := &lua.SettleArgs{Target: e.Target, Actual: e.Actual, Tokens: e.Tokens}
	for range 3 {
		r, err := l.store.Settle(ctx, args)
		if err != nil {
			return false
		}
		switch r.Outcome {
		case lua.Done:
			if !r.Duplicate && r.Charged > r.Reserved && !r.Late {
				overrunCredits.AddInt64(r.Charged - r.Reserved)
			}
			l.acknowledge(e, false)
			return true
		case lua.NeedLoad:
			loads, err := s.loader.LoadAccounts(ctx, e.Target.Tenant, e.Target.Chain)
			if err != nil {
				return false
			}
			args.Loads = &loads
		case lua.Unknown:
			// Redis lost the hold, and with it the freeze. The upstream was called: the money is owed.
			lostHolds.Inc()
			args.Lost = true
		default:
			stuck(e, r.Outcome)
			return true
		}
	}
	return false
}

// stuck reports an end that Redis will never accept: a defect here or a foreign writer there.
func stuck(e *End, outcome lua.Outcome) {
	stuckEnds.Inc()
	slog.Error("a hold could not be ended", "tenant", e.Target.Tenant, "hold", e.Target.ID, "kind", e.Kind,
		"actual", e.Actual, "outcome", outcome)
}

// acknowledge notes that the receipt may expire.
func (l *lane) acknowledge(e *End, refunded bool) {
	l.note(lua.Confirmation{
		Tenant: e.Target.Tenant, ID: e.Target.ID, Refunded: refunded, Forget: e.Forget && e.Kind == Charge,
	})
}

// Acknowledge notes that the end of a hold is known to whoever asked for it
// (a decision-API call answered by Redis), so that its receipt may expire.
func (s *Settler) Acknowledge(store *lua.Store, c lua.Confirmation) { s.lanes[store].note(c) }

// note queues a confirmation. Beyond the bound the receipt keeps its 7 days:
// memory in Redis, no amount.
func (l *lane) note(c lua.Confirmation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.receipts) < backlogMax {
		l.mu.receipts = append(l.mu.receipts, c)
	}
}

func (s *Settler) confirm(l *lane) {
	tick := time.NewTicker(confirmEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
		batch := l.takeReceipts()
		for len(batch) > 0 {
			n := min(len(batch), confirmMost)
			ctx, cancel := context.WithTimeout(s.life, settleTimeout)
			err := l.store.Confirm(ctx, batch[:n])
			cancel()
			if err != nil {
				l.putBack(batch)
				break
			}
			batch = batch[n:]
		}
	}
}

func (l *lane) takeReceipts() []lua.Confirmation {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.mu.receipts
	l.mu.receipts = nil
	return batch
}

func (l *lane) putBack(batch []lua.Confirmation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.receipts)+len(batch) <= backlogMax {
		l.mu.receipts = append(l.mu.receipts, batch...)
	}
}
