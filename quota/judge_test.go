package quota

import (
	"fmt"
	"math/big"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var payer = Principal{Tenant: "t_1", App: "a_1", Key: "k_1"}

// noon is 2026-11-15 12:00 UTC, half a day before the end of its day and 15½ before that of its month.
const noon = int64(1_794_744_000_000)

func fullChain() Chain {
	n := int64(0)
	b := Budget{Day: &n, Month: &n}
	return NewChain(payer, [3]Budget{b, b, b}, noon, time.UTC)
}

// unlimited states beside the full chain, and no slots.
func unlimited() ([]AccountState, [3]SlotState) {
	states := make([]AccountState, ChainMax)
	for i := range states {
		states[i].Total = Unlimited
	}
	return states, [3]SlotState{{Max: -1}, {Max: -1}, {Max: -1}}
}

func TestNewChain(t *testing.T) {
	n := int64(0)
	month := WindowAt(Month, noon, time.UTC)
	day := WindowAt(Day, noon, time.UTC)
	require.Equal(t, "m202611", month.Name)
	require.Equal(t, "d20261115", day.Name)
	org, app, key := Account{Org, "t_1", Ever, Window{}}, Account{App, "a_1", Ever, Window{}}, Account{Key, "k_1", Ever, Window{}}
	require.Equal(t, Chain{org, app, key}, NewChain(payer, [3]Budget{}, noon, time.UTC))
	require.Equal(t, Chain{org, app, key, {App, "a_1", Month, month}, {Org, "t_1", Day, day}, {Key, "k_1", Day, day}},
		NewChain(payer, [3]Budget{{Day: &n}, {Month: &n}, {Day: &n}}, noon, time.UTC))
	full := fullChain()
	require.Len(t, full, ChainMax)
	require.Equal(t, full[3:6], Chain{{Org, "t_1", Month, month}, {App, "a_1", Month, month}, {Key, "k_1", Month, month}})
	require.Equal(t, full[6:], Chain{{Org, "t_1", Day, day}, {App, "a_1", Day, day}, {Key, "k_1", Day, day}})
}

func TestJudge(t *testing.T) {
	type in struct {
		states  []AccountState
		slots   [3]SlotState
		buckets []BucketState
		need    int64
		now     int64
	}
	const orgEver, keyEver, orgMonth, keyMonth, appDay = 0, 2, 3, 5, 7
	rpm := func(scope Scope, rate, burst, remaining, need int64) BucketState {
		return BucketState{Scope: scope, Unit: UnitRPM, Limit: Bucket{Rate: rate, Burst: burst}, Remaining: remaining, Need: need}
	}
	for _, tc := range []struct {
		what string
		set  func(*in)
		want Refusal
	}{
		{"nothing is limited", func(in *in) { in.need = CreditsMax }, Refusal{}},
		{"the last credit may be spent", func(in *in) { in.states[keyEver] = AccountState{Total: 100, Spent: 60, Prepaid: 30} }, Refusal{}},
		{
			"one more may not", func(in *in) { in.states[keyEver] = AccountState{Total: 100, Spent: 60, Prepaid: 31} },
			Refusal{Reason: InsufficientQuota, Scope: Key, Unit: UnitCredits, Need: 10, Limit: 100, Remaining: 9, RetryAfter: time.Minute},
		},
		{"overage counts into the limit", func(in *in) { in.states[orgEver] = AccountState{Total: 100, OverageLimit: 20, Spent: 110} }, Refusal{}},
		{
			"overage used up asks for payment", func(in *in) { in.states[orgEver] = AccountState{Total: 100, OverageLimit: 20, Spent: 111} },
			Refusal{Reason: PaymentRequired, Scope: Org, Unit: UnitCredits, Need: 10, Limit: 120, Remaining: 9},
		},
		{
			"limit 0 is nothing allowed, not no limit", func(in *in) { in.states[keyEver] = AccountState{} },
			Refusal{Reason: InsufficientQuota, Scope: Key, Unit: UnitCredits, Need: 10, Never: true},
		},
		{
			"a need above the whole limit is told so at once", func(in *in) { in.states[keyEver] = AccountState{Total: 100}; in.need = 500 },
			Refusal{Reason: InsufficientQuota, Scope: Key, Unit: UnitCredits, Need: 500, Limit: 100, Remaining: 100, Never: true},
		},
		{"never beats negative", func(in *in) {
			in.states[orgEver] = AccountState{Total: 100, Spent: 200}
			in.states[appDay] = AccountState{Total: 9}
		}, Refusal{Reason: InsufficientQuota, Scope: App, Period: Day, Unit: UnitCredits, Need: 10, Limit: 9, Remaining: 9, Never: true}},
		{"a negative balance refuses everything until topped up", func(in *in) {
			in.states[orgEver] = AccountState{Total: 100, Spent: 95}
			in.states[keyEver] = AccountState{Total: 100, Spent: 101}
			in.need = 6
		}, Refusal{Reason: PaymentRequired, Scope: Key, Unit: UnitCredits, Need: 6, Limit: 100}},
		{
			"even what costs nothing", func(in *in) { in.states[keyEver] = AccountState{Total: 100, Spent: 101}; in.need = 0 },
			Refusal{Reason: PaymentRequired, Scope: Key, Unit: UnitCredits, Limit: 100},
		},
		{
			"credits in leases may come back", func(in *in) { in.states[orgEver] = AccountState{Total: 100, Spent: 20, Prepaid: 75, Leased: 70} },
			Refusal{Reason: InsufficientQuota, Scope: Org, Unit: UnitCredits, Need: 10, Limit: 100, Remaining: 75, RetryAfter: time.Second, Pending: true},
		},
		{
			"also for a month", func(in *in) { in.states[orgMonth] = AccountState{Total: 100, Prepaid: 91, Leased: 1} },
			Refusal{Reason: InsufficientQuota, Scope: Org, Period: Month, Unit: UnitCredits, Need: 10, Limit: 100, Remaining: 10, RetryAfter: time.Second, Pending: true},
		},
		{
			"but not for a need that never fits", func(in *in) { in.states[orgEver] = AccountState{Total: 9, Prepaid: 9, Leased: 9} },
			Refusal{Reason: InsufficientQuota, Scope: Org, Unit: UnitCredits, Need: 10, Limit: 9, Remaining: 9, Never: true},
		},
		{
			"a day waits for its end", func(in *in) { in.states[appDay] = AccountState{Total: 10, Spent: 1} },
			Refusal{Reason: InsufficientQuota, Scope: App, Period: Day, Unit: UnitCredits, Need: 10, Limit: 10, Remaining: 9, RetryAfter: 12 * time.Hour},
		},
		{
			"rounded up to whole seconds", func(in *in) {
				in.states[appDay] = AccountState{Total: 10, Spent: 1}
				in.now = noon + 12*3600*1000 - 1001
			},
			Refusal{Reason: InsufficientQuota, Scope: App, Period: Day, Unit: UnitCredits, Need: 10, Limit: 10, Remaining: 9, RetryAfter: 2 * time.Second},
		},
		{
			"at least one", func(in *in) { in.states[appDay] = AccountState{Total: 10, Spent: 1}; in.now = noon + 13*3600*1000 },
			Refusal{Reason: InsufficientQuota, Scope: App, Period: Day, Unit: UnitCredits, Need: 10, Limit: 10, Remaining: 9, RetryAfter: time.Second},
		},
		{"a month beats a day", func(in *in) {
			in.states[appDay] = AccountState{Total: 10, Spent: 10}
			in.states[keyMonth] = AccountState{Total: 10, Spent: 11}
		}, Refusal{Reason: InsufficientQuota, Scope: Key, Period: Month, Unit: UnitCredits, Need: 10, Limit: 10, RetryAfter: 15*24*time.Hour + 12*time.Hour}},
		{"ever beats a month", func(in *in) {
			in.states[keyMonth] = AccountState{Total: 10, Spent: 10}
			in.states[keyEver] = AccountState{Total: 10, Spent: 10}
		}, Refusal{Reason: InsufficientQuota, Scope: Key, Unit: UnitCredits, Need: 10, Limit: 10, RetryAfter: time.Minute}},
		{"of one class the first in order", func(in *in) {
			in.states[keyMonth] = AccountState{Total: 10, Spent: 10}
			in.states[orgMonth] = AccountState{Total: 11, Spent: 10}
		}, Refusal{Reason: InsufficientQuota, Scope: Org, Period: Month, Unit: UnitCredits, Need: 10, Limit: 11, Remaining: 1, RetryAfter: 15*24*time.Hour + 12*time.Hour}},
		{"a free slot is enough", func(in *in) { in.slots[App] = SlotState{Max: 4, InUse: 2, Leased: 1} }, Refusal{}},
		{
			"no slot", func(in *in) { in.slots[App] = SlotState{Max: 4, InUse: 4} },
			Refusal{Reason: RateExceeded, Scope: App, Unit: UnitConcurrency, Need: 1, Limit: 4, RetryAfter: time.Second},
		},
		{
			"slots in leases may come back", func(in *in) { in.slots[App] = SlotState{Max: 4, InUse: 1, Leased: 3} },
			Refusal{Reason: RateExceeded, Scope: App, Unit: UnitConcurrency, Need: 1, Limit: 4, Remaining: 3, RetryAfter: time.Second, Pending: true},
		},
		{
			"concurrency 0 never has one", func(in *in) { in.slots[Key] = SlotState{} },
			Refusal{Reason: InsufficientQuota, Scope: Key, Unit: UnitConcurrency, Need: 1, Never: true},
		},
		{"an account beats a slot", func(in *in) {
			in.slots[Org] = SlotState{Max: 1, InUse: 1}
			in.states[appDay] = AccountState{Total: 10, Spent: 1}
		}, Refusal{Reason: InsufficientQuota, Scope: App, Period: Day, Unit: UnitCredits, Need: 10, Limit: 10, Remaining: 9, RetryAfter: 12 * time.Hour}},
		{"a bucket with just enough", func(in *in) { in.buckets = []BucketState{rpm(Key, 60, 60, 1, 1)} }, Refusal{}},
		{
			"a bucket waits for its tokens", func(in *in) { in.buckets = []BucketState{rpm(Key, 60, 60, 0, 1)} },
			Refusal{Reason: RateExceeded, Scope: Key, Unit: UnitRPM, Need: 1, Limit: 60, RetryAfter: time.Second},
		},
		{
			"rounded up", func(in *in) { in.buckets = []BucketState{rpm(Key, 7, 60, 10, 20)} },
			Refusal{Reason: RateExceeded, Scope: Key, Unit: UnitRPM, Need: 20, Limit: 60, Remaining: 10, RetryAfter: 86 * time.Second},
		},
		{
			"a bucket in debt is never shown negative", func(in *in) { in.buckets = []BucketState{rpm(Key, 60, 60, -59, 1)} },
			Refusal{Reason: RateExceeded, Scope: Key, Unit: UnitRPM, Need: 1, Limit: 60, RetryAfter: time.Minute},
		},
		{"per second", func(in *in) {
			in.buckets = []BucketState{{Scope: Org, Unit: UnitRPS, Limit: Bucket{Rate: 2, Burst: 9}, Remaining: 0, Need: 5}}
		}, Refusal{Reason: RateExceeded, Scope: Org, Unit: UnitRPS, Need: 5, Limit: 9, RetryAfter: 3 * time.Second}},
		{"the longest wait wins", func(in *in) {
			in.buckets = []BucketState{rpm(Org, 60, 60, 0, 1), rpm(App, 1, 60, 0, 1), rpm(Key, 1, 60, 0, 1)}
		}, Refusal{Reason: RateExceeded, Scope: App, Unit: UnitRPM, Need: 1, Limit: 60, RetryAfter: time.Minute}},
		{"a slot beats a bucket", func(in *in) {
			in.slots[Key] = SlotState{Max: 1, InUse: 1}
			in.buckets = []BucketState{rpm(Org, 1, 60, 0, 60)}
		}, Refusal{Reason: RateExceeded, Scope: Key, Unit: UnitConcurrency, Need: 1, Limit: 1, RetryAfter: time.Second}},
		{
			"more than a bucket's capacity never fits", func(in *in) { in.buckets = []BucketState{rpm(Org, 60, 60, 60, 61)} },
			Refusal{Reason: InsufficientQuota, Scope: Org, Unit: UnitRPM, Need: 61, Limit: 60, Remaining: 60, Never: true},
		},
		{
			"a bucket that never refills", func(in *in) { in.buckets = []BucketState{rpm(Org, 0, 60, 3, 4)} },
			Refusal{Reason: InsufficientQuota, Scope: Org, Unit: UnitRPM, Need: 4, Limit: 60, Remaining: 3, Never: true},
		},
		{
			"a year is the longest wait", func(in *in) { in.buckets = []BucketState{rpm(Org, 1, RateMax, -CreditsMax-5, RateMax)} },
			Refusal{Reason: RateExceeded, Scope: Org, Unit: UnitRPM, Need: RateMax, Limit: RateMax, RetryAfter: 366 * 24 * time.Hour},
		},
	} {
		t.Run(tc.what, func(t *testing.T) {
			in := in{need: 10, now: noon}
			in.states, in.slots = unlimited()
			tc.set(&in)
			require.Equal(t, tc.want, Judge(fullChain(), in.states, in.need, in.buckets, in.slots, in.now))
		})
	}
	require.Panics(t, func() { Judge(fullChain(), nil, 1, nil, [3]SlotState{}, 0) })
}

// Each level × each unit × each period, alone, blocks and is named.
func TestEachLimitAloneBlocks(t *testing.T) {
	chain := fullChain()
	for i, a := range chain {
		states, slots := unlimited()
		states[i] = AccountState{Total: 100, Spent: 100}
		r := Judge(chain, states, 1, nil, slots, noon)
		require.Equal(t, InsufficientQuota, r.Reason)
		require.Equal(t, []any{a.Scope, a.Period, UnitCredits}, []any{r.Scope, r.Period, r.Unit})
	}
	for _, scope := range Scopes {
		states, slots := unlimited()
		for _, unit := range []Unit{UnitRPS, UnitRPM, UnitTPM} {
			b := BucketState{Scope: scope, Unit: unit, Limit: Bucket{Rate: 5, Burst: 5}, Need: 1}
			r := Judge(chain, states, 1, []BucketState{b}, slots, noon)
			require.Equal(t, []any{RateExceeded, scope, unit}, []any{r.Reason, r.Scope, r.Unit})
		}
		slots[scope] = SlotState{Max: 1, InUse: 1}
		r := Judge(chain, states, 1, nil, slots, noon)
		require.Equal(t, []any{RateExceeded, scope, UnitConcurrency}, []any{r.Reason, r.Scope, r.Unit})
	}
}

// world is one random situation, drawn small so that limits collide.
type world struct {
	chain   Chain
	states  []AccountState
	need    int64
	buckets []BucketState
	slots   [3]SlotState
	now     int64
}

func drawWorld(t *rapid.T) (w world) {
	amount := rapid.OneOf(rapid.Int64Range(0, 12), rapid.SampledFrom([]int64{100, 1000, CreditsMax - 1, CreditsMax}))
	var budgets [3]Budget
	n := int64(0)
	for _, s := range Scopes {
		if rapid.Bool().Draw(t, "day") {
			budgets[s].Day = &n
		}
		if rapid.Bool().Draw(t, "month") {
			budgets[s].Month = &n
		}
		w.slots[s] = SlotState{Max: rapid.Int64Range(-1, 4).Draw(t, "max"), InUse: rapid.Int64Range(0, 3).Draw(t, "in use"), Leased: rapid.Int64Range(0, 1).Draw(t, "leased slots")}
		if rapid.Bool().Draw(t, "no slots") {
			w.slots[s].Max = -1
		}
	}
	start := rapid.Int64Range(0, 1<<41).Draw(t, "start")
	if rapid.Bool().Draw(t, "at the end of a day") {
		start += 86_400_000 - 1 - start%86_400_000 - rapid.Int64Range(0, 3000).Draw(t, "before the end")
	}
	w.chain = NewChain(payer, budgets, start, time.UTC)
	w.now = start + rapid.Int64Range(0, 2000).Draw(t, "later")
	w.need = rapid.Int64Range(0, 12).Draw(t, "need")
	for range w.chain {
		s := AccountState{Total: amount.Draw(t, "total"), Spent: rapid.Int64Range(0, 12).Draw(t, "spent"), Prepaid: rapid.Int64Range(0, 6).Draw(t, "prepaid")}
		s.Leased = rapid.Int64Range(0, s.Prepaid).Draw(t, "leased")
		if rapid.Bool().Draw(t, "overage") {
			s.OverageLimit = amount.Draw(t, "overage limit")
		}
		if rapid.IntRange(0, 2).Draw(t, "limited") == 0 {
			s.Total = Unlimited
		}
		w.states = append(w.states, s)
	}
	for range rapid.IntRange(0, 4).Draw(t, "buckets") {
		burst := rapid.Int64Range(0, 20).Draw(t, "burst")
		w.buckets = append(w.buckets, BucketState{
			Scope: rapid.SampledFrom(Scopes[:]).Draw(t, "scope"), Unit: rapid.SampledFrom([]Unit{UnitRPS, UnitRPM, UnitTPM}).Draw(t, "unit"),
			Limit: Bucket{Rate: rapid.Int64Range(0, 20).Draw(t, "rate"), Burst: burst},
			Need:  rapid.Int64Range(0, 20).Draw(t, "bucket need"), Remaining: rapid.Int64Range(-5, burst).Draw(t, "remaining"),
		})
	}
	return w
}

// naive lists every short limit with a rank and takes the best one.
func (w world) naive() (want Refusal) {
	type entry struct {
		rank int
		wait time.Duration // of buckets: the longest first
		r    Refusal
	}
	var list []entry
	z := big.NewInt
	for i, a := range w.chain {
		s := w.states[i]
		if s.Total == Unlimited {
			continue
		}
		limit := new(big.Int).Add(z(s.Total), z(s.OverageLimit))
		free := new(big.Int).Sub(limit, new(big.Int).Add(z(s.Spent), z(s.Prepaid)))
		if free.Cmp(z(w.need)) >= 0 {
			continue
		}
		left := new(big.Int).Add(free, z(s.Leased))
		e := entry{r: Refusal{Reason: InsufficientQuota, Scope: a.Scope, Period: a.Period, Unit: UnitCredits, Need: w.need, Limit: limit.Int64(), Pending: s.Leased > 0}}
		if left.Sign() > 0 {
			e.r.Remaining = left.Int64()
		}
		switch {
		case limit.Cmp(z(w.need)) < 0:
			e.rank, e.r.Never, e.r.Pending = 0, true, false
		case a.Period == Ever && free.Sign() < 0:
			e.rank, e.r.Reason = 10, PaymentRequired
		case a.Period == Ever && s.OverageLimit > 0:
			e.rank, e.r.Reason = 20, PaymentRequired
		case a.Period == Ever:
			e.rank, e.r.RetryAfter = 20, 60*time.Second
		default:
			e.rank = map[Period]int{Month: 30, Day: 40}[a.Period]
			seconds := 1 + sort.Search(32*24*3600, func(n int) bool { return w.now+int64(n+1)*1000 >= a.Window.End })
			e.r.RetryAfter = time.Duration(seconds) * time.Second
		}
		if e.r.Pending {
			e.r.RetryAfter = time.Second
		}
		list = append(list, e)
	}
	for i, s := range w.slots {
		if s.Max < 0 || s.InUse+s.Leased+1 <= s.Max {
			continue
		}
		e := entry{rank: 50, r: Refusal{Reason: RateExceeded, Scope: Scope(i), Unit: UnitConcurrency, Need: 1, Limit: s.Max, Pending: s.Leased > 0, RetryAfter: time.Second}}
		if s.Max > s.InUse {
			e.r.Remaining = s.Max - s.InUse
		}
		if s.Max == 0 {
			e.rank, e.r.Reason, e.r.Never, e.r.Pending, e.r.RetryAfter = 1, InsufficientQuota, true, false, 0
		}
		list = append(list, e)
	}
	for _, b := range w.buckets {
		if b.Need <= b.Remaining {
			continue
		}
		e := entry{rank: 60, r: Refusal{Reason: RateExceeded, Scope: b.Scope, Unit: b.Unit, Need: b.Need, Limit: b.Limit.Burst}}
		if b.Remaining > 0 {
			e.r.Remaining = b.Remaining
		}
		if b.Need > b.Limit.Burst || b.Limit.Rate == 0 {
			e.rank, e.r.Reason, e.r.Never = 2, InsufficientQuota, true
		} else {
			period := map[Unit]int64{UnitRPS: 1, UnitRPM: 60, UnitTPM: 60}[b.Unit]
			seconds := int64(1)
			for b.Remaining*period+seconds*b.Limit.Rate < b.Need*period {
				seconds++
			}
			e.r.RetryAfter = time.Duration(seconds) * time.Second
			e.wait = e.r.RetryAfter
		}
		list = append(list, e)
	}
	if len(list) == 0 {
		return Refusal{}
	}
	sort.SliceStable(list, func(i, j int) bool {
		if list[i].rank != list[j].rank {
			return list[i].rank < list[j].rank
		}
		return list[i].wait > list[j].wait
	})
	return list[0].r
}

func TestJudgeAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		got := Judge(w.chain, w.states, w.need, w.buckets, w.slots, w.now)
		require.Equal(t, w.naive(), got)
		if got.Reason == Admitted {
			return
		}
		require.GreaterOrEqual(t, got.Remaining, int64(0))
		require.Zero(t, got.RetryAfter%time.Second)
		if !got.Pending && !got.Never {
			require.True(t, got.Remaining < got.Need || got.Need == 0, fmt.Sprintf("%+v", got))
		}
	})
}

func TestJudgeDoesNotAllocate(t *testing.T) {
	chain := fullChain()
	states, slots := unlimited()
	buckets := []BucketState{{Scope: Key, Unit: UnitRPM, Limit: Bucket{60, 60}, Need: 1}}
	require.Zero(t, testing.AllocsPerRun(100, func() { Judge(chain, states, 1, buckets, slots, noon) }))
}
