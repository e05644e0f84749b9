package admin

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/edge/identity"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

type tenantPatchForFuzz = ledger.TenantPatch

func TestTenants(t *testing.T) {
	s := newRig(t)
	a := s.must(201, "POST", "/tenants", `{"id":"t_a","name":"Acme","total":1000,"overage_limit":50,"day":100,"month":null,"timezone":"Europe/Berlin",
		"policy":{"outage":"deny"},"limits":{"rpm":600,"rps":{"rate":10,"burst":20},"concurrency":5}}`)
	for path, want := range map[string]any{
		"id": "t_a", "name": "Acme", "total": 1000.0, "overage_limit": 50.0, "day": 100.0, "month": nil, "timezone": "Europe/Berlin",
		"status": "active", "store": "default", "policy.outage": "deny", "limits.rpm": 600.0, "limits.rps.burst": 20.0, "limits.concurrency": 5.0,
		"published": true, "version": 1.0,
	} {
		assert.Equal(t, want, a.at(path), path)
	}
	a = s.must(201, "POST", "/tenants", `{"total":null}`)
	assert.Regexp(t, `^t_[0-9a-z]{20}$`, a.at("id"))
	assert.Contains(t, a.text, `"total":null`)
	assert.Equal(t, 0.0, s.must(201, "POST", "/tenants", `{"id":"t_zero","total":0}`).at("total"), "0 is a limit, not none")

	conf, err := s.store.ReadConf(t.Context(), "t_a", "", "")
	require.NoError(t, err)
	assert.Equal(t, "Acme", conf.Tenant.Name, "nodes know already")

	assert.Equal(t, "suspended", s.must(200, "POST", "/tenants/t_a/suspend", "").at("status"))
	conf, err = s.store.ReadConf(t.Context(), "t_a", "", "")
	require.NoError(t, err)
	assert.Equal(t, lua.Suspended, conf.Tenant.Status)
	assert.Equal(t, "active", s.must(200, "POST", "/tenants/t_a/resume", `{"op_id":"r"}`).at("status"))
}

func TestPages(t *testing.T) {
	s := newRig(t)
	for i := range 5 {
		s.must(201, "POST", "/tenants", fmt.Sprintf(`{"id":"t_%d","total":1}`, i))
	}
	var seen []any
	after := ""
	for range 4 {
		a := s.must(200, "GET", "/tenants?limit=2&after="+after, "")
		for _, tenant := range a.at("tenants").([]any) {
			seen = append(seen, tenant.(map[string]any)["id"])
		}
		next, more := a.at("next").(string)
		if !more {
			break
		}
		after = next
	}
	assert.Equal(t, []any{"t_0", "t_1", "t_2", "t_3", "t_4"}, seen)
}

// absent keeps, null removes, a value sets; usage is never touched, and the running period follows at once.
func TestPatch(t *testing.T) {
	s := newRig(t)
	s.seed()
	day := orgX
	day.Period, day.Window = quota.Day, quota.WindowAt(quota.Day, s.store.Now(), time.UTC)
	a := s.must(200, "PATCH", "/tenants/t_x", `{"day":100,"month":3000,"limits":{"rpm":60,"tpm":{"rate":1000,"burst":5000},"concurrency":3},"overage_limit":10}`)
	assert.Equal(t, 100.0, a.at("day"))
	assert.Equal(t, 1000.0, a.at("total"))
	s.use(day, "70", "5", "0")
	s.use(orgX, "70", "5", "0")

	a = s.must(200, "PATCH", "/tenants/t_x", `{"name":"New"}`)
	assert.Equal(t, []any{"New", 100.0, 3000.0, 60.0, 5000.0, 3.0, 10.0},
		[]any{a.at("name"), a.at("day"), a.at("month"), a.at("limits.rpm"), a.at("limits.tpm.burst"), a.at("limits.concurrency"), a.at("overage_limit")})
	usage := func(path string) any { return s.must(200, "GET", "/tenants/t_x/usage", "").at(path) }
	assert.Equal(t, 70.0, usage("org.day.used"))
	assert.Equal(t, 25.0, usage("org.day.left"))

	s.must(200, "PATCH", "/tenants/t_x", `{"day":50,"limits":{"rpm":null}}`)
	assert.Equal(t, -25.0, usage("org.day.left"), "in the running day")
	a = s.must(200, "GET", "/tenants/t_x", "")
	assert.Nil(t, a.at("limits.rpm"))
	assert.Equal(t, 3.0, a.at("limits.concurrency"))

	s.must(200, "PATCH", "/tenants/t_x", `{"day":null,"limits":null,"overage_limit":null}`)
	a = s.must(200, "GET", "/tenants/t_x", "")
	assert.Nil(t, a.at("day"))
	assert.Nil(t, a.at("limits"))
	assert.Equal(t, 0.0, a.at("overage_limit"))
	assert.Nil(t, usage("org.day"))
	s.must(200, "PATCH", "/tenants/t_x", `{"day":200}`)
	assert.Equal(t, 70.0, usage("org.day.used"), "and back: what was used is still there")
	assert.Equal(t, 125.0, usage("org.day.left"))
	assert.Equal(t, 70.0, usage("org.used"))

	a = s.must(200, "PATCH", "/tenants/t_x/keys/k_z", `{"models":["gpt-4o*"],"month":7}`)
	assert.Equal(t, []any{"gpt-4o*"}, a.at("models"))
	a = s.must(200, "PATCH", "/tenants/t_x/keys/k_z", `{"name":"n"}`)
	assert.Equal(t, []any{"gpt-4o*"}, a.at("models"))
	assert.Equal(t, 7.0, a.at("month"))
	assert.Nil(t, s.must(200, "PATCH", "/tenants/t_x/keys/k_z", `{"models":null}`).at("models"))
	assert.Equal(t, 5.0, s.must(200, "PATCH", "/tenants/t_x/apps/a_y", `{"day":5}`).at("day"))
	assert.Equal(t, 5.0, s.must(200, "GET", "/tenants/t_x/apps/a_y", "").at("day"))
	assert.Equal(t, "n", s.must(200, "GET", "/tenants/t_x/keys/k_z", "").at("name"))
}

