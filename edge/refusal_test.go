package edge_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
	"tollgate/edge/identity"
	"tollgate/ledger"
	"tollgate/quota"
)

func TestWhoAsks(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret, other := r.tenant("t_1", 1000), r.tenant("t_2", 1000)
	unknown := identity.NewSecret()
	ask := func(headers ...string) reply { return n.do(http.MethodGet, balance, "", "", headers...) }
	for name, headers := range map[string][]string{
		"none":               nil,
		"unknown":            {"Authorization", "Bearer " + unknown},
		"malformed":          {"Authorization", "Bearer tg-123"},
		"wrong checksum":     {"Authorization", "Bearer " + secret[:len(secret)-1] + map[bool]string{true: "B", false: "A"}[secret[len(secret)-1] == 'A']},
		"another's prefix":   {"Authorization", "Bearer sk-" + secret[3:]},
		"no scheme":          {"Authorization", secret},
		"another scheme":     {"Authorization", "Basic " + secret},
		"empty":              {"Authorization", "Bearer "},
		"a key with a tail":  {"Authorization", "Bearer " + secret + " x"},
		"an empty x-api-key": {"X-Api-Key", ""},
		"a very long one":    {"X-Api-Key", strings.Repeat("x", 20_000)},
	} {
		a := ask(headers...)
		require.Equal(t, 401, a.status, name)
		require.Equal(t, "invalid_api_key", a.code(t), name)
		require.NotContains(t, string(a.body), secret[3:20], "%s: no answer shows a key", name)
		require.NotContains(t, string(a.body), unknown[3:20], name)
	}
	for name, headers := range map[string][]string{
		"bearer": {"Authorization", "bearer  " + secret}, "x-api-key": {"x-api-key", secret}, "api-key": {"Api-Key", secret},
		"the same twice": {"Authorization", "Bearer " + secret, "x-api-key", secret},
	} {
		require.Equal(t, 200, ask(headers...).status, name)
	}
	a := ask("Authorization", "Bearer "+secret, "x-api-key", other)
	require.Equal(t, 400, a.status)
	require.Equal(t, "invalid_request", a.code(t))
	require.Equal(t, 400, ask("api-key", other, "x-api-key", secret).status)
}

func TestModelsOfAKey(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1000, func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) { k.Models = []string{"fake-a*"} })
	a := n.post("/v1/chat/completions", secret, chat("fake-b", false))
	require.Equal(t, 403, a.status)
	require.Equal(t, "model_not_allowed", a.code(t))
	require.Equal(t, "model", a.json(t)["error"].(map[string]any)["param"])
	before := metric("tollgate_unpriced_total")
	a = n.post("/v1/chat/completions", secret, chat("nobody-knows", false))
	require.Equal(t, 400, a.status)
	require.Equal(t, before+1, metric("tollgate_unpriced_total"), "D10")
	require.Equal(t, 200, n.post("/v1/chat/completions", secret, chat("fake-a-p12-c34", false)).status)
	require.EqualValues(t, wholeTokens, n.books(t, "t_1"))
	require.EqualValues(t, 1, r.fake.Totals().Begun)
}

func TestRequestIDs(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 100_000)
	a := n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false), "X-Request-Id", "mine.1:2-3_4")
	require.Equal(t, "mine.1:2-3_4", a.header.Get("X-Request-Id"))
	require.True(t, strings.HasPrefix(a.header.Get("X-Upstream-Request-Id"), "req_fake_"))
	// It is a label: the same one twice is two calls.
	n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false), "X-Request-Id", "mine.1:2-3_4")
	require.EqualValues(t, 2*wholeTokens, n.books(t, "t_1"))
	for _, label := range []string{"", "a b", "é", strings.Repeat("x", 129), "a/b", "<script>"} {
		a := n.do(http.MethodGet, balance, secret, "", "X-Request-Id", label)
		require.Regexp(t, `^[0-9a-f]{32}$`, a.header.Get("X-Request-Id"), label)
	}
	// Also on refusals.
	a = n.do(http.MethodGet, "/v1/nothing", secret, "", "X-Request-Id", "mine")
	require.Equal(t, 404, a.status)
	require.Equal(t, "mine", a.header.Get("X-Request-Id"))
}

