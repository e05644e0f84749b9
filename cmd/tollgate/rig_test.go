package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// binaries is the directory of the programs under test.
var binaries string

func binary(name string) string { return filepath.Join(binaries, name) }

func TestMain(m *testing.M) {
	os.Exit(withBinaries(m))
}

func withBinaries(m *testing.M) int {
	var err error
	if binaries, err = os.MkdirTemp("", "tollgate-e2e"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(binaries)
	build := exec.Command("go", "build", "-o", binaries+string(filepath.Separator), "tollgate/cmd/tollgate", "tollgate/cmd/tollctl", "tollgate/cmd/tollbench")
	if out, err := build.CombinedOutput(); err != nil {
		panic(string(out))
	}
	return m.Run()
}

// long says whether the long forms of the tests run.
func long() bool { return os.Getenv("TOLLGATE_LONG") == "1" }

const (
	adminToken  = "operators-only-7f3a91"
	upstreamKey = "sk-upstream-c0ffee42"
)

// rig is what nodes of one ledger share: Redis, the SQLite file, the fake upstream.
type rig struct {
	t      testing.TB
	redis  *redistest.Server
	fake   *process
	fakeAt string // URL of the fake upstream
	dir    string // of the ledger
	client *http.Client

	program string // that nodes are: tollgate
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigOn(t)
}

// newRigOn is a rig whose Redis is started with more arguments.
func newRigOn(t testing.TB, redisArgs ...string) *rig {
	t.Helper()
	r := &rig{t: t, redis: redistest.Start(t, redisArgs...), dir: t.TempDir(), program: "tollgate"}
	r.fake = start(t, nil, "tollbench", "upstream", "--listen", "127.0.0.1:0", "--log", filepath.Join(r.dir, "upstream.log"), "--require-key", upstreamKey)
	r.fakeAt = r.fake.printed(`listens on (http://\S+)`)[1]
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	r.client = &http.Client{Transport: transport, Timeout: patience}
	return r
}

// settings are what a test wants of a node beyond the usual; see yaml.
type settings struct {
	listen, admin string // default: free ports
	redis, ledger string // default: the rig's
	holdTTL       string // default 70s
	total         string // longest upstream call, default 10s
	shutdown      string // default {grace: 20s}
	log           string // default {level: debug}
	decision      string // default 2s: a busy machine is not what is tested
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func (r *rig) yaml(s *settings, dataDir string) string {
	return fmt.Sprintf(`
listen: %q
admin: {listen: %q, token_env: TEST_ADMIN_TOKEN}
data_dir: %q
stores: {default: {url: %q, connect: 1s}}
ledger: {url: %q, load_budget: 5s}
upstreams:
  fake: {url: %q, dialect: openai, auth: {bearer_env: TEST_UPSTREAM_KEY}, timeout: %s}
routes: [{path: "/v1/*", upstream: fake}]
models: {"fake*": {max_output: 1000, price: {input: 1, output: 1}}}
policy: {hold_ttl: %s, outage: deny}
lease: {enabled: false}
limits: {decision: %s}
shutdown: %s
log: %s
`, or(s.listen, "127.0.0.1:0"), or(s.admin, "127.0.0.1:0"), dataDir, or(s.redis, r.redis.URL()),
		or(s.ledger, "sqlite://"+filepath.Join(r.dir, "ledger.db")), r.fakeAt, or(s.total, "10s"), or(s.holdTTL, "70s"),
		or(s.decision, "2s"), or(s.shutdown, "{grace: 20s}"), or(s.log, "{level: debug}"))
}

// node is one running tollgate.
type node struct {
	*process
	rig        *rig
	url, admin string
}

// launch starts a node and does not wait for it.
func (r *rig) launch(s *settings) *process {
	r.t.Helper()
	dataDir := r.t.TempDir()
	file := filepath.Join(dataDir, "node.yaml")
	require.NoError(r.t, os.WriteFile(file, []byte(r.yaml(s, filepath.Join(dataDir, "data"))), 0o600))
	return start(r.t, []string{"TEST_ADMIN_TOKEN=" + adminToken, "TEST_UPSTREAM_KEY=" + upstreamKey}, r.program, "-config", file)
}

// serving starts a node and waits until it listens.
func (r *rig) serving(s *settings) *node {
	r.t.Helper()
	p := r.launch(s)
	// Text: listen=A admin=B; JSON: "listen":"A","admin":"B".
	at := p.printed(`listen"?[=:]"?([0-9.:]+).*admin"?[=:]"?([0-9.:]+)`)
	return &node{process: p, rig: r, url: "http://" + at[1], admin: "http://" + at[2]}
}

// node starts a node and waits until it is ready.
func (r *rig) node(change ...settings) *node {
	r.t.Helper()
	var s settings
	if len(change) > 0 {
		s = change[0]
	}
	n := r.serving(&s)
	n.awaitReady()
	return n
}

func (n *node) awaitReady() {
	n.t.Helper()
	eventually(n.t, "the node is ready", func() bool { return n.do("GET", n.url+"/readyz", "", "").status == 200 })
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}

// reply is an answer read to its end. status 0: there was none.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (a reply) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

func (a reply) json(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, json.Unmarshal(a.body, &m), "%s", a.body)
	return m
}

// code is error.code of a refusal, "" if it is none.
func (a reply) code() string {
	var m struct {
		Error struct{ Code string }
	}
	_ = json.Unmarshal(a.body, &m)
	return m.Error.Code
}

// do makes one call and waits for all of its answer. It may be called from any goroutine.
func (n *node) do(method, url, token, body string, headers ...string) reply {
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := n.rig.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, data, err}
}

