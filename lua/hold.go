package lua

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"tollgate/quota"
)

// Outcome is what a script decided. Anything but Done wrote nothing that counts.
type Outcome string

// The outcomes. Which script gives which is said in its file.
const (
	Done       Outcome = "ok"
	Short      Outcome = "short"     // a limit forbids it
	NeedLoad   Outcome = "load"      // accounts are missing, or the load values were stale
	WrongTime  Outcome = "period"    // an account's period is not that of Redis' time
	Expired    Outcome = "expired"   // the script ran after its not_after
	Conflict   Outcome = "conflict"  // a known id with other content
	Voided     Outcome = "void"      // this attempt was voided before
	TooLarge   Outcome = "amount"    // a sum would pass quota.CreditsMax
	Unknown    Outcome = "unknown"   // no such hold
	Released   Outcome = "released"  // it ended by a release
	Settled    Outcome = "settled"   // it was charged; the charge stands
	Early      Outcome = "early"     // not yet expired
	Shared     Outcome = "shared"    // another attempt owns the hold
	WrongChain Outcome = "chain"     // not the hold's accounts
	Repeat     Outcome = "duplicate" // the adjustment is already in the total
	Below      Outcome = "below"     // a cut below prepaid + spent
	NoTotal    Outcome = "unlimited" // there is no total to adjust
	InFlight   Outcome = "inflight"  // a call with this once-only mark lives
	Replayed   Outcome = "replayed"  // a call with this once-only mark was charged
	Old        Outcome = "old"       // Redis has this version or a newer one
)

// State of a hold.
type State string

// The states of a hold's record.
const (
	Held          State = "held"
	StateSettled  State = "settled"
	StateReleased State = "released"
	StateExpired  State = "expired"
	StateVoid     State = "void"
)

// BucketArg is a rate limit that a call draws on.
type BucketArg struct {
	Scope quota.Scope
	ID    string // the scope's id
	Unit  quota.Unit
	Limit quota.Bucket
	Need  int64 // tokens; 0 at settle and release
}

// Mark is a once-only mark: one hold has it while it lives, and keeps it for TTL after it was charged.
type Mark struct {
	Name string // MarkName
	TTL  time.Duration
}

// MarkName names the mark of an API key's Idempotency-Key, of which only the hash is kept.
func MarkName(key, hash string) string { return "idem:" + key + ":" + hash }

func (m Mark) ttl() string {
	if m.Name == "" {
		return ""
	}
	return itoa64(m.TTL.Milliseconds())
}

// Target names the records that a call works on.
type Target struct {
	Tenant  string
	ID      string      // of the hold
	Chain   quota.Chain // 3 … quota.ChainMax accounts, the org's `ever` account first
	Loads   *Loads      // values for accounts that Redis does not hold; nil: none
	Buckets []BucketArg // reserve: all; settle and release: those in tpm
	Mark    Mark        // of an Idempotency-Key; zero: none
}

// ReserveArgs is one reserve, or with Consume one reserve that settles at once.
type ReserveArgs struct {
	Target
	Amount      int64         // credits, 1 … quota.CreditsMax
	TTL         time.Duration // life of the hold
	Consume     bool
	Fingerprint string // of the request's content: a repeat with another one is a Conflict
	Attempt     string // names this try; what voids it names it too. One word
	PriceID     string
	Node        string
	Tokens      int64 // taken from tpm buckets
	NotAfter    int64 // ms of Redis' time; a script that runs later writes nothing
}

// ReserveReply is the answer to a reserve. States and Slots are as of after it,
// and absent on a repeat.
type ReserveReply struct {
	Outcome   Outcome
	NowMillis int64
	Duplicate bool
	Amount    int64 // the hold's, also on a repeat
	Charged   int64
	Deadline  int64 // ms
	State     State
	States    []quota.AccountState
	Slots     [3]quota.SlotState
	Buckets   []quota.BucketState
}

// checkAttempt insists on one word: the hold's record lists attempts by spaces, and * stands for forgotten ones.
func checkAttempt(attempt string) {
	if attempt == "" || strings.ContainsAny(attempt, " \t\n\v\f\r*") {
		panic("BUG: lua: an attempt is one word, not " + strconv.Quote(attempt))
	}
}

