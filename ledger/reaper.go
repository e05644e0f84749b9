package ledger

import (
	"context"
	"errors"
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
	reapHolds    = 100 // holds ended per tenant and look
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
	r := &Reaper{node: node, holdTTL: holdTTL, lister: lister, byStore: map[*lua.Store]*reapedStore{}}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	for _, store := range stores {
		s := &reapedStore{Store: store, served: xsync.NewMap[string, *atomic.Int64]()}
		r.stores = append(r.stores, s)
		r.byStore[store] = s
		r.loops.Go(func() { r.reapLoop(ctx, s) })
		r.loops.Go(func() { r.walkLoop(ctx, s) })
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
		r.reap(ctx, s, tenants)
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
	if rest < len(head) {
		next = head[rest]
	}
	return tenants, next
}

// reap ends what is due of the given tenants.
func (r *Reaper) reap(ctx context.Context, s *reapedStore, tenants []string) {
	for len(tenants) > 0 && ctx.Err() == nil {
		n := min(len(tenants), reapBatch)
		if err := r.reapSome(ctx, s, tenants[:n]); err != nil && !errors.Is(err, context.Canceled) {
			slog.Debug("reaper: store does not answer", "store", s.Name(), "error", err)
			return // the next round looks again
		}
		tenants = tenants[n:]
	}
}

func (r *Reaper) reapSome(ctx context.Context, s *reapedStore, tenants []string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	due, err := s.Due(ctx, tenants, s.Now(), reapHolds)
	if err != nil {
		return err
	}
	for _, d := range due {
		target := lua.Target{Tenant: d.Tenant, ID: d.ID, Chain: d.Record.Chain, Mark: lua.Mark{Name: d.Record.Mark}}
		reply, err := s.Release(ctx, &lua.ReleaseArgs{Target: target, As: lua.StateExpired})
		if err != nil {
			return err
		}
		if reply.Outcome == lua.Done && !reply.Duplicate {
			holdsExpired.Inc()
			releases(reply.State).Inc()
			slog.Warn("a hold expired: its request never ended here", "tenant", d.Tenant, "hold", d.ID,
				"node", d.Record.Node, "credits", reply.Refunded)
		}
	}
	return nil
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
		lock, cancel := context.WithTimeout(ctx, settleTimeout)
		mine, err := s.TryLock(lock, walkLock, r.node, walkLockTTL)
		cancel()
		if err != nil || !mine {
			continue
		}
		page := min(walkPage(s.total, r.holdTTL), walkPageMost)
		tenants, err := r.lister.TenantsAfter(ctx, s.Name(), s.cursor, page)
		if err != nil {
			continue // SQL is away: go on from here when it is back
		}
		r.reap(ctx, s, tenants)
		s.walked += len(tenants)
		if len(tenants) < page {
			s.cursor, s.total, s.walked = "", s.walked, 0
			continue
		}
		s.cursor = tenants[len(tenants)-1]
	}
}

// walkPage is how many tenants one second of the walk looks at, so that a walk
// over all of them takes at most hold_ttl.
func walkPage(total int, holdTTL time.Duration) int {
	seconds := max(1, int(holdTTL/time.Second))
	return max(walkRateLow, (total+seconds-1)/seconds)
}
