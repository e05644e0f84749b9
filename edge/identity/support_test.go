package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(redistest.LeakIgnore))
}

// long is a timeout that a passing test never waits for.
const long = 20 * time.Second

// node is what one node has: its stores and its Directory.
type node struct {
	*Directory
	now atomic.Int64 // added to the directory's clock
}

// openNode opens the stores and a Directory over them. Reads of SQL are not
// paced and Redis may take its time, unless tune says otherwise.
func openNode(t testing.TB, urls map[string]string, source Source, tune func(*Options)) *node {
	t.Helper()
	o := Options{
		Stores: make(map[string]Store), Source: source, ReadBudget: 5 * time.Second, LoadBudget: 5 * time.Second,
		SecretLoads: rate.NewLimiter(rate.Inf, 1), DocLoads: rate.NewLimiter(rate.Inf, 1),
	}
	for name, url := range urls {
		feed := NewFeed()
		redis, err := lua.Open(t.Context(), lua.Options{Name: name, URL: url, OnInvalidate: feed.Invalidate})
		require.NoError(t, err)
		t.Cleanup(redis.Close)
		o.Stores[name] = Store{Redis: redis, Feed: feed}
	}
	if tune != nil {
		tune(&o)
	}
	n := &node{Directory: New(o)}
	clock := n.clock
	n.clock = func() time.Duration { return clock() + time.Duration(n.now.Load()) }
	t.Cleanup(n.Close)
	return n
}

// twoStores are two databases of the test process' Redis.
func twoStores(t testing.TB) map[string]string {
	r := redistest.Shared(t)
	return map[string]string{DefaultStore: "redis://" + r.Addr() + "/0", "gold": "redis://" + r.Addr() + "/1"}
}

func (n *node) find(secret string) (*Identity, error) {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	return n.Lookup(ctx, []byte(secret))
}

// customer is a key with its secret and documents, as SQL holds them.
type customer struct {
	secret string
	doc    lua.SecretDoc
	docs   Docs
}

var customers atomic.Int64

// newCustomer makes one up whose ids nobody else in this process has.
func newCustomer(store string) *customer {
	n := customers.Add(1)
	c := &customer{secret: NewSecret()}
	tenant, app, key := fmt.Sprintf("t_%d_%d", time.Now().UnixNano(), n), "a_1", "k_1"
	c.doc = lua.SecretDoc{Tenant: tenant, App: app, Key: key, Store: store, Status: lua.Active}
	c.docs = Docs{
		Tenant: lua.TenantDoc{ID: tenant, Status: lua.Active, Store: store, Timezone: "Asia/Tokyo", Version: 1},
		App:    lua.AppDoc{ID: app, Version: 1},
		Key:    lua.KeyDoc{ID: key, App: app, Status: lua.Active, Version: 1}, Version: 1,
	}
	return c
}

func (c *customer) hash() string { return HexHash(c.secret) }

// publish writes the documents to Redis as the admin API of node n would.
func (c *customer) publish(t testing.TB, n *node, version int64) {
	t.Helper()
	c.publishSecret(t, n, version)
	c.publishDoc(t, n, "tenant", version, c.docs.Tenant)
	c.publishDoc(t, n, "app:"+c.doc.App, version, c.docs.App)
	c.publishDoc(t, n, "key:"+c.doc.Key, version, c.docs.Key)
}

func (c *customer) publishSecret(t testing.TB, n *node, version int64) {
	t.Helper()
	out, err := n.home.Redis.PublishSecret(t.Context(), c.hash(), version, text(t, c.doc))
	require.NoError(t, err)
	require.Equal(t, lua.Done, out)
}

func (c *customer) publishDoc(t testing.TB, n *node, field string, version int64, doc any) {
	t.Helper()
	out, err := n.opt.Stores[c.docs.Tenant.Store].Redis.PublishConf(t.Context(), c.doc.Tenant, field, version, text(t, doc), nil)
	require.NoError(t, err)
	require.Equal(t, lua.Done, out)
}

func text(t testing.TB, doc any) []byte {
	t.Helper()
	b, err := json.Marshal(doc)
	require.NoError(t, err)
	return b
}

// soon waits for something that another goroutine or process is about to do.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, long, time.Millisecond, what)
}

// books is SQL.
type books struct {
	mu struct {
		sync.Mutex
		secrets map[string]lua.SecretDoc
		docs    map[quota.Principal]Docs
		running map[string]int // reads of documents, by tenant
	}
	secretReads, docReads, together atomic.Int64
	hold                            atomic.Pointer[chan struct{}] // if set, reads wait until it is closed
	fail                            atomic.Pointer[error]         // if set, reads answer it
}

func newBooks(all ...*customer) *books {
	b := &books{}
	b.mu.secrets, b.mu.docs, b.mu.running = make(map[string]lua.SecretDoc), make(map[quota.Principal]Docs), make(map[string]int)
	for _, c := range all {
		b.add(c)
	}
	return b
}

func (b *books) add(c *customer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.secrets[c.hash()] = c.doc
	b.mu.docs[quota.Principal{Tenant: c.doc.Tenant, App: c.doc.App, Key: c.doc.Key}] = c.docs
}

func (b *books) wait(ctx context.Context) error {
	if hold := b.hold.Load(); hold != nil {
		select {
		case <-*hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := b.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (b *books) LoadSecret(ctx context.Context, hash string) (lua.SecretDoc, int64, error) {
	b.secretReads.Add(1)
	if err := b.wait(ctx); err != nil {
		return lua.SecretDoc{}, 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	doc, ok := b.mu.secrets[hash]
	if !ok {
		return doc, 0, fmt.Errorf("books: %w", ErrNotFound)
	}
	return doc, 1, nil
}

func (b *books) LoadDocs(ctx context.Context, who quota.Principal) (Docs, error) {
	b.docReads.Add(1)
	b.mu.Lock()
	if b.mu.running[who.Tenant]++; b.mu.running[who.Tenant] > 1 {
		b.together.Add(1)
	}
	b.mu.Unlock()
	err := b.wait(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.running[who.Tenant]--
	docs, ok := b.mu.docs[who]
	if err == nil && !ok {
		err = fmt.Errorf("books: %w", ErrNotFound)
	}
	return docs, err
}
