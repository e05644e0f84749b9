package lua

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/lua/redistest"
	"tollgate/quota"
)

// long says that the long form of the tests is wanted: make fuzz, make e2e.
func long() bool { return os.Getenv("TOLLGATE_LONG") != "" }

// history is one random life of a tenant, in Redis and in the model.
type history struct {
	*bench
	m       *model
	truth   map[string]AccountLoad // what SQL would say
	version int64
	adj     int64
	periods map[quota.Scope][]quota.Period
	rates   [4]BucketArg
	chains  map[string]quota.Chain // the chain that a hold was last asked with
	again   func(t *rapid.T)       // the last call, to be repeated
	wild    bool                   // extreme numbers too
	// What records that Redis lost leave frozen, by account and gen.
	stranded map[string]struct{ prepaid, inflight int64 }
}

// neighbour holds keys of another tenant and a document, which nothing may touch.
var neighbour = [][]string{
	{"HSET", "quota:{t_other}:org:t_other", "total", "5", "prepaid", "1"},
	{"ZADD", "quota:{t_other}:deadlines", "1", "req:1"},
	{"HSET", "rl:{t_other}:key:k_1:r", "v", "7"},
	{"HSET", "tgkey:{abc}", "doc", "1 {}"},
	{"SET", "tgledger", "someone"},
}

func newHistory(t *rapid.T, b *bench) *history {
	_, err := b.redis.Do("FLUSHALL")
	require.NoError(t, err)
	for _, c := range neighbour {
		_, err := b.redis.Do(c...)
		require.NoError(t, err)
	}
	b.setClock(t, 1_790_000_000_000_000+rapid.Int64Range(0, 86_400_000_000).Draw(t, "start"))
	h := &history{
		bench: b, m: newModel("t_hist"), truth: map[string]AccountLoad{}, version: 1,
		periods: map[quota.Scope][]quota.Period{}, chains: map[string]quota.Chain{}, again: func(*rapid.T) {},
		stranded: map[string]struct{ prepaid, inflight int64 }{},
	}
	for _, scope := range quota.Scopes {
		for _, p := range []quota.Period{quota.Month, quota.Day} {
			if rapid.Bool().Draw(t, "limited "+scope.String()+" "+p.String()) {
				h.periods[scope] = append(h.periods[scope], p)
			}
		}
	}
	h.wild = seldom.Draw(t, "wild") || seldom.Draw(t, "wild too")
	units := []quota.Unit{quota.UnitRPM, quota.UnitTPM, quota.UnitRPS, quota.UnitTPM}
	scopes := []quota.Scope{quota.Org, quota.App, quota.Key, quota.Org}
	for i := range h.rates {
		h.rates[i] = BucketArg{Scope: scopes[i], ID: "b", Unit: units[i], Limit: h.drawLimit(t)}
	}
	return h
}

func (h *history) drawLimit(t *rapid.T) quota.Bucket {
	rate := h.numbers([]int64{7, 59, 1000}, 0, 1, quota.RateMax)
	return quota.Bucket{Rate: rate.Draw(t, "rate"), Burst: rate.Draw(t, "burst")}
}

// numbers are the tame ones, and in a wild history the extreme ones too.
func (h *history) numbers(tame []int64, extreme ...int64) *rapid.Generator[int64] {
	if h.wild {
		tame = append(slices.Clone(tame), extreme...)
	}
	return fairly(tame)
}

func (h *history) amounts() *rapid.Generator[int64] {
	return h.numbers([]int64{1, 2, 3, 5, 7, 8, 10, 12, 30, 60, 0}, 1000, quota.CreditsMax/2, quota.CreditsMax, quota.CreditsMax+1, -1)
}

func (h *history) totals() *rapid.Generator[int64] {
	return h.numbers([]int64{quota.Unlimited, quota.Unlimited, quota.Unlimited, quota.Unlimited, 60, 100, 100, 5000}, 0, 10, quota.CreditsMax)
}

// chain is the chain of one of three keys as of now.
func (h *history) chain(key int) quota.Chain {
	ids := [3]string{h.m.tenant, []string{"a_1", "a_1", "a_2"}[key], "k_" + strconv.Itoa(key)}
	var c quota.Chain
	for _, p := range []quota.Period{quota.Ever, quota.Month, quota.Day} {
		for i, scope := range quota.Scopes {
			if p == quota.Ever || slices.Contains(h.periods[scope], p) {
				c = append(c, quota.Account{Scope: scope, ID: ids[i], Period: p, Window: quota.WindowAt(p, h.millis(), time.UTC)})
			}
		}
	}
	return c
}

