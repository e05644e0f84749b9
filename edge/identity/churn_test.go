package identity

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/lua/redistest"
)

// privateStores are two servers of the test's own.
func privateStores(t testing.TB, args ...string) (home, gold *redistest.Server, urls map[string]string) {
	home, gold = redistest.Start(t, args...), redistest.Start(t, args...)
	return home, gold, map[string]string{DefaultStore: home.URL(), "gold": gold.URL()}
}

// Readers everywhere reach every version that is published, while others keep
// the nodes busy with reading the same key.
func TestNoInvalidationIsLost(t *testing.T) {
	urls := twoStores(t)
	nodes := []*node{openNode(t, urls, newBooks(), nil), openNode(t, urls, newBooks(), nil)}
	c := newCustomer("gold")
	version := int64(1)
	c.docs.Tenant.OverageLimit = version
	c.publish(t, nodes[0], version)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for i := range 8 {
		busy.Go(func() {
			seen := int64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				who, err := nodes[i%2].find(c.secret)
				require.NoError(t, err)
				// Each goroutine looks up one after the other, and no read is
				// joined that began before a change was heard.
				require.GreaterOrEqual(t, who.Tenant.OverageLimit, seen)
				seen = who.Tenant.OverageLimit
				runtime.Gosched() // else those who read the connections wait for a time slice
			}
		})
	}
	var slowest time.Duration
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		version++
		c.docs.Tenant.OverageLimit = version
		c.publishDoc(t, nodes[0], "tenant", version, c.docs.Tenant)
		start := time.Now()
		for _, n := range nodes {
			for {
				who, err := n.find(c.secret)
				require.NoError(t, err)
				if who.Tenant.OverageLimit == version {
					break
				}
				require.Less(t, time.Since(start), long, "version %d is not seen", version)
				runtime.Gosched()
			}
		}
		slowest = max(slowest, time.Since(start))
	}
	close(stop)
	busy.Wait()
	t.Logf("%d versions, slowest seen after %v", version, slowest)
}

// 64 goroutines look up, revoke, resume, suspend, and have everything
// forgotten; when they are done, every node knows the truth.
func TestChurn(t *testing.T) {
	urls := twoStores(t)
	nodes := []*node{openNode(t, urls, newBooks(), nil), openNode(t, urls, newBooks(), nil)}
	type shared struct {
		sync.Mutex
		*customer
		version int64
	}
	all := make([]*shared, 40)
	for i := range all {
		all[i] = &shared{customer: newCustomer([]string{DefaultStore, "gold"}[i%2]), version: 1}
		all[i].publish(t, nodes[0], 1)
	}
	expect := func(c *customer) error {
		switch {
		case c.doc.Status != lua.Active:
			return ErrDisabledKey
		case c.docs.Tenant.Status != lua.Active:
			return ErrSuspendedTenant
		}
		return nil
	}
	statuses := []lua.Status{lua.Active, lua.Suspended}
	var run sync.WaitGroup
	for g := range 64 {
		run.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 300 {
				c, n := all[r.IntN(len(all))], nodes[r.IntN(2)]
				switch r.IntN(20) {
				case 0:
					c.Lock()
					c.version++
					c.doc.Status = statuses[r.IntN(2)]
					c.publishSecret(t, n, c.version)
					c.Unlock()
				case 1:
					c.Lock()
					c.version++
					c.docs.Tenant.Status = statuses[r.IntN(2)]
					c.publishDoc(t, n, "tenant", c.version, c.docs.Tenant)
					c.Unlock()
				case 2:
					n.opt.Stores["gold"].Feed.Invalidate(nil)
				default:
					who, err := n.find(c.secret)
					if err == nil {
						require.Equal(t, c.doc.Tenant, who.Principal.Tenant)
					} else {
						require.True(t, errors.Is(err, ErrDisabledKey) || errors.Is(err, ErrSuspendedTenant), "%v", err)
					}
				}
			}
		})
	}
	run.Wait()
	for _, n := range nodes {
		for _, c := range all {
			soon(t, "the last word is heard", func() bool { _, err := n.find(c.secret); return errors.Is(err, expect(c.customer)) })
		}
		require.Empty(t, n.flights.m)
		require.Zero(t, n.flights.running)
	}
}

// With the connection goes the promise to be told: what changed meanwhile is
// found within a second.
func TestConnectionLost(t *testing.T) {
	home, gold, urls := privateStores(t)
	a, b := openNode(t, urls, newBooks(), nil), openNode(t, urls, newBooks(), nil)
	c := newCustomer("gold")
	c.publish(t, a, 1)
	for i := range 10 {
		version := int64(2 + i)
		_, err := b.find(c.secret)
		require.NoError(t, err)
		c.docs.Tenant.OverageLimit = version
		doc := text(t, c.docs.Tenant)
		start := time.Now()
		// The connections die first, then the change: nobody is told of it.
		server := []*redistest.Server{home, gold}[i%2]
		_, err = server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		require.NoError(t, err)
		_, err = gold.Do("HSET", lua.ConfKey(c.doc.Tenant), "tenant", "1 "+string(doc))
		require.NoError(t, err)
		soon(t, "the change is seen", func() bool {
			who, err := b.find(c.secret)
			return err == nil && who.Tenant.OverageLimit == version
		})
		require.Less(t, time.Since(start), time.Second)
	}
}

