package lua

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"tollgate/quota"
)

// model is a second version of the scripts, written for clarity from their
// headers: maps, no care for speed, no Redis.
type model struct {
	tenant    string
	version   string            // published version of the tenant; "": none
	adjusted  int64             // ms of the last adjustment; 0: none
	docs      map[string]string // field → "<version> <json>"
	accounts  map[string]*modelAccount
	holds     map[string]map[string]string // by id: the stored fields
	deadlines map[string]int64             // index name → ms
	buckets   map[string]*modelBucket
	marks     map[string]*modelMark
	expiry    map[string]int64 // key → ms it lives from its last renewal; absent: for ever
}

type modelAccount struct {
	total, overage, max, spent, refunded, prepaid, inflight, adj, updated int64
	gen, fold                                                             string
	op                                                                    int64 // org's `ever` only
}

// modelMark is a once-only mark by its key.
type modelMark struct{ hold, state string }

// modelBucket counts in micro-tokens × period seconds, so that nothing is ever divided.
type modelBucket struct {
	level  *big.Int
	at     int64
	period int64
}

const (
	day        = int64(86_400_000)
	receiptTTL = 7 * day
)

func newModel(tenant string) *model {
	return &model{
		tenant: tenant, docs: map[string]string{}, accounts: map[string]*modelAccount{},
		holds: map[string]map[string]string{}, deadlines: map[string]int64{}, buckets: map[string]*modelBucket{},
		marks: map[string]*modelMark{}, expiry: map[string]int64{},
	}
}

func (m *model) orgKey() string { return "quota:{" + m.tenant + "}:org:" + m.tenant }

func (a *modelAccount) state() quota.AccountState {
	return quota.AccountState{Total: a.total, OverageLimit: a.overage, Spent: a.spent, Prepaid: a.prepaid}
}

// touch renews an account.
func (m *model) touch(key string, now int64) {
	m.accounts[key].updated = now
	ttl := 30 * day
	switch last := key[strings.LastIndexByte(key, ':')+1:]; {
	case len(last) == 9 && last[0] == 'd':
		ttl = 3 * day
	case len(last) == 7 && last[0] == 'm':
		ttl = 63 * day
	}
	m.expiry[key] = ttl
}

func (m *model) raiseOp() {
	if org := m.accounts[m.orgKey()]; org != nil {
		org.op++
	}
}

// absent lists the places in a chain that neither Redis nor valid load values fill.
// With take it puts the loaded ones into Redis.
func (m *model) absent(chain quota.Chain, loads *Loads) (missing []int) {
	for i, a := range chain {
		if m.accounts[AccountKey(m.tenant, a)] == nil && !m.loadable(loads) {
			missing = append(missing, i)
		}
	}
	return missing
}

func (m *model) loadable(loads *Loads) bool {
	return loads != nil && (m.version == "" || m.version == strconv.FormatInt(loads.Version, 10))
}

func (m *model) fill(chain quota.Chain, i int, loads *Loads, gen string, now int64) bool {
	key := AccountKey(m.tenant, chain[i])
	if m.accounts[key] != nil {
		return false
	}
	l := loads.Accounts[i]
	m.accounts[key] = &modelAccount{
		total: l.Total, overage: l.OverageLimit, max: l.MaxInflight, spent: l.Spent, adj: l.Adj,
		fold: strconv.FormatInt(l.Fold, 10), gen: gen,
	}
	m.touch(key, now)
	if m.version == "" {
		m.version = strconv.FormatInt(loads.Version, 10)
	}
	return true
}

func (m *model) states(chain quota.Chain) (states []quota.AccountState) {
	for _, a := range chain {
		if acc := m.accounts[AccountKey(m.tenant, a)]; acc != nil {
			states = append(states, acc.state())
		}
	}
	return states
}

func (m *model) slots(chain quota.Chain) [3]quota.SlotState {
	var out [3]quota.SlotState
	for i := range out {
		a := m.accounts[AccountKey(m.tenant, chain[i])]
		out[i] = quota.SlotState{Max: a.max, InUse: a.inflight}
	}
	return out
}

var noSlots = [3]quota.SlotState{{Max: -1}, {Max: -1}, {Max: -1}}

