package ledger

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/puzpuzpuz/xsync/v4"

	"tollgate/lua"
)

// Bounds of the Reaper.
const (
	reapEvery = 5 * time.Second // how often the tenants served here are looked at, with ±20 % jitter
	// reapMost is how many of them one round looks at, so that a node with
	// 100 000 tenants still spends little; the next round goes on from there.
	reapMost     = 5_000
	reapBatch    = 64  // tenants per pipeline
	reapHolds    = 100 // holds ended per tenant and look; a tenant with more is looked at again
	reapLooks    = 50  // looks at one batch of tenants in a round; what is left then waits for the next round
	walkLock     = "tgreaper"
	walkLockTTL  = 10 * time.Second
	walkEvery    = time.Second
	walkRateLow  = 100 // tenants per second, at least
	walkPageMost = 1_000
)

var holdsExpired = metrics.NewCounter(`tollgate_holds_expired_total`)

// TenantLister lists the ids of all tenants of a store, in order, after one.
type TenantLister interface {
	TenantsAfter(ctx context.Context, store, after string, limit int) ([]string, error)
}

// Reaper frees holds whose deadline passed: those of dead nodes, of lost
// answers, and of clients that never settled. Keeps I1: a hold ends once,
// inside the release script, which compares the deadline with Redis' time.
//
// Every node looks at the tenants that it served within the last hold_ttl; one
// node per store, the holder of a lock with a deadline, walks all tenants once
// per hold_ttl, so that those nobody asks for any more are freed too.
type Reaper struct {
	node    string
	holdTTL time.Duration
	lister  TenantLister
	stores  []*reapedStore
	byStore map[*lua.Store]*reapedStore
	stop    context.CancelFunc
	loops   sync.WaitGroup
}

type reapedStore struct {
	*lua.Store
	served *xsync.Map[string, *atomic.Int64] // tenant → Unix ms of the last reserve here
	cursor string                            // where the walk goes on
	walked int                               // tenants seen in this walk
	total  int                               // tenants seen in the last whole walk
}

// NewReaper starts the loops. Close it.
func NewReaper(node string, holdTTL time.Duration, lister TenantLister, stores ...*lua.Store) *Reaper {
	r := newReaper(node, holdTTL, lister, stores...)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	for _, s := range r.stores {
		r.loops.Go(func() { r.reapLoop(ctx, s) })
		r.loops.Go(func() { r.walkLoop(ctx, s) })
	}
	return r
}

// newReaper is a Reaper without its loops.
func newReaper(node string, holdTTL time.Duration, lister TenantLister, stores ...*lua.Store) *Reaper {
	r := &Reaper{node: node, holdTTL: holdTTL, lister: lister, byStore: map[*lua.Store]*reapedStore{}}
	for _, store := range stores {
		s := &reapedStore{Store: store, served: xsync.NewMap[string, *atomic.Int64]()}
		r.stores = append(r.stores, s)
		r.byStore[store] = s
	}
	return r
}

// Close stops the loops and waits for them.
func (r *Reaper) Close() {
	r.stop()
	r.loops.Wait()
}

// Served notes that this node made a hold of the tenant.
func (r *Reaper) Served(store *lua.Store, tenant string, nowMillis int64) {
	s := r.byStore[store]
	at, ok := s.served.Load(tenant)
	if !ok {
		at, _ = s.served.LoadOrStore(tenant, new(atomic.Int64))
	}
	if at.Load()+1000 < nowMillis { // one write per second and tenant
		at.Store(nowMillis)
	}
}

func (r *Reaper) reapLoop(ctx context.Context, s *reapedStore) {
	after := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reapEvery*4/5 + rand.N(reapEvery*2/5)):
		}
		var tenants []string
		tenants, after = s.round(after, s.Now()-r.holdTTL.Milliseconds()-reapEvery.Milliseconds()*4)
		_ = r.reap(ctx, s, tenants) // the next round looks again
	}
}

// round takes the tenants of one look: those served since the given ms, up to
// reapMost, beginning after the last one of the look before.
func (s *reapedStore) round(after string, since int64) (tenants []string, next string) {
	skipped := after != ""
	var head []string
	for tenant, at := range s.served.All() {
		if at.Load() < since {
			s.served.Delete(tenant)
			continue
		}
		if skipped {
			if len(head) < reapMost {
				head = append(head, tenant)
			}
			skipped = tenant != after
			continue
		}
		tenants = append(tenants, tenant)
		if len(tenants) == reapMost {
			return tenants, tenant
		}
	}
	// The end of the map: go on from its beginning.
	rest := min(len(head), reapMost-len(tenants))
	tenants = append(tenants, head[:rest]...)
	if rest > 0 {
		next = head[rest-1]
	}
	return tenants, next
}

