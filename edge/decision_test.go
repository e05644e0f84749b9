package edge_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/edge/identity"
	"tollgate/ledger"
	"tollgate/quota"
)

const (
	reserve = "/v1/quota/reserve"
	settle  = "/v1/quota/settle"
	release = "/v1/quota/release"
	consume = "/v1/quota/consume"
	balance = "/v1/quota/balance"
)

// step is one call of the decision API, and what its answer has to be.
type step struct {
	path, body string
	status     int
	code       string
	want       map[string]any // of the answer's members; numbers as float64
}

func (n *node) steps(t *testing.T, secret string, steps ...step) {
	t.Helper()
	for i, s := range steps {
		a := n.post(s.path, secret, s.body)
		require.Equal(t, s.status, a.status, "step %d: %s %s → %s", i, s.path, s.body, a.body)
		if s.code != "" {
			require.Equal(t, s.code, a.code(t), "step %d", i)
		}
		got := a.json(t)
		for name, want := range s.want {
			require.Equal(t, want, got[name], "step %d: %s of %s", i, name, a.body)
		}
	}
}

func TestRepeatsOfTheDecisionAPI(t *testing.T) {
	r := newRig(t)
	a, b := r.node(), r.node()
	secret := r.tenant("t_1", 1000)
	type m = map[string]any

	a.steps(t, secret, step{reserve, `{"request_id":"r1","cost":600}`, 200, "", m{"reserved": 600.0, "duplicate": false, "overage": false, "path": "direct", "node": "n1", "request_id": "r1"}})
	b.steps(t, secret,
		step{reserve, `{"request_id":"r1","cost":600}`, 200, "", m{"reserved": 600.0, "duplicate": true}},
		step{reserve, `{"request_id":"r1","cost":601}`, 409, "request_id_conflict", nil},
		step{consume, `{"request_id":"r1","cost":600}`, 409, "request_id_conflict", nil},
		step{settle, `{"request_id":"r1","actual":450}`, 200, "", m{"charged": 450.0, "refunded": 150.0, "overrun": 0.0, "duplicate": false, "late": false}},
	)
	a.steps(t, secret,
		step{settle, `{"request_id":"r1","actual":450}`, 200, "", m{"charged": 450.0, "refunded": 150.0, "duplicate": true}},
		step{settle, `{"request_id":"r1","actual":451}`, 409, "request_id_conflict", nil},
		step{release, `{"request_id":"r1"}`, 409, "already_settled", nil},
		step{reserve, `{"request_id":"r1","cost":600}`, 200, "", m{"duplicate": true}},

		step{reserve, `{"request_id":"r2","cost":100}`, 200, "", nil},
		step{release, `{"request_id":"r2"}`, 200, "", m{"refunded": 100.0, "duplicate": false}},
		step{release, `{"request_id":"r2"}`, 200, "", m{"refunded": 100.0, "duplicate": true}},
		step{settle, `{"request_id":"r2","actual":1}`, 409, "already_released", nil},

		step{settle, `{"request_id":"nobody","actual":1}`, 404, "unknown_request", nil},
		step{release, `{"request_id":"nobody"}`, 404, "unknown_request", nil},

		step{consume, `{"request_id":"c1","cost":50}`, 200, "", m{"charged": 50.0, "duplicate": false}},
		step{consume, `{"request_id":"c1","cost":50}`, 200, "", m{"charged": 50.0, "duplicate": true}},
		step{consume, `{"request_id":"c1","cost":51}`, 409, "request_id_conflict", nil},
		step{release, `{"request_id":"c1"}`, 409, "already_settled", nil},
		step{settle, `{"request_id":"c1","actual":50}`, 200, "", m{"charged": 50.0, "duplicate": true}},

		// More than held is charged in full.
		step{reserve, `{"request_id":"r3","cost":10}`, 200, "", nil},
		step{settle, `{"request_id":"r3","actual":25}`, 200, "", m{"charged": 25.0, "refunded": 0.0, "overrun": 15.0}},
		step{reserve, `{"request_id":"r4","cost":10}`, 200, "", nil},
		step{settle, `{"request_id":"r4","actual":0}`, 200, "", m{"charged": 0.0, "refunded": 10.0}},
	)
	require.EqualValues(t, 450+50+25, a.books(t, "t_1"))
}

