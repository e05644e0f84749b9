package main_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
)

// What a node held when it was killed another node frees after the deadline; what was charged before stays charged.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := settings{}
	if long() {
		s = settings{total: "2s", holdTTL: "62s"} // the shortest life that a hold may have with such an upstream
	}
	a := r.node(s)
	const tenant = "t_killed"
	secret := a.tenant(tenant, 100_000)
	require.Equal(t, 200, a.post("/v1/chat/completions", secret, hello).status)
	before := r.settled(tenant)
	require.Equal(t, account{Spent: 46}, before)

	for range 3 {
		a.chatStream(secret, "fake-p10-c20", "x-fake-hang", "5").events(5)
	}
	for i := range 4 {
		require.Equal(t, 200, a.post("/v1/quota/reserve", secret, fmt.Sprintf(`{"request_id":"r-%d","cost":100}`, i)).status)
	}
	held := r.account(tenant)
	require.EqualValues(t, 7, held.Inflight)
	require.Greater(t, held.Prepaid, int64(400))
	a.kill()

	b := r.node(s)
	require.Equal(t, 200, b.consume(secret, 1).status)
	require.Equal(t, account{46 + 1, held.Prepaid, 7}, r.account(tenant), "holds outlive their node")
	// A hold of the decision API is anybody's who knows its id.
	require.Equal(t, 200, b.post("/v1/quota/settle", secret, `{"request_id":"r-0","actual":70}`).status)
	require.EqualValues(t, 6, r.account(tenant).Inflight)

	if !long() {
		r.makeDue(tenant)
	}
	wait := patience
	if long() {
		wait += 62 * time.Second
	}
	for end := time.Now().Add(wait); r.account(tenant).Inflight > 0; {
		require.True(t, time.Now().Before(end), "the holds of the killed node are still there: %+v", r.account(tenant))
		<-time.After(20 * time.Millisecond)
	}
	require.Equal(t, account{Spent: 46 + 1 + 70}, r.account(tenant))
	require.Contains(t, b.out.String(), "holds expired")
	m := b.metric("tollgate_holds_expired_total")
	require.EqualValues(t, 6, m)

	// The money is owed even so: a settle that comes after the deadline is charged.
	late := b.post("/v1/quota/settle", secret, `{"request_id":"r-1","actual":60}`)
	require.Equal(t, 200, late.status, "%v", late)
	require.Equal(t, true, late.json(t)["late"])
	require.Equal(t, account{Spent: 46 + 1 + 70 + 60}, r.account(tenant))
	org, app, key, inFlight := b.used(tenant)
	require.Equal(t, []int64{177, 177, 177, 0}, []int64{org, app, key, inFlight})
}

// makeDue moves the deadlines of all holds of a tenant into the past.
func (r *rig) makeDue(tenant string) {
	r.t.Helper()
	index := lua.DeadlinesKey(tenant)
	raw, err := r.redis.Do("ZRANGE", index, "0", "-1")
	require.NoError(r.t, err)
	past := strconv.FormatInt(time.Now().Add(-time.Second).UnixMilli(), 10)
	for _, name := range raw.([]any) {
		_, err := r.redis.Do("HSET", "quota:{"+tenant+"}:"+name.(string), "deadline", past)
		require.NoError(r.t, err)
		_, err = r.redis.Do("ZADD", index, past, name.(string))
		require.NoError(r.t, err)
	}
}