// fairly picks each item equally often; rapid's own choices favour the first ones.
func fairly[T any](items []T) *rapid.Generator[T] {
	return rapid.Custom(func(t *rapid.T) T {
		n := 0
		for range 9 {
			n *= 2
			if rapid.Bool().Draw(t, "bit") {
				n++
			}
		}
		return items[n%len(items)]
	})
}

var (
	drawID   = fairly([]string{"1", "2", "3", "k_1:9", "5"})
	drawTry  = fairly([]string{"a", "a1", "b", "c", "d", "e", "f", "g", "h", "i", "j"})
	drawKey  = fairly([]int{0, 1, 2})
	drawMark = fairly([]Mark{{}, {}, {}, {}, {Name: MarkName("k_1", "h1"), TTL: time.Hour}, {Name: MarkName("k_1", "h2"), TTL: 24 * time.Hour}})
	seldom   = fairly([]bool{false, false, false, false, false, false, false, true})
)

// loads are what SQL would say of a chain: none, as of now, or as of another version.
func (h *history) loads(t *rapid.T, chain quota.Chain) *Loads {
	how := fairly([]string{"now", "now", "now", "now", "now", "now", "none", "old", "ahead"}).Draw(t, "loads")
	if how == "none" {
		return nil
	}
	l := &Loads{Version: h.version}
	if how != "now" {
		l.Version += map[string]int64{"old": -1, "ahead": 1}[how]
	}
	for _, a := range chain {
		name := accountSuffix(a)
		v, ok := h.truth[name]
		if !ok {
			v = AccountLoad{Total: h.totals().Draw(t, name), MaxInflight: -1}
			if a.Period == quota.Ever {
				v.MaxInflight = h.numbers([]int64{-1, -1, -1, -1, 5, 3, 2}, 1, 0).Draw(t, "slots of "+name)
				if a.Scope == quota.Org {
					v.OverageLimit = h.numbers([]int64{0, 0, 5}, quota.CreditsMax).Draw(t, "overage")
				}
			}
		}
		v.Fold = rapid.Int64Range(0, 3).Draw(t, "fold")
		v.Spent = h.numbers([]int64{0, 0, 0, 3}, 40, quota.CreditsMax).Draw(t, "folded")
		h.truth[name] = v
		l.Accounts = append(l.Accounts, v)
	}
	return l
}

func (h *history) drawBuckets(t *rapid.T, tpmOnly bool) (list []BucketArg) {
	for _, b := range h.rates {
		if (tpmOnly && b.Unit != quota.UnitTPM) || fairly([]int{0, 1, 2, 3}).Draw(t, "bucket") > 0 {
			continue
		}
		if !tpmOnly {
			b.Need = h.numbers([]int64{0, 1, 1, 1, 7}, 100, -1, quota.RateMax).Draw(t, "need")
		}
		list = append(list, b)
	}
	return list
}

// target names a hold by the chain it was made with, or seldom by another one.
func (h *history) target(t *rapid.T) Target {
	id := drawID.Draw(t, "id")
	var live []string
	for _, i := range slices.Sorted(maps.Keys(h.m.holds)) {
		if h.m.holds[i]["state"] == "held" {
			live = append(live, i)
		}
	}
	if len(live) > 0 && fairly([]bool{true, true, false}).Draw(t, "live") {
		id = fairly(live).Draw(t, "id")
	}
	chain := h.chains[id]
	if chain == nil || seldom.Draw(t, "other chain") {
		chain = h.chain(drawKey.Draw(t, "key"))
	}
	mark := Mark{Name: h.m.holds[id]["idem"], TTL: time.Hour}
	if seldom.Draw(t, "other mark") {
		mark = drawMark.Draw(t, "mark")
	}
	return Target{Tenant: h.m.tenant, ID: id, Chain: chain, Buckets: h.drawBuckets(t, true), Mark: mark}
}

