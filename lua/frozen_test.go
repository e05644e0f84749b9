package lua

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua/redistest"
	"tollgate/quota"
)

// callBudget is the budget of a call here; slack is how much later it may end.
const (
	callBudget = 50 * time.Millisecond
	slack      = 20 * time.Millisecond
)

// callers are many goroutines that each make one call per budget. They are
// timed by a clock of their own, the wakes of a 1 ms ticker: where the machine
// starves the whole process, that clock stands still too.
type callers struct {
	store  *Store
	ticks  atomic.Int64 // ms in which this process could run
	worst  atomic.Int64 // ticks that a call took beyond its budget
	slow   atomic.Int64 // ns that a call took beyond its budget by the wall
	calls  [4]atomic.Int64
	stop   chan struct{}
	wg     sync.WaitGroup
	lastOK atomic.Int64 // UnixNano of the last success
}

// crowdTenant is whom the callers spend for; where it is not loaded, the answer "load" is as good as any.
const crowdTenant = "t_crowd"

const (
	wentWell = iota
	notSent
	unanswered
	refused
)

func startCallers(s *Store, n int) *callers {
	c := &callers{store: s, stop: make(chan struct{})}
	for i := range n {
		c.wg.Go(func() {
			pass(callBudget * time.Duration(i) / time.Duration(n)) // not in step
			c.loop(i)
		})
	}
	c.wg.Go(c.tick)
	return c
}

func (c *callers) loop(i int) {
	chain := chainOf(crowdTenant)
	for n := 0; ; n++ {
		select {
		case <-c.stop:
			return
		default:
		}
		start, tick := time.Now(), c.ticks.Load()
		ctx, cancel := context.WithTimeout(context.Background(), callBudget)
		var err error
		if i%8 == 7 {
			err = c.store.Confirm(ctx, []Confirmation{{Tenant: crowdTenant, ID: "x"}, {Tenant: crowdTenant, ID: "y"}})
		} else {
			_, err = c.store.Reserve(ctx, &ReserveArgs{
				Target: Target{Tenant: crowdTenant, ID: fmt.Sprint(i, "-", n), Chain: chain}, Amount: 1, TTL: time.Minute, Consume: true,
				Fingerprint: "f", Attempt: "t", NotAfter: c.store.Now() + 1000,
			})
		}
		now := time.Now()
		raise(&c.slow, int64(now.Sub(start)-callBudget))
		raise(&c.worst, c.ticks.Load()-tick-callBudget.Milliseconds())
		switch {
		case err == nil:
			c.calls[wentWell].Add(1)
			c.lastOK.Store(now.UnixNano())
		case errors.Is(err, ErrNotSent):
			c.calls[notSent].Add(1)
		case errors.Is(err, ErrUnknown):
			c.calls[unanswered].Add(1)
		default:
			c.calls[refused].Add(1)
		}
		<-ctx.Done()
		cancel()
	}
}

func (c *callers) tick() {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-ticker.C:
			c.ticks.Add(1)
		}
	}
}

// end stops the callers and says how many ms the latest of them was over its budget.
func (c *callers) end(t *testing.T) int64 {
	t.Helper()
	close(c.stop)
	c.wg.Wait()
	t.Logf("worst call %d ms over its budget (%v by the wall); %d well, %d not sent, %d unanswered, %d refused",
		c.worst.Load(), time.Duration(c.slow.Load()), c.calls[wentWell].Load(), c.calls[notSent].Load(), c.calls[unanswered].Load(), c.calls[refused].Load())
	require.Eventually(t, func() bool { return c.store.inFlight.Load() == 0 }, 5*time.Second, time.Millisecond, "every call gave its place back")
	return c.worst.Load()
}

func raise(to *atomic.Int64, v int64) {
	for old := to.Load(); v > old && !to.CompareAndSwap(old, v); old = to.Load() {
	}
}