// The headers tell what is left as of the reserve, and drop what the upstream says about its own limits.
func TestLimitHeaders(t *testing.T) {
	r := newRig(t)
	n := r.node()
	require.NoError(t, r.fake.Behave(fake.Rule{Path: "/v1/chat/completions", Set: fake.Settings{
		"header": "x-ratelimit-limit: 7|x-ratelimit-remaining-requests: 3|X-Quota-Warning: 1%|x-other: kept",
	}}))
	day, rpm := int64(5000), int64(60)
	for _, c := range []struct {
		name   string
		change change
		check  func(t *testing.T, h http.Header)
	}{
		{"total", func(*ledger.Tenant, *ledger.App, *ledger.Key) {}, func(t *testing.T, h http.Header) {
			require.Equal(t, "10000", h.Get("x-ratelimit-limit"))
			require.Empty(t, h.Get("x-ratelimit-reset"), "it does not come back by itself")
			require.Empty(t, h.Get("x-ratelimit-limit-requests"))
		}},
		{"tightest is the day of the key", func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) { k.Day = &day }, func(t *testing.T, h http.Header) {
			require.Equal(t, "5000", h.Get("x-ratelimit-limit"))
			reset, err := strconv.Atoi(h.Get("x-ratelimit-reset"))
			require.NoError(t, err)
			require.InDelta(t, time.Until(time.Now().UTC().Truncate(24*time.Hour).Add(24*time.Hour)).Seconds(), reset, 3)
		}},
		{"requests per minute", func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) {
			k.Limits.RPM = &quota.Bucket{Rate: rpm, Burst: rpm}
		}, func(t *testing.T, h http.Header) {
			require.Equal(t, "60", h.Get("x-ratelimit-limit"))
			require.Equal(t, "59", h.Get("x-ratelimit-remaining"))
			require.Equal(t, "1", h.Get("x-ratelimit-reset"))
			require.Equal(t, "60", h.Get("x-ratelimit-limit-requests"))
			require.Equal(t, "59", h.Get("x-ratelimit-remaining-requests"))
			require.Equal(t, "1s", h.Get("x-ratelimit-reset-requests"))
		}},
		{"tokens per minute", func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key) {
			tn.Limits.TPM = &quota.Bucket{Rate: 6000, Burst: 6000}
		}, func(t *testing.T, h http.Header) {
			require.Equal(t, "6000", h.Get("x-ratelimit-limit-tokens"))
			left, err := strconv.Atoi(h.Get("x-ratelimit-remaining-tokens"))
			require.NoError(t, err)
			require.Greater(t, left, 5800)
			require.Less(t, left, 5900)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tenant := "t_" + strings.ReplaceAll(c.name, " ", "_")
			secret := r.tenant(tenant, 10_000, c.change)
			a := n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false))
			require.Equal(t, 200, a.status)
			c.check(t, a.header)
			require.Equal(t, "kept", a.header.Get("x-other"))
			require.Empty(t, a.header.Get("x-quota-overage"))
			require.Empty(t, a.header.Get("X-Quota-Warning"))
			if a.header.Get("x-ratelimit-limit") == "10000" {
				left, err := strconv.Atoi(a.header.Get("x-ratelimit-remaining"))
				require.NoError(t, err)
				require.Less(t, left, 10_000-100, "as of the reserve: the hold is taken off")
			}
		})
	}
}

// Below the threshold the answers warn, in overage they say so, and where
// nothing is left they name what can be done.
func TestStagesOfRunningOut(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 100, func(tn *ledger.Tenant, _ *ledger.App, _ *ledger.Key) { tn.OverageLimit = 10 })
	spend := func(cost int) reply { return n.post(consume, secret, fmt.Sprintf(`{"cost":%d}`, cost)) }
	a := spend(90)
	require.Empty(t, a.header.Get("X-Quota-Warning"))
	a = spend(5)
	require.Equal(t, "5%", a.header.Get("X-Quota-Warning"))
	require.Equal(t, "org", a.header.Get("X-Quota-Warning-Scope"))
	require.Equal(t, "5", a.header.Get("x-ratelimit-remaining"))
	a = spend(10)
	require.Equal(t, 200, a.status)
	require.Equal(t, "true", a.header.Get("x-quota-overage"))
	require.Equal(t, true, a.json(t)["overage"])
	require.Equal(t, "0", a.header.Get("x-ratelimit-remaining"), "never negative")
	a = spend(6)
	require.Equal(t, 402, a.status)
	require.Equal(t, "payment_required", a.code(t))
	require.Equal(t, "false", a.header.Get("x-should-retry"))
	require.Empty(t, a.header.Get("Retry-After"))
	require.Equal(t, 200, spend(5).status)
	require.Equal(t, 402, spend(1).status)
	require.EqualValues(t, 110, n.books(t, "t_1"))
}

