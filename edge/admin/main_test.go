package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/edge/config"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an API on real Redis and SQLite, behind a listener on loopback.
type rig struct {
	t      testing.TB
	redis  *redistest.Server
	store  *lua.Store
	db     *ledger.DB
	url    string
	client *http.Client
	token  string
	ready  atomic.Pointer[error]
}

func newRig(t testing.TB, change ...func(*Options)) *rig {
	s := &rig{t: t, redis: redistest.Start(t), client: &http.Client{Transport: &http.Transport{}}}
	var err error
	s.store, err = lua.Open(t.Context(), lua.Options{Name: "default", URL: s.redis.URL()})
	require.NoError(t, err)
	t.Cleanup(s.store.Close)
	s.db, err = ledger.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "ledger.db"), ledger.Options{CheckPolicy: config.ValidatePolicyJSON})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.db.Close()) })
	stores := map[string]*lua.Store{"default": s.store}
	publisher, adjuster := ledger.NewPublisher(s.db, stores), ledger.NewAdjuster(s.db, stores)
	t.Cleanup(publisher.Close)
	t.Cleanup(adjuster.Close)
	opt := Options{DB: s.db, Stores: stores, Publisher: publisher, Adjuster: adjuster, Ready: func() error {
		if err := s.ready.Load(); err != nil {
			return *err
		}
		return nil
	}}
	for _, f := range change {
		f(&opt)
	}
	s.token = opt.Token
	server := httptest.NewServer(New(opt).Handler())
	t.Cleanup(server.Close)
	t.Cleanup(s.client.CloseIdleConnections)
	s.url = server.URL
	return s
}

// answer is a response with its JSON.
type answer struct {
	status int
	header http.Header
	text   string
	json   map[string]any
}

// at gives a member by its path, as in "org.day.left"; nil if it is null or absent.
func (a answer) at(path string) any {
	var v any = a.json
	for name := range strings.SplitSeq(path, ".") {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[name]
	}
	return v
}

func (s *rig) request(method, path, body string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	require.NoError(s.t, err)
	a := answer{status: w.StatusCode, header: w.Header, text: string(text)}
	if w.Header.Get("Content-Type") == "application/json" {
		require.NoError(s.t, json.Unmarshal(text, &a.json), a.text)
	}
	return a
}

func (s *rig) must(status int, method, path, body string) answer {
	s.t.Helper()
	a := s.request(method, "/admin/v1"+path, body)
	require.Equal(s.t, status, a.status, "%s %s %s → %s", method, path, body, a.text)
	return a
}

// seed makes t_x with 1000 credits, app a_y and key k_z.
func (s *rig) seed() {
	s.t.Helper()
	s.must(201, "POST", "/tenants", `{"id":"t_x","name":"X","total":1000}`)
	s.must(201, "POST", "/tenants/t_x/apps", `{"id":"a_y","name":"Y"}`)
	s.must(201, "POST", "/tenants/t_x/keys", `{"id":"k_z","app":"a_y"}`)
}

// use plays requests: it sets what is spent, held and leased on an account, which is loaded first.
func (s *rig) use(account quota.Account, spent, prepaid, leased string) {
	s.t.Helper()
	loads, err := s.db.LoadAccounts(s.t.Context(), "t_x", quota.Chain{account})
	require.NoError(s.t, err)
	loaded, err := s.store.Load(s.t.Context(), "t_x", quota.Chain{account}, &loads)
	require.NoError(s.t, err)
	require.Equal(s.t, lua.Done, loaded.Outcome)
	_, err = s.redis.Do("HSET", lua.AccountKey("t_x", account), "spent", spent, "prepaid", prepaid, "leased", leased)
	require.NoError(s.t, err)
}

var (
	orgX = quota.Account{Scope: quota.Org, ID: "t_x"}
	keyZ = quota.Account{Scope: quota.Key, ID: "k_z"}

	errNotYet = errors.New("starting: one store does not answer")
)