func (m *model) reserve(a *ReserveArgs, us int64, gen string) ReserveReply {
	now := us / 1000
	no := func(o Outcome, state State) ReserveReply {
		return ReserveReply{Outcome: o, NowMillis: now, State: state, Slots: noSlots}
	}
	if now > a.NotAfter {
		return no(Expired, "")
	}
	h := m.holds[a.ID]
	if h != nil {
		if slices.Contains(strings.Fields(h["voids"]), a.Attempt) {
			return no(Voided, State(h["state"]))
		}
		if h["state"] != "void" {
			if h["fp"] != a.Fingerprint {
				return no(Conflict, State(h["state"]))
			}
			attempts := strings.Fields(h["attempts"])
			if !slices.Contains(attempts, a.Attempt) {
				attempts = append(attempts, a.Attempt)
				if len(attempts) > 8 {
					attempts = append([]string{"*"}, attempts[2:]...)
				}
			}
			h["attempts"] = strings.Join(attempts, " ")
			out := no(Done, State(h["state"]))
			out.Duplicate, out.Amount, out.Charged, out.Deadline = true, num(h["amount"]), num(h["charged"]), num(h["deadline"])
			return out
		}
	}
	if mark := m.marks[m.markKey(a.Mark)]; mark != nil {
		return no(map[string]Outcome{"live": InFlight, "charged": Replayed}[mark.state], "")
	}
	for _, acc := range a.Chain {
		if !acc.Window.Contains(now) {
			return no(WrongTime, "")
		}
	}
	if len(m.absent(a.Chain, a.Loads)) > 0 {
		return no(NeedLoad, "")
	}
	if a.Amount < 0 || a.Amount > quota.CreditsMax || a.Tokens < 0 || slices.ContainsFunc(a.Buckets, func(b BucketArg) bool { return b.Need < 0 }) {
		return no(TooLarge, "")
	}
	out := no(Done, "")
	for i := range a.Chain {
		m.fill(a.Chain, i, a.Loads, gen, now)
		acc := m.accounts[AccountKey(m.tenant, a.Chain[i])]
		if acc.spent+acc.prepaid+a.Amount > quota.CreditsMax {
			out.Outcome = TooLarge
		}
		short := !acc.state().Fits(a.Amount) || (!a.Consume && i < 3 && acc.max >= 0 && acc.inflight+1 > acc.max)
		if short && out.Outcome == Done {
			out.Outcome = Short
		}
	}
	for _, b := range a.Buckets {
		if m.bucket(b, us).tokens() < b.Need && out.Outcome == Done {
			out.Outcome = Short
		}
	}
	if out.Outcome == Done {
		m.write(a, us, &out, h)
	}
	out.States, out.Slots = m.states(a.Chain), m.slots(a.Chain)
	for _, b := range a.Buckets {
		out.Buckets = append(out.Buckets, quota.BucketState{
			Scope: b.Scope, Unit: b.Unit, Limit: b.Limit, Need: b.Need, Remaining: m.bucket(b, us).tokens(),
		})
	}
	return out
}

// write is what an admitted reserve changes.
func (m *model) write(a *ReserveArgs, us int64, out *ReserveReply, old map[string]string) {
	now := us / 1000
	var gens []string
	for i, account := range a.Chain {
		key := AccountKey(m.tenant, account)
		acc := m.accounts[key]
		gens = append(gens, acc.gen)
		if a.Consume {
			acc.spent += a.Amount
		} else {
			acc.prepaid += a.Amount
			if i < 3 {
				acc.inflight++
			}
		}
		m.touch(key, now)
	}
	for _, b := range a.Buckets {
		m.add(b, us, -b.Need)
	}
	out.Amount, out.Deadline, out.State = a.Amount, now+a.TTL.Milliseconds(), Held
	names, windows := chainText(a.Chain)
	h := map[string]string{
		"state": "held", "kind": "hold", "amount": str(a.Amount), "fp": a.Fingerprint, "attempts": a.Attempt, "voids": old["voids"],
		"price_id": a.PriceID, "node": a.Node, "tokens": str(a.Tokens), "chain": names, "windows": windows,
		"gens": strings.Join(gens, " "), "created_at": str(now), "deadline": str(out.Deadline),
	}
	m.holds[a.ID] = h
	if a.Consume {
		out.State, out.Charged = StateSettled, a.Amount
		h["kind"], h["state"], h["late"], h["ended_at"] = "consume", "settled", "0", str(now)
		h["charged"], h["refunded"] = str(a.Amount), "0"
		m.expiry[HoldKey(m.tenant, a.ID)] = receiptTTL
	} else {
		m.deadlines["req:"+a.ID] = out.Deadline
		delete(m.expiry, HoldKey(m.tenant, a.ID))
	}
	if key := m.markKey(a.Mark); key != "" {
		m.marks[key] = &modelMark{hold: "req:" + a.ID, state: map[bool]string{true: "charged", false: "live"}[a.Consume]}
		m.expiry[key] = a.Mark.TTL.Milliseconds()
		h["idem"] = a.Mark.Name
	}
	m.raiseOp()
}

