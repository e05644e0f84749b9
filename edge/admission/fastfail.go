package admission

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/dgraph-io/ristretto/v2"

	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of the fast-fail cache.
const (
	// shortEntriesMax is how many short accounts are remembered; ristretto drops
	// what is asked for least, which costs one script each.
	shortEntriesMax = 100_000
	// A short account is believed for shortLow … shortHigh; then one request asks
	// Redis while the others are still refused. So a storm on an exhausted account
	// costs 10 to 20 scripts a second on this node.
	shortLow  = 50 * time.Millisecond
	shortHigh = 100 * time.Millisecond
)

// shortCache remembers which accounts were short of what: it refuses what Redis
// would refuse, and never admits. An entry says "the account had this state in
// this epoch of the tenant"; a change of the tenant's documents or a top-up
// begins another epoch on every node, and makes it void by comparison: nothing
// has to be deleted.
type shortCache struct {
	entries *ristretto.Cache[string, *shortEntry]
	now     func() time.Time
}

type shortEntry struct {
	epoch   uint64
	account quota.Account
	state   quota.AccountState
	until   atomic.Int64 // Unix ns; after it one request may ask Redis
	over    atomic.Bool  // Redis admitted what this entry would refuse: credits came back
}

var fastFails = metrics.NewCounter(`tollgate_fastfail_refusals_total`)

func newShortCache(now func() time.Time) *shortCache {
	entries, err := ristretto.NewCache(&ristretto.Config[string, *shortEntry]{
		NumCounters: 10 * shortEntriesMax, MaxCost: shortEntriesMax, BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		panic("BUG: admission: " + err.Error())
	}
	return &shortCache{entries: entries, now: now}
}

func (c *shortCache) close() { c.entries.Close() }

// refuses says whether an account of the chain is known to be short of the need.
// If not, doubted is the entry whose time is up, nil without one: if Redis
// admits the need, the caller sets its over.
func (c *shortCache) refuses(tenant string, epoch uint64, chain quota.Chain, need, nowMillis int64) (d quota.Decision, refused bool, doubted *shortEntry) {
	for i := range chain {
		e, ok := c.entries.Get(lua.AccountKey(tenant, chain[i]))
		if !ok || e.epoch != epoch || e.over.Load() || e.state.Fits(need) {
			continue
		}
		now := c.now()
		if until := e.until.Load(); until < now.UnixNano() && e.until.CompareAndSwap(until, now.Add(shortHigh).UnixNano()) {
			return quota.Decision{}, false, e // this one asks Redis
		}
		fastFails.Inc()
		d = quota.Decision{Chain: quota.Chain{e.account}, States: []quota.AccountState{e.state}, NowMillis: nowMillis}
		d.Refusal = quota.Judge(d.Chain, d.States, need, nil, noSlots, nowMillis)
		return d, true, nil
	}
	return quota.Decision{}, false, nil
}

// learn remembers the accounts that a refused decision found short. Credits
// that other nodes may give back (leased) make a refusal preliminary: not learnt.
func (c *shortCache) learn(tenant string, epoch uint64, d *quota.Decision, need int64) {
	for i, a := range d.States {
		if a.Fits(need) || a.Leased > 0 {
			continue
		}
		e := &shortEntry{epoch: epoch, account: d.Chain[i], state: a}
		e.until.Store(c.now().Add(shortLow + rand.N(shortHigh-shortLow)).UnixNano())
		c.entries.Set(lua.AccountKey(tenant, d.Chain[i]), e, 1)
	}
}