// post calls the data plane.
func (n *node) post(path, secret, body string, headers ...string) reply {
	return n.do(http.MethodPost, n.url+path, secret, body, headers...)
}

// ask calls the admin API, below /admin/v1.
func (n *node) ask(method, path, body string) reply {
	return n.do(method, n.admin+"/admin/v1"+path, adminToken, body)
}

// must calls the admin API and wants a success.
func (n *node) must(method, path, body string) map[string]any {
	n.t.Helper()
	a := n.ask(method, path, body)
	require.Contains(n.t, []int{200, 201}, a.status, "%s %s: %v", method, path, a)
	return a.json(n.t)
}

// tenant makes a tenant with app a_1 and key k_1, and gives the key's secret.
func (n *node) tenant(id string, total int64) (secret string) {
	n.t.Helper()
	n.must("POST", "/tenants", fmt.Sprintf(`{"id":%q,"total":%d}`, id, total))
	n.must("POST", "/tenants/"+id+"/apps", `{"id":"a_1"}`)
	return n.key(id, "k_1")
}

func (n *node) key(tenant, id string) (secret string) {
	n.t.Helper()
	made := n.must("POST", "/tenants/"+tenant+"/keys", fmt.Sprintf(`{"id":%q,"app":"a_1"}`, id))
	return made["secret"].(string)
}

func (n *node) consume(secret string, cost int) reply {
	return n.post("/v1/quota/consume", secret, `{"cost":`+strconv.Itoa(cost)+`}`)
}

// account is what Redis holds of an organisation.
type account struct{ Spent, Prepaid, Inflight int64 }

// account reads Redis itself: it works without any node.
func (r *rig) account(tenant string) account {
	r.t.Helper()
	at := lua.AccountKey(tenant, quota.Account{Scope: quota.Org, ID: tenant})
	raw, err := r.redis.Do("HMGET", at, "spent", "prepaid", "inflight")
	require.NoError(r.t, err)
	var n [3]int64
	for i, v := range raw.([]any) {
		text, _ := v.(string)
		require.NotEmpty(r.t, text, "Redis does not hold the account of %s", tenant)
		n[i], err = strconv.ParseInt(text, 10, 64)
		require.NoError(r.t, err)
	}
	return account{n[0], n[1], n[2]}
}

// settled waits until nothing is held.
func (r *rig) settled(tenant string) account {
	r.t.Helper()
	eventually(r.t, "nothing of "+tenant+" is held", func() bool { a := r.account(tenant); return a.Prepaid == 0 && a.Inflight == 0 })
	return r.account(tenant)
}

// used is what the admin API says of each scope: used credits, and those in flight.
func (n *node) used(tenant string) (org, app, key, inFlight int64) {
	n.t.Helper()
	type line struct {
		Used     int64 `json:"used"`
		InFlight int64 `json:"in_flight"`
	}
	var u struct {
		Org        line
		Apps, Keys []line
	}
	a := n.ask("GET", "/tenants/"+tenant+"/usage", "")
	require.Equal(n.t, 200, a.status, "%v", a)
	require.NoError(n.t, json.Unmarshal(a.body, &u))
	for _, l := range u.Apps {
		app += l.Used
	}
	for _, l := range u.Keys {
		key += l.Used
	}
	return u.Org.Used, app, key, u.Org.InFlight
}

// totals are the fake upstream's sums.
type totals struct {
	Begun    int64 `json:"begun"`
	Ended    int64 `json:"ended"`
	InFlight int64 `json:"in_flight"`
	Silent   int64 `json:"silent"`
	Tokens   int64 `json:"total_tokens"`
}

// upstream calls the fake upstream's control API.
func (r *rig) upstream(method, path string) totals {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.fakeAt+"/_fake"+path, nil)
	require.NoError(r.t, err)
	res, err := r.client.Do(req)
	require.NoError(r.t, err)
	defer res.Body.Close()
	var t totals
	require.Equal(r.t, 200, res.StatusCode)
	require.NoError(r.t, json.NewDecoder(res.Body).Decode(&t))
	return t
}

// stream is a streamed chat whose answer is under way.
type stream struct {
	t    testing.TB
	res  *http.Response
	text bytes.Buffer
}

// chatStream starts a stream; model says what it costs, headers how the upstream behaves.
func (n *node) chatStream(secret, model string, headers ...string) *stream {
	n.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`, model)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, n.url+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(n.t, err)
	req.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := n.rig.client.Do(req)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { res.Body.Close() })
	require.Equal(n.t, 200, res.StatusCode)
	return &stream{t: n.t, res: res}
}

// events reads on until so many events have come.
func (s *stream) events(n int) {
	s.t.Helper()
	buf := make([]byte, 4096)
	for bytes.Count(s.text.Bytes(), []byte("\n\n")) < n {
		k, err := s.res.Body.Read(buf)
		s.text.Write(buf[:k])
		require.NoError(s.t, err, "after %s", s.text.String())
	}
}

// rest reads to the end; the error is nil if the stream ended in order.
func (s *stream) rest() error {
	_, err := io.Copy(&s.text, s.res.Body)
	return err
}

func (s *stream) whole() bool { return strings.HasSuffix(s.text.String(), "data: [DONE]\n\n") }
