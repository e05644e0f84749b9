package lua

import (
	"context"
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/lua/redistest"
	"tollgate/quota"
)

var (
	anyNumber = rapid.OneOf(rapid.Int64(), rapid.Int64Range(-3, 100), rapid.SampledFrom([]int64{
		0, 1, -1, quota.CreditsMax - 1, quota.CreditsMax, quota.CreditsMax + 1, 1 << 52, 1<<53 + 1, 1 << 62, math.MaxInt64, math.MinInt64, -quota.CreditsMax,
	}))
	anAmount = rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, quota.CreditsMax), rapid.SampledFrom([]int64{0, 1, quota.CreditsMax, quota.CreditsMax - 1}))
	anyText  = rapid.SampledFrom([]string{"", "a", "two words", "%s%d", "0", "-1", "nil", "é\x00\xff", "*", "{x}", "]]--", strings.Repeat("x", 5000)})
	anID     = rapid.SampledFrom([]string{"1", "2", "k_1:" + strings.Repeat("ab", 32), "%", "}", "req:1", "*"})
)

// No argument, however absurd, makes a script fail, writes a number that is no
// amount, or reaches a key of anyone else.
func TestAnyArguments(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t, b)
		ctx := t.Context()
		chain := h.chain(0)
		loads := &Loads{Version: rapid.Int64Range(0, quota.CreditsMax).Draw(t, "version")}
		for range chain {
			loads.Accounts = append(loads.Accounts, AccountLoad{
				Total:        rapid.OneOf(rapid.Just(quota.Unlimited), anAmount).Draw(t, "total"),
				OverageLimit: anAmount.Draw(t, "overage"), MaxInflight: rapid.Int64Range(-1, quota.ConcurrencyMax).Draw(t, "slots"),
				Spent: rapid.OneOf(rapid.Just(int64(0)), anAmount).Draw(t, "spent"), Fold: anAmount.Draw(t, "fold"), Adj: rapid.Int64Range(0, 9).Draw(t, "adj"),
			})
		}
		for range 25 {
			target := Target{Tenant: h.m.tenant, ID: anID.Draw(t, "id"), Chain: chain, Loads: loads, Buckets: h.drawBuckets(t, true)}
			if rapid.Bool().Draw(t, "marked") {
				target.Mark = Mark{Name: MarkName("k_1", "h"), TTL: time.Duration(anyNumber.Draw(t, "life of the mark"))}
			}
			var err error
			switch rapid.IntRange(0, 4).Draw(t, "call") {
			case 0:
				target.Buckets = h.drawBuckets(t, false)
				for i := range target.Buckets {
					target.Buckets[i].Need = anyNumber.Draw(t, "need")
				}
				_, err = h.store.Reserve(ctx, &ReserveArgs{
					Target: target, Amount: anyNumber.Draw(t, "amount"), TTL: time.Duration(anyNumber.Draw(t, "ttl")), Consume: rapid.Bool().Draw(t, "consume"),
					Fingerprint: anyText.Draw(t, "fingerprint"), Attempt: drawTry.Draw(t, "attempt"), PriceID: anyText.Draw(t, "price"),
					Node: anyText.Draw(t, "node"), Tokens: anyNumber.Draw(t, "tokens"), NotAfter: rapid.OneOf(anyNumber, rapid.Just(h.millis())).Draw(t, "not after"),
				})
			case 1:
				_, err = h.store.Settle(ctx, &SettleArgs{Target: target, Actual: anyNumber.Draw(t, "actual"), Tokens: anyNumber.Draw(t, "tokens"), Lost: rapid.Bool().Draw(t, "lost")})
			case 2:
				_, err = h.store.Release(ctx, &ReleaseArgs{
					Target: target, As: rapid.SampledFrom([]State{StateReleased, StateExpired, StateVoid}).Draw(t, "as"), Attempt: drawTry.Draw(t, "attempt"),
					Undo: rapid.Bool().Draw(t, "undo"), Fingerprint: anyText.Draw(t, "fingerprint"),
				})
			case 3:
				_, err = h.store.Adjust(ctx, h.m.tenant, chain[0], loads, rapid.Int64Range(0, quota.CreditsMax).Draw(t, "number"), anyNumber.Draw(t, "delta"), rapid.Bool().Draw(t, "force"))
			case 4:
				_, err = h.store.Take(ctx, h.m.tenant, h.drawBuckets(t, false), anyNumber.Draw(t, "least"), anyNumber.Draw(t, "most"), h.millis())
			}
			require.NoError(t, err)
			requireSane(t, h)
			h.setClock(t, h.now+rapid.Int64Range(0, 2_000_000).Draw(t, "wait"))
		}
	})
}

