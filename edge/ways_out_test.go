package edge_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
)

// Every answer of these tests costs 12 tokens of prompt and 34 of completion.
// The prompt is chosen so that its estimate is 12 too, so an estimated charge
// of a whole answer equals the true one.
const (
	promptTokens = 12
	wholeTokens  = 46
)

// chat is the body of a call for a model of one's own; more are further members.
func chat(model string, stream bool, more ...string) string {
	var s strings.Builder
	s.WriteString(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":100`, model, promptMark))
	if stream {
		s.WriteString(`,"stream":true`)
	}
	for _, m := range more {
		s.WriteString("," + m)
	}
	return s.String() + "}"
}

// try is do for calls whose answer may break off: err says how reading ended.
func (n *node) try(ctx context.Context, secret, body string, headers ...string) (a reply, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := n.client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, data}, err
}

// entry waits for the end of the only call of a model at the fake.
func (r *rig) entry(t *testing.T, model string) fake.Entry {
	t.Helper()
	var found fake.Entry
	require.Eventually(t, func() bool {
		for _, e := range r.fake.Log() {
			if e.Model == model {
				found = e
				return true
			}
		}
		return false
	}, 5*time.Second, 5*time.Millisecond, "the upstream's call has not ended")
	return found
}

// wayOut is one end of a call and what it has to cost.
type wayOut struct {
	name   string
	set    fake.Settings
	stream bool
	more   string // a further member of the body
	status int    // 0: the connection is closed without an answer
	code   string // of a refusal by the node
	broken bool   // the answer breaks off
	charge int64
	// charged, where it depends on what was delivered; else charge.
	charged func(t *testing.T, e fake.Entry, got int64)
}

// asDelivered: the prompt, and the tokens that the upstream wrote.
func asDelivered(t *testing.T, e fake.Entry, got int64) {
	require.Positive(t, e.WrittenTokens)
	require.Less(t, e.WrittenTokens, int64(wholeTokens-promptTokens), "the test wants an answer that is not whole")
	require.Equal(t, promptTokens+e.WrittenTokens, got)
}

// partial: something, and not more than the whole.
func partial(t *testing.T, _ fake.Entry, got int64) {
	require.Greater(t, got, int64(promptTokens))
	require.LessOrEqual(t, got, int64(wholeTokens))
}

