package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/time/rate"

	"tollgate/lua"
	"tollgate/quota"
)

// DefaultStore is the name of the store that holds the documents of secrets.
const DefaultStore = "default"

// Store is one Redis and what it tells about changes: Feed.Invalidate is the
// store's lua.Options.OnInvalidate.
type Store struct {
	Redis *lua.Store
	Feed  *Feed
}

// Source is SQL, asked for what Redis does not hold. Both methods return by the
// end of ctx, and answer ErrNotFound (wrapped or not) for what does not exist.
type Source interface {
	// LoadSecret reads a secret's document and its version, by HexHash.
	LoadSecret(ctx context.Context, hash string) (doc lua.SecretDoc, version int64, err error)
	// LoadDocs reads the documents of a principal from one snapshot.
	LoadDocs(ctx context.Context, who quota.Principal) (Docs, error)
}

// Docs are the documents of one principal, read together.
type Docs struct {
	Tenant  lua.TenantDoc
	App     lua.AppDoc
	Key     lua.KeyDoc
	Version int64 // the tenant's as of the reading; under it the documents are published
}

// Options of a Directory. The zero value of each field but the first two takes
// the default named there.
type Options struct {
	// Stores by their names in the configuration; DefaultStore must be among them.
	Stores map[string]Store
	// Source is SQL.
	Source Source
	// LoadBudget is how long one lookup may wait for SQL, its turn included
	// (ledger.load_budget). Default 200 ms. Higher keeps clients waiting when SQL
	// is slow, lower refuses keys that Redis has lost.
	LoadBudget time.Duration
	// SecretLoads and DocLoads pace the reads of SQL: the first those for keys
	// that Redis does not know, whoever made them up, the second those for known
	// ones; give it to whatever else reads SQL for known tenants. Default
	// NewLoadLimiter() each.
	SecretLoads, DocLoads *rate.Limiter
	// ReadBudget bounds one call of Redis. Default: the store's own estimate.
	ReadBudget time.Duration
	// MaxAge is how long documents are used without being read again, should
	// Redis never tell of a change; up to a fifth is added at random, and what
	// is read then may be up to 30 s old in the client's own cache. Default 30 s.
	// Lower costs a round trip per key each time.
	MaxAge time.Duration
	// EntriesMax is the most keys kept in memory, about 1.5 kB each. Beyond it
	// a sixteenth goes, first those that nobody asked for within MaxAge, then
	// any, and is read again when asked for (tollgate_identity_evicted_total).
	// Default 1,048,576.
	EntriesMax int
}

const (
	// unknownFor is how long an unknown key is remembered as such. It is
	// forgotten at once when Redis tells that it was issued.
	unknownFor = 10 * time.Second
	// unknownMax is the most unknown keys remembered. SQL confirms 50/s at
	// most, so 500 are alive; beyond the bound none is remembered until old ones
	// have gone, and asking again costs again (tollgate_identity_unremembered_total).
	unknownMax = 4096
	// flightsMax is the most keys read at once. Beyond it a lookup is
	// ErrUnavailable (tollgate_identity_busy_total).
	flightsMax = 4096
	// zonesMax is the most time zones kept; the tz database has about 600 names.
	// Beyond it a zone is loaded per key, which only costs memory.
	zonesMax = 1024
)

// NewLoadLimiter admits at most 50 in any second: 45/s and bursts of 5.
func NewLoadLimiter() *rate.Limiter { return rate.NewLimiter(45, 5) }

// Identity is who pays, and all that is configured for it. It is shared by many
// requests and never changes: a change of its documents makes a new one.
type Identity struct {
	Principal quota.Principal
	Tenant    lua.TenantDoc
	App       lua.AppDoc
	Key       lua.KeyDoc
	Zone      *time.Location
	Budgets   [3]quota.Budget // by scope
	Store     *lua.Store      // where the tenant's accounts live
}