// reap ends what is due of the given tenants. On an error some are left.
func (r *Reaper) reap(ctx context.Context, s *reapedStore, tenants []string) error {
	for len(tenants) > 0 && ctx.Err() == nil {
		n := min(len(tenants), reapBatch)
		batch := tenants[:n]
		for look := 0; len(batch) > 0 && look < reapLooks; look++ {
			var err error
			if batch, err = r.reapSome(ctx, s, batch); err != nil {
				slog.Debug("reaper: store does not answer", "store", s.Name(), "error", err)
				return err
			}
		}
		tenants = tenants[n:]
	}
	return ctx.Err()
}

// reapSome looks once, and returns those tenants that have more.
func (r *Reaper) reapSome(ctx context.Context, s *reapedStore, tenants []string) (more []string, err error) {
	look, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	due, err := s.Due(look, tenants, s.Now(), reapHolds)
	if err != nil {
		return nil, err
	}
	for len(due) > 0 {
		n := 1 // the due holds of one tenant stand together
		for n < len(due) && due[n].Tenant == due[0].Tenant {
			n++
		}
		gone, err := r.expire(ctx, s, due[:n])
		if err != nil {
			return nil, err
		}
		if gone == reapHolds {
			more = append(more, due[0].Tenant)
		}
		due = due[n:]
	}
	return more, nil
}

// expire ends due holds of one tenant, and returns how many left the index of deadlines.
func (r *Reaper) expire(ctx context.Context, s *reapedStore, due []lua.DueHold) (gone int, err error) {
	var expired, credits int64
	defer func() {
		if expired > 0 { // one line: a node may have died with thousands
			slog.Warn("holds expired: their requests never ended here", "tenant", due[0].Tenant, "holds", expired,
				"credits", credits, "node", due[0].Record.Node, "hold", due[0].ID)
		}
	}()
	for _, d := range due {
		reply, err := r.release(ctx, s, &d)
		if err != nil {
			return gone, err
		}
		if reply.Outcome != lua.Early && reply.Outcome != lua.WrongChain {
			gone++
		}
		if reply.Outcome == lua.Done && !reply.Duplicate {
			expired++
			credits += reply.Refunded
			holdsExpired.Inc()
			releases(reply.State).Inc()
		}
	}
	return gone, nil
}

func (r *Reaper) release(ctx context.Context, s *reapedStore, d *lua.DueHold) (lua.ReleaseReply, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	target := lua.Target{Tenant: d.Tenant, ID: d.ID, Chain: d.Record.Chain, Mark: lua.Mark{Name: d.Record.Mark}}
	return s.Release(ctx, &lua.ReleaseArgs{Target: target, As: lua.StateExpired})
}

func (r *Reaper) walkLoop(ctx context.Context, s *reapedStore) {
	tick := time.NewTicker(walkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.walk(ctx, s)
	}
}

// walk takes one step of the walk over all tenants of a store, if this node has
// the lock. Where Redis or SQL does not answer, the next step repeats it.
func (r *Reaper) walk(ctx context.Context, s *reapedStore) {
	lock, cancel := context.WithTimeout(ctx, settleTimeout)
	mine, err := s.TryLock(lock, walkLock, r.node, walkLockTTL)
	cancel()
	if err != nil || !mine {
		return
	}
	page := min(walkPage(s.total, r.holdTTL), walkPageMost)
	tenants, err := r.lister.TenantsAfter(ctx, s.Name(), s.cursor, page)
	if err != nil || r.reap(ctx, s, tenants) != nil {
		return
	}
	s.walked += len(tenants)
	if len(tenants) < page {
		s.cursor, s.total, s.walked = "", s.walked, 0
		return
	}
	s.cursor = tenants[len(tenants)-1]
}

// walkPage is how many tenants one second of the walk looks at, so that a walk
// over all of them takes at most hold_ttl.
func walkPage(total int, holdTTL time.Duration) int {
	seconds := max(1, int(holdTTL/time.Second))
	return max(walkRateLow, (total+seconds-1)/seconds)
}