// Another key of the same tenant neither sees nor ends a hold, though it knows the id.
func TestRequestIDsBelongToTheirKey(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1000)
	other := identity.NewSecret()
	_, _, err := r.db.CreateKey(t.Context(), ledger.Op{What: "key.create"}, ledger.Key{ID: "k_2", Tenant: "t_1", App: "a_1", Total: quota.Unlimited}, identity.HexHash(other))
	require.NoError(t, err)
	stranger := r.tenant("t_2", 1000)

	n.steps(t, secret, step{reserve, `{"request_id":"same","cost":100}`, 200, "", nil})
	for _, s := range []string{other, stranger} {
		n.steps(t, s,
			step{settle, `{"request_id":"same","actual":1}`, 404, "unknown_request", nil},
			step{release, `{"request_id":"same"}`, 404, "unknown_request", nil},
			step{reserve, `{"request_id":"same","cost":7}`, 200, "", map[string]any{"duplicate": false, "reserved": 7.0}},
			step{release, `{"request_id":"same"}`, 200, "", map[string]any{"refunded": 7.0}},
		)
	}
	n.steps(t, secret, step{settle, `{"request_id":"same","actual":100}`, 200, "", map[string]any{"charged": 100.0, "duplicate": false}})
}

func TestUsageAtSettle(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1_000_000)
	reserveDear := func(id string) {
		n.steps(t, secret, step{reserve, `{"request_id":"` + id + `","model":"dear","prompt_tokens":1000,"max_tokens":100}`, 200, "", map[string]any{"reserved": 7.0 + 2000 + 350}})
	}
	spent := 0.0
	for id, c := range map[string]struct {
		usage  string
		charge float64
	}{
		"openai":    {`{"prompt_tokens":1000,"completion_tokens":10,"total_tokens":1010}`, 7 + 2000 + 35},
		"cached":    {`{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":900}}`, 7 + 200 + 450 + 35},
		"reasoning": {`{"prompt_tokens":10,"completion_tokens":10,"total_tokens":30}`, 7 + 20 + 70},
		"odd":       {`{"prompt_tokens":0,"completion_tokens":1}`, 7 + 4}, // 10.5 is rounded up, once
		"zero":      {`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, 7},
		"anthropic": {`{"input_tokens":100,"cache_read_input_tokens":900,"output_tokens":10}`, 7 + 200 + 450 + 35},
	} {
		reserveDear(id)
		n.steps(t, secret, step{settle, `{"request_id":"` + id + `","usage":` + c.usage + `}`, 200, "", map[string]any{"charged": c.charge}})
		spent += c.charge
	}
	reserveDear("bad")
	for _, usage := range []string{
		`{}`, `{"tokens":5}`, `[]`, `5`, `"x"`, `{"prompt_tokens":-1}`, `{"prompt_tokens":1.5}`, `{"prompt_tokens":"5"}`, `{"completion_tokens":1e30}`,
		`{"prompt_tokens":1,"prompt_tokens":900}`, `{"prompt_tokens":true}`, `{"prompt_tokens":9007199254740993}`, `null`,
	} {
		n.steps(t, secret, step{settle, `{"request_id":"bad","usage":` + usage + `}`, 400, "invalid_request", nil})
	}
	n.steps(t, secret,
		step{settle, `{"request_id":"bad","usage":{"prompt_tokens":1},"actual":5}`, 400, "invalid_request", nil},
		step{settle, `{"request_id":"bad"}`, 400, "invalid_request", nil},
		step{release, `{"request_id":"bad"}`, 200, "", nil},
		// A hold by cost has no prices.
		step{reserve, `{"request_id":"cost","cost":5}`, 200, "", nil},
		step{settle, `{"request_id":"cost","usage":{"prompt_tokens":1}}`, 400, "invalid_request", nil},
		step{release, `{"request_id":"cost"}`, 200, "", nil},
	)
	require.EqualValues(t, spent, n.books(t, "t_1"))
}

// holdKey is where Redis keeps the hold of a caller's id.
func holdKey(tenant, id string) string {
	sum := sha256.Sum256([]byte(id))
	return "quota:{" + tenant + "}:req:k_1:" + hex.EncodeToString(sum[:])
}

// expire lets a caller's hold pass its deadline.
func (n *node) expire(t *testing.T, tenant, id string) {
	t.Helper()
	redis := n.redis["default"]
	_, err := redis.Do("HSET", holdKey(tenant, id), "deadline", "1")
	require.NoError(t, err)
	set, err := redis.Do("ZADD", "quota:{"+tenant+"}:deadlines", "XX", "1", strings.TrimPrefix(holdKey(tenant, id), "quota:{"+tenant+"}:"))
	require.NoError(t, err)
	require.EqualValues(t, 0, set)
}

// A settle that comes after the hold expired is charged all the same; the freeze is gone.
func TestLateSettle(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1000)
	n.steps(t, secret, step{reserve, `{"request_id":"r1","cost":400}`, 200, "", nil}, step{reserve, `{"request_id":"r2","cost":400}`, 200, "", nil})
	n.expire(t, "t_1", "r1")
	n.expire(t, "t_1", "r2")
	r.reap(t, n)
	require.Zero(t, n.books(t, "t_1"))
	n.steps(t, secret,
		step{settle, `{"request_id":"r1","actual":300}`, 200, "", map[string]any{"charged": 300.0, "refunded": 0.0, "late": true, "duplicate": false}},
		step{settle, `{"request_id":"r1","actual":300}`, 200, "", map[string]any{"late": true, "duplicate": true}},
		step{settle, `{"request_id":"r1","actual":1}`, 409, "request_id_conflict", nil},
		step{release, `{"request_id":"r2"}`, 200, "", map[string]any{"duplicate": true}},
		step{reserve, `{"request_id":"r2","cost":400}`, 200, "", map[string]any{"duplicate": true}},
	)
	require.EqualValues(t, 300, n.books(t, "t_1"))
}

// reap lets a reaper of another node go over the rig's stores until nothing is due.
func (r *rig) reap(t *testing.T, n *node) {
	t.Helper()
	before := metric("tollgate_holds_expired_total")
	reaper := ledger.NewReaper("other", 0, r.db, n.stores["default"])
	defer reaper.Close()
	require.Eventually(t, func() bool { return metric("tollgate_holds_expired_total") > before && n.overdue(t) == 0 }, waitLong, tickShort)
}

func (n *node) overdue(t *testing.T) int {
	t.Helper()
	total := 0
	keys, err := n.redis["default"].Do("KEYS", "quota:*:deadlines")
	require.NoError(t, err)
	for _, key := range keys.([]any) {
		count, err := n.redis["default"].Do("ZCOUNT", key.(string), "-inf", "1000")
		require.NoError(t, err)
		total += int(count.(int64))
	}
	return total
}

func TestBalance(t *testing.T) {
	r := newRig(t)
	n := r.node()
	day := int64(500)
	secret := r.tenant("t_1", 1000, func(tn *ledger.Tenant, _ *ledger.App, k *ledger.Key) {
		tn.OverageLimit = 50
		k.Total, k.Day = 200, &day
	})
	get := func() map[string]any { return n.do(http.MethodGet, balance, secret, "").json(t) }
	type m = map[string]any
	want := m{"total": 1000.0, "spent": 0.0, "in_flight": 0.0, "leased": 0.0, "available": 1000.0, "remaining": 1000.0, "overage_limit": 50.0}
	require.Equal(t, want, get()["org"], "before anything was asked")
	n.steps(t, secret, step{reserve, `{"request_id":"r1","cost":30}`, 200, "", m{"remaining": m{"org": 970.0, "app": nil, "key": 170.0}}}, step{consume, `{"cost":5}`, 200, "", nil})
	got := get()
	require.Equal(t, m{"total": 1000.0, "spent": 5.0, "in_flight": 30.0, "leased": 0.0, "available": 965.0, "remaining": 965.0, "overage_limit": 50.0}, got["org"])
	require.Equal(t, m{"total": nil, "spent": 5.0, "in_flight": 30.0, "leased": 0.0, "available": nil, "remaining": nil, "overage_limit": 0.0}, got["app"])
	require.Equal(t, 200.0, got["key"].(m)["total"])
	require.Equal(t, 500.0, got["day"].(m)["key"].(m)["total"])
	require.Equal(t, 30.0, got["day"].(m)["key"].(m)["in_flight"])
	require.Empty(t, got["month"])
	n.steps(t, secret, step{release, `{"request_id":"r1"}`, 200, "", nil})
	require.EqualValues(t, 5, n.books(t, "t_1"))
}

// What a field may hold, and what not: a clear 400 that names it, and nothing changes.
func TestFieldsOfTheDecisionAPI(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1000)
	n.steps(t, secret, step{reserve, `{"request_id":"held","cost":100}`, 200, "", nil})
	numbers := []string{
		"-1", "-9007199254740993", "1.5", "0.1", "1e3", "1e30", "-0.0", "9007199254740992", "9223372036854775807", "9223372036854775808",
		"18446744073709551615", "18446744073686646784", `"5"`, `""`, "true", "[]", "[5]", "{}", `{"a":1}`, "null", "NaN", "Infinity", "0x10", "1_000", "--1", "00000000000000000000000000000000000005x",
	}
	check := func(path, body, param string) {
		t.Helper()
		a := n.post(path, secret, body)
		require.Equal(t, 400, a.status, "%s %s → %s", path, body, a.body)
		require.Equal(t, "invalid_request", a.code(t))
		if got := a.json(t)["error"].(map[string]any)["param"]; got != nil {
			require.Equal(t, param, got, "%s", body)
		} else {
			require.Contains(t, string(a.body), "JSON object", "%s", body)
		}
	}
	for _, v := range append(numbers, "0") {
		check(reserve, `{"request_id":"x","cost":`+v+`}`, map[bool]string{true: "model", false: "cost"}[v == "null"])
		check(consume, `{"cost":`+v+`}`, "cost")
		if v != "null" {
			check(reserve, `{"request_id":"x","model":"fake","prompt_tokens":5,"n":`+v+`}`, "n")
		}
	}
	for _, v := range numbers {
		if v == "1e3" { // also no JSON integer, as everywhere
			v = "1e3 "
		}
		check(settle, `{"request_id":"held","actual":`+v+`}`, "actual")
		check(reserve, `{"request_id":"x","model":"fake","prompt_tokens":`+v+`}`, "prompt_tokens")
		if v != "null" {
			check(reserve, `{"request_id":"x","model":"fake","prompt_tokens":5,"max_tokens":`+v+`}`, "max_tokens")
		}
	}
	for _, v := range []string{`""`, `"a b"`, `"` + strings.Repeat("x", 129) + `"`, `"é"`, `"a\u0000"`, `"a\nb"`, `5`, `[]`, `{}`, `true`} {
		check(reserve, `{"request_id":`+v+`,"cost":5}`, "request_id")
		check(consume, `{"request_id":`+v+`,"cost":5}`, "request_id")
		check(settle, `{"request_id":`+v+`,"actual":5}`, "request_id")
		check(release, `{"request_id":`+v+`}`, "request_id")
	}
	for path, body := range map[string]string{
		reserve: `{"request_id":"x","cost":5,"cost":6}`, consume: `{"cost":5,"c\u006fst":6}`, settle: `{"request_id":"held","actual":5,"actual":5}`,
		release: `{"request_id":"held","request_id":"held"}`,
	} {
		a := n.post(path, secret, body)
		require.Equal(t, 400, a.status, body)
		require.Contains(t, string(a.body), "twice")
	}
	for _, path := range []string{reserve, consume, settle, release} {
		for _, body := range []string{``, `null`, `5`, `"x"`, `[]`, `{`, `{}}`, `{"Cost":5}`, `{"amount":5}`, `{"request_id":"held","coost":5}`, strings.Repeat("[", 400)} {
			require.Equal(t, 400, n.post(path, secret, body).status, "%s %s", path, body)
		}
		require.Equal(t, 413, n.post(path, secret, `{"request_id":"`+strings.Repeat("x", 20_000)+`"}`).status)
		require.Equal(t, 405, n.do(http.MethodGet, path, secret, "").status)
	}
	check(reserve, `{"cost":5,"model":"fake"}`, "model")
	check(reserve, `{"model":"unknown-one","prompt_tokens":5}`, "model")
	check(reserve, `{"model":"fake"}`, "prompt_tokens")
	// The largest counts do not wrap.
	a := n.post(reserve, secret, fmt.Sprintf(`{"model":"dear","prompt_tokens":%d,"max_tokens":%d,"n":128}`, int64(quota.TokensMax), int64(quota.TokensMax)))
	require.Equal(t, 429, a.status)
	require.Equal(t, "false", a.header.Get("x-should-retry"))
	require.Contains(t, string(a.body), "494780232499207 credits")
	// In the end nothing but the one hold.
	n.steps(t, secret, step{release, `{"request_id":"held"}`, 200, "", map[string]any{"refunded": 100.0, "duplicate": false}})
	require.Zero(t, n.books(t, "t_1"))
}
