package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// ids lists made-up tenants.
type ids []string

func (l ids) TenantsAfter(_ context.Context, _, after string, limit int) ([]string, error) {
	at, found := slices.BinarySearch(l, after)
	if found {
		at++
	}
	return l[at:min(at+limit, len(l))], nil
}

// chainOf is the shortest chain of a tenant.
func chainOf(tenant string) quota.Chain {
	return quota.Chain{{Scope: quota.Org, ID: tenant}, {Scope: quota.App, ID: "a_y"}, {Scope: quota.Key, ID: "k_z"}}
}

// hold makes one hold of 10 credits, as another node would.
func hold(t testing.TB, s *lua.Store, tenant, id string, ttl time.Duration) lua.Target {
	t.Helper()
	args := &lua.ReserveArgs{
		Target: lua.Target{Tenant: tenant, ID: id, Chain: chainOf(tenant)}, Amount: 10, TTL: ttl,
		Fingerprint: "f", Attempt: "try-" + id, PriceID: "p", Node: "dead", NotAfter: s.Now() + 60_000,
	}
	args.Loads = &lua.Loads{Version: 1}
	for range args.Chain {
		args.Loads.Accounts = append(args.Loads.Accounts, lua.AccountLoad{Total: 1_000_000, MaxInflight: -1})
	}
	got, err := s.Reserve(t.Context(), args)
	require.NoError(t, err)
	require.Equal(t, lua.Done, got.Outcome)
	args.Target.Loads = nil
	return args.Target
}

// frozen is what a tenant's accounts hold; all must agree.
func frozen(t testing.TB, r *redistest.Server, tenant string) (prepaid, inflight string) {
	t.Helper()
	for i, name := range []string{"org:" + tenant, "app:a_y", "key:k_z"} {
		got := do(t, r, "HMGET", "quota:{"+tenant+"}:"+name, "prepaid", "inflight").([]any)
		if i > 0 {
			require.Equal(t, prepaid, fmt.Sprint(got[0]))
			require.Equal(t, inflight, fmt.Sprint(got[1]))
		}
		prepaid, inflight = fmt.Sprint(got[0]), fmt.Sprint(got[1])
	}
	return prepaid, inflight
}

// overdue waits until a deadline of now has passed on Redis' clock.
func overdue(t testing.TB, s *lua.Store) {
	t.Helper()
	at := s.Now() + 5
	require.Eventually(t, func() bool { return s.Ping(t.Context()) == nil && s.Now() > at }, 5*time.Second, time.Millisecond)
}