// With show: key a key's holder learns which level was short, and no number of another level.
func TestOthersNumbersAreHidden(t *testing.T) {
	r := newRig(t)
	n := r.node()
	hide := func(tn *ledger.Tenant, a *ledger.App, k *ledger.Key) {
		tn.Policy = json.RawMessage(`{"show":"key"}`)
		rpm := quota.Bucket{Rate: 54321, Burst: 54321}
		tn.Limits.RPM, tn.Limits.TPM, a.Limits.RPM = &rpm, &quota.Bucket{Rate: 98765, Burst: 98765}, &rpm
		a.Total = 87654
		k.Total = 70000
	}
	secret := r.tenant("t_1", 65432, hide)
	secrets := []string{"54321", "54320", "98765", "87654", "65432", "87554", "65332", "65331"}
	clean := func(a reply) {
		t.Helper()
		var head strings.Builder
		require.NoError(t, a.header.Write(&head))
		for _, s := range secrets {
			require.NotContains(t, string(a.body), s)
			require.NotContains(t, head.String(), s)
		}
	}
	a := n.post(reserve, secret, `{"request_id":"r1","cost":100}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	clean(a)
	require.Equal(t, map[string]any{"org": nil, "app": nil, "key": 69900.0}, a.json(t)["remaining"])
	require.Equal(t, "69900", a.header.Get("x-ratelimit-remaining"))
	a = n.post(reserve, secret, `{"request_id":"r1","cost":100}`)
	require.Equal(t, true, a.json(t)["duplicate"])
	clean(a)
	require.Equal(t, map[string]any{"org": nil, "app": nil, "key": 69900.0}, a.json(t)["remaining"])
	a = n.do(http.MethodGet, balance, secret, "")
	clean(a)
	require.NotContains(t, a.json(t), "org")
	require.Contains(t, a.json(t), "key")
	for _, cost := range []string{"65400", "69000"} { // too much for now; too much for ever
		a = n.post(consume, secret, `{"cost":`+cost+`}`)
		require.Equal(t, 429, a.status)
		clean(a)
		require.Contains(t, string(a.body), "organisation", "the level is named")
		require.Equal(t, "org", a.json(t)["data"].(map[string]any)["scope"])
		require.Nil(t, a.json(t)["data"].(map[string]any)["limit"])
	}
	// Its own numbers are told.
	a = n.post(consume, secret, `{"cost":70001}`)
	require.Equal(t, 429, a.status)
	clean(a)
}

// Rate limits say when to come back, in whole seconds that are enough (G13, G20).
func TestRetryAfterIsEnough(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 100_000, func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) {
		k.Limits.RPS = &quota.Bucket{Rate: 2, Burst: 4}
	})
	passed := 0
	var a reply
	for a = n.post(consume, secret, `{"cost":1}`); a.status == 200; a = n.post(consume, secret, `{"cost":1}`) {
		passed++
		require.Less(t, passed, 20)
	}
	require.GreaterOrEqual(t, passed, 4)
	require.Equal(t, 429, a.status)
	require.Equal(t, "rate_limit_exceeded", a.code(t))
	wait, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err)
	require.Equal(t, 1, wait)
	<-time.After(time.Duration(wait) * time.Second)
	require.Equal(t, 200, n.post(consume, secret, `{"cost":1}`).status)

	// Twenty slow calls on four slots: sixteen are told at once.
	secret = r.tenant("t_2", 1_000_000, concurrency(4))
	require.NoError(t, r.fake.Behave(fakeHang))
	answers := make(chan reply, 20)
	for range cap(answers) {
		go func() { answers <- n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false)) }()
	}
	for range 16 {
		a := <-answers
		require.Equal(t, 429, a.status)
		require.Equal(t, "1", a.header.Get("Retry-After"))
	}
	_, err = r.fake.Wait(within(t, 10*time.Second), func(s fake.Totals) bool { return s.Silent == 4 }) // else the release comes too early
	require.NoError(t, err)
	r.fake.Release()
	for range 4 {
		require.Equal(t, 200, (<-answers).status)
	}
	require.EqualValues(t, 4*wholeTokens, n.books(t, "t_2"))
}
