package edge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	fake "tollgate/bench/upstream"
	"tollgate/edge"
	"tollgate/edge/admission"
	"tollgate/edge/config"
	"tollgate/edge/identity"
	"tollgate/edge/upstream"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(atTheEnd), goleak.IgnoreAnyFunction(redistest.LeakIgnore),
		// fasthttp's own: its clock, which never ends, and the sweep of idle workers, which ends within its pause.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// rig is a ledger, its stores and one fake upstream, in front of which nodes stand.
type rig struct {
	t     testing.TB
	db    *ledger.DB
	fake  *fake.Server
	redis map[string]*redistest.Server
	yaml  string
	// ledgerURL is where db lies, for nodes that are processes of their own.
	ledgerURL string

	client *http.Client
	nodes  atomic.Int64
	// decision is the budget of one decision. Generous, for a busy machine; 0 is what the store's round trips say.
	decision time.Duration
	// publishTo are the stores that changes of SQL are brought to, by a test that makes some.
	publishTo map[string]*lua.Store
}

// node is one edge on a loopback listener.
type node struct {
	*rig
	url     string
	server  *edge.Server
	settler *ledger.Settler
	stores  map[string]*lua.Store
	engine  *admission.Engine
	ups     map[string]*upstream.Upstream
	stop    func(grace time.Duration) error // what Shutdown said; a second call does nothing
}

const modelsYAML = `
upstreams:
  openai: {url: "%s", dialect: openai, auth: {header: Authorization, prefix: "Bearer ", env: TEST_UPSTREAM_KEY}, timeout: {connect: 1s, first_byte: 3s, idle: 2s, total: 20s}}
routes:
  - {path: "/v1/*", upstream: openai}
  - {path: "/img/*", upstream: openai, cost: 5}
models:
  "fake*": {max_output: 1000, price: {input: 1, output: 1}}
  "dear": {max_output: 1000, price: {call: 7, input: 2, cached_input: 0.5, output: 3.5}}
`

func newRig(t testing.TB, stores ...string) *rig {
	t.Helper()
	t.Setenv("TEST_UPSTREAM_KEY", "upstream-secret")
	r := &rig{t: t, redis: map[string]*redistest.Server{}, decision: time.Second}
	r.fake = fake.New(fake.Options{})
	require.NoError(t, r.fake.Start("127.0.0.1:0"))
	t.Cleanup(func() { r.fake.Close() })
	for _, name := range append([]string{"default"}, stores...) {
		r.redis[name] = redistest.Start(t)
	}
	r.ledgerURL = "sqlite://" + filepath.Join(t.TempDir(), "ledger.db")
	db, err := ledger.Open(t.Context(), r.ledgerURL, ledger.Options{Stores: append(stores, "default")})
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	r.db = db
	r.yaml = fmt.Sprintf(modelsYAML, r.fake.URL())
	tr := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(tr.CloseIdleConnections)
	r.client = &http.Client{Transport: tr, Timeout: 30 * time.Second}
	return r
}

// node starts one more node of the rig.
func (r *rig) node() *node {
	r.t.Helper()
	cfg, err := config.Parse([]byte(r.yaml))
	require.NoError(r.t, err)
	n := &node{rig: r, stores: map[string]*lua.Store{}}
	known := map[string]identity.Store{}
	feeds := map[*lua.Store]*identity.Feed{}
	var list []*lua.Store
	for name, server := range r.redis {
		feed := identity.NewFeed()
		s, err := lua.Open(r.t.Context(), lua.Options{Name: name, URL: server.URL(), OnInvalidate: feed.Invalidate})
		require.NoError(r.t, err)
		n.stores[name], known[name], feeds[s] = s, identity.Store{Redis: s, Feed: feed}, feed
		list = append(list, s)
	}
	name := fmt.Sprintf("n%d", r.nodes.Add(1))
	n.settler = ledger.NewSettler(r.db, list...)
	// A rig makes tenants faster than a node is meant to read them.
	loads := rate.NewLimiter(rate.Inf, 1)
	dir := identity.New(identity.Options{
		Stores: known, Source: dbSource{r.db}, SecretLoads: loads, DocLoads: loads, ReadBudget: r.decision, LoadBudget: r.decision,
	})
	engine := admission.New(admission.Options{
		Node: name, Loader: r.db, Settler: n.settler, Loads: loads, Load: time.Second, Decision: r.decision,
		Epoch: func(s *lua.Store, tenant string) uint64 { return feeds[s].Epoch(lua.ConfKey(tenant)) },
	})
	ups := map[string]*upstream.Upstream{}
	for name, c := range cfg.Upstreams {
		ups[name], err = upstream.New(upstream.Options{
			Name: name, URL: c.URL, Headers: c.Headers, ConnsMax: c.MaxConcurrency,
			Auth:    upstream.Auth{Header: c.Auth.Header, Prefix: c.Auth.Prefix, Secret: c.Auth.Secret.Reveal()},
			Timeout: upstream.Timeouts{Connect: c.Timeout.Connect, FirstByte: c.Timeout.FirstByte, Idle: c.Timeout.Idle, Total: c.Timeout.Total},
		})
		require.NoError(r.t, err)
	}
	n.server = edge.New(edge.Options{
		Config: cfg, Node: name, Directory: dir, Admission: engine, Settler: n.settler, Loader: r.db,
		Upstreams: ups, Ready: func() error { return nil }, Started: func() bool { return true },
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	n.url = "http://" + l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- n.server.Serve(l) }()
	n.engine, n.ups = engine, ups
	var once sync.Once
	n.stop = func(grace time.Duration) (err error) {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), grace)
			defer cancel()
			err = n.server.Shutdown(ctx)
			<-served
		})
		return err
	}
	r.t.Cleanup(func() {
		r.client.CloseIdleConnections()
		_ = n.stop(5 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		n.settler.Close(ctx)
		engine.Close()
		for _, u := range ups {
			u.Close()
		}
		dir.Close()
		for _, s := range list {
			s.Close()
		}
	})
	return n
}