func (m *model) markKey(k Mark) string {
	if k.Name == "" {
		return ""
	}
	return "quota:{" + m.tenant + "}:" + k.Name
}

// endMark frees the mark of a hold, or keeps it where the hold was charged.
func (m *model) endMark(k Mark, id string, charged bool) {
	key := m.markKey(k)
	mark := m.marks[key]
	switch {
	case key == "" || (mark != nil && mark.hold != "req:"+id):
	case charged:
		m.marks[key] = &modelMark{hold: "req:" + id, state: "charged"}
		m.expiry[key] = k.TTL.Milliseconds()
	default:
		delete(m.marks, key)
	}
}

// end turns a hold into a receipt.
func (m *model) end(id, state string, charged, refunded, late, now int64) {
	h := m.holds[id]
	h["state"], h["charged"], h["refunded"], h["ended_at"] = state, str(charged), str(refunded), str(now)
	if state == "settled" {
		h["late"] = str(late)
	}
	delete(m.deadlines, "req:"+id)
	m.expiry[HoldKey(m.tenant, id)] = receiptTTL
}

func (m *model) settle(a *SettleArgs, us int64, gen string) SettleReply {
	now := us / 1000
	h := m.holds[a.ID]
	out := SettleReply{Outcome: Done, NowMillis: now}
	if h == nil && !a.Lost {
		out.Outcome = Unknown
		for _, account := range a.Chain {
			g := AccountGen{}
			if acc := m.accounts[AccountKey(m.tenant, account)]; acc != nil {
				g = AccountGen{Gen: acc.gen, Fold: acc.fold}
			}
			out.Gens = append(out.Gens, g)
		}
		return out
	}
	out.Reserved = num(h["amount"])
	switch h["state"] {
	case "settled":
		out.Charged = num(h["charged"])
		if out.Charged != a.Actual {
			out.Outcome = Conflict
			return out
		}
		out.Duplicate, out.Refunded, out.Late = true, num(h["refunded"]), h["late"] == "1"
		return out
	case "released", "void":
		out.Outcome = Released
		return out
	}
	names, _ := chainText(a.Chain)
	if h != nil && h["chain"] != names {
		out.Outcome = WrongChain
		return out
	}
	if a.Actual < 0 || a.Actual > quota.CreditsMax {
		out.Outcome = TooLarge
		return out
	}
	out.Late = h["state"] != "held"
	missing := false
	for i, account := range a.Chain {
		var spent int64
		acc := m.accounts[AccountKey(m.tenant, account)]
		switch {
		case acc != nil:
			spent = acc.spent
		case m.loadable(a.Loads):
			spent = a.Loads.Accounts[i].Spent
		case account.Window.End > 0 && now >= account.Window.End:
			continue
		default:
			missing = true
			continue
		}
		if spent+a.Actual > quota.CreditsMax {
			return SettleReply{Outcome: TooLarge, NowMillis: now, Reserved: out.Reserved}
		}
	}
	if missing {
		return SettleReply{Outcome: NeedLoad, NowMillis: now, Reserved: out.Reserved}
	}
	out.Charged = a.Actual
	if !out.Late {
		out.Refunded = max(0, out.Reserved-a.Actual)
	}
	gens := strings.Fields(h["gens"])
	for i, account := range a.Chain {
		key := AccountKey(m.tenant, account)
		if m.accounts[key] == nil && m.loadable(a.Loads) {
			m.fill(a.Chain, i, a.Loads, gen, now)
		}
		acc := m.accounts[key]
		if acc == nil {
			continue
		}
		acc.spent += a.Actual
		if !out.Late && acc.gen == gens[i] {
			acc.prepaid -= out.Reserved
			if i < 3 {
				acc.inflight--
			}
		}
		m.touch(key, now)
	}
	if a.Tokens >= 0 && !out.Late {
		for _, b := range a.Buckets {
			m.add(b, us, num(h["tokens"])-a.Tokens)
		}
	}
	m.endMark(a.Mark, a.ID, a.Actual > 0)
	if h == nil {
		m.holds[a.ID] = map[string]string{"kind": "lost", "amount": "0", "chain": names, "gens": "", "created_at": str(now)}
	}
	late := int64(0)
	if out.Late {
		late = 1
	}
	m.end(a.ID, "settled", out.Charged, out.Refunded, late, now)
	m.raiseOp()
	out.States = m.states(a.Chain)
	return out
}

