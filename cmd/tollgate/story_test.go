package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const hello = `{"model":"fake-p12-c34","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`

// The first minutes of a new user: a tenant, an app and a key, a chat and a stream, and exactly their tokens charged.
func TestStory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node()
	secret := n.tenant("t_story", 10_000)
	a := n.post("/v1/chat/completions", secret, hello)
	require.Equal(t, 200, a.status, "%v", a)
	require.EqualValues(t, 46, a.json(t)["usage"].(map[string]any)["total_tokens"])
	require.NotEmpty(t, a.header.Get("x-request-id"))
	require.Equal(t, "10000", a.header.Get("x-ratelimit-limit"))

	s := n.chatStream(secret, "fake-p100-c20")
	require.NoError(t, s.rest())
	require.True(t, s.whole(), s.text.String())

	r.settled("t_story")
	org, app, key, inFlight := n.used("t_story")
	require.EqualValues(t, 46+120, org)
	require.Equal(t, []int64{org, org, 0}, []int64{app, key, inFlight})
	require.Equal(t, org, r.upstream("GET", "/totals").Tokens)
}

// The same by tollctl, as the README tells it.
func TestStoryByTollctl(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node()
	env := []string{"TOLLGATE_ADMIN=" + n.admin, "TOLLGATE_ADMIN_TOKEN=" + adminToken}
	ctl := func(args ...string) string {
		t.Helper()
		got := run(t, env, "tollctl", args...)
		require.Zero(t, got.code, "%v: %s", args, got.err)
		return got.out
	}
	ctl("tenant", "create", "--id", "t_demo", "--name", "Demo", "--total", "1000")
	ctl("app", "create", "t_demo", "--id", "a_demo")
	var key struct{ Secret string }
	require.NoError(t, json.Unmarshal([]byte(ctl("key", "create", "t_demo", "--app", "a_demo", "-o", "json")), &key))
	require.Equal(t, 200, n.post("/v1/chat/completions", key.Secret, hello).status)
	r.settled("t_demo")
	require.Contains(t, ctl("usage", "t_demo"), "46")

	ctl("quota", "cut", "t_demo", "954")
	a := n.post("/v1/chat/completions", key.Secret, hello)
	require.Equal(t, 429, a.status)
	require.Equal(t, "insufficient_quota", a.code())
	ctl("quota", "add", "t_demo", "5k")
	require.Equal(t, 200, n.post("/v1/chat/completions", key.Secret, hello).status)
	r.settled("t_demo")
	require.Contains(t, ctl("usage", "t_demo"), "92")

	require.Equal(t, 1, run(t, env, "tollctl", "tenant", "show", "t_nobody").code)
	n.kill()
	got := run(t, env, "tollctl", "usage", "t_demo")
	require.Equal(t, 3, got.code)
	require.True(t, strings.HasPrefix(got.err, "tollctl:"), got.err)
}

// Nodes of one ledger and one Redis are one to their tenants.
func TestTwoNodesShare(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node(), r.node()
	secret := a.tenant("t_share", 100)
	require.Equal(t, 200, a.consume(secret, 60).status)
	require.Equal(t, 200, b.consume(secret, 40).status)
	for _, n := range []*node{a, b} {
		require.Equal(t, "insufficient_quota", n.consume(secret, 1).code())
	}
	require.Equal(t, 429, a.consume(b.key("t_share", "k_2"), 1).status, "a key made on the other node")
	require.Equal(t, account{Spent: 100}, r.account("t_share"))

	// What one node reserved the other settles.
	b.must("POST", "/tenants/t_share/adjust", `{"scope":"org","delta":50}`)
	require.Equal(t, 200, a.post("/v1/quota/reserve", secret, `{"request_id":"r-1","cost":30}`).status)
	require.Equal(t, 200, b.post("/v1/quota/settle", secret, `{"request_id":"r-1","actual":12}`).status)
	require.Equal(t, account{Spent: 112}, r.account("t_share"))
}
