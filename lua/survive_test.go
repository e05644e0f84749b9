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
	"go.uber.org/goleak"

	"tollgate/lua/redistest"
	"tollgate/quota"
)

// loadTenant brings a tenant whose org has a total and whose chain is the shortest.
func loadTenant(t *testing.T, s *Store, tenant string, total int64) {
	t.Helper()
	l := &Loads{Version: 1}
	for range 3 {
		l.Accounts = append(l.Accounts, AccountLoad{Total: quota.Unlimited, MaxInflight: -1})
	}
	l.Accounts[0].Total = total
	got, err := s.Load(t.Context(), tenant, chainOf(tenant), l)
	require.NoError(t, err)
	require.Equal(t, Done, got.Outcome)
}

func ask(s *Store, tenant, id string, amount int64) *ReserveArgs {
	return &ReserveArgs{
		Target: Target{Tenant: tenant, ID: id, Chain: chainOf(tenant)}, Amount: amount, TTL: time.Minute,
		Fingerprint: "f", Attempt: "t" + id, PriceID: "p", Node: "n", NotAfter: s.Now() + 2000,
	}
}

func requireOrg(t *testing.T, s *Store, tenant string, total, spent, prepaid int64) {
	t.Helper()
	list, err := s.ReadAccounts(t.Context(), tenant, chainOf(tenant))
	require.NoError(t, err)
	require.NotNil(t, list[0])
	require.Equal(t, quota.AccountState{Total: total, Spent: spent, Prepaid: prepaid}, *list[0])
	for _, a := range list[1:] {
		require.Equal(t, quota.AccountState{Total: -1, Spent: spent, Prepaid: prepaid}, *a)
	}
}

// The scripts vanish from Redis all the time; nothing counts twice, nothing is lost.
func TestScriptFlush(t *testing.T) {
	r := redistest.Start(t)
	s := open(t, r.URL())
	loadTenant(t, s, "t_flush", 500)
	stop := make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = r.Do("SCRIPT", "FLUSH")
			}
		}
	})
	var won atomic.Int64
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := range 100 {
				a := ask(s, "t_flush", fmt.Sprint(w, "-", i), 1)
				got, err := persist(func() (ReserveReply, error) { return s.Reserve(t.Context(), a) })
				if err == nil && got.Outcome == Done {
					won.Add(1)
					_, err = persist(func() (SettleReply, error) {
						return s.Settle(t.Context(), &SettleArgs{Target: a.Target, Actual: 1, Tokens: -1})
					})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	flushing.Wait()
	require.EqualValues(t, 500, won.Load())
	requireOrg(t, s, "t_flush", 500, 500, 0)
}

// A promoted replica has the records but not the scripts.
func TestPromotedReplica(t *testing.T) {
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	s := open(t, primary.URL())
	loadTenant(t, s, "t_fail", 100)
	_, err := s.Reserve(t.Context(), ask(s, "t_fail", "1", 60))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		n, err := replica.Do("EXISTS", HoldKey("t_fail", "1"))
		return err == nil && n == int64(1)
	}, 5*time.Second, time.Millisecond)

	onReplica := open(t, replica.URL())
	_, err = onReplica.Reserve(t.Context(), ask(onReplica, "t_fail", "2", 1))
	require.ErrorIs(t, err, ErrRefused, "a replica takes no writes")
	primary.Stop()
	_, err = replica.Do("REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
	_, err = replica.Do("SCRIPT", "FLUSH")
	require.NoError(t, err)
	target := Target{Tenant: "t_fail", ID: "1", Chain: chainOf("t_fail")}
	again, err := onReplica.Reserve(t.Context(), ask(onReplica, "t_fail", "1", 60))
	require.NoError(t, err)
	require.True(t, again.Duplicate)
	settled, err := onReplica.Settle(t.Context(), &SettleArgs{Target: target, Actual: 50, Tokens: -1})
	require.NoError(t, err)
	require.Equal(t, Done, settled.Outcome)
	requireOrg(t, onReplica, "t_fail", 100, 50, 0)
}