func requireSane(t *rapid.T, h *history) {
	kept := map[string]bool{clockKey: true, coverageKey: true}
	for _, c := range neighbour {
		kept[c[1]] = true
	}
	for key, fields := range dump(t, h.redis) {
		if kept[key] {
			continue
		}
		require.Contains(t, key, "{"+h.m.tenant+"}")
		if fields["gen"] == "" {
			continue
		}
		for _, name := range []string{"total", "overage_limit", "max_inflight", "spent", "refunded", "prepaid", "leased", "inflight", "adj"} {
			v := fields[name]
			require.Regexp(t, `^(-1|0|[1-9][0-9]{0,15})$`, v, "%s of %s", name, key)
			require.LessOrEqual(t, num(v), quota.CreditsMax, "%s of %s", name, key)
			if name != "total" && name != "max_inflight" {
				require.GreaterOrEqual(t, num(v), int64(0), "%s of %s", name, key)
			}
		}
	}
}

func TestAttemptsAreWords(t *testing.T) {
	s := &Store{}
	for _, bad := range []string{"", "a b", "*", "a\nb"} {
		require.Panics(t, func() { _, _ = s.Reserve(t.Context(), &ReserveArgs{Attempt: bad}) }, "%q", bad)
		require.Panics(t, func() { _, _ = s.Release(t.Context(), &ReleaseArgs{As: StateVoid, Attempt: bad}) }, "%q", bad)
	}
}

// watch is a guard that notes what it hears.
type watch struct {
	refuse error
	heard  chan error
}

func (w *watch) Before() error                    { return w.refuse }
func (w *watch) After(err error, _ time.Duration) { w.heard <- err }

func TestGuardStandsAroundEveryCall(t *testing.T) {
	r := redistest.Start(t)
	w := &watch{heard: make(chan error, 1000)}
	s := open(t, r.URL(), func(o *Options) { o.Guard = w })
	<-w.heard // the ping of Open
	calls := map[string]func() error{
		"reserve": func() error { _, err := s.Reserve(t.Context(), ask(s, "t_g", "1", 1)); return err },
		"settle": func() error {
			_, err := s.Settle(t.Context(), &SettleArgs{Target: ask(s, "t_g", "1", 1).Target})
			return err
		},
		"release": func() error {
			_, err := s.Release(t.Context(), &ReleaseArgs{Target: ask(s, "t_g", "1", 1).Target, As: StateReleased})
			return err
		},
		"load":          func() error { _, err := s.Load(t.Context(), "t_g", chainOf("t_g"), nil); return err },
		"adjust":        func() error { _, err := s.Adjust(t.Context(), "t_g", chainOf("t_g")[0], nil, 1, 1, false); return err },
		"read accounts": func() error { _, err := s.ReadAccounts(t.Context(), "t_g", chainOf("t_g")); return err },
		"publish":       func() error { _, err := s.PublishConf(t.Context(), "t_g", "tenant", 1, []byte("{}"), nil); return err },
		"secret":        func() error { _, err := s.PublishSecret(t.Context(), "h", 1, []byte("{}")); return err },
		"read secret":   func() error { _, _, err := s.ReadSecret(t.Context(), "h"); return err },
		"read conf":     func() error { _, err := s.ReadConf(t.Context(), "t_g", "a", "k"); return err },
		"read hold":     func() error { _, _, err := s.ReadHold(t.Context(), "t_g", "1"); return err },
		"confirm":       func() error { return s.Confirm(t.Context(), []Confirmation{{Tenant: "t_g", ID: "1"}}) },
		"due":           func() error { _, err := s.Due(t.Context(), []string{"t_g"}, 0, 1); return err },
		"lock":          func() error { _, err := s.TryLock(t.Context(), "lock", "me", time.Minute); return err },
		"claim":         func() error { return s.ClaimLedger(t.Context(), "l") },
		"ping":          func() error { return s.Ping(t.Context()) },
		"take":          func() error { _, err := s.Take(t.Context(), "t_g", tpm(0), 0, 1, math.MaxInt64>>1); return err },
	}
	for name, call := range calls {
		require.NoError(t, call(), name)
		require.NoError(t, <-w.heard, name)
	}
	w2 := &watch{heard: make(chan error, 1000), refuse: errors.New("open")}
	closed := open(t, r.URL(), func(o *Options) { o.Guard = w2 })
	err := closed.Ping(t.Context())
	require.ErrorIs(t, err, ErrNotSent)
	require.ErrorIs(t, err, w2.refuse)
	require.Empty(t, w2.heard)
	require.Zero(t, closed.inFlight.Load())
}