func TestReaperFreesWhatADeadNodeHeld(t *testing.T) {
	r, s, _ := redis(t)
	for i := range 5 {
		hold(t, s, "t_a", fmt.Sprint(i), time.Millisecond)
	}
	alive := hold(t, s, "t_a", "alive", time.Hour)
	// Index entries whose hold Redis lost, or that ended, are dropped.
	do(t, r, "ZADD", "quota:{t_a}:deadlines", "1", "req:lost")
	overdue(t, s)
	expired := holdsExpired.Get()
	a, b := newReaper("n1", time.Minute, ids{}, s), newReaper("n2", time.Minute, ids{}, s)
	var both sync.WaitGroup
	for _, reaper := range []*Reaper{a, b} { // both at once: each hold is freed once
		both.Go(func() {
			if err := reaper.reap(t.Context(), reaper.stores[0], []string{"t_a", "t_nobody"}); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	prepaid, inflight := frozen(t, r, "t_a")
	require.Equal(t, "10", prepaid)
	require.Equal(t, "1", inflight)
	require.EqualValues(t, 5, holdsExpired.Get()-expired)
	require.EqualValues(t, 1, do(t, r, "ZCARD", "quota:{t_a}:deadlines"))
	require.Equal(t, "expired", do(t, r, "HGET", "quota:{t_a}:req:3", "state"))

	reply, err := s.Settle(t.Context(), &lua.SettleArgs{Target: alive, Actual: 7, Tokens: -1})
	require.NoError(t, err)
	require.Equal(t, lua.Done, reply.Outcome)
	require.False(t, reply.Late)
}

// A node that died with thousands of holds of one tenant: one look frees them all.
func TestReaperFreesManyInOneRound(t *testing.T) {
	r, s, _ := redis(t)
	for i := range 1234 {
		hold(t, s, "t_a", fmt.Sprint(i), time.Millisecond)
	}
	for _, tenant := range []string{"t_b", "t_c"} {
		hold(t, s, tenant, "1", time.Millisecond)
	}
	// A record that froze nothing goes too.
	do(t, r, "HSET", "quota:{t_a}:req:odd", "state", "held", "amount", "1", "deadline", "1", "gens", "", "chain", "org:t_a", "windows", "0-0")
	do(t, r, "ZADD", "quota:{t_a}:deadlines", "1", "req:odd")
	overdue(t, s)
	reaper := newReaper("n1", time.Minute, ids{}, s)
	require.NoError(t, reaper.reap(t.Context(), reaper.stores[0], []string{"t_a", "t_b", "t_c"}))
	for _, tenant := range []string{"t_a", "t_b", "t_c"} {
		prepaid, _ := frozen(t, r, tenant)
		require.Equal(t, "0", prepaid, tenant)
	}
}

// The loops do it by themselves: for tenants served here, and by the walk for all others.
func TestReaperLoops(t *testing.T) {
	r, s, _ := redis(t)
	db := openNew(t)
	seed(t, db, 1000) // t_x, which this node never serves
	hold(t, s, "t_x", "1", time.Millisecond)
	hold(t, s, "t_gone", "1", time.Millisecond) // SQL does not know it; this node serves it
	overdue(t, s)
	reaper := NewReaper("n1", time.Minute, db, s)
	defer reaper.Close()
	reaper.Served(s, "t_gone", s.Now())
	require.Eventually(t, func() bool { p, _ := frozen(t, r, "t_x"); return p == "0" }, 5*time.Second, 10*time.Millisecond, "the walk")
	require.Eventually(t, func() bool { p, _ := frozen(t, r, "t_gone"); return p == "0" }, 8*time.Second, 10*time.Millisecond, "the rounds")
}

func TestWalkVisitsEveryTenant(t *testing.T) {
	r, s, _ := redis(t)
	var all ids
	for i := range 1000 {
		all = append(all, fmt.Sprintf("t_%06d", i))
	}
	late := []string{all[0], all[99], all[100], all[101], all[555], all[999]}
	for _, tenant := range late {
		hold(t, s, tenant, "1", time.Millisecond)
	}
	overdue(t, s)
	reaper := newReaper("n1", time.Minute, all, s)
	held := func() (n int) {
		for _, tenant := range late {
			if p, _ := frozen(t, r, tenant); p != "0" {
				n++
			}
		}
		return n
	}
	reaper.walk(t.Context(), reaper.stores[0])
	require.Equal(t, 4, held(), "one step looks at a hundred")

	// Another node waits for the lock; it takes over when its deadline passes.
	other := newReaper("n2", time.Minute, all, s)
	other.walk(t.Context(), other.stores[0])
	require.Empty(t, other.stores[0].cursor)
	require.Equal(t, "n1", do(t, r, "GET", walkLock))
	ttl := do(t, r, "PTTL", walkLock).(int64)
	require.Positive(t, ttl)
	require.LessOrEqual(t, ttl, walkLockTTL.Milliseconds())

	// Where Redis does not answer the walk does not go on.
	at := reaper.stores[0].cursor
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	reaper.walk(t.Context(), reaper.stores[0])
	require.NoError(t, r.Signal(syscall.SIGCONT))
	require.Equal(t, at, reaper.stores[0].cursor)
	require.Eventually(t, func() bool { return s.Ping(t.Context()) == nil }, 5*time.Second, time.Millisecond)

	for range 10 {
		reaper.walk(t.Context(), reaper.stores[0])
	}
	require.Zero(t, held())
	require.Equal(t, 1000, reaper.stores[0].total, "a whole walk is counted")
	// It begins anew.
	hold(t, s, all[5], "2", time.Millisecond)
	late = []string{all[5]}
	overdue(t, s)
	for range 11 {
		reaper.walk(t.Context(), reaper.stores[0])
	}
	require.Zero(t, held())
}

func TestWalkWaitsForSQL(t *testing.T) {
	_, s, _ := redis(t)
	reaper := newReaper("n1", time.Minute, brokenLister{}, s)
	reaper.stores[0].cursor = "t_m"
	reaper.walk(t.Context(), reaper.stores[0])
	require.Equal(t, "t_m", reaper.stores[0].cursor)
}

type brokenLister struct{}

func (brokenLister) TenantsAfter(context.Context, string, string, int) ([]string, error) {
	return nil, errors.New("SQL is away")
}

func TestWalkPage(t *testing.T) {
	for _, c := range []struct {
		total int
		ttl   time.Duration
		want  int
	}{
		{0, 15 * time.Minute, 100}, {90_000, 15 * time.Minute, 100}, {100_000, 15 * time.Minute, 112}, {1_000_000, time.Hour, 278}, {1000, 0, 1000},
	} {
		require.Equal(t, c.want, walkPage(c.total, c.ttl), "%+v", c)
	}
}

// Whatever comes and goes, every tenant that stays is looked at about as often as every other.
func TestRoundsAreFair(t *testing.T) {
	for _, n := range []int{1, 10, reapMost - 1, reapMost, reapMost + 1, reapMost * 3 / 2, 3*reapMost + 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			_, s, _ := redis(t)
			reaper := newReaper("n1", time.Minute, ids{}, s)
			for i := range n {
				reaper.Served(s, fmt.Sprintf("t_%d", i), 10_000)
			}
			seen := map[string]int{}
			after := ""
			rounds := 4 * (n/reapMost + 1)
			for round := range rounds {
				var list []string
				list, after = reaper.stores[0].round(after, 5_000)
				require.LessOrEqual(t, len(list), reapMost)
				require.Equal(t, min(n, reapMost), len(list), "round %d", round)
				once := map[string]bool{}
				for _, tenant := range list {
					require.False(t, once[tenant], "twice in one round")
					once[tenant] = true
					seen[tenant]++
				}
			}
			require.Len(t, seen, n, "some are never looked at")
			least, most := rounds, 0
			for _, k := range seen {
				least, most = min(least, k), max(most, k)
			}
			require.LessOrEqual(t, most-least, 1)
			// What was not served for long is forgotten.
			list, _ := reaper.stores[0].round("", 20_000)
			require.Empty(t, list)
			require.Zero(t, reaper.stores[0].served.Size())
		})
	}
}

// The tenant at which the last round ended may be forgotten meanwhile.
func TestRoundsGoOnWithoutTheirMark(t *testing.T) {
	_, s, _ := redis(t)
	reaper := newReaper("n1", time.Minute, ids{}, s)
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 2 * reapMost {
		reaper.Served(s, fmt.Sprintf("t_%d", i), 10_000)
	}
	seen := map[string]bool{}
	after := ""
	for range 12 {
		var list []string
		list, after = reaper.stores[0].round(after, 5_000)
		require.NotEmpty(t, list)
		for _, tenant := range list {
			seen[tenant] = true
		}
		if random.IntN(2) == 0 {
			reaper.stores[0].served.Delete(after)
		}
	}
	require.Len(t, seen, 2*reapMost)
}

// 100 000 tenants, all of them served here lately, cost at most 2 % of a core.
func TestReaperIsCheap(t *testing.T) {
	_, s, _ := redis(t)
	db := openNew(t)
	const tenants = 100_000
	_, err := db.writer.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i < ?-1)
		INSERT INTO tenant (id, name, store, timezone, status, overage_limit, limits, policy, version, doc_version, created_at, updated_at)
		SELECT printf('t_%06d', i), '', 'default', '', 'active', 0, '{}', '', 1, 1, 0, 0 FROM n`, tenants)
	require.NoError(t, err)
	reaper := newReaper("n1", 15*time.Minute, db, s)
	store := reaper.stores[0]
	store.total = tenants
	for i := range tenants {
		reaper.Served(s, fmt.Sprintf("t_%06d", i), s.Now())
	}
	const steps = 30
	reaper.walk(t.Context(), store)
	begin := cpu(t)
	for range steps {
		reaper.walk(t.Context(), store)
	}
	walk := (cpu(t) - begin) / steps // per second
	require.NotEmpty(t, store.cursor)
	begin = cpu(t)
	after := ""
	const rounds = 4
	for range rounds {
		var list []string
		list, after = store.round(after, s.Now()-time.Hour.Milliseconds())
		require.NoError(t, reaper.reap(t.Context(), store, list))
		require.Len(t, list, reapMost)
	}
	round := (cpu(t) - begin) / rounds // per reapEvery
	share := walk.Seconds() + round.Seconds()/reapEvery.Seconds()
	t.Logf("a step of the walk costs %v, a round %v: %.2f %% of a core", walk, round, 100*share)
	require.Less(t, share, 0.02)
}

// cpu is the processor time of this process so far.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