// A primary that becomes read-only refuses everything and loses nothing.
func TestReadOnlyPrimary(t *testing.T) {
	r, other := redistest.Start(t), redistest.Start(t)
	s := open(t, r.URL())
	loadTenant(t, s, "t_ro", 100)
	_, err := s.Reserve(t.Context(), ask(s, "t_ro", "1", 60))
	require.NoError(t, err)
	_, err = r.Do("CONFIG", "SET", "replica-serve-stale-data", "yes")
	require.NoError(t, err)
	other.Stop() // so that no synchronisation empties it
	_, err = r.Do("REPLICAOF", "127.0.0.1", "1")
	require.NoError(t, err)
	target := Target{Tenant: "t_ro", ID: "1", Chain: chainOf("t_ro")}
	_, err = s.Reserve(t.Context(), ask(s, "t_ro", "2", 1))
	require.ErrorIs(t, err, ErrRefused)
	_, err = s.Settle(t.Context(), &SettleArgs{Target: target, Actual: 1, Tokens: -1})
	require.ErrorIs(t, err, ErrRefused)
	_, err = s.Release(t.Context(), &ReleaseArgs{Target: target, As: StateVoid, Attempt: "t1"})
	require.ErrorIs(t, err, ErrRefused)
	_, err = s.PublishConf(t.Context(), "t_ro", "tenant", 9, []byte("{}"), nil)
	require.ErrorIs(t, err, ErrRefused)
	requireOrg(t, s, "t_ro", 100, 0, 60)
	_, err = r.Do("REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
	got, err := s.Settle(t.Context(), &SettleArgs{Target: target, Actual: 1, Tokens: -1})
	require.NoError(t, err)
	require.Equal(t, Done, got.Outcome)
	requireOrg(t, s, "t_ro", 100, 1, 0)
}

// Without memory nothing new is admitted, and everything can be given back.
func TestOutOfMemory(t *testing.T) {
	r := redistest.Start(t)
	s := open(t, r.URL())
	loadTenant(t, s, "t_oom", 100)
	for _, id := range []string{"1", "2", "3"} {
		_, err := s.Reserve(t.Context(), ask(s, "t_oom", id, 10))
		require.NoError(t, err)
	}
	before := dump(t, r)
	_, err := r.Do("CONFIG", "SET", "maxmemory", "1")
	require.NoError(t, err)
	_, err = s.Reserve(t.Context(), ask(s, "t_oom", "4", 10))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "OOM")
	after := dump(t, r)
	for key := range before {
		delete(before[key], "(ttl)")
		delete(after[key], "(ttl)")
	}
	require.Equal(t, before, after)
	target := func(id string) Target { return Target{Tenant: "t_oom", ID: id, Chain: chainOf("t_oom")} }
	settled, err := s.Settle(t.Context(), &SettleArgs{Target: target("1"), Actual: 7, Tokens: -1})
	require.NoError(t, err)
	require.Equal(t, Done, settled.Outcome)
	released, err := s.Release(t.Context(), &ReleaseArgs{Target: target("2"), As: StateReleased})
	require.NoError(t, err)
	require.Equal(t, Done, released.Outcome)
	void, err := s.Release(t.Context(), &ReleaseArgs{Target: target("unknown"), As: StateVoid, Attempt: "t9"})
	require.NoError(t, err)
	require.Equal(t, Done, void.Outcome)
	cut, err := s.Adjust(t.Context(), "t_oom", chainOf("t_oom")[0], nil, 1, -20, false)
	require.NoError(t, err)
	require.Equal(t, Done, cut.Outcome)
	out, err := s.PublishConf(t.Context(), "t_oom", "tenant", 2, []byte("{}"), nil)
	require.NoError(t, err)
	require.Equal(t, Done, out)
	requireOrg(t, s, "t_oom", 80, 7, 10)
}

// What a restart keeps goes on; what it loses is said to be unknown, never guessed.
func TestRestart(t *testing.T) {
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint("kept ", kept), func(t *testing.T) {
			args := []string{"--appendonly", "no"}
			if kept {
				args = []string{"--appendonly", "yes", "--appendfsync", "always"}
			}
			r := redistest.Start(t, args...)
			s := open(t, r.URL())
			loadTenant(t, s, "t_re", 100)
			_, err := s.Reserve(t.Context(), ask(s, "t_re", "1", 60))
			require.NoError(t, err)
			r.Stop()
			_, err = s.Reserve(t.Context(), ask(s, "t_re", "2", 1))
			require.Error(t, err)
			require.NoError(t, r.Restart())
			target := Target{Tenant: "t_re", ID: "1", Chain: chainOf("t_re")}
			got, err := persist(func() (SettleReply, error) {
				return s.Settle(t.Context(), &SettleArgs{Target: target, Actual: 50, Tokens: -1})
			})
			require.NoError(t, err)
			if kept {
				require.Equal(t, Done, got.Outcome)
				requireOrg(t, s, "t_re", 100, 50, 0)
				return
			}
			require.Equal(t, Unknown, got.Outcome)
			empty, err := s.Reserve(t.Context(), ask(s, "t_re", "3", 1))
			require.NoError(t, err)
			require.Equal(t, NeedLoad, empty.Outcome, "an empty Redis is no unlimited Redis")
		})
	}
}