func TestEveryWayOut(t *testing.T) {
	r := newRig(t)
	n := r.node()
	r.yaml = strings.Replace(r.yaml, "first_byte: 3s, idle: 2s, total: 20s", "first_byte: 500ms, idle: 500ms, total: 1500ms", 1)
	impatient := r.node()

	ways := []wayOut{
		{name: "json", status: 200, charge: wholeTokens},
		{name: "stream", stream: true, status: 200, charge: wholeTokens},
		{name: "json two choices", more: `"n":2`, status: 200, charge: 12 + 2*34},
		{name: "stream two choices", stream: true, more: `"n":2`, status: 200, charge: 12 + 2*34},
		{name: "json usage absent", set: fake.Settings{"usage": "absent"}, status: 200, charge: wholeTokens},
		{name: "json usage null", set: fake.Settings{"usage": "null"}, status: 200, charge: wholeTokens},
		{name: "json usage zero", set: fake.Settings{"usage": "zero"}, status: 200, charge: 0},
		{name: "json usage float", set: fake.Settings{"usage-form": "float"}, status: 200, charge: wholeTokens},
		{name: "json usage negative", set: fake.Settings{"usage-form": "negative"}, status: 200, charge: wholeTokens},
		{name: "json usage huge", set: fake.Settings{"usage-form": "huge"}, status: 200, charge: wholeTokens},
		{name: "json usage text", set: fake.Settings{"usage-form": "text"}, status: 200, charge: wholeTokens},
		{name: "stream usage absent", stream: true, set: fake.Settings{"usage": "absent"}, status: 200, charge: wholeTokens},
		{name: "stream usage null", stream: true, set: fake.Settings{"usage": "null"}, status: 200, charge: wholeTokens},
		{name: "stream usage zero", stream: true, set: fake.Settings{"usage": "zero"}, status: 200, charge: 0},
		{name: "stream usage on finish", stream: true, set: fake.Settings{"usage": "finish"}, status: 200, charge: wholeTokens},
		{name: "stream usage twice", stream: true, set: fake.Settings{"usage": "twice"}, status: 200, charge: wholeTokens},
		{name: "stream usage cumulative", stream: true, set: fake.Settings{"usage": "cumulative"}, status: 200, charge: wholeTokens},
		{name: "stream usage after done", stream: true, set: fake.Settings{"usage": "after-done"}, status: 200, charge: wholeTokens},
		{name: "stream usage no choices", stream: true, set: fake.Settings{"usage": "no-choices"}, status: 200, charge: wholeTokens},
		{name: "stream cumulative cut", stream: true, set: fake.Settings{"usage": "cumulative", "cut": "6"}, status: 200, broken: true, charged: asDelivered},
		{name: "stream byte by byte", stream: true, set: fake.Settings{"split": "1", "sse": "crlf", "text": "utf8"}, status: 200, charge: wholeTokens},
		{name: "stream cr comments", stream: true, set: fake.Settings{"sse": "cr+comments+ids+bom"}, status: 200, charge: wholeTokens},
		{name: "stream joined", stream: true, set: fake.Settings{"join": "5"}, status: 200, charge: wholeTokens},
		{name: "stream no done", stream: true, set: fake.Settings{"sse": "nodone"}, status: 200, charge: wholeTokens},
		{name: "stream until close", stream: true, set: fake.Settings{"framing": "close"}, status: 200, charge: wholeTokens},
		{name: "json chunked", set: fake.Settings{"framing": "chunked"}, status: 200, charge: wholeTokens},
		{name: "json for a stream", stream: true, set: fake.Settings{"body": "json"}, status: 200, charge: wholeTokens},
		{name: "more than asked", set: fake.Settings{"ignore-max": "true"}, more: `"max_completion_tokens":1`, status: 200, charge: wholeTokens},
		{name: "thinking tokens", set: fake.Settings{"thinking-tokens": "50"}, status: 200, charge: wholeTokens + 50},
		{name: "cookie of 12 kB", set: fake.Settings{"cookie-bytes": "12288"}, status: 200, charge: wholeTokens},

		{name: "status 400", set: fake.Settings{"status": "400"}, status: 400},
		{name: "status 401", set: fake.Settings{"status": "401"}, status: 502, code: "upstream_auth_failed"},
		{name: "status 404", set: fake.Settings{"status": "404"}, status: 404},
		{name: "status 429", set: fake.Settings{"status": "429"}, status: 429},
		{name: "status 500", set: fake.Settings{"status": "500"}, status: 500},
		{name: "status 503 stream", stream: true, set: fake.Settings{"status": "503"}, status: 503},
		{name: "status 302", set: fake.Settings{"status": "302", "usage": "absent"}, status: 302},
		{name: "error with usage", set: fake.Settings{"status": "500", "error-usage": "true"}, status: 500, charge: wholeTokens},
		{name: "error in a 200", set: fake.Settings{"body": "error"}, status: 200},
		{name: "error in a stream", stream: true, set: fake.Settings{"body": "error"}, status: 200},

		{name: "json malformed", set: fake.Settings{"body": "malformed"}, status: 200, charged: partial},
		{name: "json deep", set: fake.Settings{"body": "deep"}, status: 200, charged: func(t *testing.T, _ fake.Entry, got int64) { require.Positive(t, got) }},
		{name: "json broken utf8", set: fake.Settings{"body": "utf8"}, status: 200, charge: wholeTokens},
		{name: "stream malformed", stream: true, set: fake.Settings{"body": "malformed"}, status: 200, charge: wholeTokens}, // the extra chunk is whole
		{name: "stream deep", stream: true, set: fake.Settings{"body": "deep"}, status: 200, charge: wholeTokens},
		{name: "stream broken utf8", stream: true, set: fake.Settings{"body": "utf8"}, status: 200, charge: wholeTokens},
		{name: "json empty", set: fake.Settings{"body": "empty"}, status: 200, charge: promptTokens},
		{name: "html", set: fake.Settings{"body": "html"}, status: 200, charge: promptTokens},

		{name: "cut before", set: fake.Settings{"cut": "before"}, status: 502, code: "upstream_unreachable"},
		{name: "cut before a stream", stream: true, set: fake.Settings{"cut": "before"}, status: 502, code: "upstream_unreachable"},
		{name: "reset before", set: fake.Settings{"reset": "true"}, status: 502, code: "upstream_unreachable"},
		{name: "cut after headers", set: fake.Settings{"cut": "headers"}, broken: true}, // of an answer of known size nothing is sent before there is some of it
		{name: "cut after headers of a stream", stream: true, set: fake.Settings{"cut": "headers"}, status: 200, broken: true},
		{name: "json cut", set: fake.Settings{"cut": "bytes:290"}, broken: true, charged: partial},
		{name: "stream cut", stream: true, set: fake.Settings{"cut": "6"}, status: 200, broken: true, charged: asDelivered},
		{name: "stream cut in an event", stream: true, set: fake.Settings{"cut": "bytes:1000"}, status: 200, broken: true, charged: partial},
		{name: "stream reset", stream: true, set: fake.Settings{"cut": "6", "reset": "true"}, status: 200, broken: true, charged: partial},
		{name: "stream cut at the end", stream: true, set: fake.Settings{"cut": "end"}, status: 200, broken: true, charge: wholeTokens},
	}
	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			n.takeWay(t, i, w)
		})
	}
	timeouts := []wayOut{
		{name: "silent before", set: fake.Settings{"hang": "before"}, status: 504, code: "upstream_timeout"},
		{name: "silent before a stream", stream: true, set: fake.Settings{"hang": "before"}, status: 504, code: "upstream_timeout"},
		{name: "silent after headers", stream: true, set: fake.Settings{"hang": "0"}, status: 200, broken: true},
		{name: "silent in a stream", stream: true, set: fake.Settings{"hang": "6"}, status: 200, broken: true, charged: asDelivered},
		{name: "too long in all", stream: true, set: fake.Settings{"chunks": "34", "delay-chunk": "100ms"}, status: 200, broken: true, charged: asDelivered},
	}
	for i, w := range timeouts {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			impatient.takeWay(t, 100+i, w)
		})
	}
}