// Directory knows the keys. Safe for concurrent use.
type Directory struct {
	opt     Options
	home    Store                  // of secrets
	entries *xsync.Map[id, *entry] // known keys; outlive their usefulness until their room is needed
	unknown *xsync.Map[id, *entry]
	zones   *xsync.Map[string, *time.Location]
	turns   turns // one read of SQL per tenant
	clock   func() time.Duration
	sweep   sync.Mutex // held by who makes room

	life    context.Context // of all reads
	stop    context.CancelFunc
	running sync.WaitGroup // reads
	flights struct {
		sync.Mutex
		m       map[id]*flight // the read to join, per key
		running int            // reads, those that nobody may join any more included
		closed  bool
	}
}

// id is a secret's Hash.
type id = [sha256.Size]byte

// entry is what was read about one secret. Immutable.
type entry struct {
	who     *Identity     // nil with refused
	refused error         // one of the sentinels; nil: the key works
	expires int64         // Redis' time in ms from which the secret is disabled; 0: never
	until   time.Duration // by the directory's clock; then it is read again
	secret  mark          // of the secret's document
	conf    mark          // of the tenant's documents; that of the secret where they were not read
}

// New returns a Directory. Close it before its stores.
func New(o Options) *Directory {
	home, ok := o.Stores[DefaultStore]
	if !ok || o.Source == nil {
		panic("identity: BUG: a store named default and a Source are needed")
	}
	for name, s := range o.Stores {
		if s.Redis == nil || s.Feed == nil {
			panic("identity: BUG: store " + name + " lacks its Redis or its Feed")
		}
	}
	o.LoadBudget = orDefault(o.LoadBudget, 200*time.Millisecond)
	o.MaxAge = orDefault(o.MaxAge, 30*time.Second)
	o.EntriesMax = orDefault(o.EntriesMax, 1<<20)
	if o.SecretLoads == nil {
		o.SecretLoads = NewLoadLimiter()
	}
	if o.DocLoads == nil {
		o.DocLoads = NewLoadLimiter()
	}
	start := time.Now()
	d := &Directory{
		opt: o, home: home,
		entries: xsync.NewMap[id, *entry](),
		unknown: xsync.NewMap[id, *entry](),
		zones:   xsync.NewMap[string, *time.Location](),
		clock:   func() time.Duration { return time.Since(start) },
	}
	d.life, d.stop = context.WithCancel(context.Background())
	d.turns.m = make(map[string]*turn)
	d.flights.m = make(map[id]*flight)
	return d
}

func orDefault[T int | time.Duration](v, fallback T) T {
	if v <= 0 {
		return fallback
	}
	return v
}

// Close ends all reads and waits for them. Later lookups of what would have to
// be read are ErrUnavailable.
func (d *Directory) Close() {
	d.flights.Lock()
	d.flights.closed = true
	d.flights.Unlock()
	d.stop()
	d.running.Wait()
}

// Lookup finds the identity of a secret, or one of the sentinel errors. What is
// known it answers from memory, without a lock and without allocating; else it
// waits for one read that all callers share, at most until ctx ends. It keeps
// nothing of secret.
func (d *Directory) Lookup(ctx context.Context, secret []byte) (*Identity, error) {
	if !Check(secret) {
		malformed.Inc()
		return nil, ErrUnknownKey
	}
	hash := Hash(secret)
	if e, ok := d.entries.Load(hash); ok && d.fresh(e) {
		return d.answer(e)
	}
	return d.miss(ctx, hash)
}

// fresh says whether the entry may be used without asking.
func (d *Directory) fresh(e *entry) bool {
	return e.current() && d.clock() < e.until
}

// current says whether nothing has changed since the entry was read.
func (e *entry) current() bool { return e.secret.current() && e.conf.current() }

func (d *Directory) answer(e *entry) (*Identity, error) {
	if e.refused != nil {
		return nil, e.refused
	}
	if e.expires != 0 && d.home.Redis.Now() >= e.expires {
		return nil, ErrDisabledKey
	}
	return e.who, nil
}

