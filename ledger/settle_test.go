package ledger

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// knownAccounts loads every account with a total of a million and what SQL has folded.
type knownAccounts struct{ spent int64 }

func (l knownAccounts) LoadAccounts(_ context.Context, _ string, chain quota.Chain) (lua.Loads, error) {
	loads := lua.Loads{Version: 1}
	for range chain {
		loads.Accounts = append(loads.Accounts, lua.AccountLoad{Total: 1_000_000, MaxInflight: -1, Spent: l.spent})
	}
	return loads, nil
}

// newSettler is closed with the test, which by then must have no end left.
func newSettler(t testing.TB, loader AccountLoader, stores ...*lua.Store) *Settler {
	s := NewSettler(loader, stores...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.Zero(t, s.Close(ctx))
	})
	return s
}

func (s *Settler) waitIdle(t testing.TB, store *lua.Store) {
	t.Helper()
	require.Eventually(t, func() bool { return s.Pending(store) == 0 }, 10*time.Second, time.Millisecond)
}

// spent is what every account of a tenant has been charged; all must agree, and hold nothing.
func spent(t testing.TB, r *redistest.Server, tenant string) string {
	t.Helper()
	prepaid, inflight := frozen(t, r, tenant)
	require.Equal(t, "0", prepaid)
	require.Equal(t, "0", inflight)
	out := ""
	for i, name := range []string{"org:" + tenant, "app:a_y", "key:k_z"} {
		got := fmt.Sprint(do(t, r, "HGET", "quota:{"+tenant+"}:"+name, "spent"))
		if i > 0 {
			require.Equal(t, out, got)
		}
		out = got
	}
	return out
}

// Ends that meet a frozen Redis wait, are repeated, and count once each,
// although some were carried out while their answer was lost.
func TestSettlerRepeatsUntilAcknowledged(t *testing.T) {
	r, store, _ := redis(t)
	s := newSettler(t, knownAccounts{}, store)
	var targets []lua.Target
	for i := range 60 {
		targets = append(targets, hold(t, store, "t_a", fmt.Sprint(i), time.Hour))
	}
	for i, target := range targets {
		switch i {
		case 20:
			require.NoError(t, r.Signal(syscall.SIGSTOP))
		case 59:
			// Longer than a try, so that some run twice.
			<-time.After(settleTimeout + 100*time.Millisecond)
			require.Positive(t, s.Pending(store))
			require.NoError(t, r.Signal(syscall.SIGCONT))
		}
		kind := Charge
		if i%3 == 2 {
			kind = Free
		}
		s.Submit(End{Store: store, Target: target, Kind: kind, Actual: int64(i), Tokens: -1})
	}
	s.waitIdle(t, store)
	want := 0
	for i := range 60 {
		if i%3 != 2 {
			want += i
		}
	}
	require.Equal(t, fmt.Sprint(want), spent(t, r, "t_a"))
}

// Redis that comes back empty: what the upstream was called for is still owed,
// on top of what SQL knows, once.
func TestSettlerChargesLostHolds(t *testing.T) {
	r, store, _ := redis(t)
	s := newSettler(t, knownAccounts{spent: 500}, store)
	charged := hold(t, store, "t_a", "1", time.Hour)
	freed := hold(t, store, "t_a", "2", time.Hour)
	do(t, r, "FLUSHALL")
	lost := lostHolds.Get()
	for range 2 {
		s.Submit(End{Store: store, Target: charged, Kind: Charge, Actual: 7, Tokens: -1})
		s.Submit(End{Store: store, Target: freed, Kind: Free})
		s.waitIdle(t, store)
		require.Equal(t, "507", spent(t, r, "t_a"))
	}
	require.EqualValues(t, 1, lostHolds.Get()-lost)
}

// More than held is charged in full and counted.
func TestSettlerCountsOverruns(t *testing.T) {
	r, store, _ := redis(t)
	s := newSettler(t, knownAccounts{}, store)
	before := overrunCredits.Get()
	target := hold(t, store, "t_a", "1", time.Hour)
	s.Submit(End{Store: store, Target: target, Kind: Charge, Actual: 25, Tokens: -1})
	s.waitIdle(t, store)
	s.Submit(End{Store: store, Target: target, Kind: Charge, Actual: 25, Tokens: -1})
	s.waitIdle(t, store)
	require.Equal(t, "25", spent(t, r, "t_a"))
	require.EqualValues(t, 15, overrunCredits.Get()-before)
}