func (n *node) takeWay(t *testing.T, i int, w wayOut) {
	tenant, model := fmt.Sprintf("t_way%d", i), fmt.Sprintf("fake-way%d-p12-c34", i)
	secret := n.tenant(tenant, 10_000)
	set := fake.Settings{"forbid": secret}
	maps.Copy(set, w.set)
	require.NoError(t, n.fake.Behave(fake.Rule{Model: model, Set: set}))
	var more []string
	if w.more != "" {
		more = []string{w.more}
	}
	a, err := n.try(t.Context(), secret, chat(model, w.stream, more...))
	require.Equal(t, w.status, a.status, "%v %s", err, a.body)
	if w.broken {
		require.Error(t, err, "the answer must not look whole: %s", a.body)
	} else {
		require.NoError(t, err)
	}
	if a.status > 0 {
		require.NotEmpty(t, a.header.Get("X-Request-Id"))
		require.Empty(t, a.header.Get("Server"))
	}
	if w.code != "" {
		require.Equal(t, w.code, a.code(t))
	}
	e := n.entry(t, model)
	require.False(t, e.Forbidden, "the upstream saw the tenant's key")
	want := sha256.Sum256([]byte("upstream-secret"))
	require.Equal(t, hex.EncodeToString(want[:]), e.AuthorizationSHA256)
	require.Empty(t, e.APIKeySHA256)

	got := n.books(t, tenant)
	if w.charged != nil {
		w.charged(t, e, got)
	} else {
		require.Equal(t, w.charge, got)
	}
	// Nothing is left behind: the next call is served and charged as ever.
	require.NoError(t, n.fake.Behave(fake.Rule{Model: model + "-again"}))
	b, err := n.try(t.Context(), secret, chat(model+"-again", false))
	require.NoError(t, err)
	require.Equal(t, 200, b.status)
	require.Equal(t, got+wholeTokens, n.books(t, tenant))
}

// The upstream cannot be reached at all.
func TestUnreachableUpstream(t *testing.T) {
	for name, url := range map[string]string{"refused": "http://127.0.0.1:1", "no such host": "http://no-such-host.invalid"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.yaml = strings.Replace(r.yaml, r.fake.URL(), url, 1)
			n := r.node()
			secret := r.tenant("t_1", 1000)
			a := n.post("/v1/chat/completions", secret, chat("fake", false))
			require.Equal(t, 502, a.status)
			require.Equal(t, "upstream_unreachable", a.code(t))
			require.Zero(t, n.books(t, "t_1"))
		})
	}
}