func TestKeys(t *testing.T) {
	s := newRig(t)
	s.seed()
	secretDoc := func(secret string) (lua.SecretDoc, bool) {
		doc, ok, err := s.store.ReadSecret(t.Context(), identity.HexHash(secret))
		require.NoError(t, err)
		return doc, ok
	}
	body := `{"app":"a_y","name":"ci","total":500,"models":["gpt-*"],"op_id":"new-key"}`
	first := s.must(201, "POST", "/tenants/t_x/keys", body)
	secret := first.at("secret").(string)
	key := first.at("key_id").(string)
	assert.True(t, identity.Check([]byte(secret)))
	doc, ok := secretDoc(secret)
	assert.True(t, ok, "works at once")
	assert.Equal(t, lua.SecretDoc{Tenant: "t_x", App: "a_y", Key: key, Store: "default", Status: lua.Active}, doc)

	again := s.must(201, "POST", "/tenants/t_x/keys", body)
	assert.Equal(t, key, again.at("key_id"))
	assert.Nil(t, again.at("secret"), "shown once")
	assert.Contains(t, again.at("note"), "rotate")
	assert.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	assert.Len(t, s.must(200, "GET", "/tenants/t_x/keys", "").at("keys"), 2)

	path := "/tenants/t_x/keys/" + key
	rotated := s.must(200, "POST", path+"/rotate", `{"overlap":"2h","op_id":"rot"}`)
	second := rotated.at("secret").(string)
	assert.NotEqual(t, secret, second)
	doc, _ = secretDoc(second)
	assert.Zero(t, doc.ExpiresAt)
	require.Eventually(t, func() bool { doc, _ = secretDoc(secret); return doc.ExpiresAt != 0 }, 5*time.Second, time.Millisecond)
	assert.InDelta(t, time.Now().Add(2*time.Hour).UnixMilli(), doc.ExpiresAt, 60_000)
	expires, err := time.Parse(time.RFC3339, rotated.at("old_secrets_expire_at").(string))
	require.NoError(t, err)
	assert.Equal(t, doc.ExpiresAt, expires.UnixMilli())
	again = s.must(200, "POST", path+"/rotate", `{"overlap":"2h","op_id":"rot"}`)
	assert.Nil(t, again.at("secret"))
	s.must(409, "POST", path+"/rotate", `{"overlap":"3h","op_id":"rot"}`)

	status := func(want lua.Status) {
		t.Helper()
		for _, each := range []string{secret, second} {
			require.Eventually(t, func() bool { doc, _ := secretDoc(each); return doc.Status == want }, 5*time.Second, time.Millisecond)
		}
	}
	assert.Equal(t, "suspended", s.must(200, "POST", path+"/suspend", "").at("status"))
	status(lua.Suspended)
	assert.Equal(t, "active", s.must(200, "POST", path+"/resume", "").at("status"))
	status(lua.Active)
	assert.Equal(t, "revoked", s.must(200, "DELETE", path, `{"op_id":"gone"}`).at("status"))
	status(lua.Revoked)
	assert.Equal(t, "revoked", s.must(200, "DELETE", path, "").at("status"), "again is fine")
	for _, call := range [][2]string{{"POST", path + "/resume"}, {"POST", path + "/rotate"}, {"PATCH", path}} {
		assert.Equal(t, "key_revoked", s.must(409, call[0], call[1], "").at("error.code"))
	}

	all, err := s.redis.Do("KEYS", "*")
	require.NoError(t, err)
	assert.NotContains(t, fmt.Sprint(all), secret[3:27], "no key material in Redis")
}