// chainOf is the shortest chain.
func chainOf(tenant string) quota.Chain {
	return quota.Chain{{Scope: quota.Org, ID: tenant}, {Scope: quota.App, ID: "a_1"}, {Scope: quota.Key, ID: "k_1"}}
}

// pass lets real time go by, for what only real time can show.
func pass(d time.Duration) { <-time.After(d) }

// thaw lets Redis go on, and waits for the first call that works again.
func (c *callers) thaw(t *testing.T, r *redistest.Server) {
	t.Helper()
	require.NoError(t, r.Signal(syscall.SIGCONT))
	c.recovers(t)
}

func (c *callers) recovers(t *testing.T) {
	t.Helper()
	since := time.Now()
	require.Eventually(t, func() bool { return c.lastOK.Load() > since.UnixNano() }, 10*time.Second, time.Millisecond)
	t.Logf("first success after %v", time.Since(since))
}

// frozen are ways in which Redis stops answering. Each returns the callers that
// lived through it.
var frozen = []struct {
	name string
	run  func(t *testing.T, r *redistest.Server) *callers
}{
	{"with 64 callers", func(t *testing.T, r *redistest.Server) *callers { return freeze(t, r, 64) }},
	{"with 1000 callers", func(t *testing.T, r *redistest.Server) *callers { return freeze(t, r, 1000) }},
	{"with 2000 callers", func(t *testing.T, r *redistest.Server) *callers { return freeze(t, r, 2000) }},
	{"from the start", func(t *testing.T, r *redistest.Server) *callers {
		require.NoError(t, r.Signal(syscall.SIGSTOP))
		ctx, cancel := context.WithTimeout(t.Context(), callBudget)
		defer cancel()
		s, err := Open(ctx, Options{Name: "default", URL: r.URL()})
		require.NoError(t, err, "a Redis that is down is no reason not to start")
		t.Cleanup(s.Close)
		c := startCallers(s, 1000)
		pass(700 * time.Millisecond)
		c.thaw(t, r)
		return c
	}},
	{"as its connections are lost", func(t *testing.T, r *redistest.Server) *callers {
		c := startCallers(open(t, r.URL()), 1000)
		pass(100 * time.Millisecond)
		_, err := r.Do("CLIENT", "KILL", "TYPE", "normal")
		require.NoError(t, err)
		require.NoError(t, r.Signal(syscall.SIGSTOP))
		pass(700 * time.Millisecond)
		c.thaw(t, r)
		return c
	}},
	{"and then a burst after quiet", func(t *testing.T, r *redistest.Server) *callers {
		s := open(t, r.URL())
		require.NoError(t, s.Ping(t.Context()))
		require.NoError(t, r.Signal(syscall.SIGSTOP))
		pass(1300 * time.Millisecond)
		c := startCallers(s, 1000)
		pass(400 * time.Millisecond)
		c.thaw(t, r)
		return c
	}},
	{"killed, and started again", func(t *testing.T, r *redistest.Server) *callers {
		c := startCallers(open(t, r.URL()), 1000)
		pass(200 * time.Millisecond)
		r.Stop()
		pass(300 * time.Millisecond)
		require.NoError(t, r.Restart())
		c.recovers(t)
		return c
	}},
}

func freeze(t *testing.T, r *redistest.Server, n int) *callers {
	c := startCallers(open(t, r.URL()), n)
	pass(200 * time.Millisecond)
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	pass(time.Second)
	c.thaw(t, r)
	return c
}

// While Redis does not answer, and without a breaker, no call outlives its
// budget by 20 ms. A machine that is busy with other things gets a few tries:
// a call that really blocks is late in each of them.
func TestNoCallOutlivesItsBudget(t *testing.T) {
	for _, tc := range frozen {
		t.Run(tc.name, func(t *testing.T) {
			const tries = 5
			for try := 1; ; try++ {
				late := tc.run(t, redistest.Start(t)).end(t)
				if late <= slack.Milliseconds() {
					return
				}
				require.Less(t, try, tries, "a call ended %d ms after its budget of %v", late, callBudget)
			}
		})
	}
}
