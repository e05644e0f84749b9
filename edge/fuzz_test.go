package edge_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/quota"
)

// fuzzed is a node under fuzzing and what its tenant may have been charged.
type fuzzed struct {
	n       *node
	secret  string
	charged int64
}

func newFuzzed(f *testing.F) *fuzzed {
	r := newRig(f)
	return &fuzzed{n: r.node(), secret: r.tenant("t_1", 1_000_000)}
}

// post sends one body and demands a clear answer; ok says that it was 200.
func (z *fuzzed) post(t *testing.T, path, body string) (answer map[string]any, ok bool) {
	defer z.n.under(t)()
	before := metric("tollgate_panics_total")
	a := z.n.post(path, z.secret, body)
	require.Equal(t, before, metric("tollgate_panics_total"), "%s %q", path, body)
	if a.status == 200 {
		require.NoError(t, json.Unmarshal(a.body, &answer), "%s", a.body)
		return answer, true
	}
	require.True(t, a.status >= 400 && a.status < 500 || a.status == 503, "%s %q → %d %s", path, body, a.status, a.body)
	require.NotEmpty(t, a.code(t))
	require.NotEqual(t, "internal_error", a.code(t))
	return nil, false
}

// check demands that the account carries what was answered, and nothing else.
func (z *fuzzed) check(t *testing.T) {
	defer z.n.under(t)()
	if len(z.n.hash("default", "quota:{t_1}:org:t_1")) == 0 {
		return // nothing was ever admitted
	}
	a := z.n.account("default", "t_1", quota.Org)
	require.Equal(t, z.charged, a.Spent, "spent by other than what was answered")
	require.GreaterOrEqual(t, a.Prepaid, int64(0))
	require.LessOrEqual(t, a.Prepaid, int64(1_000_000)) // a settle may charge more than was held, a reserve never holds more than there is
}

// under makes t the test of the rig until the returned function is called.
func (r *rig) under(t testing.TB) func() {
	before := r.t
	r.t = t
	return func() { r.t = before }
}

// number is an integral member of an answer.
func number(t *testing.T, m map[string]any, name string) int64 {
	f, ok := m[name].(float64)
	require.True(t, ok, "%s of %v", name, m)
	return int64(f)
}

// FuzzDecisionAPI sends any body to each endpoint.
func FuzzDecisionAPI(f *testing.F) {
	paths := []string{reserve, settle, release, consume}
	for i, body := range []string{
		`{"request_id":"a","cost":5}`, `{"request_id":"a","actual":3}`, `{"request_id":"a"}`, `{"cost":5}`, `{"request_id":"b","model":"dear","prompt_tokens":10,"max_tokens":5,"n":2}`,
		`{"request_id":"b","usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}}`,
		`{"request_id":"b","usage":{"input_tokens":1e2,"output_tokens":-0}}`, `{"request_id":"c","cost":1e0}`, `{"cost":9007199254740991}`, `{"cost":-1}`, `{"cost":01}`,
		`{"cost":5,"local":true}`, `{"cost":5,"local":"x"}`, `{"cost":5,"cost":6}`, "{\"cost\":5}\x00", `{"c\u006fst":5}`, `[]`, ``, `{"request_id":"a","cost":5,"x":1}`, "\xff", `{"cost":`,
	} {
		f.Add(uint8(i), body)
		f.Add(uint8(i+1), body)
	}
	z := newFuzzed(f)
	f.Fuzz(func(t *testing.T, which uint8, body string) {
		path := paths[int(which)%len(paths)]
		answer, ok := z.post(t, path, body)
		if ok && answer["duplicate"] == false {
			switch path {
			case settle:
				z.charged += number(t, answer, "charged")
			case consume:
				z.charged += number(t, answer, "charged")
			}
		}
		z.check(t)
	})
}

// FuzzDecisionFields puts any JSON value into each field of each endpoint.
func FuzzDecisionFields(f *testing.F) {
	fields := []string{"request_id", "cost", "model", "prompt_tokens", "max_tokens", "n", "local", "actual", "usage"}
	values := []string{
		"0", "1", "-1", "1.5", "1e3", "9007199254740991", "9007199254740992", "18446744073709551615", `"5"`, `"a"`, "null", "true", "[]", "{}", `{"prompt_tokens":1}`,
		`{"prompt_tokens":-1}`, `"` + strings.Repeat("x", 200) + `"`, "NaN", "-0", "1.0", "1E400", `"\ud800"`, `"\u0000"`,
	}
	for i := range fields {
		for j, v := range values {
			f.Add(uint8(i), uint8(j), v)
		}
	}
	base := []struct{ path, rest string }{
		{reserve, `"request_id":"r","cost":5`},
		{reserve, `"model":"dear","prompt_tokens":10,"max_tokens":5`},
		{settle, `"request_id":"r","actual":3`},
		{release, `"request_id":"r"`},
		{consume, `"cost":5`},
	}
	z := newFuzzed(f)
	f.Fuzz(func(t *testing.T, field, which uint8, value string) {
		name := fields[int(field)%len(fields)]
		b := base[int(which)%len(base)]
		var body strings.Builder
		body.WriteString("{")
		for member := range strings.SplitSeq(b.rest, ",") {
			if !strings.HasPrefix(member, strconv.Quote(name)) {
				body.WriteString(member + ",")
			}
		}
		body.WriteString(strconv.Quote(name) + ":" + value + "}")
		answer, ok := z.post(t, b.path, body.String())
		if ok && answer["duplicate"] == false && (b.path == settle || b.path == consume) {
			z.charged += number(t, answer, "charged")
		}
		z.check(t)
	})
}

// FuzzChatFields puts any JSON value into a field of a chat completion. What the
// upstream was called for is what is charged.
func FuzzChatFields(f *testing.F) {
	fields := []string{"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "messages", "tools", "response_format", "best_of", "Model", "x"}
	for i := range fields {
		for _, v := range []string{
			"0", "1", "-1", "128", "129", "1.5", "1e30", "9223372036854775807", `"5"`, `"fake-p1-c1"`, "null", "true", "[]", "{}", `{"include_usage":true}`, `{"include_usage":false}`,
			`{"include_usage":5}`, `[{"role":"user","content":"x"}]`, `[{"content":[{"text":"x"},{"image_url":{}}]}]`, `[5]`,
		} {
			f.Add(uint8(i), v)
		}
	}
	r := newRig(f)
	n := r.node()
	secret := r.tenant("t_1", 1_000_000_000)
	f.Fuzz(func(t *testing.T, field uint8, value string) {
		name := fields[int(field)%len(fields)]
		var body strings.Builder
		body.WriteString("{")
		for _, member := range []string{`"model":"fake-p2-c3"`, `"messages":[{"role":"user","content":"x"}]`, `"max_tokens":9`} {
			if !strings.HasPrefix(member, strconv.Quote(name)) {
				body.WriteString(member + ",")
			}
		}
		body.WriteString(strconv.Quote(name) + ":" + value + "}")
		defer n.under(t)()
		before := metric("tollgate_panics_total")
		a := n.do(http.MethodPost, "/v1/chat/completions", secret, body.String())
		require.Equal(t, before, metric("tollgate_panics_total"), "%q", body.String())
		require.True(t, a.status < 500 || a.status == 503, "%q → %d %s", body.String(), a.status, a.body)
		if len(n.hash("default", "quota:{t_1}:org:t_1")) == 0 {
			return
		}
		_, err := r.fake.Wait(within(t, waitLong), nothingRuns)
		require.NoError(t, err)
		require.Equal(t, r.fake.Totals().Total, n.books(t, "t_1"), "%q", body.String())
	})
}