type dbSource struct{ db *ledger.DB }

func (s dbSource) LoadSecret(ctx context.Context, hash string) (lua.SecretDoc, int64, error) {
	x, err := s.db.LoadSecret(ctx, hash)
	return x.Doc, x.Version, mapNotFound(err)
}

func (s dbSource) LoadDocs(ctx context.Context, who quota.Principal) (identity.Docs, error) {
	d, err := s.db.LoadDocs(ctx, who)
	return identity.Docs(d), mapNotFound(err)
}

func mapNotFound(err error) error {
	if err != nil && strings.Contains(err.Error(), "not found") {
		return identity.ErrNotFound
	}
	return err
}

// tenant makes t_name with app a_1 and key k_1, and returns the key's secret.
func (r *rig) tenant(id string, total int64, change ...func(*ledger.Tenant, *ledger.App, *ledger.Key)) (secret string) {
	r.t.Helper()
	ctx := r.t.Context()
	tn := ledger.Tenant{ID: id, Total: total}
	app := ledger.App{ID: "a_1", Tenant: id, Total: quota.Unlimited}
	key := ledger.Key{ID: "k_1", Tenant: id, App: "a_1", Total: quota.Unlimited}
	for _, f := range change {
		f(&tn, &app, &key)
	}
	_, _, err := r.db.CreateTenant(ctx, ledger.Op{What: "tenant.create"}, tn)
	require.NoError(r.t, err)
	_, _, err = r.db.CreateApp(ctx, ledger.Op{What: "app.create"}, app)
	require.NoError(r.t, err)
	secret = identity.NewSecret()
	_, _, err = r.db.CreateKey(ctx, ledger.Op{What: "key.create"}, key, identity.HexHash(secret))
	require.NoError(r.t, err)
	return secret
}

// reply is an answer read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (a reply) json(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal(a.body, &m), "%s", a.body)
	return m
}

// code is error.code of a refusal.
func (a reply) code(t testing.TB) string {
	t.Helper()
	e, _ := a.json(t)["error"].(map[string]any)
	code, _ := e["code"].(string)
	return code
}

func (n *node) do(method, path, secret, body string, headers ...string) reply {
	n.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, n.url+path, bytes.NewReader([]byte(body)))
	require.NoError(n.t, err)
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := n.client.Do(req)
	require.NoError(n.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return reply{res.StatusCode, res.Header, data}
}

func (n *node) post(path, secret, body string, headers ...string) reply {
	n.t.Helper()
	return n.do(http.MethodPost, path, secret, body, headers...)
}

// account reads one `ever` account of a tenant as Redis has it.
func (n *node) account(store, tenant string, scope quota.Scope) quota.AccountState {
	n.t.Helper()
	id := map[quota.Scope]string{quota.Org: tenant, quota.App: "a_1", quota.Key: "k_1"}[scope]
	got, err := n.stores[store].ReadAccounts(n.t.Context(), tenant, quota.Chain{{Scope: scope, ID: id}})
	require.NoError(n.t, err)
	require.NotNil(n.t, got[0], "account not in Redis")
	return *got[0]
}

// settled waits until every end has reached Redis, and returns the org's account.
func (n *node) settled(tenant string) quota.AccountState {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		for _, s := range n.stores {
			if n.settler.Pending(s) > 0 {
				return false
			}
		}
		return n.account("default", tenant, quota.Org).Prepaid == 0
	}, 5*time.Second, 5*time.Millisecond)
	return n.account("default", tenant, quota.Org)
}
