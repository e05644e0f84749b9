package admin

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever is not understood is refused, names the field, and changes nothing.
func TestMisuse(t *testing.T) {
	s := newRig(t)
	s.seed()
	before := s.must(200, "GET", "/tenants/t_x", "").text
	long := strings.Repeat("x", 201)
	for _, row := range []struct {
		method, path, body string
		status             int
		code, param, says  string
	}{
		// The body as such.
		{"POST", "/tenants", `{"total":1`, 400, "invalid_request", "", "not JSON"},
		{"POST", "/tenants", `[]`, 400, "invalid_request", "", "must be a JSON object"},
		{"POST", "/tenants", `null`, 400, "invalid_request", "", "must be a JSON object"},
		{"POST", "/tenants", `{"total":1}{}`, 400, "invalid_request", "", "not JSON"},
		{"POST", "/tenants", "{\"total\":1,\"name\":\"\xff\"}", 400, "invalid_request", "", "UTF-8"},
		{"POST", "/tenants", `{"total":1,"total":2}`, 400, "invalid_request", "total", "given twice"},
		{"POST", "/tenants", `{"total":1,"limits":{"rpm":1,"rpm":2}}`, 400, "invalid_request", "limits.rpm", "given twice"},
		{"POST", "/tenants", `{"total":1,"policy":{"fit":"clamp","fit":"refuse"}}`, 400, "invalid_request", "policy.fit", "given twice"},
		{"POST", "/tenants", `{"total":1,"name":"` + strings.Repeat("x", bodyBytesMax) + `"}`, 413, "request_too_large", "", "65536"},
		// Names.
		{"POST", "/tenants", `{"total":1,"budgets":2}`, 400, "invalid_request", "budgets", "Unknown field"},
		{"POST", "/tenants", `{"total":1,"overage":2}`, 400, "invalid_request", "overage", "did you mean overage_limit?"},
		{"POST", "/tenants", `{"Total":1}`, 400, "invalid_request", "Total", "did you mean total?"},
		{"POST", "/tenants", `{"total":1,"limits":{"rmp":1}}`, 400, "invalid_request", "limits.rmp", "did you mean"},
		{"POST", "/tenants", `{"total":1,"policy":{"outages":"deny"}}`, 400, "invalid_request", "policy.outages", "outage"},
		{"POST", "/tenants?dry=1", `{"total":1}`, 400, "invalid_request", "dry", "Unknown query parameter"},
		// Values.
		{"POST", "/tenants", `{}`, 400, "invalid_request", "total", "missing"},
		{"POST", "/tenants", ``, 400, "invalid_request", "total", "missing"},
		{"POST", "/tenants", `{"total":"1000"}`, 400, "invalid_request", "total", "whole number"},
		{"POST", "/tenants", `{"total":1.5}`, 400, "invalid_request", "total", "whole number"},
		{"POST", "/tenants", `{"total":1e3}`, 400, "invalid_request", "total", "whole number"},
		{"POST", "/tenants", `{"total":-1}`, 400, "invalid_request", "total", "negative"},
		{"POST", "/tenants", `{"total":9007199254740992}`, 400, "invalid_request", "total", "9007199254740991"},
		{"POST", "/tenants", `{"total":99999999999999999999}`, 400, "invalid_request", "total", "9007199254740991"},
		{"POST", "/tenants", `{"total":9007199254740991,"overage_limit":1}`, 400, "invalid_request", "overage_limit", "9007199254740991"},
		{"POST", "/tenants", `{"total":1,"day":-5}`, 400, "invalid_request", "day", "negative"},
		{"POST", "/tenants", `{"total":1,"limits":{"rpm":-1}}`, 400, "invalid_request", "limits.rpm", "0 to"},
		{"POST", "/tenants", `{"total":1,"limits":{"rpm":"fast"}}`, 400, "invalid_request", "limits.rpm", `{"rate":n,"burst":n}`},
		{"POST", "/tenants", `{"total":1,"limits":{"concurrency":-1}}`, 400, "invalid_request", "limits.concurrency", "0 to"},
		{"POST", "/tenants", `{"total":1,"limits":7}`, 400, "invalid_request", "limits", "object"},
		{"POST", "/tenants", `{"total":1,"name":7}`, 400, "invalid_request", "name", "quotes"},
		{"POST", "/tenants", `{"total":1,"name":"` + long + `"}`, 400, "invalid_request", "name", "200"},
		{"POST", "/tenants", `{"total":1,"timezone":"Mars/Base"}`, 400, "invalid_request", "timezone", "Mars/Base"},
		{"POST", "/tenants", `{"total":1,"policy":[]}`, 400, "invalid_request", "policy", "object"},
		{"POST", "/tenants", `{"total":1,"policy":{"outage":"maybe"}}`, 400, "invalid_request", "policy.outage", "local"},
		{"POST", "/tenants", `{"total":1,"store":"gold"}`, 400, "invalid_request", "store", "gold"},
		{"POST", "/tenants", `{"total":1,"id":"acme"}`, 400, "invalid_request", "id", "t_"},
		{"POST", "/tenants", `{"total":1,"id":"t_a b"}`, 400, "invalid_request", "id", "t_"},
		{"POST", "/tenants", `{"total":1,"op_id":"` + long + `"}`, 400, "invalid_request", "op_id", "128"},
		{"POST", "/tenants", `{"total":1,"op_id":"ä"}`, 400, "invalid_request", "op_id", "ASCII"},
		{"POST", "/tenants", `{"total":1,"id":"t_x"}`, 409, "already_exists", "id", "taken"},
		// What exists and what does not.
		{"GET", "/tenants/t_none", ``, 404, "not_found", "", "tenant t_none"},
		{"GET", "/tenants/acme", ``, 400, "invalid_request", "tenant", "t_"},
		{"GET", "/tenants/t_x/usage?by=day", ``, 400, "invalid_request", "by", "after, limit"},
		{"GET", "/tenants?limit=0", ``, 400, "invalid_request", "limit", "1 to 1000"},
		{"GET", "/tenants?limit=1001", ``, 400, "invalid_request", "limit", "1 to 1000"},
		{"GET", "/tenants?limti=5", ``, 400, "invalid_request", "limti", "after, limit"},
		{"PATCH", "/tenants/t_none", `{"name":"n"}`, 404, "not_found", "", "tenant t_none"},
		{"POST", "/tenants/t_none/suspend", ``, 404, "not_found", "", "tenant t_none"},
		{"GET", "/tenants/t_none/usage", ``, 404, "not_found", "", "tenant t_none"},
		{"GET", "/tenants/t_none/apps", ``, 404, "not_found", "", "tenant t_none"},
		{"GET", "/tenants/t_none/keys", ``, 404, "not_found", "", "tenant t_none"},
		{"POST", "/tenants/t_none/apps", `{}`, 404, "not_found", "", "tenant t_none"},
		{"POST", "/tenants/t_none/keys", `{"app":"a_y"}`, 404, "not_found", "", "tenant t_none"},
		{"POST", "/tenants/t_x/keys", `{"app":"a_none"}`, 404, "not_found", "app", "no app a_none"},
		{"POST", "/tenants/t_x/keys", `{}`, 400, "invalid_request", "app", "missing"},
		{"POST", "/tenants/t_x/keys", `{"app":"y"}`, 400, "invalid_request", "app", "a_"},
		{"POST", "/tenants/t_x/keys", `{"app":"a_y","models":"gpt"}`, 400, "invalid_request", "models", "list"},
		{"POST", "/tenants/t_x/keys", `{"app":"a_y","models":[""]}`, 400, "invalid_request", "models[0]", "200"},
		{"POST", "/tenants/t_x/keys", `{"app":"a_y","secret":"mine"}`, 400, "invalid_request", "secret", "Unknown field"},
		{"POST", "/tenants/t_x/apps", `{"id":"a_y"}`, 409, "already_exists", "id", "taken"},
		{"PATCH", "/tenants/t_x/apps/a_none", `{}`, 404, "not_found", "", "app a_none of tenant t_x"},
		{"PATCH", "/tenants/t_x/keys/k_none", `{}`, 404, "not_found", "", "key k_none of tenant t_x"},
		{"POST", "/tenants/t_x/keys/k_none/rotate", ``, 404, "not_found", "", "key k_none"},
		{"DELETE", "/tenants/t_x/keys/k_none", ``, 404, "not_found", "", "key k_none"},
		// PATCH never takes what is changed elsewhere.
		{"PATCH", "/tenants/t_x", `{"total":5}`, 400, "invalid_request", "total", "adjust"},
		{"PATCH", "/tenants/t_x", `{"status":"active"}`, 400, "invalid_request", "status", "suspend"},
		{"PATCH", "/tenants/t_x", `{"store":"default"}`, 400, "invalid_request", "store", "stays"},
		{"PATCH", "/tenants/t_x/apps/a_y", `{"total":5}`, 400, "invalid_request", "total", "adjust"},
		{"PATCH", "/tenants/t_x/keys/k_z", `{"total":null}`, 400, "invalid_request", "total", "adjust"},
		{"PATCH", "/tenants/t_x/keys/k_z", `{"app":"a_y"}`, 400, "invalid_request", "app", "stays"},
		{"PATCH", "/tenants/t_x", `{"limits":{"rpm":{"rate":1,"busrt":2}}}`, 400, "invalid_request", "limits.rpm", "burst"},
		{"PATCH", "/tenants/t_x", `{"day":9007199254740992}`, 400, "invalid_request", "day", "9007199254740991"},
		// Adjustments and rotations.
		{"POST", "/tenants/t_x/adjust", `{"delta":5}`, 400, "invalid_request", "scope", "missing"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"org"}`, 400, "invalid_request", "delta", "missing"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"org","delta":0}`, 400, "invalid_request", "delta", "other than 0"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"org","delta":9007199254740992}`, 400, "invalid_request", "delta", "2^53-1"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"org:t_x","delta":5}`, 400, "invalid_request", "scope", "app:a_…"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"app:k_z","delta":5}`, 400, "invalid_request", "scope", "app:a_…"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"app:a_none","delta":5}`, 404, "not_found", "", "app a_none of tenant t_x"},
		{"POST", "/tenants/t_none/adjust", `{"scope":"org","delta":5}`, 404, "not_found", "", "tenant t_none"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"key:k_z","delta":5}`, 409, "unlimited", "delta", "unlimited"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"org","delta":9007199254740991}`, 409, "total_too_large", "delta", "9007199254740991"},
		{"POST", "/tenants/t_x/adjust", `{"scope":"org","delta":-1001}`, 409, "below_usage", "delta", "at most 1000"},
		{"POST", "/tenants/t_x/keys/k_z/rotate", `{"overlap":"soon"}`, 400, "invalid_request", "overlap", "24h"},
		{"POST", "/tenants/t_x/keys/k_z/rotate", `{"overlap":"91d"}`, 400, "invalid_request", "overlap", "90d"},
		{"POST", "/tenants/t_x/keys/k_z/rotate", `{"overlap":-1}`, 400, "invalid_request", "overlap", "quotes"},
		// Methods and paths; some are for later versions.
		{"DELETE", "/tenants/t_x", ``, 405, "method_not_allowed", "", "GET or PATCH"},
		{"PUT", "/tenants/t_x", `{}`, 405, "method_not_allowed", "", "GET or PATCH"},
		{"GET", "/tenants/t_x/adjust", ``, 405, "method_not_allowed", "", "POST"},
		{"GET", "/requests/abc", ``, 404, "not_found", "", "/admin/v1/tenants"},
		{"POST", "/reconcile", ``, 404, "not_found", "", "/admin/v1/tenants"},
		{"GET", "/", ``, 404, "not_found", "", "/admin/v1/tenants"},
	} {
		a := s.request(row.method, "/admin/v1"+row.path, row.body)
		name := fmt.Sprintf("%s %s %.80s → %s", row.method, row.path, row.body, a.text)
		assert.Equal(t, row.status, a.status, name)
		assert.Equal(t, row.code, a.at("error.code"), name)
		assert.Contains(t, a.at("error.message"), row.says, name)
		if row.param == "" {
			assert.Nil(t, a.at("error.param"), name)
		} else {
			assert.Equal(t, row.param, a.at("error.param"), name)
		}
	}
	assert.Equal(t, before, s.must(200, "GET", "/tenants/t_x", "").text, "nothing of it changed anything")
	assert.Len(t, s.must(200, "GET", "/tenants", "").at("tenants"), 1)
	assert.Len(t, s.must(200, "GET", "/tenants/t_x/keys", "").at("keys"), 1)
}

