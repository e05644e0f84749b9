package edge_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
	"tollgate/ledger"
	"tollgate/quota"
)

// budgetOf is the budget of one scope in a tenant under construction.
func budgetOf(scope quota.Scope, tn *ledger.Tenant, app *ledger.App, key *ledger.Key) (*quota.Budget, *int64) {
	switch scope {
	case quota.Org:
		return &tn.Budget, &tn.Total
	case quota.App:
		return &app.Budget, &app.Total
	default:
		return &key.Budget, &key.Total
	}
}

// TestEachLimitBlocksAlone: every level × every unit, alone in an otherwise
// unlimited tenant, lets through what it allows and refuses the next call with
// its own status, code, type, scope and time to come back.
func TestEachLimitBlocksAlone(t *testing.T) {
	r := newRig(t)
	n := r.node()
	fixed := func(n int64) *int64 { return &n }
	bucket := func(n int64) *quota.Bucket { return &quota.Bucket{Rate: n, Burst: n} }
	now := time.Now().UTC()
	toMidnight := time.Until(time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, time.UTC))
	toMonthEnd := time.Until(time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC))
	units := []struct {
		name       string
		set        func(*quota.Budget, *int64)
		code, typ  string
		retryAfter time.Duration // ± the test's own time
		slack      time.Duration
		noRetry    bool
		vendor     string // x-ratelimit-…-<vendor> is told too
	}{
		{"total", func(_ *quota.Budget, total *int64) { *total = 30 }, "insufficient_quota", "insufficient_quota", time.Minute, 0, true, ""},
		{"month", func(b *quota.Budget, _ *int64) { b.Month = fixed(30) }, "insufficient_quota", "insufficient_quota", toMonthEnd, time.Minute, false, ""},
		{"day", func(b *quota.Budget, _ *int64) { b.Day = fixed(30) }, "insufficient_quota", "insufficient_quota", toMidnight, time.Minute, false, ""},
		{"rpm", func(b *quota.Budget, _ *int64) { b.Limits.RPM = bucket(3) }, "rate_limit_exceeded", "requests", 20 * time.Second, time.Second, false, "requests"},
		{"rps", func(b *quota.Budget, _ *int64) { b.Limits.RPS = &quota.Bucket{Rate: 1, Burst: 3} }, "rate_limit_exceeded", "requests", time.Second, 0, false, "requests"},
		{"tpm", func(b *quota.Budget, _ *int64) { b.Limits.TPM = bucket(30) }, "rate_limit_exceeded", "tokens", 20 * time.Second, time.Second, false, "tokens"},
	}
	for _, scope := range quota.Scopes {
		for i, unit := range units {
			t.Run(scope.String()+"/"+unit.name, func(t *testing.T) {
				id := fmt.Sprintf("t_%s%d", scope, i)
				secret := r.tenant(id, quota.Unlimited, func(tn *ledger.Tenant, app *ledger.App, key *ledger.Key) {
					unit.set(budgetOf(scope, tn, app, key))
				})
				for range 3 {
					a := n.post("/v1/quota/consume", secret, `{"cost":10}`)
					require.Equal(t, 200, a.status, "%s", a.body)
				}
				a := n.post("/v1/quota/consume", secret, `{"cost":10}`)
				require.Equal(t, 429, a.status, "%s", a.body)
				require.Equal(t, unit.code, a.code(t))
				body := a.json(t)
				require.Equal(t, unit.typ, body["error"].(map[string]any)["type"])
				require.Equal(t, scope.String(), body["data"].(map[string]any)["scope"])
				require.EqualValues(t, 429, body["code"])
				seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
				require.NoError(t, err)
				require.InDelta(t, unit.retryAfter.Seconds(), seconds, unit.slack.Seconds()+1)
				require.Equal(t, unit.noRetry, a.header.Get("x-should-retry") == "false")
				if unit.name != "tpm" { // neither a request bucket nor a limited account: only the tokens are told
					require.Equal(t, "0", a.header.Get("x-ratelimit-remaining"))
					require.Equal(t, unit.name == "total", a.header.Get("x-ratelimit-reset") == "", "reset is omitted for ever, and only there")
				}
				if unit.vendor != "" {
					require.Equal(t, "0", a.header.Get("x-ratelimit-remaining-"+unit.vendor))
					require.NotEmpty(t, a.header.Get("x-ratelimit-limit-"+unit.vendor))
					_, err := time.ParseDuration(a.header.Get("x-ratelimit-reset-" + unit.vendor))
					require.NoError(t, err)
				}
			})
		}
		t.Run(scope.String()+"/concurrency", func(t *testing.T) {
			id := "t_slots" + scope.String()
			secret := r.tenant(id, quota.Unlimited, func(tn *ledger.Tenant, app *ledger.App, key *ledger.Key) {
				b, _ := budgetOf(scope, tn, app, key)
				b.Limits.Concurrency = fixed(2)
			})
			for i := range 2 {
				require.Equal(t, 200, n.post("/v1/quota/reserve", secret, fmt.Sprintf(`{"request_id":"r%d","cost":1}`, i)).status)
			}
			a := n.post("/v1/quota/reserve", secret, `{"request_id":"r9","cost":1}`)
			require.Equal(t, 429, a.status)
			require.Equal(t, "rate_limit_exceeded", a.code(t))
			require.Equal(t, "1", a.header.Get("Retry-After"))
			require.Equal(t, scope.String(), a.json(t)["data"].(map[string]any)["scope"])
			// Every end frees its slot: a settle, a release.
			require.Equal(t, 200, n.post("/v1/quota/settle", secret, `{"request_id":"r0","actual":1}`).status)
			require.Equal(t, 200, n.post("/v1/quota/reserve", secret, `{"request_id":"r9","cost":1}`).status)
			require.Equal(t, 429, n.post("/v1/quota/reserve", secret, `{"request_id":"r10","cost":1}`).status)
			require.Equal(t, 200, n.post("/v1/quota/release", secret, `{"request_id":"r9"}`).status)
			require.Equal(t, 200, n.post("/v1/quota/reserve", secret, `{"request_id":"r10","cost":1}`).status)
		})
	}
}