// Two stores never see each other's tenants.
func TestTwoStores(t *testing.T) {
	r1, r2 := redistest.Start(t), redistest.Start(t)
	s1, s2 := open(t, r1.URL()), open(t, r2.URL())
	loadTenant(t, s1, "t_two", 100)
	loadTenant(t, s2, "t_two", 50)
	for i := range 100 {
		for _, s := range []*Store{s1, s2} {
			a := ask(s, "t_two", fmt.Sprint(i), 1)
			a.Consume = true
			_, err := s.Reserve(t.Context(), a)
			require.NoError(t, err)
		}
	}
	requireOrg(t, s1, "t_two", 100, 100, 0)
	requireOrg(t, s2, "t_two", 50, 50, 0)
}

// Redis stops while 64 calls are in flight and goes on after their callers have
// given up. Afterwards each charge belongs to an answer of success: what is
// unknown is voided, whether its script ran, runs later, or never.
func TestFrozenInFlight(t *testing.T) {
	const workers = 64
	const rounds = 100
	r := redistest.Start(t)
	s := open(t, r.URL())
	loadTenant(t, s, "t_stop", quota.Unlimited)
	var spent, ran int64
	for round := range rounds {
		var wg sync.WaitGroup
		var unknown [workers]*ReserveArgs
		var answered [workers]bool
		for w := range workers {
			wg.Go(func() {
				a := ask(s, "t_stop", fmt.Sprint(round, "-", w), 1)
				a.Consume = w%4 != 0
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				defer cancel()
				got, err := s.Reserve(ctx, a)
				if w == (round*13)%workers && round%2 == 1 {
					_ = r.Signal(syscall.SIGSTOP)
				}
				switch {
				case err == nil && got.Outcome == Done:
					answered[w] = true
				case errors.Is(err, ErrUnknown):
					unknown[w] = a
				case !errors.Is(err, ErrNotSent):
					t.Errorf("%+v %v", got, err)
				}
			})
			if w == (round*13)%workers && round%2 == 0 {
				require.NoError(t, r.Signal(syscall.SIGSTOP))
			}
		}
		wg.Wait()
		require.NoError(t, r.Signal(syscall.SIGCONT))
		for w, a := range unknown {
			if a == nil {
				continue
			}
			got, err := persist(func() (ReleaseReply, error) {
				return s.Release(t.Context(), &ReleaseArgs{Target: a.Target, As: StateVoid, Attempt: a.Attempt, Undo: true, Fingerprint: "f"})
			})
			require.NoError(t, err)
			require.Equal(t, Done, got.Outcome, "worker %d", w)
			ran += got.Refunded
		}
		for w, ok := range answered {
			if !ok {
				continue
			}
			spent++
			if w%4 == 0 {
				target := Target{Tenant: "t_stop", ID: fmt.Sprint(round, "-", w), Chain: chainOf("t_stop")}
				got, err := persist(func() (SettleReply, error) {
					return s.Settle(t.Context(), &SettleArgs{Target: target, Actual: 1, Tokens: -1})
				})
				require.NoError(t, err)
				require.Equal(t, Done, got.Outcome)
			}
		}
	}
	require.Eventually(t, func() bool { return s.inFlight.Load() == 0 }, 2*time.Second, time.Millisecond, "nothing is on its way any more")
	requireOrg(t, s, "t_stop", -1, spent, 0)
	held, err := r.Do("ZCARD", DeadlinesKey("t_stop"))
	require.NoError(t, err)
	require.Equal(t, int64(0), held)
	t.Logf("%d calls answered, %d ran unanswered and were taken back", spent, ran)
	require.Positive(t, spent)
	require.Positive(t, ran)
}

// Close leaves nothing running, also while Redis is frozen and calls are under way.
func TestCloseLeavesNothing(t *testing.T) {
	r := redistest.Start(t)
	before := goleak.IgnoreCurrent()
	s, err := Open(t.Context(), Options{Name: "default", URL: r.URL()})
	require.NoError(t, err)
	require.NoError(t, s.Ping(t.Context()))
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 10 {
		require.Error(t, s.Ping(ctx))
	}
	start := time.Now()
	s.Close()
	require.Less(t, time.Since(start), 3*time.Second)
	require.NoError(t, r.Signal(syscall.SIGCONT))
	require.Error(t, s.Ping(t.Context()), "a closed store answers with an error")
	goleak.VerifyNone(t, before)
}