func TestWhoMayAsk(t *testing.T) {
	ask := func(s *rig, path string, header ...string) int { return s.request("GET", path, "", header...).status }
	t.Run("token", func(t *testing.T) {
		s := newRig(t, func(o *Options) { o.Token = "right" })
		assert.Equal(t, 200, ask(s, "/admin/v1/tenants"))
		assert.Equal(t, 200, ask(s, "/admin/v1/tenants", "Authorization", "bearer right"))
		assert.Equal(t, 200, ask(s, "/admin/v1/tenants", "Host", "tollgate.internal"))
		for _, given := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer right2", "Bearer righ", "Basic right", "right"} {
			a := s.request("GET", "/admin/v1/tenants", "", "Authorization", given)
			assert.Equal(t, 401, a.status, given)
			assert.Equal(t, "unauthorized", a.at("error.code"))
			assert.Contains(t, a.header.Get("WWW-Authenticate"), "Bearer")
		}
		s.token = ""
		for path, want := range map[string]int{
			"/healthz": 200, "/readyz": 200, "/metrics": 401, "/debug/pprof/": 401, "/debug/pprof/cmdline": 401, "/nothing": 401, "/admin/v1/tenants/t_x/usage": 401,
		} {
			assert.Equal(t, want, ask(s, path), path)
		}
	})
	t.Run("open metrics", func(t *testing.T) {
		s := newRig(t, func(o *Options) { o.Token, o.MetricsOpen = "right", true })
		s.token = ""
		a := s.request("GET", "/metrics", "")
		assert.Equal(t, 200, a.status)
		assert.Contains(t, a.text, "tollgate_publications_total")
		assert.Equal(t, 401, ask(s, "/debug/pprof/heap"))
	})
	t.Run("loopback", func(t *testing.T) {
		s := newRig(t)
		for host, want := range map[string]int{
			"127.0.0.1:9090": 200, "localhost": 200, "LocalHost:9090": 200, "[::1]:9090": 200, "127.1.2.3": 200,
			"evil.example": 403, "127.0.0.1.evil.example": 403, "10.0.0.1:9090": 403, "localhost.evil.example": 403,
		} {
			assert.Equal(t, want, ask(s, "/admin/v1/tenants", "Host", host), host)
		}
		assert.Equal(t, 200, ask(s, "/debug/pprof/cmdline"))
		page := s.request("POST", "/admin/v1/tenants", `{"id":"t_csrf","total":1}`, "Origin", "https://evil.example", "Content-Type", "text/plain")
		assert.Equal(t, 403, page.status, "a page in the operator's browser")
		page = s.request("POST", "/admin/v1/tenants", `{"id":"t_csrf","total":1}`, "Sec-Fetch-Site", "cross-site")
		assert.Equal(t, 403, page.status)
		s.must(404, "GET", "/tenants/t_csrf", "")
	})
}

