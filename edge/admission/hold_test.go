package admission

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(redistest.LeakIgnore))
}

// fixedLoader knows one tenant, whose organisation has a total.
type fixedLoader int64

func (l fixedLoader) LoadAccounts(_ context.Context, _ string, chain quota.Chain) (lua.Loads, error) {
	loads := lua.Loads{Version: 1}
	for _, a := range chain {
		load := lua.AccountLoad{Total: quota.Unlimited, MaxInflight: -1}
		if a.Scope == quota.Org {
			load.Total = int64(l)
		}
		loads.Accounts = append(loads.Accounts, load)
	}
	return loads, nil
}

type bench struct {
	t       *testing.T
	engine  *Engine
	settler *ledger.Settler
	store   *lua.Store
}

func newBench(t *testing.T, total int64) *bench {
	store, err := lua.Open(t.Context(), lua.Options{Name: "default", URL: redistest.Start(t).URL()})
	require.NoError(t, err)
	b := &bench{t: t, store: store, settler: ledger.NewSettler(fixedLoader(total), store)}
	b.engine = New(Options{
		Node: "n1", Loader: fixedLoader(total), Settler: b.settler, Decision: time.Second, Load: time.Second,
		Loads: rate.NewLimiter(rate.Inf, 1),
		Epoch: func(*lua.Store, string) uint64 { return 0 },
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.Zero(t, b.settler.Close(ctx))
		b.engine.Close()
		store.Close()
	})
	return b
}

func (b *bench) reserve(id string, amount int64) (quota.Decision, *Hold) {
	b.t.Helper()
	d, hold, err := b.engine.Reserve(b.t.Context(), &Request{
		Principal: quota.Principal{Tenant: "t_1", App: "a_1", Key: "k_1"}, Zone: time.UTC, Store: b.store,
		ID: id, Amount: amount, TTL: time.Minute, Fresh: true, OwnID: true,
	})
	require.NoError(b.t, err)
	return d, hold
}

// org waits for all ends and returns the organisation's account.
func (b *bench) org() quota.AccountState {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.settler.Pending(b.store) == 0 }, 5*time.Second, time.Millisecond)
	got, err := b.store.ReadAccounts(b.t.Context(), "t_1", quota.Chain{{Scope: quota.Org, ID: "t_1"}})
	require.NoError(b.t, err)
	return *got[0]
}

func counter(t *testing.T, name string) int {
	t.Helper()
	var text bytes.Buffer
	metrics.WritePrometheus(&text, false)
	for line := range strings.Lines(text.String()) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			require.NoError(t, err)
			return n
		}
	}
	return 0
}

func TestHoldEndsOnce(t *testing.T) {
	b := newBench(t, 1000)
	twice := counter(t, "tollgate_hold_ends_repeated_total")

	_, hold := b.reserve("h1", 100)
	require.EqualValues(t, 100, hold.Amount())
	require.Equal(t, 1, counter(t, "tollgate_holds_open"))
	require.Equal(t, 100, counter(t, "tollgate_prepaid_credits"))
	hold.Settle(30, -1)
	hold.Close()
	require.Equal(t, twice, counter(t, "tollgate_hold_ends_repeated_total"), "Close behind an end is the normal course")
	hold.Settle(30, -1)
	hold.Release()
	require.Equal(t, twice+2, counter(t, "tollgate_hold_ends_repeated_total"))
	require.Equal(t, quota.AccountState{Total: 1000, Spent: 30}, b.org())

	_, hold = b.reserve("h2", 100)
	hold.Close()
	require.Equal(t, quota.AccountState{Total: 1000, Spent: 30}, b.org(), "forgotten holds are freed")

	_, hold = b.reserve("h3", 100)
	passed := hold.Pass()
	hold.Close()
	require.Equal(t, 1, counter(t, "tollgate_holds_open"))
	require.EqualValues(t, 100, b.org().Prepaid, "the new owner ends it")
	passed.Settle(70, -1)
	require.Equal(t, quota.AccountState{Total: 1000, Spent: 100}, b.org())
	require.Panics(t, func() { passed.Pass() })
	require.Nil(t, (*Hold)(nil).Pass())

	_, hold = b.reserve("h4", 100)
	hold.Detach()
	hold.Close()
	require.EqualValues(t, 100, b.org().Prepaid, "a detached hold is its caller's")
	require.Zero(t, counter(t, "tollgate_holds_open"))
	require.Zero(t, counter(t, "tollgate_prepaid_credits"))

	d, hold := b.reserve("h5", 801)
	require.Nil(t, hold)
	require.Equal(t, quota.InsufficientQuota, d.Refusal.Reason)
	require.EqualValues(t, 800, d.Refusal.Remaining)
}

// Credits that a settle frees are there for the next request, whatever was refused before.
func TestFreedCreditsAreUsedAtOnce(t *testing.T) {
	b := newBench(t, 100)
	_, hold := b.reserve("h1", 95)
	d, _ := b.reserve("h2", 10)
	require.False(t, d.Admitted())
	hold.Settle(5, -1)
	require.EqualValues(t, 5, b.org().Spent)
	var admitted int
	require.Eventually(t, func() bool {
		d, hold := b.reserve("again", 10)
		if d.Admitted() {
			hold.Close()
			admitted++
		}
		b.org()
		return admitted > 0
	}, 2*shortHigh, time.Millisecond, "the memory of a shortage outlives it")
	for i := range 20 {
		d, hold := b.reserve("later"+strconv.Itoa(i), 10)
		require.True(t, d.Admitted(), "call %d", i)
		hold.Close()
		b.org()
	}
}
