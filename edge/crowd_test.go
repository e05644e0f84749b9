package edge_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	fake "tollgate/bench/upstream"
	"tollgate/ledger"
	"tollgate/quota"
)

// long says that the full numbers are wanted in every case, not in one.
func long() bool { return os.Getenv("TOLLGATE_LONG") != "" }

// wire is a client on one connection: it leaves more of a small machine to the
// nodes than net/http does, and no goroutine behind.
type wire struct {
	n    *node
	conn net.Conn
	from *bufio.Reader
}

// post sends one request. After an error the next one takes a new connection.
func (w *wire) post(path, secret, body string) (status int, answer string, err error) {
	if w.conn == nil {
		if w.conn, err = net.Dial("tcp", strings.TrimPrefix(w.n.url, "http://")); err != nil {
			return 0, "", err
		}
		w.from = bufio.NewReader(w.conn)
	}
	req, res := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(res)
	req.SetRequestURI(w.n.url + path)
	req.Header.SetMethod(http.MethodPost)
	req.Header.Set("Authorization", "Bearer "+secret)
	req.SetBodyString(body)
	if _, err = req.WriteTo(w.conn); err == nil {
		err = res.Read(w.from)
	}
	if err != nil {
		w.close()
	}
	return res.StatusCode(), string(res.Body()), err
}

func (w *wire) close() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// spend lets 100 workers on the given nodes each spend 1 credit `each` times,
// and returns how many of these succeeded. An answer of 503 is repeated: the
// test wants to know what was decided, not how fast. The workers choose the
// request ids, so that a repeat cannot count twice.
func spend(t *testing.T, nodes []*node, secret string, each int, settles bool) (succeeded int64) {
	var ok, refused atomic.Int64
	var workers sync.WaitGroup
	for w := range 100 {
		workers.Go(func() {
			here, there := &wire{n: nodes[w%len(nodes)]}, &wire{n: nodes[(w+1)%len(nodes)]}
			defer here.close()
			defer there.close()
			persist := func(n *wire, path, body string) (int, string) {
				for range 100 {
					status, answer, err := n.post(path, secret, body)
					if err != nil {
						t.Errorf("%s: %v", path, err)
						return 0, ""
					}
					if status != 503 {
						return status, answer
					}
				}
				t.Error("no decision in 100 tries")
				return 0, ""
			}
			for i := range each {
				id := fmt.Sprintf("w%d-%d", w, i)
				path := consume
				if settles {
					path = reserve
				}
				status, answer := persist(here, path, fmt.Sprintf(`{"request_id":%q,"cost":1}`, id))
				switch status {
				case 200:
					ok.Add(1)
				case 429, 402:
					refused.Add(1)
					continue
				default:
					t.Errorf("%s: %d %s", path, status, answer)
					return
				}
				if settles {
					if status, answer := persist(there, settle, fmt.Sprintf(`{"request_id":%q,"actual":1}`, id)); status != 200 {
						t.Errorf("settle: %d %s", status, answer)
					}
				}
			}
		})
	}
	workers.Wait()
	require.EqualValues(t, 100*each, ok.Load()+refused.Load())
	return ok.Load()
}

// 100 workers on two nodes spend twice what there is: exactly what there is is
// spent, whichever limit says so, by consume and by reserve and settle.
func TestCrowdSpendsExactlyTheLimit(t *testing.T) {
	few := 40
	if long() {
		few = 1000
	}
	at := func(set func(*ledger.Tenant, *ledger.App, *ledger.Key, int64)) func(n int64) change {
		return func(n int64) change {
			return func(tn *ledger.Tenant, a *ledger.App, k *ledger.Key) {
				tn.Total = quota.Unlimited
				set(tn, a, k, n)
			}
		}
	}
	org := at(func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key, n int64) { tn.Total = n })
	for _, c := range []struct {
		name    string
		limit   func(int64) change
		each    int
		settles bool
		store   string
	}{
		{"organisation", org, 1000, false, ""},
		{"organisation, settled", org, few, true, ""},
		{"application", at(func(_ *ledger.Tenant, a *ledger.App, _ *ledger.Key, n int64) { a.Total = n }), few, false, ""},
		{"key of an unlimited organisation", at(func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key, n int64) { k.Total = n }), few, false, ""},
		{"key, settled", at(func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key, n int64) { k.Total = n }), few, true, ""},
		{"day of the organisation", at(func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key, n int64) { tn.Day = &n }), few, false, ""},
		{"month of the key, settled", at(func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key, n int64) { k.Month = &n }), few, true, ""},
		{"overage of the organisation", at(func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key, n int64) { tn.Total, tn.OverageLimit = n-10, 10 }), few, false, ""},
		{"organisation on another store", org, few, false, "big"},
		{"key on another store, settled", at(func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key, n int64) { k.Total = n }), few, true, "big"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "big")
			nodes := []*node{r.node(), r.node()}
			limit := int64(100 * c.each / 2)
			secret := r.tenant("t_1", 0, c.limit(limit), func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key) { tn.Store = c.store })
			require.Equal(t, limit, spend(t, nodes, secret, c.each, c.settles))
			store := "default"
			if c.store != "" {
				store = c.store
			}
			require.Equal(t, limit, nodes[0].books(t, "t_1", store))
		})
	}
}

