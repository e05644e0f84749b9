package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// The crowd tests measure, so they come first and alone: parallel tests wait until the serial ones are done.

// A crowd on two nodes spends exactly what there is.
func TestCrowdSpendsExactly(t *testing.T) {
	const workers, each, total = 100, 1000, 50_000
	r := newRig(t)
	nodes := []*node{r.node(settings{log: "{level: info}"}), r.node(settings{log: "{level: info}"})}
	secret := nodes[0].tenant("t_crowd", total)
	var passed, short, unavailable atomic.Int64
	var other atomic.Value
	begin := time.Now()
	crowd(workers, each, func(i int) (int, []byte) { return post(nodes[i%2].url+"/v1/quota/consume", secret, `{"cost":1}`) }, func(status int, body []byte) {
		switch {
		case status == 200:
			passed.Add(1)
		case status == 429 && strings.Contains(string(body), `"insufficient_quota"`):
			short.Add(1)
		case status == 503 && strings.Contains(string(body), `"quota_unavailable"`):
			unavailable.Add(1) // a starved machine may have Redis seem gone; what was asked then is voided
		default:
			other.Store(fmt.Sprintf("%d %s", status, body))
		}
	})
	took := time.Since(begin)
	require.Nil(t, other.Load())
	require.EqualValues(t, workers*each, passed.Load()+short.Load()+unavailable.Load())
	require.Less(t, unavailable.Load(), int64(workers*each/20))
	if unavailable.Load() > 0 { // voids may have given credits back after the last of the crowd asked
		eventually(t, "nothing is left", func() bool {
			if nodes[0].consume(secret, 1).status == 200 {
				passed.Add(1)
			}
			return passed.Load() == total
		})
	}
	require.EqualValues(t, total, passed.Load())
	require.Equal(t, account{Spent: total}, r.account("t_crowd"))
	org, app, key, inFlight := nodes[1].used("t_crowd")
	require.Equal(t, []int64{total, total, total, 0}, []int64{org, app, key, inFlight})
	t.Logf("%d consumes by %d workers on 2 nodes in %v: %.0f/s; %d short, %d unavailable", workers*each, workers,
		took.Round(time.Millisecond), workers*each/took.Seconds(), short.Load(), unavailable.Load())
}

// crowd calls ask in so many workers, each so many times, with the number of the call, and tell with each answer.
func crowd(workers, each int, ask func(i int) (int, []byte), tell func(status int, body []byte)) {
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			for i := range each {
				tell(ask(w + i))
			}
		})
	}
	wait.Wait()
}

// load keeps connections open; the test is on the same two cores as the nodes, so it should cost little itself.
var load = fasthttp.Client{MaxConnsPerHost: 4096, MaxIdleConnDuration: time.Minute, ReadTimeout: patience, MaxIdemponentCallAttempts: 1}

// post makes one call; status 0 with the error as body when there is no answer.
func post(url, secret, body string) (int, []byte) {
	req, res := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(res)
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI(url)
	req.Header.Set(fasthttp.HeaderAuthorization, "Bearer "+secret)
	req.SetBodyString(body)
	if err := load.Do(req, res); err != nil {
		return 0, []byte(err.Error())
	}
	return res.StatusCode(), append([]byte(nil), res.Body()...)
}

// A storm on an exhausted account costs Redis next to nothing, and is over with the top-up.
func TestStormOnAnExhaustedAccount(t *testing.T) {
	const workers, each = 40, 250
	r := newRig(t)
	nodes := []*node{r.node(settings{log: "{level: info}"}), r.node(settings{log: "{level: info}"})}
	secret := nodes[0].tenant("t_storm", 10)
	for _, n := range nodes {
		require.Equal(t, 200, n.consume(secret, 5).status)
	}
	for round := range 2 {
		var before [2]float64
		for i, n := range nodes {
			n.consume(secret, 1)
			before[i] = n.metric(`tollgate_redis_script_duration_seconds_count{script="reserve"}`)
		}
		var refused atomic.Int64
		begin := time.Now()
		crowd(workers, each, func(i int) (int, []byte) { return post(nodes[i%2].url+"/v1/quota/consume", secret, `{"cost":1}`) }, func(status int, _ []byte) {
			if status == 429 {
				refused.Add(1)
			}
		})
		took := time.Since(begin)
		require.EqualValues(t, workers*each, refused.Load())
		for i, n := range nodes {
			scripts := n.metric(`tollgate_redis_script_duration_seconds_count{script="reserve"}`) - before[i]
			t.Logf("round %d, node %d: %.0f reserve scripts for %d requests in %v", round, i, scripts, workers*each/2, took.Round(time.Millisecond))
			require.LessOrEqual(t, scripts, 20*took.Seconds()+2)
		}
		// The very next request passes, on both nodes.
		nodes[round%2].must("POST", "/tenants/t_storm/adjust", `{"scope":"org","delta":2}`)
		for _, n := range nodes {
			status, body := post(n.url+"/v1/quota/consume", secret, `{"cost":1}`)
			require.Equal(t, 200, status, "%s", body)
		}
	}
	require.Equal(t, account{Spent: 14}, r.account("t_storm"))
}

// metric is the value of one of the node's metrics, 0 if it has none of that name.
func (n *node) metric(name string) float64 {
	n.t.Helper()
	a := n.do("GET", n.admin+"/metrics", adminToken, "")
	require.Equal(n.t, 200, a.status, "%v", a)
	for line := range strings.Lines(string(a.body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(n.t, err)
			return v
		}
	}
	return 0
}