// Reserve freezes (or consumes) an amount. Keeps I1 and I2: all or nothing.
func (s *Store) Reserve(ctx context.Context, a *ReserveArgs) (ReserveReply, error) {
	checkAttempt(a.Attempt)
	kind := "hold"
	if a.Consume {
		kind = "consume"
	}
	names, windows := chainText(a.Chain)
	args := make([]string, 0, 16+3*len(a.Chain)+4*len(a.Buckets))
	args = append(args, itoa(len(a.Chain)), itoa(len(a.Buckets)), randomGen(), loadVersion(a.Loads),
		itoa64(a.NotAfter), itoa64(a.Amount), itoa64(a.TTL.Milliseconds()), kind, a.Fingerprint, a.Attempt,
		a.PriceID, a.Node, itoa64(a.Tokens), names, windows, a.Mark.ttl())
	args = a.appendAccounts(args)
	args = a.appendBuckets(args)
	r, err := s.run(ctx, reserveScript, a.keys(), args)
	if err != nil {
		return ReserveReply{}, err
	}
	out := ReserveReply{
		Outcome: Outcome(r.text()), NowMillis: r.int(), Duplicate: r.int() == 1, Amount: r.int(), Charged: r.int(),
		Deadline: r.int(), State: State(r.text()),
	}
	s.sawTime(out.NowMillis)
	n, nb := r.count(len(a.Chain)), r.count(len(a.Buckets))
	out.States, out.Slots = r.accounts(n)
	out.Buckets = r.buckets(a.Buckets[:nb])
	return out, r.err(reserveScript)
}

// SettleArgs is one settle. Its chain is exactly the hold's.
type SettleArgs struct {
	Target
	Actual int64 // credits, 0 … quota.CreditsMax
	Tokens int64 // actual tokens, to correct tpm buckets; -1: no correction
	Lost   bool  // Redis lost the hold: charge it late and leave a receipt
}

// SettleReply is the answer to a settle.
type SettleReply struct {
	Outcome   Outcome
	NowMillis int64
	Duplicate bool
	Reserved  int64
	Charged   int64
	Refunded  int64
	Late      bool
	States    []quota.AccountState
	Gens      []AccountGen // for Unknown: beside the chain, what Redis knows of each account
}

// AccountGen is one life of an account in Redis, and the fold it was loaded from. Empty: Redis does not hold it.
type AccountGen struct{ Gen, Fold string }

// Settle charges a hold and frees it. Keeps I1 and I3.
func (s *Store) Settle(ctx context.Context, a *SettleArgs) (SettleReply, error) {
	lost := ""
	if a.Lost {
		lost, _ = chainText(a.Chain)
	}
	args := make([]string, 0, 8+3*len(a.Chain)+4*len(a.Buckets))
	args = append(args, itoa(len(a.Chain)), itoa(len(a.Buckets)), randomGen(), loadVersion(a.Loads),
		itoa64(a.Actual), itoa64(a.Tokens), lost, a.Mark.ttl())
	args = a.appendAccounts(args)
	args = a.appendBuckets(args)
	r, err := s.run(ctx, settleScript, a.keys(), args)
	if err != nil {
		return SettleReply{}, err
	}
	out := SettleReply{
		Outcome: Outcome(r.text()), NowMillis: r.int(), Duplicate: r.int() == 1, Reserved: r.int(), Charged: r.int(),
		Refunded: r.int(), Late: r.int() == 1,
	}
	s.sawTime(out.NowMillis)
	n := r.count(len(a.Chain))
	switch out.Outcome {
	case Unknown:
		for range a.Chain {
			out.Gens = append(out.Gens, AccountGen{Gen: r.text(), Fold: r.text()})
		}
	case Done:
		out.States, _ = r.accounts(n)
	}
	return out, r.err(settleScript)
}

// ReleaseArgs is one release. Its chain is exactly the hold's.
type ReleaseArgs struct {
	Target
	As          State  // StateReleased, StateExpired or StateVoid
	Attempt     string // for StateVoid: whose outcome is unknown
	Undo        bool   // for StateVoid: take back a consume that ran
	Fingerprint string // for StateVoid: remembered by a tombstone
}

