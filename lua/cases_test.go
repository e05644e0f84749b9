package lua

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/quota"
)

// scene is one tenant on a bench, for cases that read like a story.
type scene struct {
	*bench
	t       *testing.T
	tenant  string
	periods []quota.Period // of the org, beside ever
}

func (c *scene) chain() quota.Chain {
	chain := quota.Chain{{Scope: quota.Org, ID: c.tenant}, {Scope: quota.App, ID: "a_1"}, {Scope: quota.Key, ID: "k_1"}}
	for _, p := range c.periods {
		chain = append(chain, quota.Account{Scope: quota.Org, ID: c.tenant, Period: p, Window: quota.WindowAt(p, c.millis(), time.UTC)})
	}
	return chain
}

func (c *scene) target(id string) Target {
	return Target{Tenant: c.tenant, ID: id, Chain: c.chain()}
}

// loads gives the org a total, everything else is unlimited.
func (c *scene) loads(total int64) *Loads {
	l := &Loads{Version: 1}
	for range c.chain() {
		l.Accounts = append(l.Accounts, AccountLoad{Total: quota.Unlimited, MaxInflight: -1})
	}
	l.Accounts[0].Total = total
	return l
}

func (c *scene) load(total int64) {
	got, err := c.store.Load(c.t.Context(), c.tenant, c.chain(), c.loads(total))
	require.NoError(c.t, err)
	require.Equal(c.t, Done, got.Outcome)
}

func (c *scene) reserve(id string, amount int64, change ...func(*ReserveArgs)) ReserveReply {
	c.t.Helper()
	a := &ReserveArgs{
		Target: c.target(id), Amount: amount, TTL: time.Minute, Fingerprint: "f", Attempt: "try-" + id,
		PriceID: "p", Node: "n", NotAfter: c.millis() + 1000,
	}
	for _, f := range change {
		f(a)
	}
	got, err := c.store.Reserve(c.t.Context(), a)
	require.NoError(c.t, err)
	return got
}

func (c *scene) settle(id string, actual int64, change ...func(*SettleArgs)) SettleReply {
	c.t.Helper()
	a := &SettleArgs{Target: c.target(id), Actual: actual, Tokens: -1}
	for _, f := range change {
		f(a)
	}
	got, err := c.store.Settle(c.t.Context(), a)
	require.NoError(c.t, err)
	return got
}

func (c *scene) release(id string, as State, change ...func(*ReleaseArgs)) ReleaseReply {
	c.t.Helper()
	a := &ReleaseArgs{Target: c.target(id), As: as, Attempt: "try-" + id}
	for _, f := range change {
		f(a)
	}
	got, err := c.store.Release(c.t.Context(), a)
	require.NoError(c.t, err)
	return got
}

func (c *scene) adjust(number, delta int64, force bool, loads *Loads) AccountReply {
	c.t.Helper()
	got, err := c.store.Adjust(c.t.Context(), c.tenant, c.chain()[0], loads, number, delta, force)
	require.NoError(c.t, err)
	return got
}

// org is what Redis has of the org's `ever` account: total, spent, prepaid.
func (c *scene) org() [3]int64 {
	c.t.Helper()
	list, err := c.store.ReadAccounts(c.t.Context(), c.tenant, c.chain()[:1])
	require.NoError(c.t, err)
	require.NotNil(c.t, list[0])
	return [3]int64{list[0].Total, list[0].Spent, list[0].Prepaid}
}

func (c *scene) wait(d time.Duration) { c.setClock(c.t, c.now+d.Microseconds()) }

func (c *scene) forget(keys ...string) {
	_, err := c.redis.Do(append([]string{"DEL"}, keys...)...)
	require.NoError(c.t, err)
}

func (c *scene) key(i int) string { return AccountKey(c.tenant, c.chain()[i]) }

func consume(a *ReserveArgs) { a.Consume = true }

func attempt(name string) func(*ReserveArgs) { return func(a *ReserveArgs) { a.Attempt = name } }

func voiding(name string) func(*ReleaseArgs) { return func(a *ReleaseArgs) { a.Attempt = name } }