func (h *history) reserve(t *rapid.T) {
	a := &ReserveArgs{
		Target:  Target{Tenant: h.m.tenant, ID: drawID.Draw(t, "id"), Chain: h.chain(drawKey.Draw(t, "key"))},
		Amount:  h.amounts().Draw(t, "amount"),
		TTL:     time.Duration(fairly([]int64{1, 100, 60_000, 900_000}).Draw(t, "ttl")) * time.Millisecond,
		Consume: rapid.Bool().Draw(t, "consume"), Fingerprint: "f", Attempt: drawTry.Draw(t, "attempt"), PriceID: "p1", Node: "n1",
		Tokens: h.numbers([]int64{0, 1, 7, 60}, -3).Draw(t, "tokens"), NotAfter: h.millis(),
	}
	if seldom.Draw(t, "other content") {
		a.Fingerprint = "g"
	}
	if seldom.Draw(t, "too late") {
		a.NotAfter--
	}
	if old := h.chains[a.ID]; old != nil && fairly([]bool{false, false, true}).Draw(t, "old windows") {
		a.Chain = old
	}
	a.Mark = drawMark.Draw(t, "mark")
	a.Loads, a.Buckets = h.loads(t, a.Chain), h.drawBuckets(t, false)
	h.do(t, func(t *rapid.T) {
		got, err := h.store.Reserve(t.Context(), a)
		require.NoError(t, err)
		before := maps.Clone(h.m.holds)
		want := h.m.reserve(a, h.now, h.newGen(t))
		require.Equal(t, want, got)
		if got.Outcome == Done && !got.Duplicate {
			h.chains[a.ID] = a.Chain
			for i, s := range got.States { // I2
				require.False(t, s.Limited() && s.Spent+s.Prepaid > s.Total+s.OverageLimit, "account %d: %+v", i, s)
			}
			require.True(t, before[a.ID] == nil || before[a.ID]["state"] == "void")
		}
	})
}

func (h *history) settle(t *rapid.T) {
	a := &SettleArgs{
		Target: h.target(t), Actual: h.amounts().Draw(t, "actual"), Lost: seldom.Draw(t, "lost"),
		Tokens: h.numbers([]int64{-1, 0, 1, 30}, quota.TokensMax).Draw(t, "tokens"),
	}
	a.Loads = h.loads(t, a.Chain)
	h.do(t, func(t *rapid.T) {
		got, err := h.store.Settle(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, h.m.settle(a, h.now, h.newGen(t)), got)
	})
}

func (h *history) release(t *rapid.T) {
	a := &ReleaseArgs{
		Target: h.target(t), As: fairly([]State{StateReleased, StateExpired, StateVoid, StateVoid}).Draw(t, "as"),
		Attempt: drawTry.Draw(t, "attempt"), Undo: rapid.Bool().Draw(t, "undo"), Fingerprint: "f",
	}
	if made := h.m.holds[a.ID]["attempts"]; made != "" && !seldom.Draw(t, "other attempt") {
		a.Attempt = fairly(strings.Fields(made)).Draw(t, "own attempt")
	}
	if a.Attempt == "*" {
		a.Attempt = "a"
	}
	h.do(t, func(t *rapid.T) {
		got, err := h.store.Release(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, h.m.release(a, h.now), got)
	})
}

func (h *history) take(t *rapid.T) {
	buckets := h.drawBuckets(t, false)
	least, most := rapid.Int64Range(-1, 9).Draw(t, "least"), h.numbers([]int64{0, 1, 7, 60}, quota.RateMax, -1).Draw(t, "most")
	notAfter := h.millis()
	if seldom.Draw(t, "too late") {
		notAfter--
	}
	give := rapid.Bool().Draw(t, "give")
	h.do(t, func(t *rapid.T) {
		var got TakeReply
		var err error
		if give {
			got, err = h.store.Give(t.Context(), h.m.tenant, buckets, most, notAfter)
			least = most
		} else {
			got, err = h.store.Take(t.Context(), h.m.tenant, buckets, least, most, notAfter)
		}
		require.NoError(t, err)
		require.Equal(t, h.m.take(buckets, give, least, most, notAfter, h.now), got)
	})
}