// ReleaseReply is the answer to a release.
type ReleaseReply struct {
	Outcome   Outcome
	NowMillis int64
	Duplicate bool
	Refunded  int64
	Charged   int64 // for Settled: what it was charged
	State     State // after the call
	States    []quota.AccountState
}

// Release ends a hold without a charge. Keeps I1.
func (s *Store) Release(ctx context.Context, a *ReleaseArgs) (ReleaseReply, error) {
	as, undo := "release", ""
	switch a.As {
	case StateExpired:
		as = "expired"
	case StateVoid:
		as = "void"
		checkAttempt(a.Attempt)
	}
	if a.Undo {
		undo = "undo"
	}
	args := make([]string, 0, 7+4*len(a.Buckets))
	mark := ""
	if a.Mark.Name != "" {
		mark = "mark"
	}
	args = append(args, itoa(len(a.Chain)), itoa(len(a.Buckets)), as, a.Attempt, undo, a.Fingerprint, mark)
	args = a.appendBuckets(args)
	r, err := s.run(ctx, releaseScript, a.keys(), args)
	if err != nil {
		return ReleaseReply{}, err
	}
	out := ReleaseReply{
		Outcome: Outcome(r.text()), NowMillis: r.int(), Duplicate: r.int() == 1, Refunded: r.int(), Charged: r.int(),
		State: State(r.text()),
	}
	s.sawTime(out.NowMillis)
	out.States, _ = r.accounts(r.count(len(a.Chain)))
	return out, r.err(releaseScript)
}

// HoldRecord is a hold or receipt as Redis keeps it.
type HoldRecord struct {
	State    State
	Consume  bool
	Amount   int64
	Charged  int64
	Refunded int64
	Late     bool
	Deadline int64 // ms
	Created  int64 // ms
	PriceID  string
	Node     string
	Tokens   int64
	Chain    quota.Chain // nil for a tombstone
	Mark     string      // name of its once-only mark; "": none
}

// ReadHold reads one hold; ok is false when Redis has none of that id.
func (s *Store) ReadHold(ctx context.Context, tenant, id string) (rec HoldRecord, ok bool, err error) {
	res, err := s.do(ctx, "read_hold", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.holdCommand(tenant, id))
	})
	if err != nil {
		return rec, false, err
	}
	return parseHold(res)
}

func (s *Store) holdCommand(tenant, id string) rueidis.Completed {
	return s.decide.B().Hmget().Key(HoldKey(tenant, id)).Field("state", "kind", "amount", "charged", "refunded", "late",
		"deadline", "created_at", "price_id", "node", "tokens", "chain", "windows", "idem").Build()
}

func parseHold(res rueidis.RedisResult) (rec HoldRecord, ok bool, err error) {
	list, err := res.ToArray()
	if err != nil || len(list) != 14 {
		return rec, false, fmt.Errorf("%w: hold", ErrReply)
	}
	if list[0].IsNil() {
		return rec, false, nil
	}
	text := func(i int) string { v, _ := list[i].ToString(); return v }
	num := func(i int) int64 { n, _ := strconv.ParseInt(text(i), 10, 64); return n }
	rec = HoldRecord{
		State: State(text(0)), Consume: text(1) == "consume", Amount: num(2), Charged: num(3), Refunded: num(4),
		Late: num(5) == 1, Deadline: num(6), Created: num(7), PriceID: text(8), Node: text(9), Tokens: num(10), Mark: text(13),
	}
	if text(11) != "" && text(12) != "" {
		if rec.Chain, err = parseChain(text(11), text(12)); err != nil {
			return rec, false, err
		}
	}
	return rec, true, nil
}

func (t *Target) keys() []string {
	keys := make([]string, 0, 4+len(t.Chain)+len(t.Buckets))
	keys = append(keys, HoldKey(t.Tenant, t.ID), DeadlinesKey(t.Tenant), ConfKey(t.Tenant))
	for _, a := range t.Chain {
		keys = append(keys, AccountKey(t.Tenant, a))
	}
	for _, b := range t.Buckets {
		keys = append(keys, BucketKey(t.Tenant, b))
	}
	if t.Mark.Name != "" {
		keys = append(keys, prefix(t.Tenant)+t.Mark.Name)
	}
	return keys
}