func (d *Directory) miss(ctx context.Context, hash id) (*Identity, error) {
	if e, ok := d.unknown.Load(hash); ok && d.fresh(e) {
		remembered.Inc()
		return nil, e.refused
	}
	f, err := d.join(hash)
	if err != nil {
		return nil, err
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
	if f.err != nil {
		return nil, f.err
	}
	return d.answer(f.entry)
}

// flight is one read of one key, and those who wait for it.
type flight struct {
	secret mark                 // taken before the read
	conf   atomic.Pointer[mark] // as soon as the tenant is known
	sqlEnd time.Time            // of its reads of SQL; zero until the first. The reading goroutine's own
	done   chan struct{}
	entry  *entry // once done
	err    error  // once done; ErrUnavailable
}

// current says whether the read still tells what a reader starting now would find.
func (f *flight) current() bool {
	conf := f.conf.Load()
	return f.secret.current() && (conf == nil || conf.current())
}

// join gives the read of a key that is under way, or begins one. One that began
// before a change is not joined.
func (d *Directory) join(hash id) (*flight, error) {
	d.flights.Lock()
	defer d.flights.Unlock()
	if f, ok := d.flights.m[hash]; ok && f.current() {
		return f, nil
	}
	if d.flights.closed {
		return nil, fmt.Errorf("%w: the directory is closed", ErrUnavailable)
	}
	if d.flights.running >= flightsMax {
		busy.Inc()
		return nil, fmt.Errorf("%w: %d keys are being read already, the most at once", ErrUnavailable, flightsMax)
	}
	name := hexOf(hash)
	f := &flight{secret: d.home.Feed.mark(lua.SecretKey(name)), done: make(chan struct{})}
	d.flights.m[hash] = f
	d.flights.running++
	d.running.Go(func() { d.fly(hash, name, f) })
	return f, nil
}

// fly reads, keeps and hands out.
func (d *Directory) fly(hash id, name string, f *flight) {
	f.entry, f.err = d.read(name, f)
	if f.err == nil {
		d.keep(hash, f.entry)
	}
	d.flights.Lock()
	if d.flights.m[hash] == f {
		delete(d.flights.m, hash)
	}
	d.flights.running--
	d.flights.Unlock()
	close(f.done)
}

// keep remembers what was read, unless it has changed since: then those who
// waited for the read use it, and nobody later.
func (d *Directory) keep(hash id, e *entry) {
	if !e.current() {
		return
	}
	into, other, limit := d.entries, d.unknown, d.opt.EntriesMax
	if e.refused == ErrUnknownKey {
		into, other, limit = d.unknown, d.entries, unknownMax
	}
	other.Delete(hash)
	if _, known := into.Load(hash); !known && into.Size() >= limit && !d.makeRoom(into, limit) {
		unremembered.Inc()
		return
	}
	into.Store(hash, e)
	entriesKept.Set(float64(d.entries.Size()))
}

// makeRoom brings a map below its limit; false when it did not, for unknown
// keys that are all fresh. A known key may go although it is in use: it is read
// again. Several reads may end at once, so the limit can be passed by flightsMax.
func (d *Directory) makeRoom(m *xsync.Map[id, *entry], limit int) bool {
	if !d.sweep.TryLock() {
		return m == d.entries
	}
	defer d.sweep.Unlock()
	now := d.clock()
	idle := m.DeleteMatching(func(_ id, e *entry) (bool, bool) { return now >= e.until, false })
	if m == d.unknown {
		return m.Size() < limit
	}
	evictedIdle.Add(idle)
	if over := m.Size() - limit + max(limit/16, 1); over > 0 {
		n := 0
		m.DeleteMatching(func(id, *entry) (bool, bool) { n++; return true, n >= over })
		evictedUsed.Add(n)
	}
	return true
}

// due is when something read now is to be read again.
func (d *Directory) due() time.Duration {
	return d.clock() + d.opt.MaxAge + rand.N(d.opt.MaxAge/5+1)
}
