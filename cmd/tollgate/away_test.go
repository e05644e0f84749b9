package main_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recoversWithin is how soon a node decides again after its Redis is back.
const recoversWithin = 2 * time.Second

// traffic consumes one credit after another until stopped, and hears of each answer.
func (n *node) traffic(secret string, tell func(reply)) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				tell(n.consume(secret, 1))
			}
		}
	}()
	return func() { close(quit); <-done }
}

// An emptied Redis and forgotten scripts cost no request: keys and accounts come back from SQL.
func TestRedisIsEmptiedUnderTraffic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node()
	secret := n.tenant("t_empty", 1_000_000)
	n.must("POST", "/tenants/t_empty/adjust", `{"scope":"org","delta":1000}`)
	other := n.tenant("t_other", 5)
	var passed atomic.Int64
	var odd atomic.Pointer[reply]
	stop := n.traffic(secret, func(a reply) {
		if a.status == 200 {
			passed.Add(1)
		} else {
			odd.CompareAndSwap(nil, &a)
		}
	})
	more := func() {
		t.Helper()
		from := passed.Load()
		eventually(t, "traffic goes on", func() bool { return passed.Load() > from+20 || odd.Load() != nil })
		require.Nil(t, odd.Load(), "%v", odd.Load())
	}
	more()
	for range 3 {
		_, err := r.redis.Do("SCRIPT", "FLUSH")
		require.NoError(t, err)
		more()
		_, err = r.redis.Do("FLUSHALL")
		require.NoError(t, err)
		more()
	}
	stop()
	require.Nil(t, odd.Load(), "%v", odd.Load())

	// Nobody became rich, and what is known only to SQL is known again.
	_, err := r.redis.Do("FLUSHALL")
	require.NoError(t, err)
	before := passed.Load()
	require.Equal(t, 200, n.consume(secret, 1).status)
	require.Equal(t, account{Spent: 1}, r.account("t_empty"))
	require.Positive(t, before)
	a := n.do("GET", n.url+"/v1/quota/balance", secret, "")
	require.EqualValues(t, 1_001_000, a.json(t)["org"].(map[string]any)["total"])
	require.Equal(t, 429, n.consume(other, 6).status)
	require.Equal(t, 401, n.consume("tg-000000000000000000000000000000", 1).status)
}

// While Redis is down a node answers 503 and says when to come again; when it is back, the node is too.
func TestRedisGoesAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node(settings{decision: "auto"})
	secret := n.tenant("t_away", 1_000_000)
	require.Equal(t, 200, n.consume(secret, 1).status)
	for range 2 {
		r.redis.Stop()
		for range 20 {
			begin := time.Now()
			a := n.consume(secret, 1)
			require.Equal(t, 503, a.status, "%v", a)
			require.Equal(t, "quota_unavailable", a.code())
			after, err := strconv.Atoi(a.header.Get("Retry-After"))
			require.NoError(t, err)
			require.Positive(t, after)
			require.Less(t, time.Since(begin), 5*time.Second)
		}
		require.Equal(t, 503, n.post("/v1/chat/completions", secret, hello).status)
		require.Equal(t, 200, n.do("GET", n.url+"/healthz", "", "").status)
		state := n.do("GET", n.admin+"/readyz", "", "")
		require.Equal(t, map[string]any{"default": "unavailable"}, state.json(t)["stores"])
		require.Contains(t, []int{202, 503}, n.ask("POST", "/tenants/t_away/adjust", `{"scope":"org","delta":5}`).status)
		require.Equal(t, 503, n.ask("GET", "/tenants/t_away/usage", "").status)

		require.NoError(t, r.redis.Restart())
		back := time.Now()
		eventually(t, "the node decides again", func() bool { return n.consume(secret, 1).status == 200 })
		t.Logf("decides again %v after Redis is back", time.Since(back).Round(time.Millisecond))
		require.Less(t, time.Since(back), recoversWithin)
		require.Equal(t, 200, n.post("/v1/chat/completions", secret, hello).status)
	}
	require.Positive(t, r.settled("t_away").Spent)
	// The top-ups that Redis was not there for have come by themselves.
	eventually(t, "the adjustments are applied", func() bool {
		return n.do("GET", n.url+"/v1/quota/balance", secret, "").json(t)["org"].(map[string]any)["total"] == 1_000_010.0
	})
}

// A stream that began before Redis went ends well for its client, and its end reaches Redis when it is back.
func TestRedisGoesDuringAStream(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, "--appendonly", "yes", "--appendfsync", "always")
	n := r.node()
	secret := n.tenant("t_stream", 1000)
	s := n.chatStream(secret, "fake-p10-c20", "x-fake-hang", "5")
	s.events(5)
	r.redis.Stop()
	r.upstream("POST", "/release")
	require.NoError(t, s.rest())
	require.True(t, s.whole(), s.text.String())
	require.NoError(t, r.redis.Restart())
	require.Equal(t, account{Spent: 30}, r.settled("t_stream"))
}