func TestSlotsAreFreedByUpstreamTimeouts(t *testing.T) { // B4
	r := newRig(t)
	r.yaml += "policy: {hold_ttl: 15m}\n"
	n := r.node()
	secret := r.tenant("t_b4", quota.Unlimited, func(_ *ledger.Tenant, _ *ledger.App, key *ledger.Key) {
		three := int64(3)
		key.Limits.Concurrency = &three
	})
	r.fake.Behave(fake.Rule{Times: 4, Set: fake.Settings{"cut": "before"}})
	for range 4 {
		require.Equal(t, 502, n.post("/v1/chat/completions", secret, chatBody).status)
	}
	n.settled("t_b4")
	require.Equal(t, 200, n.post("/v1/chat/completions", secret, chatBody).status)
}

func TestOverageWarningAndNegative(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_over", 100, func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key) { tn.OverageLimit = 20 })
	a := n.post("/v1/quota/consume", secret, `{"cost":90}`)
	require.Equal(t, 200, a.status)
	require.Empty(t, a.header.Get("X-Quota-Warning"), "exactly 10 %% left is not below 10 %%")
	a = n.post("/v1/quota/consume", secret, `{"cost":5}`)
	require.Equal(t, "5%", a.header.Get("X-Quota-Warning"))
	require.Equal(t, "org", a.header.Get("X-Quota-Warning-Scope"))
	require.Empty(t, a.header.Get("x-quota-overage"))
	a = n.post("/v1/quota/consume", secret, `{"cost":15}`)
	require.Equal(t, 200, a.status)
	require.Equal(t, true, a.json(t)["overage"])
	require.Equal(t, "true", a.header.Get("x-quota-overage"))
	require.Equal(t, "0", a.header.Get("x-ratelimit-remaining"), "never negative")
	a = n.post("/v1/quota/consume", secret, `{"cost":11}`)
	require.Equal(t, 402, a.status, "10 of the overage are left")
	require.Equal(t, "payment_required", a.code(t))
	require.Equal(t, "false", a.header.Get("x-should-retry"))
	require.Empty(t, a.header.Get("Retry-After"))
	a = n.post("/v1/quota/consume", secret, `{"cost":121}`)
	require.Equal(t, 429, a.status, "more than total and overage together can never fit")
	require.Equal(t, "insufficient_quota", a.code(t))
	require.Empty(t, a.header.Get("Retry-After"))
	require.Contains(t, a.json(t)["msg"], "121")
	require.Contains(t, a.json(t)["msg"], "120")

	// An actual above what was reserved can take an account below zero: everything is refused until a top-up.
	require.Equal(t, 200, n.post("/v1/quota/reserve", secret, `{"request_id":"x","cost":1}`).status)
	a = n.post("/v1/quota/settle", secret, `{"request_id":"x","actual":500}`)
	require.Equal(t, 200, a.status)
	require.EqualValues(t, 499, a.json(t)["overrun"])
	a = n.post("/v1/quota/consume", secret, `{"cost":1}`)
	require.Equal(t, 402, a.status)
}

func TestClamp(t *testing.T) { // B7
	r := newRig(t)
	r.yaml += "policy: {fit: clamp}\n"
	n := r.node()
	secret := r.tenant("t_clamp", 600)
	body := `{"model":"fake-p5-c7","messages":[{"role":"user","content":"hi"}]}`
	a := n.post("/v1/chat/completions", secret, body)
	require.Equal(t, 200, a.status, "1000 tokens do not fit, but 256 do: %s", a.body)
	require.EqualValues(t, 12, n.settled("t_clamp").Spent)
	entry := r.fake.Log()
	require.Len(t, entry, 1)

	small := r.tenant("t_small", 100)
	a = n.post("/v1/chat/completions", small, body)
	require.Equal(t, 429, a.status, "less than min_output is left")
	refuse := r.tenant("t_refuse", 600, func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key) { tn.Policy = []byte(`{"fit":"refuse"}`) })
	require.Equal(t, 429, n.post("/v1/chat/completions", refuse, body).status)
}

// R31: what an upstream may run at once is this node's limit for all tenants; beyond it nothing is charged.
func TestUpstreamIsBusy(t *testing.T) {
	r := newRig(t)
	r.yaml = strings.Replace(r.yaml, "dialect: openai,", "dialect: openai, max_concurrency: 1,", 1)
	n := r.node()
	one, other := r.tenant("t_one", 10_000), r.tenant("t_other", 10_000)
	require.NoError(t, r.fake.Behave(fake.Rule{Times: 1, Set: fake.Settings{"hang": "before"}}))
	var first reply
	var wait sync.WaitGroup
	wait.Go(func() { first = n.post("/v1/chat/completions", one, chatBody) })
	_, err := r.fake.Wait(t.Context(), func(s fake.Totals) bool { return s.Silent >= 1 })
	require.NoError(t, err)
	a := n.post("/v1/chat/completions", other, chatBody)
	require.Equal(t, 503, a.status)
	require.Equal(t, "upstream_busy", a.code(t))
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.EqualValues(t, 0, n.settled("t_other").Spent)
	r.fake.Release()
	wait.Wait()
	require.Equal(t, 200, first.status)
	require.Equal(t, 200, n.post("/v1/chat/completions", other, chatBody).status)
}