// A1, A3 through the proxy: 50 calls at once on a limit that carries 10 of
// them. Ten pass, 40 are refused, and the upstream hears of ten.
func TestParallelCallsOnASmallLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		total int64
	}{{"poor organisation", 1}, {"rich organisation, poor key", 0}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			nodes := []*node{r.node(), r.node()}
			// One call holds its prompt and 100 tokens of output: learnt from the first.
			probe := r.tenant("t_probe", 1_000_000)
			require.Equal(t, 200, nodes[0].post("/v1/chat/completions", probe, chat("fake-p12-c34", false)).status)
			require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"hang": "before"}}))
			done := make(chan reply, 1)
			go func() { done <- nodes[0].post("/v1/chat/completions", probe, chat("fake-p12-c34", false)) }()
			_, err := r.fake.Wait(t.Context(), func(s fake.Totals) bool { return s.Silent == 1 })
			require.NoError(t, err)
			hold := nodes[0].account("default", "t_probe", quota.Org).Prepaid
			require.Positive(t, hold)

			secret := r.tenant("t_1", 10*hold, func(tn *ledger.Tenant, _ *ledger.App, k *ledger.Key) {
				if c.total == 0 {
					tn.Total, k.Total = quota.Unlimited, tn.Total
				}
			})
			before := metric(`tollgate_decisions_total{path="direct",result="insufficient_quota",scope="` + map[int64]string{1: "org", 0: "key"}[c.total] + `"}`)
			var passed, refused atomic.Int64
			var calls sync.WaitGroup
			for i := range 50 {
				calls.Go(func() {
					a := nodes[i%2].post("/v1/chat/completions", secret, chat("fake-p12-c34", false))
					switch a.status {
					case 200:
						passed.Add(1)
					case 429:
						refused.Add(1)
					default:
						t.Errorf("%d %s", a.status, a.body)
					}
				})
			}
			_, err = r.fake.Wait(t.Context(), func(s fake.Totals) bool { return s.Silent == 11 })
			require.NoError(t, err)
			require.Eventually(t, func() bool { return refused.Load() == 40 }, waitLong, tickShort, "all others are refused while ten run")
			// A7: a call that does not fit beside running ones is refused at once.
			require.Equal(t, 429, nodes[1].post(consume, secret, `{"cost":1}`).status)
			r.fake.Release()
			calls.Wait()
			require.Equal(t, 200, (<-done).status)
			require.EqualValues(t, 10, passed.Load())
			require.EqualValues(t, 10*wholeTokens, nodes[0].books(t, "t_1"))
			require.EqualValues(t, 12, r.fake.Totals().Begun)
			// Refusals show in the metrics (G16): 40, and the consume.
			after := metric(`tollgate_decisions_total{path="direct",result="insufficient_quota",scope="` + map[int64]string{1: "org", 0: "key"}[c.total] + `"}`)
			require.EqualValues(t, 41, after-before)
		})
	}
}

// A5: the very first calls of a key, in parallel on two nodes, meet its limit.
func TestFirstCallsMeetTheLimit(t *testing.T) {
	r := newRig(t)
	nodes := []*node{r.node(), r.node()}
	for try := range 10 {
		tenant := fmt.Sprintf("t_%d", try)
		secret := r.tenant(tenant, quota.Unlimited, func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) { k.Total = 20 })
		var passed atomic.Int64
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() {
				if a := nodes[i%2].post(consume, secret, `{"cost":10}`); a.status == 200 {
					passed.Add(1)
				} else if a.status != 429 {
					t.Errorf("%d %s", a.status, a.body)
				}
			})
		}
		calls.Wait()
		require.EqualValues(t, 2, passed.Load())
		require.EqualValues(t, 20, nodes[0].books(t, tenant))
	}
}