// A void takes back what ran, and keeps what did not run from running.
func TestSettlerVoids(t *testing.T) {
	r, store, _ := redis(t)
	s := newSettler(t, knownAccounts{}, store)
	ran := hold(t, store, "t_a", "ran", time.Hour)
	s.Submit(End{Store: store, Target: ran, Kind: Void, Attempt: "try-ran", Fingerprint: "f"})
	late := lua.Target{Tenant: "t_a", ID: "late", Chain: chainOf("t_a")}
	s.Submit(End{Store: store, Target: late, Kind: Void, Attempt: "try-late", Fingerprint: "f"})
	s.waitIdle(t, store)
	require.Equal(t, "0", spent(t, r, "t_a"))
	got, err := store.Reserve(t.Context(), &lua.ReserveArgs{
		Target: late, Amount: 10, TTL: time.Hour, Fingerprint: "f", Attempt: "try-late", Node: "n", NotAfter: store.Now() + 60_000,
	})
	require.NoError(t, err)
	require.Equal(t, lua.Voided, got.Outcome)
	require.Equal(t, "0", spent(t, r, "t_a"))
}

// A frozen store holds up its own ends and no others.
func TestSettlerLanes(t *testing.T) {
	r, store, _ := redis(t)
	other := redistest.Start(t)
	big, err := lua.Open(t.Context(), lua.Options{Name: "big", URL: other.URL()})
	require.NoError(t, err)
	t.Cleanup(big.Close)
	s := newSettler(t, knownAccounts{}, store, big)
	var here, there []lua.Target
	for i := range 100 {
		here, there = append(here, hold(t, store, "t_a", fmt.Sprint(i), time.Hour)), append(there, hold(t, big, "t_b", fmt.Sprint(i), time.Hour))
	}
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	for i := range here {
		s.Submit(End{Store: store, Target: here[i], Kind: Charge, Actual: 1, Tokens: -1})
		s.Submit(End{Store: big, Target: there[i], Kind: Charge, Actual: 1, Tokens: -1})
	}
	s.waitIdle(t, big)
	require.EqualValues(t, 100, s.Pending(store))
	require.Equal(t, "100", spent(t, other, "t_b"))

	// Close does not wait for ever, and tells what is left.
	second := NewSettler(knownAccounts{}, store)
	second.Submit(End{Store: store, Target: here[0], Kind: Free})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.EqualValues(t, 1, second.Close(ctx))

	require.NoError(t, r.Signal(syscall.SIGCONT))
	s.waitIdle(t, store)
	require.Equal(t, "100", spent(t, r, "t_a"))
}

// At its bound the settler says so, and still takes what is already running.
func TestSettlerFull(t *testing.T) {
	r, store, _ := redis(t)
	target := hold(t, store, "t_a", "1", time.Hour)
	s := NewSettler(knownAccounts{}, store)
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	for range backlogMax {
		require.False(t, s.Full(store))
		s.Submit(End{Store: store, Target: target, Kind: Free})
	}
	require.True(t, s.Full(store))
	s.Submit(End{Store: store, Target: target, Kind: Free})
	require.EqualValues(t, backlogMax+1, s.Pending(store))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.EqualValues(t, backlogMax+1, s.Close(ctx))
	require.NoError(t, r.Signal(syscall.SIGCONT))
}

// Receipts stay as long as somebody may repeat the call, and go at once where nobody can.
func TestSettlerConfirmsReceipts(t *testing.T) {
	r, store, _ := redis(t)
	s := newSettler(t, knownAccounts{}, store)
	end := func(id string, kind EndKind, forget bool) {
		s.Submit(End{Store: store, Target: hold(t, store, "t_a", id, time.Hour), Kind: kind, Actual: 1, Tokens: -1, Forget: forget, Attempt: "try-" + id})
	}
	end("own", Charge, true)
	end("caller", Charge, false)
	end("freed", Free, false)
	end("voided", Void, true)
	s.waitIdle(t, store)
	ttl := func(id string) time.Duration {
		return time.Duration(do(t, r, "PTTL", "quota:{t_a}:req:"+id).(int64)) * time.Millisecond
	}
	require.Eventually(t, func() bool {
		return ttl("own") == -2*time.Millisecond && ttl("caller") <= 15*time.Minute && ttl("freed") <= 24*time.Hour
	}, 5*time.Second, 10*time.Millisecond)
	require.Greater(t, ttl("caller"), 14*time.Minute)
	require.Greater(t, ttl("freed"), 23*time.Hour)
	require.Greater(t, ttl("voided"), 23*time.Hour, "a void outlives the script that it is against")
}