// A Redis that came back empty is filled from SQL, and SQL's newer word counts.
func TestRestartEmpty(t *testing.T) {
	home, gold, urls := privateStores(t)
	c := newCustomer("gold")
	sql := newBooks(c)
	n := openNode(t, urls, sql, nil)
	_, err := n.find(c.secret)
	require.NoError(t, err)
	c.docs.Tenant.Status = lua.Suspended
	sql.add(c)
	require.NoError(t, home.Restart())
	require.NoError(t, gold.Restart())
	start := time.Now()
	soon(t, "the suspension is seen", func() bool { _, err := n.find(c.secret); return errors.Is(err, ErrSuspendedTenant) })
	require.Less(t, time.Since(start), time.Second)
	_, err = gold.Do("FLUSHALL")
	require.NoError(t, err)
	c.docs.Tenant.Status = lua.Active
	sql.add(c)
	soon(t, "the tenant is back", func() bool { _, err := n.find(c.secret); return err == nil })
}

// A frozen Redis: after a second nobody goes by what he knew, and unknown keys
// are not called unknown.
func TestRedisFrozen(t *testing.T) {
	home, _, urls := privateStores(t)
	n := openNode(t, urls, newBooks(), func(o *Options) { o.ReadBudget = 100 * time.Millisecond })
	c, stranger := newCustomer("gold"), newCustomer("gold")
	c.publish(t, n, 1)
	_, err := n.find(c.secret)
	require.NoError(t, err)
	_, err = n.find(stranger.secret)
	require.ErrorIs(t, err, ErrUnknownKey)
	require.NoError(t, home.Signal(syscall.SIGSTOP))
	start := time.Now()
	for _, secret := range []string{c.secret, stranger.secret} {
		soon(t, "it cannot be known", func() bool { _, err := n.find(secret); return errors.Is(err, ErrUnavailable) })
	}
	t.Logf("frozen to unavailable: %v", time.Since(start))
	require.Less(t, time.Since(start), time.Second)
	require.NoError(t, home.Signal(syscall.SIGCONT))
	soon(t, "known again", func() bool { _, err := n.find(c.secret); return err == nil })
	soon(t, "unknown again", func() bool { _, err := n.find(stranger.secret); return errors.Is(err, ErrUnknownKey) })
}

// Memory is bounded, and what had to go is read again.
func TestEntriesAreBounded(t *testing.T) {
	const most = 64
	n := openNode(t, twoStores(t), newBooks(), func(o *Options) { o.EntriesMax = most })
	c := newCustomer("gold")
	c.publish(t, n, 1)
	secrets := make([]string, 4*most)
	for i := range secrets {
		c.secret = NewSecret()
		c.publishSecret(t, n, 1)
		secrets[i] = c.secret
	}
	evicted := evictedUsed.Get()
	for range 2 {
		for _, secret := range secrets {
			_, err := n.find(secret)
			require.NoError(t, err)
			require.LessOrEqual(t, n.entries.Size(), most)
		}
	}
	require.Greater(t, evictedUsed.Get(), evicted)
	// Those that nobody asks for any more go before those in use.
	n.now.Add(int64(time.Hour))
	evicted = evictedUsed.Get()
	for _, secret := range secrets[:most] {
		_, err := n.find(secret)
		require.NoError(t, err)
	}
	require.Equal(t, evicted, evictedUsed.Get())
}

func TestUnknownAreBounded(t *testing.T) {
	sql := newBooks()
	n := openNode(t, twoStores(t), sql, nil)
	var run sync.WaitGroup
	var i atomic.Int64
	for range 16 {
		run.Go(func() {
			for i.Add(1) <= unknownMax+100 {
				_, err := n.find(NewSecret())
				require.ErrorIs(t, err, ErrUnknownKey)
			}
		})
	}
	before := unremembered.Get()
	run.Wait()
	require.LessOrEqual(t, n.unknown.Size(), unknownMax+16)
	require.Greater(t, unremembered.Get(), before)
	n.now.Add(int64(unknownFor))
	last := NewSecret()
	for range 2 {
		_, err := n.find(last)
		require.ErrorIs(t, err, ErrUnknownKey)
	}
	require.EqualValues(t, unknownMax+101, sql.secretReads.Load())
	require.EqualValues(t, 1, n.unknown.Size())
}