func TestAdjust(t *testing.T) {
	s := newRig(t)
	s.seed()
	a := s.must(200, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":500,"op_id":"a1"}`)
	assert.Equal(t, 1500.0, a.at("total"))
	assert.Equal(t, "applied", a.at("state"))
	a = s.must(200, "POST", "/tenants/t_x/adjust", `{"op_id":"a1","delta":500,"scope":"org"}`)
	assert.Equal(t, 1500.0, a.at("total"), "a repeat counts once, however it is written")
	assert.Equal(t, "op_id_conflict", s.must(409, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":501,"op_id":"a1"}`).at("error.code"))

	s.use(orgX, "300", "40", "30")
	a = s.must(409, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":-1161,"op_id":"a2"}`)
	assert.Equal(t, "below_usage", a.at("error.code"))
	assert.Equal(t, []any{1500.0, 40.0, 300.0}, []any{a.at("total"), a.at("prepaid"), a.at("spent")})
	assert.Contains(t, a.at("error.message"), "at most 1160")
	a = s.must(409, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":-5000}`)
	assert.Equal(t, []any{1500.0, 40.0, 300.0}, []any{a.at("total"), a.at("prepaid"), a.at("spent")}, "also where SQL knows it already")
	s.must(200, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":-1160}`)
	a = s.must(409, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":-1161,"op_id":"a2"}`)
	assert.Equal(t, 1500.0, a.at("total"), "a repeat tells the numbers of then")
	a = s.must(200, "GET", "/tenants/t_x/usage", "")
	assert.Equal(t, []any{340.0, 300.0, 10.0, 30.0, 30.0},
		[]any{a.at("org.total"), a.at("org.used"), a.at("org.in_flight"), a.at("org.leased"), a.at("org.left")})

	s.must(201, "POST", "/tenants/t_x/apps", `{"id":"a_b","total":0}`)
	assert.Equal(t, 9.0, s.must(200, "POST", "/tenants/t_x/adjust", `{"scope":"app:a_b","delta":9}`).at("total"))
	assert.Nil(t, s.must(409, "POST", "/tenants/t_x/adjust", `{"scope":"key:k_z","delta":9}`).at("total"))
}

// D15: a charge by a wrong weight, made good by an adjustment, with a history of both.
func TestAdjustAfterRedisWasAway(t *testing.T) {
	s := newRig(t)
	s.seed()
	s.redis.Stop()
	body := `{"scope":"org","delta":990,"op_id":"late"}`
	a := s.must(202, "POST", "/tenants/t_x/adjust", body)
	assert.Equal(t, "pending", a.at("state"))
	assert.Contains(t, a.at("message"), "as soon as it does")
	assert.Nil(t, a.at("total"))
	assert.Equal(t, false, s.must(200, "PATCH", "/tenants/t_x", `{"name":"N"}`).at("published"))
	assert.Equal(t, "store_unavailable", s.must(503, "GET", "/tenants/t_x/usage", "").at("error.code"))

	require.NoError(t, s.redis.Restart())
	require.Eventually(t, func() bool {
		a := s.request("POST", "/admin/v1/tenants/t_x/adjust", body)
		return a.status == 200 && a.at("total") == 1990.0
	}, 20*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		a := s.request("GET", "/admin/v1/tenants/t_x/usage", "")
		return a.status == 200 && a.at("org.left") == 1990.0
	}, 10*time.Second, 20*time.Millisecond)
}

func TestUsage(t *testing.T) {
	s := newRig(t)
	s.seed()
	for i := range 3 {
		s.must(201, "POST", "/tenants/t_x/apps", fmt.Sprintf(`{"id":"a_%d","total":%d,"month":70}`, i, i))
		s.must(201, "POST", "/tenants/t_x/keys", fmt.Sprintf(`{"id":"k_%d","app":"a_%d","name":"key %d"}`, i, i, i))
	}
	s.use(keyZ, "12", "7", "4")
	a := s.must(200, "GET", "/tenants/t_x/usage", "")
	assert.Equal(t, []any{1000.0, 0.0, 0.0, 0.0, 1000.0, 0.0},
		[]any{a.at("org.total"), a.at("org.used"), a.at("org.in_flight"), a.at("org.leased"), a.at("org.left"), a.at("org.overage_limit")}, "from SQL")
	keys := a.at("keys").([]any)
	require.Len(t, keys, 4)
	z := keys[3].(map[string]any)
	assert.Equal(t, []any{"k_z", "a_y", "active", nil, 12.0, 3.0, 4.0, nil},
		[]any{z["id"], z["app"], z["status"], z["total"], z["used"], z["in_flight"], z["leased"], z["left"]})
	app := a.at("apps").([]any)[1].(map[string]any)
	assert.Equal(t, 1.0, app["left"])
	month := app["month"].(map[string]any)
	assert.Equal(t, []any{70.0, 70.0}, []any{month["total"], month["left"]})
	assert.Equal(t, quota.WindowAt(quota.Month, s.store.Now(), time.UTC).Name, month["period"])
	assert.Nil(t, a.at("next"))

	var ids []string
	after := ""
	for range 10 {
		a = s.must(200, "GET", "/tenants/t_x/usage?limit=3&after="+after, "")
		for _, scope := range append(a.at("apps").([]any), a.at("keys").([]any)...) {
			ids = append(ids, scope.(map[string]any)["id"].(string))
		}
		next, more := a.at("next").(string)
		if !more {
			break
		}
		after = next
	}
	assert.Equal(t, "a_0 a_1 a_2 a_y k_0 k_1 k_2 k_z", strings.Join(ids, " "))
}

// The same op_id gives the same answer and no second effect; other content is a conflict.
func TestRepeats(t *testing.T) {
	s := newRig(t)
	s.seed()
	for _, row := range []struct {
		status             int
		method, path, body string
	}{
		{201, "POST", "/tenants", `{"total":5,%s}`},
		{200, "PATCH", "/tenants/t_x", `{"name":"n",%s}`},
		{200, "POST", "/tenants/t_x/suspend", `{%s}`},
		{200, "POST", "/tenants/t_x/resume", `{%s}`},
		{201, "POST", "/tenants/t_x/apps", `{"name":"n",%s}`},
		{200, "PATCH", "/tenants/t_x/apps/a_y", `{"day":5,%s}`},
		{200, "PATCH", "/tenants/t_x/keys/k_z", `{"day":5,%s}`},
		{200, "POST", "/tenants/t_x/keys/k_z/suspend", `{%s}`},
		{200, "POST", "/tenants/t_x/adjust", `{"scope":"org","delta":5,%s}`},
		{200, "DELETE", "/tenants/t_x/keys/k_z", `{%s}`},
	} {
		body := fmt.Sprintf(row.body, `"op_id":"op of `+row.method+row.path+`"`)
		first := s.must(row.status, row.method, row.path, body)
		assert.Empty(t, first.header.Get("Idempotent-Replayed"))
		if row.path == "/tenants/t_x" {
			s.must(200, "PATCH", row.path, `{"name":"later"}`)
		}
		again := s.must(row.status, row.method, row.path, body)
		assert.Equal(t, first.text, again.text)
		assert.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
		assert.Equal(t, "op_id_conflict", s.must(409, "PATCH", "/tenants/t_x", `{"name":"other","op_id":"op of `+row.method+row.path+`"}`).at("error.code"))
	}
	assert.Equal(t, "later", s.must(200, "GET", "/tenants/t_x", "").at("name"), "a repeat does not set it again")
	assert.Equal(t, 1005.0, s.must(200, "GET", "/tenants/t_x", "").at("total"))
	assert.Len(t, s.must(200, "GET", "/tenants", "").at("tenants"), 2)
}

// R26: a tenant is created atomically, never twice.
func TestCreateAtOnce(t *testing.T) {
	s := newRig(t)
	var made, taken atomic.Int64
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			a := s.request("POST", "/admin/v1/tenants", fmt.Sprintf(`{"id":"t_one","total":%d}`, 1000+i))
			switch a.status {
			case http.StatusCreated:
				made.Add(1)
			case http.StatusConflict:
				taken.Add(1)
			}
		})
	}
	wait.Wait()
	assert.Equal(t, []int64{1, 19}, []int64{made.Load(), taken.Load()})
	total := s.must(200, "GET", "/tenants/t_one", "").at("total")
	assert.Equal(t, total, s.must(200, "GET", "/tenants/t_one/usage", "").at("org.left"))
}

func TestAdminLogNamesWhoAsked(t *testing.T) {
	for given, want := range map[string]string{
		"": "admin", "deploy bot": "deploy bot", strings.Repeat("x", 300): strings.Repeat("x", whoRunesMax), "  ": "admin",
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "/", nil)
		require.NoError(t, err)
		r.Header.Set(whoHeader, given)
		assert.Equal(t, want, who(r))
	}
}