// reap does what a reaper does, with the record that Redis has.
func (h *history) reap(t *rapid.T) {
	due, err := h.store.Due(t.Context(), []string{h.m.tenant}, h.millis(), 100)
	require.NoError(t, err)
	var want []string
	for name, at := range h.m.deadlines {
		if at <= h.millis() {
			want = append(want, name)
		}
	}
	require.Len(t, due, len(want))
	for _, d := range due {
		require.Contains(t, want, "req:"+d.ID)
		a := &ReleaseArgs{Target: Target{Tenant: d.Tenant, ID: d.ID, Chain: d.Record.Chain, Mark: Mark{Name: d.Record.Mark}}, As: StateExpired}
		got, err := h.store.Release(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, h.m.release(a, h.now), got)
		require.Contains(t, []Outcome{Done, Unknown, Settled}, got.Outcome)
	}
	h.check(t)
	require.Empty(t, slices.DeleteFunc(slices.Collect(maps.Values(h.m.deadlines)), func(at int64) bool { return at > h.millis() }))
}

func (h *history) load(t *rapid.T) {
	chain := h.chain(drawKey.Draw(t, "key"))
	loads := h.loads(t, chain)
	h.do(t, func(t *rapid.T) {
		got, err := h.store.Load(t.Context(), h.m.tenant, chain, loads)
		require.NoError(t, err)
		require.Equal(t, h.m.account(chain, loads, false, 0, 0, false, h.now, h.newGen(t)), got)
	})
}

func (h *history) adjust(t *rapid.T) {
	account := h.chain(drawKey.Draw(t, "key"))[rapid.IntRange(0, 2).Draw(t, "scope")]
	loads := h.loads(t, quota.Chain{account})
	number := h.adj + fairly([]int64{1, 1, 1, 0, -1, 3}).Draw(t, "number")
	delta := h.numbers([]int64{1, 5, 9, 30, -1, -4, -9, -30, 0, 60, -60}, 1000, -1000, quota.CreditsMax, -quota.CreditsMax).Draw(t, "delta")
	force := rapid.Bool().Draw(t, "force")
	inBooks := rapid.Bool().Draw(t, "applied in SQL")
	h.do(t, func(t *rapid.T) {
		got, err := h.store.Adjust(t.Context(), h.m.tenant, account, loads, number, delta, force)
		require.NoError(t, err)
		require.Equal(t, h.m.account(quota.Chain{account}, loads, true, number, delta, force, h.now, h.newGen(t)), got)
		if got.Outcome == Done {
			h.adj = max(h.adj, number)
			name := accountSuffix(account)
			if v, ok := h.truth[name]; ok && inBooks {
				v.Total, v.Adj = got.States[0].Total, number
				h.truth[name] = v
			}
		}
	})
}

func (h *history) publish(t *rapid.T) {
	h.version += rapid.Int64Range(0, 2).Draw(t, "newer")
	version := h.version - fairly([]int64{0, 0, 0, 1}).Draw(t, "older")
	field := fairly([]string{"tenant", "app:a_1", "key:k_1"}).Draw(t, "field")
	var limits []AccountLimit
	for _, a := range h.chain(drawKey.Draw(t, "key")) {
		l := AccountLimit{Account: a}
		if a.Period != quota.Ever && rapid.Bool().Draw(t, "total") {
			total := h.totals().Draw(t, "new total")
			l.Total = &total
		}
		if a.Period == quota.Ever && rapid.Bool().Draw(t, "slots") {
			slots := rapid.Int64Range(-1, 3).Draw(t, "new slots")
			l.MaxInflight = &slots
		}
		if a.Scope == quota.Org && a.Period == quota.Ever && rapid.Bool().Draw(t, "overage") {
			overage := rapid.Int64Range(0, 20).Draw(t, "new overage")
			l.OverageLimit = &overage
		}
		limits = append(limits, l)
	}
	h.do(t, func(t *rapid.T) {
		got, err := h.store.PublishConf(t.Context(), h.m.tenant, field, version, []byte(`{"a":1}`), limits)
		require.NoError(t, err)
		require.Equal(t, h.m.publish(field, version, `{"a":1}`, limits, h.millis()), got)
	})
}

func (h *history) confirm(t *rapid.T) {
	id := drawID.Draw(t, "id")
	rec := h.m.holds[id]
	if rec == nil || rec["state"] == "held" || rec["state"] == "void" {
		return
	}
	c := Confirmation{Tenant: h.m.tenant, ID: id, Refunded: rec["state"] != "settled", Forget: seldom.Draw(t, "forget")}
	require.NoError(t, h.store.Confirm(t.Context(), []Confirmation{c}))
	h.m.expiry[HoldKey(h.m.tenant, id)] = map[bool]int64{true: day, false: 15 * 60_000}[c.Refunded]
	if c.Forget {
		delete(h.m.holds, id)
	}
	h.check(t)
}