func TestHealth(t *testing.T) {
	s := newRig(t)
	assert.Equal(t, `{"status":"ok"}`+"\n", s.request("GET", "/healthz", "").text)
	a := s.request("GET", "/readyz", "")
	assert.Equal(t, 200, a.status)
	assert.JSONEq(t, `{"ready":true,"ledger":"ok","stores":{"default":"ok"}}`, a.text)
	s.redis.Stop()
	a = s.request("GET", "/readyz", "")
	assert.Equal(t, 200, a.status, "whether that matters is for Ready to say")
	assert.Equal(t, "unavailable", a.at("stores.default"))
	err := errNotYet
	s.ready.Store(&err)
	a = s.request("GET", "/readyz", "")
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, false, a.at("ready"))
	assert.Equal(t, err.Error(), a.at("reason"))
}

func TestPanicIsAnswered(t *testing.T) {
	s := newRig(t, func(o *Options) { o.Ready = func() error { panic("oops") } })
	a := s.request("GET", "/readyz", "")
	require.Equal(t, 500, a.status)
	assert.Equal(t, "internal", a.at("error.code"))
	assert.NotContains(t, a.text, "oops")
}

func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{"id":"t_x","total":5}`, `{"total":null,"limits":{"rpm":{"rate":1,"burst":2}}}`, `{"policy":{"a":[{"b":1,"b":2}]}}`, `{"day":-0}`,
		`{"name":"\ud800"}`, `{"total":1E400}`, ` `, `{"op_id":null}`, `[[[[`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, target := range []interface{ opID() *string }{
			&createTenantBody{}, &struct {
				opBody
				tenantPatchForFuzz
			}{},
		} {
			r, err := http.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(string(body)))
			require.NoError(t, err)
			if _, err := change(r, "fuzz", target); err != nil {
				var refused *Error
				require.ErrorAs(t, err, &refused)
				require.Equal(t, 400, refused.Status)
			}
		}
	})
}