func (m *model) release(a *ReleaseArgs, us int64) ReleaseReply {
	now := us / 1000
	h := m.holds[a.ID]
	say := func(o Outcome, state string) ReleaseReply {
		return ReleaseReply{Outcome: o, NowMillis: now, State: State(state)}
	}
	again := func(o Outcome, state string) ReleaseReply {
		out := say(o, state)
		out.Duplicate = true
		return out
	}
	void := a.As == StateVoid
	names, _ := chainText(a.Chain)
	undo := void && a.Undo && h["state"] == "settled" && h["kind"] == "consume"
	live := h["state"] == "held" || undo
	if void {
		voids := strings.Fields(h["voids"])
		if slices.Contains(voids, a.Attempt) {
			return again(Done, h["state"])
		}
		voids = append(voids, a.Attempt)
		if h == nil {
			m.holds[a.ID] = map[string]string{
				"state": "void", "amount": "0", "fp": a.Fingerprint, "voids": a.Attempt, "created_at": str(now),
			}
			m.expiry[HoldKey(m.tenant, a.ID)] = day
			return say(Done, "void")
		}
		attempts := strings.Fields(h["attempts"])
		others := slices.DeleteFunc(slices.Clone(attempts), func(s string) bool { return s == a.Attempt })
		last := len(others) == 0 && len(attempts) > 0
		if last && live && h["chain"] != names {
			return say(WrongChain, h["state"])
		}
		h["attempts"], h["voids"] = strings.Join(others, " "), strings.Join(voids[max(0, len(voids)-8):], " ")
		if !last {
			return say(Shared, h["state"])
		}
	}
	if a.As == StateExpired && h["state"] != "held" {
		delete(m.deadlines, "req:"+a.ID)
	}
	switch {
	case h == nil:
		return say(Unknown, "")
	case h["state"] == "settled" && !undo:
		out := say(Settled, "settled")
		out.Charged = num(h["charged"])
		return out
	case !live:
		out := again(Done, h["state"])
		out.Refunded = num(h["amount"])
		return out
	case a.As == StateExpired && now < num(h["deadline"]):
		return say(Early, "held")
	case h["chain"] != names:
		return say(WrongChain, h["state"])
	}
	out := say(Done, string(a.As))
	out.Refunded = num(h["amount"])
	gens := strings.Fields(h["gens"])
	for i, account := range a.Chain {
		key := AccountKey(m.tenant, account)
		acc := m.accounts[key]
		if acc == nil || acc.gen != gens[i] {
			continue
		}
		if undo {
			acc.spent -= out.Refunded
		} else {
			acc.prepaid -= out.Refunded
			if i < 3 {
				acc.inflight--
			}
		}
		acc.refunded = min(acc.refunded+out.Refunded, quota.CreditsMax)
		m.touch(key, now)
	}
	for _, b := range a.Buckets {
		m.add(b, us, num(h["tokens"]))
	}
	m.endMark(a.Mark, a.ID, false)
	m.end(a.ID, string(a.As), 0, out.Refunded, 0, now)
	m.raiseOp()
	out.States = m.states(a.Chain)
	return out
}

func (m *model) account(chain quota.Chain, loads *Loads, adjust bool, number, delta int64, force bool, us int64, gen string) AccountReply {
	now := us / 1000
	out := AccountReply{Outcome: Done, NowMillis: now}
	if len(m.absent(chain, loads)) > 0 {
		out.Outcome = NeedLoad
		return out
	}
	written := false
	for i := range chain {
		written = m.fill(chain, i, loads, gen, now) || written
	}
	if adjust {
		key := AccountKey(m.tenant, chain[0])
		a := m.accounts[key]
		total := a.total + delta
		switch {
		case number <= a.adj:
			out.Outcome = Repeat
		case a.total < 0:
			out.Outcome = NoTotal
		case total < 0 || total+a.overage > quota.CreditsMax:
			out.Outcome = TooLarge
		case delta < 0 && total < a.prepaid+a.spent && !force:
			out.Outcome = Below
		default:
			a.total = total
		}
		if out.Outcome != Repeat { // a refused number is used up too
			a.adj, m.adjusted, written = number, now, true
			m.touch(key, now)
		}
	}
	if written {
		m.raiseOp()
	}
	out.States = m.states(chain)
	return out
}