// lose is Redis forgetting: one account, one record, the documents, or all.
func (h *history) lose(t *rapid.T) {
	what := fairly([]string{"account", "account", "account", "account", "account", "account", "hold", "mark", "conf", "bucket", "all"}).Draw(t, "what")
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(h.want())) {
		kind := "account"
		switch {
		case strings.HasPrefix(key, "rl:"):
			kind = "bucket"
		case strings.Contains(key, ":req:"):
			kind = "hold"
		case strings.Contains(key, ":idem:"):
			kind = "mark"
		case strings.HasSuffix(key, ":conf"):
			kind = "conf"
		case strings.HasSuffix(key, ":deadlines"):
			kind = "index"
		}
		if what == kind || what == "all" {
			keys = append(keys, key)
		}
	}
	if len(keys) > 0 && what != "all" {
		keys = []string{fairly(keys).Draw(t, "lost")}
	}
	for _, key := range keys {
		_, err := h.redis.Do("DEL", key)
		require.NoError(t, err)
		switch {
		case strings.HasSuffix(key, ":conf"):
			h.m.version, h.m.docs, h.m.adjusted = "", map[string]string{}, 0
		case strings.HasSuffix(key, ":deadlines"):
			h.m.deadlines = map[string]int64{}
		}
		id := strings.TrimPrefix(key, HoldKey(h.m.tenant, ""))
		if rec := h.m.holds[id]; rec["state"] == "held" {
			for i, name := range strings.Fields(rec["chain"]) {
				at := prefix(h.m.tenant) + name + " " + strings.Fields(rec["gens"])[i]
				s := h.stranded[at]
				s.prepaid += num(rec["amount"])
				if i < 3 {
					s.inflight++
				}
				h.stranded[at] = s
			}
		}
		delete(h.m.accounts, key)
		delete(h.m.buckets, key)
		delete(h.m.marks, key)
		delete(h.m.holds, id)
	}
	h.check(t)
}

func (h *history) wait(t *rapid.T) {
	us := fairly([]int64{1, 999, 1000, 100_000, 1_000_001, 1_000_001, 1_000_001, 61_000_000, 900_000_000, 86_400_000_000, 31 * 86_400_000_000, -1, -5_000_000}).Draw(t, "wait, µs")
	h.setClock(t, h.now+us)
}

func (h *history) changeRate(t *rapid.T) {
	h.rates[rapid.IntRange(0, len(h.rates)-1).Draw(t, "bucket")].Limit = h.drawLimit(t)
}

// do makes a call, checks everything after it, and keeps it for a repeat.
func (h *history) do(t *rapid.T, call func(*rapid.T)) {
	call(t)
	h.again = call
	h.check(t)
}

func (h *history) repeat(t *rapid.T) {
	h.again(t)
	h.check(t)
}

var genShape = regexp.MustCompile(`^[0-9a-f]{16}$`)

// newGen finds the gen that a load has just written, in an account new to the model.
func (h *history) newGen(t *rapid.T) (gen string) {
	for key, fields := range dump(t, h.redis) {
		if g := fields["gen"]; g != "" && h.m.accounts[key] == nil && strings.Contains(key, "{"+h.m.tenant+"}") {
			require.Regexp(t, genShape, g)
			require.True(t, gen == "" || gen == g, "one call, one gen")
			gen = g
		}
	}
	return gen
}

// check compares all that Redis holds with the model, and the invariants.
func (h *history) check(t *rapid.T) {
	got := dump(t, h.redis)
	for _, c := range neighbour {
		require.Contains(t, got, c[1])
		delete(got, c[1])
	}
	delete(got, clockKey)
	delete(got, coverageKey)
	for key, fields := range got {
		ttl := num(fields["(ttl)"])
		delete(fields, "(ttl)")
		want, mortal := h.m.expiry[key]
		require.Equal(t, mortal, ttl >= 0, "%s expires", key)
		if mortal {
			require.LessOrEqual(t, ttl, want+1, key)
			require.Greater(t, ttl, want-60_000, key)
		}
	}
	require.Equal(t, h.want(), got)
	h.invariants(t)
}