// What the client gets is what the upstream sends to a client that asks the
// same; only the usage chunk that the node asked for is missing.
func TestStreamBytes(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1_000_000)
	direct := func(body string) []byte {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.fake.URL()+"/v1/chat/completions", strings.NewReader(body))
		require.NoError(t, err)
		res, err := r.client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return data
	}
	spent := int64(0)
	for _, form := range []string{"", "crlf", "cr", "comments+ids", "bom+multiline", "nodone"} {
		r.fake.ClearRules()
		require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"sse": form, "text": "utf8", "split": "7"}}))
		asked, refused := `"stream_options":{"include_usage":true}`, `"stream_options":{"include_usage":false}`
		for _, option := range []string{asked, refused} {
			body := chat("fake-p12-c34", true, option)
			a := n.post("/v1/chat/completions", secret, body)
			require.Equal(t, string(direct(body)), string(a.body), "%s %s", form, option)
			spent += wholeTokens
			require.Equal(t, spent, n.books(t, "t_1"))
		}
		a := n.post("/v1/chat/completions", secret, chat("fake-p12-c34", true))
		full := direct(chat("fake-p12-c34", true, asked))
		extra := bytes.Index(full, []byte(`"choices":[],`))
		require.Positive(t, extra)
		require.NotContains(t, string(a.body), `"choices":[],`, form)
		// The chunk's lines are gone and nothing else: what is left is a head and a tail of the full answer.
		head := commonPrefix(full, a.body)
		require.True(t, bytes.HasSuffix(full, a.body[head:]), "%s: %q", form, a.body)
		require.Less(t, head, extra)
		spent += wholeTokens
		require.Equal(t, spent, n.books(t, "t_1"))
	}
}

func commonPrefix(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// An answer that is compressed though the node asked for none cannot be read: the hold is charged.
func TestCompressedAnswer(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1_000)
	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"encoding": "gzip"}}))
	a, err := n.try(t.Context(), secret, chat("fake-p12-c34", false), "Accept-Encoding", "gzip")
	require.NoError(t, err)
	require.Equal(t, "gzip", a.header.Get("Content-Encoding"))
	require.True(t, bytes.HasPrefix(a.body, []byte{0x1f, 0x8b}))
	got := n.books(t, "t_1")
	require.Greater(t, got, int64(100))
	require.Less(t, got, int64(200))
}

func TestOtherMethodsAndBodies(t *testing.T) {
	r := newRig(t)
	r.yaml += "limits: {body: 1MiB}\n"
	n := r.node()
	secret := r.tenant("t_1", 1_000_000_000)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete} {
		a := n.do(method, "/v1/chat/completions", secret, "")
		require.Equal(t, 405, a.status, method)
		require.Equal(t, "POST", a.header.Get("Allow"))
	}
	a := n.post("/v1/chat/completions", secret, "\x1f\x8b not really", "Content-Encoding", "gzip")
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "Content-Encoding")
	n.untouched(t, "t_1")

	big := strings.Repeat("many words ", 80_000) // 880 kB
	body := func(text string) string {
		return fmt.Sprintf(`{"model":"fake-p12-c34","max_tokens":50,"messages":[{"role":"user","content":%q}]}`, text)
	}
	a = n.post("/v1/chat/completions", secret, body(big))
	require.Equal(t, 200, a.status, "%s", a.body)
	require.EqualValues(t, wholeTokens, n.books(t, "t_1"))

	// Above the limit: 413, if the client still reads it.
	if a, err := n.try(t.Context(), secret, body(big+big)); err == nil {
		require.Equal(t, 413, a.status)
		require.Equal(t, "request_too_large", a.code(t))
	}
	// A client that declares it too large is told before it sends. Headers above the limit: 431.
	a, err := n.try(t.Context(), secret, chat("fake", false), "X-Big", strings.Repeat("x", 70<<10))
	if err == nil {
		require.Equal(t, 431, a.status)
		require.Equal(t, "headers_too_large", a.code(t))
	}
	a = n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false), "X-Big", strings.Repeat("x", 12<<10))
	require.Equal(t, 200, a.status, "12 kB of headers pass")
	require.EqualValues(t, 2*wholeTokens, n.books(t, "t_1"))
	require.EqualValues(t, 2, r.fake.Totals().Begun)
}