// Beyond its bound a store refuses at once, and says which setting it was.
func TestInFlightIsBounded(t *testing.T) {
	r := redistest.Start(t)
	s := open(t, r.URL(), func(o *Options) { o.InFlight = 3 })
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	defer func() { _ = r.Signal(syscall.SIGCONT) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	errs := make(chan error, 10)
	for range 10 {
		go func() { errs <- s.Ping(ctx) }()
	}
	unknown := 0
	for range 10 {
		err := <-errs
		if errors.Is(err, ErrUnknown) {
			unknown++
			continue
		}
		require.ErrorIs(t, err, ErrNotSent)
	}
	require.LessOrEqual(t, unknown, 3)
	require.ErrorContains(t, s.Ping(t.Context()), "stores.default.in_flight", "what nobody waits for any more is still on its way")
	require.ErrorIs(t, s.Ping(ctx), ErrNotSent, "a budget that is over is not begun")
	require.NoError(t, r.Signal(syscall.SIGCONT))
	require.Eventually(t, func() bool { return s.Ping(t.Context()) == nil && s.inFlight.Load() <= 1 }, 5*time.Second, time.Millisecond)
}

func TestLocksAndLedger(t *testing.T) {
	s := open(t, redistest.Start(t).URL())
	for _, step := range []struct {
		owner string
		got   bool
	}{{"a", true}, {"b", false}, {"a", true}, {"b", false}} {
		ok, err := s.TryLock(t.Context(), "lock", step.owner, time.Minute)
		require.NoError(t, err)
		require.Equal(t, step.got, ok)
	}
	require.NoError(t, s.ClaimLedger(t.Context(), "mine"))
	require.NoError(t, s.ClaimLedger(t.Context(), "mine"))
	require.ErrorIs(t, s.ClaimLedger(t.Context(), "yours"), ErrForeign)
	require.WithinDuration(t, time.Now(), time.UnixMilli(s.Now()), time.Second)
}

func TestURLs(t *testing.T) {
	for _, good := range []string{
		"redis://localhost:6379/0", "redis://localhost", "redis://user:p%40ss@h:1/3", "rediss://h:1", "redis+cluster://a:1,b:2", "redis+cluster://a:1/0",
		"redis+sentinel://a:1,b:2/main", "redis+sentinel://a:1/main/2", "redis://[::1]:6379",
	} {
		_, err := clientOption(good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{
		"", "localhost:6379", "http://h:1", "redis://", "redis://h:0", "redis://h:99999", "redis://a:1,b:2", "redis+cluster://a:1/1", "redis+sentinel://a:1",
		"redis://h:1/x", "redis://h:1/-1", "redis://%zz:secret@h:1", "redis+sentinel://a:1/main/x",
	} {
		_, err := Open(t.Context(), Options{Name: "x", URL: bad})
		require.ErrorIs(t, err, ErrURL, bad)
		require.NotContains(t, err.Error(), "secret")
	}
	o, err := clientOption("redis://user:p%40ss@h:1/3")
	require.NoError(t, err)
	require.Equal(t, []any{"user", "p@ss", 3, []string{"h:1"}}, []any{o.Username, o.Password, o.SelectDB, o.InitAddress})
}

// A store's own timeout bounds a call whose context has more time.
func TestTimeoutOfAStore(t *testing.T) {
	r := redistest.Start(t)
	s, err := Open(t.Context(), Options{Name: "default", URL: r.URL(), Timeout: 30 * time.Millisecond})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, r.Signal(syscall.SIGSTOP))
	defer func() { _ = r.Signal(syscall.SIGCONT) }()
	start := time.Now()
	require.ErrorIs(t, s.Ping(t.Context()), ErrUnknown)
	require.Less(t, time.Since(start), time.Second)
}