// invariants: I1, and no amount is negative.
func (h *history) invariants(t *rapid.T) {
	for key, a := range h.m.accounts {
		var prepaid, inflight int64
		for _, hold := range h.m.holds {
			gens := strings.Fields(hold["gens"])
			for i, name := range strings.Fields(hold["chain"]) {
				if hold["state"] == "held" && prefix(h.m.tenant)+name == key && gens[i] == a.gen {
					prepaid += num(hold["amount"])
					if i < 3 {
						inflight++
					}
				}
			}
		}
		lost := h.stranded[key+" "+a.gen]
		require.Equal(t, prepaid+lost.prepaid, a.prepaid, key)
		require.Equal(t, inflight+lost.inflight, a.inflight, key)
		require.GreaterOrEqual(t, a.spent, int64(0), key)
	}
}

// want is what Redis should hold of the tenant: key → field → value.
func (h *history) want() map[string]map[string]string {
	out := map[string]map[string]string{}
	for key, a := range h.m.accounts {
		fields := map[string]string{
			"total": str(a.total), "overage_limit": str(a.overage), "max_inflight": str(a.max), "spent": str(a.spent),
			"refunded": str(a.refunded), "prepaid": str(a.prepaid), "leased": "0", "inflight": str(a.inflight),
			"slots_leased": "0", "lessees": "0", "demand": "0", "exact": "0", "gen": a.gen, "fold": a.fold, "adj": str(a.adj),
			"updated_at": str(a.updated),
		}
		if key == h.m.orgKey() {
			fields["op"], fields["learn_until"] = str(a.op), "0"
		}
		out[key] = fields
	}
	for id, rec := range h.m.holds {
		out[HoldKey(h.m.tenant, id)] = rec
	}
	for key, b := range h.m.buckets {
		v, rem := b.split()
		out[key] = map[string]string{"v": str(v), "at": str(b.at), "rem": str(rem)}
	}
	for key, mark := range h.m.marks {
		out[key] = map[string]string{"hold": mark.hold, "state": mark.state}
	}
	if len(h.m.deadlines) > 0 {
		z := map[string]string{}
		for name, at := range h.m.deadlines {
			z[name] = str(at)
		}
		out[DeadlinesKey(h.m.tenant)] = z
	}
	conf := maps.Clone(h.m.docs)
	if h.m.adjusted > 0 {
		conf["adjusted_at"] = str(h.m.adjusted)
	}
	if h.m.version != "" {
		conf["version"] = h.m.version
	}
	if len(conf) > 0 {
		out[ConfKey(h.m.tenant)] = conf
	}
	return out
}

const dumpScript = `
local out = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, list = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then list = redis.call('HGETALL', key) end
  if kind == 'zset' then list = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  if kind == 'string' then list = { 'value', redis.call('GET', key) } end
  out[#out + 1] = { key, redis.call('PTTL', key), list }
end
return out`

// dump is everything that a Redis holds: key → field → value, and "(ttl)" in ms.
func dump(t require.TestingT, r *redistest.Server) map[string]map[string]string {
	reply, err := r.Do("EVAL", dumpScript, "0")
	require.NoError(t, err)
	out := map[string]map[string]string{}
	for _, row := range reply.([]any) {
		row := row.([]any)
		list := row[2].([]any)
		fields := map[string]string{"(ttl)": str(row[1].(int64))}
		for i := 0; i < len(list); i += 2 {
			fields[list[i].(string)] = list[i+1].(string)
		}
		out[row[0].(string)] = fields
	}
	return out
}

// Random histories in Redis and in the model: the same replies, the same
// fields after each step, and the invariants of the design.
func TestHistories(t *testing.T) {
	b := newBench(t)
	steps := 60
	if long() {
		steps = 400
	}
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t, b)
		ops := map[string]func(*rapid.T){
			"reserve": h.reserve, "settle": h.settle, "release": h.release, "reap": h.reap, "load": h.load, "adjust": h.adjust,
			"publish": h.publish, "confirm": h.confirm, "lose": h.lose, "wait": h.wait, "changeRate": h.changeRate, "repeat": h.repeat, "take": h.take,
		}
		names := slices.Sorted(maps.Keys(ops))
		weighted := append([]string{"nothing"}, names...) // first, so that a failing history shrinks to what matters
		weighted = append(weighted, "reserve", "reserve", "reserve", "reserve", "reserve", "reserve", "reserve", "reserve", "settle", "settle", "release", "release", "lose", "wait")
		for range steps {
			if op := ops[fairly(weighted).Draw(t, "op")]; op != nil {
				op(t)
			}
		}
	})
}