func (t *Target) appendAccounts(args []string) []string {
	for i, a := range t.Chain {
		load := ""
		if t.Loads != nil {
			load = t.Loads.Accounts[i].text()
		}
		args = append(args, itoa64(a.Window.Start), itoa64(a.Window.End), load)
	}
	return args
}

func (t *Target) appendBuckets(args []string) []string {
	for _, b := range t.Buckets {
		args = append(args, itoa64(b.Limit.Burst), itoa64(b.Limit.Rate), bucketSeconds(b.Unit), itoa64(b.Need))
	}
	return args
}

// text writes load values as the scripts read them.
func (l AccountLoad) text() string {
	b := make([]byte, 0, 64)
	for i, n := range [...]int64{l.Total, l.OverageLimit, l.MaxInflight, l.Spent, l.Fold, l.Adj} {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

func loadVersion(l *Loads) string {
	if l == nil {
		return ""
	}
	return itoa64(l.Version)
}

func itoa(n int) string     { return strconv.Itoa(n) }
func itoa64(n int64) string { return strconv.FormatInt(n, 10) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// run executes a script by its hash; when Redis does not know it (restart,
// SCRIPT FLUSH, a promoted replica) the text goes along, with the same
// arguments, so the same ids.
func (s *Store) run(ctx context.Context, sc *script, keys, args []string) (*reply, error) {
	if other := s.instead[sc]; other != nil {
		sc = other
	}
	res, err := s.do(ctx, sc.name, func(ctx context.Context) rueidis.RedisResult {
		return sc.exec.Exec(ctx, s.decide, keys, args)
	})
	if err != nil {
		return nil, err
	}
	list, err := res.ToArray()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrReply, sc.name)
	}
	return &reply{list: list}, nil
}

// reply reads a script's answer from left to right; the first fault sticks.
type reply struct {
	list []rueidis.RedisMessage
	at   int
	bad  bool
}

var errShort = errors.New("short reply")

func (r *reply) next() *rueidis.RedisMessage {
	if r.at >= len(r.list) {
		r.bad = true
		return nil
	}
	r.at++
	return &r.list[r.at-1]
}

func (r *reply) int() int64 {
	m := r.next()
	if m == nil {
		return 0
	}
	n, err := m.AsInt64()
	if err != nil {
		r.bad = true
	}
	return n
}

func (r *reply) text() string {
	m := r.next()
	if m == nil {
		return ""
	}
	v, err := m.ToString()
	if err != nil {
		r.bad = true
	}
	return v
}

func (r *reply) count(most int) int {
	n := r.int()
	if n < 0 || n > int64(most) {
		r.bad = true
		return 0
	}
	return int(n)
}

func (r *reply) accounts(n int) ([]quota.AccountState, [3]quota.SlotState) {
	slots := [3]quota.SlotState{{Max: -1}, {Max: -1}, {Max: -1}}
	if n == 0 {
		return nil, slots
	}
	states := make([]quota.AccountState, n)
	for i := range states {
		states[i] = quota.AccountState{
			Total: r.int(), OverageLimit: r.int(), Spent: r.int(), Prepaid: r.int(), Leased: r.int(),
		}
		slot := quota.SlotState{Max: r.int(), InUse: r.int(), Leased: r.int()}
		if i < len(slots) {
			slots[i] = slot
		}
	}
	return states, slots
}

// buckets reads what is left in each of the buckets.
func (r *reply) buckets(list []BucketArg) []quota.BucketState {
	if len(list) == 0 {
		return nil
	}
	out := make([]quota.BucketState, 0, len(list))
	for _, b := range list {
		out = append(out, quota.BucketState{
			Scope: b.Scope, Unit: b.Unit, Limit: b.Limit, Remaining: floorDiv(r.int(), 1_000_000), Need: b.Need,
		})
	}
	return out
}

func (r *reply) err(sc *script) error {
	if r.bad {
		return fmt.Errorf("%w: %s: %w", ErrReply, sc.name, errShort)
	}
	return nil
}