func (m *model) publish(field string, version int64, doc string, limits []AccountLimit, now int64) Outcome {
	if old := m.docs[field]; old != "" && num(strings.Fields(old)[0]) >= version {
		return Old
	}
	m.docs[field] = fmt.Sprintf("%d %s", version, doc)
	if m.version == "" || num(m.version) < version {
		m.version = str(version)
	}
	for _, l := range limits {
		key := AccountKey(m.tenant, l.Account)
		a := m.accounts[key]
		if a == nil {
			continue
		}
		for _, set := range []struct{ from, to *int64 }{{l.Total, &a.total}, {l.OverageLimit, &a.overage}, {l.MaxInflight, &a.max}} {
			if set.from != nil {
				*set.to = *set.from
			}
		}
		m.touch(key, now)
	}
	return Done
}

// bucket is the bucket as of now, not yet written.
func (m *model) bucket(b BucketArg, us int64) *modelBucket {
	period := int64(60)
	if b.Unit == quota.UnitRPS {
		period = 1
	}
	full := new(big.Int).Mul(big.NewInt(b.Limit.Burst*1_000_000), big.NewInt(period))
	stored := m.buckets[BucketKey(m.tenant, b)]
	if stored == nil {
		return &modelBucket{level: full, at: us, period: period}
	}
	out := &modelBucket{level: new(big.Int).Set(stored.level), at: max(stored.at, us), period: period}
	out.level.Add(out.level, new(big.Int).Mul(big.NewInt(out.at-stored.at), big.NewInt(b.Limit.Rate)))
	if out.level.Cmp(full) > 0 {
		out.level = full
	}
	return out
}

// add writes a bucket with tokens more, or less; never above its capacity, nor further below nothing.
func (m *model) add(b BucketArg, us, tokens int64) {
	now := m.bucket(b, us)
	unit := big.NewInt(1_000_000 * now.period)
	now.level.Add(now.level, new(big.Int).Mul(big.NewInt(tokens), unit))
	full := new(big.Int).Mul(big.NewInt(b.Limit.Burst), unit)
	least := new(big.Int).Mul(big.NewInt(-min(b.Limit.Burst, 50_000_000)), unit)
	if now.level.Cmp(full) >= 0 {
		now.level = full
	} else if now.level.Cmp(least) < 0 {
		now.level = least
	}
	key := BucketKey(m.tenant, b)
	m.buckets[key] = now
	delete(m.expiry, key)
	if b.Limit.Rate > 0 {
		v, _ := now.split()
		m.expiry[key] = 60_000 + (b.Limit.Burst*1_000_000-v)*now.period/b.Limit.Rate/1000
	}
}

// take draws from all buckets alike, or gives back.
func (m *model) take(buckets []BucketArg, give bool, least, most, notAfter, us int64) TakeReply {
	out := TakeReply{Outcome: Done, NowMillis: us / 1000, Tokens: most}
	if out.NowMillis > notAfter {
		return TakeReply{Outcome: Expired, NowMillis: out.NowMillis}
	}
	if least < 0 || most < 0 || least > quota.CreditsMax || most > quota.CreditsMax {
		return TakeReply{Outcome: TooLarge, NowMillis: out.NowMillis}
	}
	for _, b := range buckets {
		if !give {
			out.Tokens = min(out.Tokens, m.bucket(b, us).tokens())
		}
	}
	if out.Tokens < least {
		out.Outcome, out.Tokens = Short, 0
	}
	for _, b := range buckets {
		if give {
			m.add(b, us, out.Tokens)
		} else if out.Outcome == Done {
			m.add(b, us, -out.Tokens)
		}
		out.Buckets = append(out.Buckets, quota.BucketState{
			Scope: b.Scope, Unit: b.Unit, Limit: b.Limit, Need: b.Need, Remaining: m.bucket(b, us).tokens(),
		})
	}
	return out
}

// split gives micro-tokens and the rest of the division.
func (b *modelBucket) split() (v, rem int64) {
	q, r := new(big.Int).DivMod(b.level, big.NewInt(b.period), new(big.Int))
	return q.Int64(), r.Int64()
}

func (b *modelBucket) tokens() int64 {
	v, _ := b.split()
	return floorDiv(v, 1_000_000)
}

func num(s string) int64 { n, _ := strconv.ParseInt(s, 10, 64); return n }
func str(n int64) string { return strconv.FormatInt(n, 10) }