// A8, B7, D8, D9, D12: what can never fit is said to be impossible; a call
// without a bound is fitted to what is left; 0 allows nothing, none is unlimited.
func TestSmallLimits(t *testing.T) {
	r := newRig(t)
	n := r.node()
	const path = "/v1/chat/completions"
	secret := r.tenant("t_100", 100)
	for _, body := range []string{
		chat("fake", false, `"max_completion_tokens":500`),
		strings.Replace(chat("fake", false), `"max_tokens":100`, `"max_tokens":500`, 1),
		strings.Replace(chat("fake", false), `"max_tokens":100`, `"max_tokens":1,"max_completion_tokens":10000`, 1),
		`{"model":"fake","max_tokens":1,"messages":[{"role":"user","content":"` + strings.Repeat("words ", 9000) + `"}]}`,
		`{"model":"fake","messages":[{"role":"user","content":"` + strings.Repeat("words ", 9000) + `"}]}`,
		chat("fake", false, `"n":128`),
	} {
		a := n.post(path, secret, body)
		require.Equal(t, 429, a.status, "%s", a.body)
		require.Equal(t, "insufficient_quota", a.code(t))
		require.Empty(t, a.header.Get("Retry-After"))
		require.Equal(t, "false", a.header.Get("x-should-retry"))
		require.Contains(t, string(a.body), "100", "names the limit")
	}
	require.Zero(t, n.books(t, "t_100"))
	require.Zero(t, r.fake.Totals().Begun)

	// Without a bound: fitted, down to the model's least output (256, or its maximum if that is smaller).
	free := fmt.Sprintf(`{"model":"fake-p12-c2000","messages":[{"role":"user","content":%q}]}`, promptMark)
	secret = r.tenant("t_400", 400)
	a := n.post(path, secret, free)
	require.Equal(t, 200, a.status, "%s", a.body)
	spent := n.books(t, "t_400")
	require.LessOrEqual(t, spent, int64(400), "the upstream was told a bound that fits")
	require.Greater(t, spent, int64(256))
	a = n.post(path, secret, free)
	require.Equal(t, 429, a.status, "less than the least output is left")

	secret = r.tenant("t_0", quota.Unlimited, func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) { k.Total = 0 })
	require.Equal(t, 429, n.post(consume, secret, `{"cost":1}`).status)
	secret = r.tenant("t_all", quota.Unlimited)
	require.Equal(t, 200, n.post(path, secret, free).status)
	require.EqualValues(t, 2012, n.books(t, "t_all"), "no bound is written where none is needed; more than held is charged in full")
}

// D5: absurd sizes are refused or bounded; the balance never rises.
func TestAbsurdSizes(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1_000_000)
	for _, field := range []string{"n", "max_tokens", "max_completion_tokens"} {
		for _, v := range []string{
			"18446744073686646784", "-1", "9223372036854775807", "9007199254740993", "1e30", `"5"`, "1.5", "[]", "{}", "true", "0", "-0",
		} {
			body := fmt.Sprintf(`{"model":"fake-p12-c34","messages":[{"role":"user","content":"x"}],%q:%s}`, field, v)
			a := n.post("/v1/chat/completions", secret, body)
			require.Equal(t, 400, a.status, "%s → %s", body, a.body)
			require.Equal(t, field, a.json(t)["error"].(map[string]any)["param"], "%s", body)
		}
		body := fmt.Sprintf(`{"model":"fake-p12-c34","messages":[{"role":"user","content":"x"}],%q:null}`, field)
		require.Equal(t, 200, n.post("/v1/chat/completions", secret, body).status)
		body = fmt.Sprintf(`{"model":"fake-p12-c34","messages":[{"role":"user","content":"x"}],%q:5,%q:1}`, field, field)
		require.Equal(t, 400, n.post("/v1/chat/completions", secret, body).status, "twice")
	}
	require.EqualValues(t, 3*wholeTokens, n.books(t, "t_1"))
}

// B9: streams give back the unused part of their hold.
func TestStreamsGiveBack(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 12*wholeTokens+100)
	for i := range 12 {
		a := n.post("/v1/chat/completions", secret, chat("fake-p12-c34", true))
		require.Equal(t, 200, a.status, "call %d: %s", i, a.body)
		require.EqualValues(t, (i+1)*wholeTokens, n.books(t, "t_1"))
	}
}

// G1, C23: no spelling of a metered path escapes its meter, and what is free stays free.
func TestSpellingsOfAPath(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 3)
	require.Equal(t, 200, n.post(consume, secret, `{"cost":3}`).status)
	body := chat("fake-p12-c34", false)
	for _, path := range []string{
		"/v1/chat/completions", "/v1/chat/completions/", "/v1//chat/completions", "//v1/chat/completions", "/v1/chat/./completions", "/v1/x/../chat/completions",
		"/v1/chat%2fcompletions", "/v1/chat/%63ompletions", "/v1/chat/completions?x=1", "/img/a", "/img/../img/a", "/img//a", "/%69mg/a",
	} {
		a := n.post(path, secret, body)
		require.Equal(t, 429, a.status, "%s %s", path, a.body)
	}
	for _, path := range []string{
		"/V1/chat/completions", "/v1/Chat/Completions", "/v1/chat/completions;a", "/v1/chat/completions%00", "/v1/embeddings", "/v1/batches", "/v1/", "/v2/chat/completions",
		"/v1/chat", "/", "/v1/quota/nothing", "/v1/quota/", "/v1/quota", "/v1/responses",
	} {
		a := n.post(path, secret, body)
		require.Contains(t, []int{404, 429}, a.status, "%s %s", path, a.body)
	}
	require.Zero(t, r.fake.Totals().Begun)
	for range 75 {
		require.Equal(t, 200, n.do(http.MethodGet, "/v1/models", secret, "").status)
	}
	require.EqualValues(t, 3, n.books(t, "t_1"))
	for _, path := range []string{"/v1/models", "/v1/chat/completions", "/img/x", reserve, balance} {
		a := n.do(http.MethodGet, path, "", "")
		require.Equal(t, 401, a.status, "%s is for those with a key", path)
	}
}