// elsewhere moves a target to the chain of another key.
func elsewhere(t *Target) {
	t.Chain = slices.Clone(t.Chain)
	t.Chain[2].ID = "k_2"
}

func tpm(need int64) []BucketArg {
	return []BucketArg{{Scope: quota.Key, ID: "k_1", Unit: quota.UnitTPM, Limit: quota.Bucket{Rate: 60, Burst: 100}, Need: need}}
}

// The outcomes of each script, one row per way through it.
var cases = []struct {
	name string
	run  func(c *scene)
}{
	{"accounts are asked for, taken once, and only under the published version", func(c *scene) {
		require.Equal(c.t, NeedLoad, c.reserve("1", 5).Outcome)
		require.Equal(c.t, Done, c.reserve("1", 5, func(a *ReserveArgs) { a.Loads = c.loads(10) }).Outcome)
		require.Equal(c.t, Short, c.reserve("2", 6, func(a *ReserveArgs) { a.Loads = c.loads(1000) }).Outcome)
		c.forget(c.key(1))
		stale := c.loads(10)
		stale.Version = 2
		require.Equal(c.t, NeedLoad, c.reserve("3", 1, func(a *ReserveArgs) { a.Loads = stale }).Outcome)
		require.Equal(c.t, NeedLoad, c.settle("1", 1, func(a *SettleArgs) { a.Loads = stale }).Outcome)
		odd := c.loads(10)
		odd.Accounts[1].Spent = -1
		require.Equal(c.t, NeedLoad, c.reserve("3", 1, func(a *ReserveArgs) { a.Loads = odd }).Outcome)
		require.Equal(c.t, NeedLoad, c.settle("1", 1, func(a *SettleArgs) { a.Loads = odd }).Outcome)
		require.Equal(c.t, Done, c.settle("1", 1, func(a *SettleArgs) { a.Loads = c.loads(10) }).Outcome)
		require.Equal(c.t, [3]int64{10, 1, 0}, c.org())
	}},
	{"several accounts gone: one call brings them back", func(c *scene) {
		c.load(100)
		c.reserve("1", 5)
		c.forget(c.key(0), c.key(2))
		got := c.reserve("2", 5, func(a *ReserveArgs) { a.Loads = c.loads(100) })
		require.Equal(c.t, int64(10), got.States[1].Prepaid)
		require.Equal(c.t, int64(5), got.States[0].Prepaid)
		c.forget(c.key(0), c.key(2))
		require.Equal(c.t, NeedLoad, c.settle("1", 1, func(a *SettleArgs) { a.Loads = &Loads{Version: 9, Accounts: c.loads(1).Accounts} }).Outcome)
		require.Equal(c.t, Done, c.settle("1", 1, func(a *SettleArgs) { a.Loads = c.loads(100) }).Outcome)
		require.Equal(c.t, [3]int64{100, 1, 0}, c.org())
	}},
	{"a repeat gives the recorded outcome, other content is a conflict", func(c *scene) {
		c.load(100)
		first := c.reserve("1", 60)
		again := c.reserve("1", 60)
		require.True(c.t, again.Duplicate)
		require.Equal(c.t, [3]int64{60, 0, first.Deadline}, [3]int64{again.Amount, again.Charged, again.Deadline})
		require.Equal(c.t, Conflict, c.reserve("1", 60, func(a *ReserveArgs) { a.Fingerprint = "g" }).Outcome)
		require.Equal(c.t, [3]int64{100, 0, 60}, c.org())
		c.reserve("2", 7, consume)
		require.EqualValues(c.t, 7, c.reserve("2", 7, consume).Charged)
	}},
	{"every attempt that saw the hold must be voided before it ends", func(c *scene) {
		c.load(100)
		for i := range 9 {
			c.reserve("1", 60, attempt(fmt.Sprint("t", i%3)))
		}
		require.Equal(c.t, Shared, c.release("1", StateVoid, voiding("t1")).Outcome)
		require.Equal(c.t, Voided, c.reserve("1", 60, attempt("t1")).Outcome)
		require.True(c.t, c.release("1", StateVoid, voiding("t1")).Duplicate)
		require.Equal(c.t, Shared, c.release("1", StateVoid, voiding("stranger")).Outcome)
		require.Equal(c.t, Shared, c.release("1", StateVoid, voiding("t0")).Outcome)
		require.Equal(c.t, WrongChain, c.release("1", StateVoid, voiding("t2"), func(a *ReleaseArgs) { elsewhere(&a.Target) }).Outcome)
		last := c.release("1", StateVoid, voiding("t2"))
		require.Equal(c.t, Done, last.Outcome)
		require.EqualValues(c.t, 60, last.Refunded)
		require.Equal(c.t, [3]int64{100, 0, 0}, c.org())
		require.Equal(c.t, Done, c.reserve("1", 10, attempt("t3")).Outcome, "a new attempt starts anew")
		require.Equal(c.t, Held, c.reserve("1", 10, attempt("t3")).State)
	}},
	{"more attempts than are remembered: the hold stays until its deadline", func(c *scene) {
		c.load(100)
		for i := range 12 {
			c.reserve("1", 60, attempt(fmt.Sprint("t", i)))
		}
		for i := range 12 {
			require.Equal(c.t, Shared, c.release("1", StateVoid, voiding(fmt.Sprint("t", i))).Outcome)
		}
		c.wait(time.Minute)
		require.EqualValues(c.t, 60, c.release("1", StateExpired).Refunded)
	}},
	{"an unknown id is voided by a tombstone, which only its own attempt obeys", func(c *scene) {
		c.load(100)
		require.Equal(c.t, StateVoid, c.release("1", StateVoid, voiding("t10")).State)
		require.Equal(c.t, Voided, c.reserve("1", 60, attempt("t10")).Outcome)
		require.Equal(c.t, Released, c.settle("1", 60).Outcome)
		require.Equal(c.t, Done, c.reserve("1", 60, attempt("t1")).Outcome, "t1 is not t10")
		require.Equal(c.t, Voided, c.reserve("1", 60, attempt("t10")).Outcome)
		require.Equal(c.t, [3]int64{100, 0, 60}, c.org())
	}},
	{"eight voids of one id are remembered", func(c *scene) {
		c.load(100)
		for i := range 9 {
			c.release("1", StateVoid, voiding(fmt.Sprint("t", i)))
		}
		require.Equal(c.t, Voided, c.reserve("1", 1, attempt("t1")).Outcome)
		require.Equal(c.t, Voided, c.reserve("1", 1, attempt("t8")).Outcome)
		require.Equal(c.t, Done, c.reserve("1", 1, attempt("t0")).Outcome, "not_after stops a ninth")
	}},
	{"a void of a consume: the charge stands, or is taken back by undo", func(c *scene) {
		c.load(100)
		c.reserve("1", 60, consume)
		stands := c.release("1", StateVoid)
		require.Equal(c.t, Settled, stands.Outcome)
		require.EqualValues(c.t, 60, stands.Charged)
		c.reserve("2", 30, consume)
		undone := c.release("2", StateVoid, func(a *ReleaseArgs) { a.Undo = true })
		require.Equal(c.t, Done, undone.Outcome)
		require.Equal(c.t, [3]int64{100, 60, 0}, c.org())
		require.Equal(c.t, Voided, c.reserve("2", 30, consume).Outcome)
		c.reserve("3", 5)
		c.settle("3", 5)
		require.Equal(c.t, Settled, c.release("3", StateVoid, func(a *ReleaseArgs) { a.Undo = true }).Outcome, "a settled hold is no consume")
	}},
	{"a call that runs too late, or in another period, writes nothing", func(c *scene) {
		c.periods = []quota.Period{quota.Month, quota.Day}
		c.load(100)
		require.Equal(c.t, Expired, c.reserve("1", 5, func(a *ReserveArgs) { a.NotAfter = c.millis() - 1 }).Outcome)
		yesterday := func(a *ReserveArgs) {
			a.Chain = slices.Clone(a.Chain)
			a.Chain[4].Window = quota.WindowAt(quota.Day, a.Chain[4].Window.Start-1, time.UTC)
		}
		require.Equal(c.t, WrongTime, c.reserve("1", 5, yesterday).Outcome)
		tomorrow := func(a *ReserveArgs) {
			a.Chain = slices.Clone(a.Chain)
			a.Chain[4].Window = quota.WindowAt(quota.Day, a.Chain[4].Window.End, time.UTC)
		}
		require.Equal(c.t, WrongTime, c.reserve("1", 5, tomorrow).Outcome)
		require.Equal(c.t, [3]int64{100, 0, 0}, c.org())
		require.Equal(c.t, Done, c.reserve("1", 5).Outcome)
		today := c.chain()
		until := func(a *ReserveArgs) { a.Chain, a.NotAfter = today, c.millis() }
		c.setClock(c.t, today[4].Window.End*1000-1)
		require.Equal(c.t, Done, c.reserve("2", 5, until).Outcome, "a day has its last microsecond")
		c.setClock(c.t, today[4].Window.End*1000)
		require.Equal(c.t, WrongTime, c.reserve("3", 5, until).Outcome, "and no more")
		c.setClock(c.t, today[4].Window.Start*1000)
		require.Equal(c.t, Done, c.reserve("4", 5, until).Outcome)
		c.setClock(c.t, today[4].Window.Start*1000-1)
		require.Equal(c.t, WrongTime, c.reserve("5", 5, until).Outcome)
	}},
	{"a settle after midnight counts for the day of the reserve; a day that Redis forgot is skipped", func(c *scene) {
		c.periods = []quota.Period{quota.Day}
		c.load(100)
		c.reserve("1", 5)
		c.reserve("2", 7)
		old := c.chain()
		here := func(a *SettleArgs) { a.Chain = old }
		c.wait(24 * time.Hour)
		got := c.settle("1", 4, here)
		require.Len(c.t, got.States, 4)
		require.Equal(c.t, quota.AccountState{Total: -1, Spent: 4, Prepaid: 7}, got.States[3])
		c.forget(AccountKey(c.tenant, old[3]))
		require.Len(c.t, c.settle("2", 6, here).States, 3)
		require.Equal(c.t, [3]int64{100, 10, 0}, c.org())
		list, err := c.store.ReadAccounts(c.t.Context(), c.tenant, c.chain())
		require.NoError(c.t, err)
		require.Nil(c.t, list[3], "the new day is untouched")
		c.reserve("3", 9, func(a *ReserveArgs) { a.Loads = c.loads(100) })
		freed := c.release("3", StateReleased)
		require.Equal(c.t, quota.AccountState{Total: -1}, freed.States[3])
	}},
	{"the tightest account decides, and says so", func(c *scene) {
		l := c.loads(quota.Unlimited)
		l.Accounts[2].Total = 0
		require.Equal(c.t, Short, c.reserve("1", 1, func(a *ReserveArgs) { a.Loads = l }).Outcome)
		require.Equal(c.t, Done, c.reserve("1", 0).Outcome, "nothing costs nothing")
		require.Equal(c.t, [3]int64{-1, 0, 0}, c.org(), "a refusal froze nothing above")
	}},
	{"slots: holds take them, consumes do not", func(c *scene) {
		l := c.loads(100)
		l.Accounts[1].MaxInflight = 1
		require.Equal(c.t, Done, c.reserve("1", 1, func(a *ReserveArgs) { a.Loads = l }).Outcome)
		got := c.reserve("2", 1)
		require.Equal(c.t, Short, got.Outcome)
		require.Equal(c.t, quota.SlotState{Max: 1, InUse: 1}, got.Slots[1])
		require.Equal(c.t, Done, c.reserve("3", 1, consume).Outcome)
		c.release("1", StateReleased)
		require.Equal(c.t, Done, c.reserve("4", 1).Outcome)
	}},
	{"amounts beyond 2^53-1 and below nothing are refused", func(c *scene) {
		c.load(quota.Unlimited)
		require.Equal(c.t, Done, c.reserve("1", quota.CreditsMax-1).Outcome)
		require.Equal(c.t, TooLarge, c.reserve("2", 2).Outcome)
		require.Equal(c.t, Done, c.reserve("2", 1).Outcome)
		require.Equal(c.t, TooLarge, c.reserve("3", 1).Outcome)
		require.Equal(c.t, [3]int64{-1, 0, quota.CreditsMax}, c.org())
		for _, n := range []int64{-1, -1 << 63, quota.CreditsMax + 1, 1<<63 - 1} {
			require.Equal(c.t, TooLarge, c.reserve("4", n).Outcome, n)
			require.Equal(c.t, TooLarge, c.reserve("4", n, consume).Outcome, n)
			require.Equal(c.t, TooLarge, c.settle("1", n).Outcome, n)
			require.Equal(c.t, TooLarge, c.reserve("4", 0, func(a *ReserveArgs) { a.Tokens = n }).Outcome, n)
			require.Equal(c.t, TooLarge, c.reserve("4", 0, func(a *ReserveArgs) { a.Buckets = tpm(n) }).Outcome, n)
		}
		require.Equal(c.t, Done, c.settle("1", quota.CreditsMax).Outcome)
		require.Equal(c.t, TooLarge, c.settle("2", 1).Outcome)
		require.Equal(c.t, [3]int64{-1, quota.CreditsMax, 1}, c.org())
		require.Equal(c.t, Done, c.release("2", StateReleased).Outcome)
	}},
	{"a settle: charged once, other amounts conflict, ends exclude each other", func(c *scene) {
		c.load(100)
		require.Equal(c.t, Unknown, c.settle("1", 5).Outcome)
		require.Equal(c.t, Unknown, c.release("1", StateReleased).Outcome)
		c.reserve("1", 60)
		require.Equal(c.t, WrongChain, c.settle("1", 5, func(a *SettleArgs) { elsewhere(&a.Target) }).Outcome)
		require.Equal(c.t, WrongChain, c.settle("1", 5, func(a *SettleArgs) { a.Chain = a.Chain[:2] }).Outcome)
		require.Equal(c.t, WrongChain, c.release("1", StateReleased, func(a *ReleaseArgs) { elsewhere(&a.Target) }).Outcome)
		require.EqualValues(c.t, 55, c.settle("1", 5).Refunded)
		again := c.settle("1", 5)
		require.True(c.t, again.Duplicate)
		require.EqualValues(c.t, 55, again.Refunded)
		conflict := c.settle("1", 6)
		require.Equal(c.t, Conflict, conflict.Outcome)
		require.EqualValues(c.t, 5, conflict.Charged)
		require.Equal(c.t, Settled, c.release("1", StateReleased).Outcome)
		c.reserve("2", 10)
		c.release("2", StateReleased)
		require.True(c.t, c.release("2", StateReleased).Duplicate)
		require.Equal(c.t, Released, c.settle("2", 10).Outcome)
		c.reserve("3", 10)
		require.Zero(c.t, c.settle("3", 25).Refunded)
		require.Equal(c.t, [3]int64{100, 30, 0}, c.org())
	}},
	{"an expiry waits for the deadline; a settle after it is charged late", func(c *scene) {
		c.load(100)
		c.reserve("1", 60)
		require.Equal(c.t, Early, c.release("1", StateExpired).Outcome)
		c.wait(time.Minute)
		require.EqualValues(c.t, 60, c.release("1", StateExpired).Refunded)
		require.Equal(c.t, [3]int64{100, 0, 0}, c.org())
		late := c.settle("1", 45)
		require.True(c.t, late.Late)
		require.Zero(c.t, late.Refunded)
		require.True(c.t, c.settle("1", 45).Late)
		require.Equal(c.t, [3]int64{100, 45, 0}, c.org())
		require.Equal(c.t, Settled, c.release("1", StateExpired).Outcome)
		require.Equal(c.t, Unknown, c.release("no such", StateExpired).Outcome)
	}},
	{"a hold that Redis lost is charged late and leaves a receipt", func(c *scene) {
		c.load(100)
		lost := func(a *SettleArgs) { a.Lost = true }
		unknown := c.settle("1", 5)
		require.Len(c.t, unknown.Gens, 3)
		require.Regexp(c.t, genShape, unknown.Gens[0].Gen)
		c.forget(c.key(2))
		require.Equal(c.t, AccountGen{}, c.settle("1", 5).Gens[2])
		require.True(c.t, c.settle("1", 5, lost, func(a *SettleArgs) { a.Loads = c.loads(100) }).Late)
		require.True(c.t, c.settle("1", 5).Duplicate)
		c.reserve("2", 60)
		require.False(c.t, c.settle("2", 5, lost).Late, "it was not lost after all")
		require.Equal(c.t, [3]int64{100, 10, 0}, c.org())
	}},
	{"an account of another life is charged, but nothing is freed there", func(c *scene) {
		c.load(100)
		c.reserve("1", 60)
		c.reserve("2", 10)
		c.reserve("3", 5)
		c.forget(c.key(0))
		c.load(100)
		c.reserve("4", 7)
		c.settle("1", 50)
		require.Equal(c.t, [3]int64{100, 50, 7}, c.org())
		c.release("2", StateReleased)
		require.Equal(c.t, [3]int64{100, 50, 7}, c.org())
		c.forget(c.key(0))
		require.Len(c.t, c.release("3", StateReleased).States, 2)
	}},
	{"tokens per minute are corrected both ways, down to a bounded debt", func(c *scene) {
		c.load(1000)
		take := func(id string, tokens int64) ReserveReply {
			return c.reserve(id, 1, func(a *ReserveArgs) { a.Tokens, a.Buckets = tokens, tpm(tokens) })
		}
		used := func(id string, tokens int64) {
			c.settle(id, 1, func(a *SettleArgs) { a.Tokens, a.Buckets = tokens, tpm(0) })
		}
		require.EqualValues(c.t, 40, take("1", 60).Buckets[0].Remaining)
		require.Equal(c.t, Short, take("2", 41).Outcome)
		c.wait(time.Second)
		require.EqualValues(c.t, 0, take("2", 41).Buckets[0].Remaining)
		used("1", 10) // 50 back
		require.EqualValues(c.t, 40, take("3", 10).Buckets[0].Remaining)
		c.release("3", StateReleased, func(a *ReleaseArgs) { a.Buckets = tpm(0) })
		c.wait(-time.Hour)
		require.EqualValues(c.t, 50, take("4", 0).Buckets[0].Remaining, "a clock that ran back adds nothing")
		c.wait(time.Hour + time.Minute)
		require.EqualValues(c.t, 100, take("5", 0).Buckets[0].Remaining)
		used("5", quota.TokensMax)
		require.EqualValues(c.t, -100, take("6", 1).Buckets[0].Remaining, "a debt of one capacity at most")
		c.reserve("7", 1, func(a *ReserveArgs) {
			a.Buckets = []BucketArg{{Scope: quota.App, ID: "a_1", Unit: quota.UnitRPS, Limit: quota.Bucket{Burst: 3}, Need: 1}}
		})
		c.wait(time.Hour)
		got := c.reserve("8", 1, func(a *ReserveArgs) {
			a.Buckets = []BucketArg{{Scope: quota.App, ID: "a_1", Unit: quota.UnitRPS, Limit: quota.Bucket{Burst: 3}, Need: 3}}
		})
		require.Equal(c.t, Short, got.Outcome, "nothing flows into a bucket of rate 0")
	}},
	{"a once-only mark lets one call live, and none after it was charged", func(c *scene) {
		c.load(1000)
		mark := Mark{Name: MarkName("k_1", "h"), TTL: time.Hour}
		marked := func(a *ReserveArgs) { a.Mark = mark }
		settled := func(a *SettleArgs) { a.Mark = mark }
		freed := func(a *ReleaseArgs) { a.Mark = mark }
		require.Equal(c.t, Done, c.reserve("1", 1, marked).Outcome)
		require.Equal(c.t, InFlight, c.reserve("2", 1, marked).Outcome)
		require.True(c.t, c.reserve("1", 1, marked).Duplicate)
		c.release("1", StateReleased, freed)
		require.Equal(c.t, Done, c.reserve("3", 1, marked).Outcome, "an uncharged call frees it")
		c.settle("3", 0, settled)
		require.Equal(c.t, Done, c.reserve("4", 1, marked).Outcome, "so does a charge of nothing")
		c.wait(time.Minute)
		c.release("4", StateExpired, freed)
		require.Equal(c.t, Done, c.reserve("5", 1, marked).Outcome)
		c.settle("4", 1, settled)
		require.Equal(c.t, InFlight, c.reserve("6", 1, marked).Outcome, "the mark is another call's now")
		c.settle("5", 1, settled)
		require.Equal(c.t, Replayed, c.reserve("6", 1, marked).Outcome)
		rec, ok, err := c.store.ReadHold(c.t.Context(), c.tenant, "5")
		require.NoError(c.t, err)
		require.True(c.t, ok)
		require.Equal(c.t, mark.Name, rec.Mark)
		c.forget(prefix(c.tenant) + mark.Name)
		c.reserve("7", 1)
		c.release("7", StateReleased, freed)
		require.Equal(c.t, Done, c.reserve("8", 1, marked, consume).Outcome)
		require.Equal(c.t, Replayed, c.reserve("9", 1, marked).Outcome)
		c.release("8", StateVoid, freed, func(a *ReleaseArgs) { a.Undo = true })
		require.Equal(c.t, Done, c.reserve("9", 1, marked).Outcome)
	}},
	{"tokens are taken from all buckets alike, or from none", func(c *scene) {
		two := append(tpm(0), BucketArg{Scope: quota.App, ID: "a_1", Unit: quota.UnitRPM, Limit: quota.Bucket{Rate: 60, Burst: 30}})
		take := func(least, most int64) TakeReply {
			got, err := c.store.Take(c.t.Context(), c.tenant, two, least, most, c.millis())
			require.NoError(c.t, err)
			return got
		}
		give := func(tokens int64) TakeReply {
			got, err := c.store.Give(c.t.Context(), c.tenant, two, tokens, c.millis())
			require.NoError(c.t, err)
			return got
		}
		require.EqualValues(c.t, 20, take(1, 20).Tokens)
		require.EqualValues(c.t, 10, take(1, 20).Tokens)
		require.Equal(c.t, Short, take(1, 20).Outcome)
		require.EqualValues(c.t, 70, take(0, 20).Buckets[0].Remaining)
		got := give(5)
		require.Equal(c.t, []int64{75, 5}, []int64{got.Buckets[0].Remaining, got.Buckets[1].Remaining})
		require.EqualValues(c.t, 30, give(1000).Buckets[1].Remaining)
		for _, n := range []int64{-1, quota.CreditsMax + 1, -1 << 63, 1<<63 - 1} {
			require.Equal(c.t, TooLarge, give(n).Outcome)
			require.Equal(c.t, TooLarge, take(n, 1).Outcome)
			require.Equal(c.t, TooLarge, take(0, n).Outcome)
		}
		late, err := c.store.Take(c.t.Context(), c.tenant, two, 1, 1, c.millis()-1)
		require.NoError(c.t, err)
		require.Equal(c.t, Expired, late.Outcome)
	}},
	{"adjustments count once, and cuts stop at what is used", func(c *scene) {
		require.Equal(c.t, NeedLoad, c.adjust(1, 5, false, nil).Outcome)
		require.EqualValues(c.t, 105, c.adjust(1, 5, false, c.loads(100)).States[0].Total)
		require.Equal(c.t, Repeat, c.adjust(1, 5, false, nil).Outcome)
		c.reserve("1", 1, func(a *ReserveArgs) { a.Loads = c.loads(0) })
		c.reserve("1", 60)
		c.reserve("2", 60)
		require.Equal(c.t, Below, c.adjust(2, -105, false, nil).Outcome)
		require.Equal(c.t, Repeat, c.adjust(2, -105, true, nil).Outcome, "a late copy of a refused cut")
		require.EqualValues(c.t, 0, c.adjust(3, -105, true, nil).States[0].Total)
		require.Equal(c.t, TooLarge, c.adjust(4, -1, true, nil).Outcome)
		require.Equal(c.t, TooLarge, c.adjust(5, quota.CreditsMax+1, true, nil).Outcome)
		require.Equal(c.t, Done, c.adjust(6, 2, false, nil).Outcome)
		c.forget(c.key(0))
		again := c.loads(2)
		again.Accounts[0].Adj = 6
		require.Equal(c.t, Repeat, c.adjust(6, 2, false, again).Outcome, "F47: adjust, loss, reload, repair")
		require.Equal(c.t, [3]int64{2, 0, 0}, c.org())
		c.forget(c.key(0))
		require.Equal(c.t, NoTotal, c.adjust(7, 2, false, c.loads(quota.Unlimited)).Outcome)
		c.forget(c.key(0))
		full := c.loads(quota.CreditsMax - 10)
		full.Accounts[0].OverageLimit = 8
		require.Equal(c.t, TooLarge, c.adjust(8, 3, false, full).Outcome, "total and overage limit together stay below 2^53")
		require.Equal(c.t, Done, c.adjust(9, 2, false, nil).Outcome)
		got, err := c.store.Load(c.t.Context(), c.tenant, c.chain(), &Loads{Version: 7, Accounts: c.loads(1).Accounts})
		require.NoError(c.t, err)
		require.Equal(c.t, Done, got.Outcome, "nothing was missing")
		c.forget(c.key(0), c.key(1))
		got, err = c.store.Load(c.t.Context(), c.tenant, c.chain(), &Loads{Version: 7, Accounts: c.loads(1).Accounts})
		require.NoError(c.t, err)
		require.Equal(c.t, NeedLoad, got.Outcome)
		one, err := c.store.Load(c.t.Context(), c.tenant, c.chain()[1:2], c.loads(1))
		require.NoError(c.t, err)
		require.Equal(c.t, Done, one.Outcome, "an account without its org")
	}},
	{"documents and limits never go back", func(c *scene) {
		c.periods = []quota.Period{quota.Day}
		publish := func(field string, version int64, limits ...AccountLimit) Outcome {
			out, err := c.store.PublishConf(c.t.Context(), c.tenant, field, version, []byte(`{}`), limits)
			require.NoError(c.t, err)
			return out
		}
		three, two := int64(3), int64(2)
		limit := AccountLimit{Account: c.chain()[3], Total: &three}
		require.Equal(c.t, Done, publish("tenant", 1, limit))
		c.load(100)
		require.Equal(c.t, Done, c.reserve("1", 3).Outcome, "not there yet, so not limited: a load brings the limit")
		require.Equal(c.t, Done, publish("tenant", 3, limit, AccountLimit{Account: c.chain()[2], MaxInflight: &two}))
		require.Equal(c.t, Short, c.reserve("2", 1).Outcome)
		require.Equal(c.t, Old, publish("tenant", 3, AccountLimit{Account: c.chain()[3], Total: new(int64)}))
		require.Equal(c.t, Done, publish("key:k_1", 2))
		c.forget(c.key(1))
		require.Equal(c.t, NeedLoad, c.reserve("3", 1, func(a *ReserveArgs) { a.Loads = &Loads{Version: 2, Accounts: c.loads(1).Accounts} }).Outcome, "version 3 is published")
	}},
	{"what was freed over a life stops at 2^53-1 and breaks nothing", func(c *scene) {
		c.load(quota.Unlimited)
		for range 3 {
			c.reserve("1", quota.CreditsMax)
			require.Equal(c.t, Done, c.release("1", StateReleased).Outcome)
			c.forget(HoldKey(c.tenant, "1"))
		}
		require.Equal(c.t, str(quota.CreditsMax), dump(c.t, c.redis)[c.key(0)]["refunded"])
		require.Equal(c.t, [3]int64{-1, 0, 0}, c.org())
	}},
}

// Every case, and after them every branch of every script has gone both ways.
func TestScripts(t *testing.T) {
	b := newBench(t)
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			tc.run(&scene{bench: b, t: t, tenant: fmt.Sprint("t_", i)})
		})
	}
	if t.Failed() {
		return
	}
	ran := dump(t, b.redis)[coverageKey]
	for _, branch := range slices.Sorted(maps.Keys(b.all)) {
		if ran[branch] == "" {
			t.Errorf("no case takes %s", branch)
		}
	}
}
