package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/lua"
	"tollgate/quota"
)

// store is a naive Redis: one account, what the account and publish scripts
// promise about it, and a memory that can be lost.
type store struct {
	conf    int64 // highest published version; 0: no conf
	account *storeAccount
}

type storeAccount struct{ total, adj, used int64 }

func (s *store) load(loads lua.Loads) bool {
	if s.account == nil && (s.conf == 0 || s.conf == loads.Version) {
		s.account = &storeAccount{total: loads.Accounts[0].Total, adj: loads.Accounts[0].Adj}
	}
	return s.account != nil
}

func (s *store) adjust(loads lua.Loads, num, delta int64, force bool) AdjustReply {
	if !s.load(loads) {
		return AdjustReply{Outcome: lua.NeedLoad}
	}
	a, outcome := s.account, lua.Done
	switch {
	case num <= a.adj:
		return AdjustReply{Outcome: lua.Repeat, Total: a.total}
	case a.total < 0:
		outcome = lua.NoTotal
	case a.total+delta < 0 || a.total+delta > quota.CreditsMax:
		outcome = lua.TooLarge
	case delta < 0 && a.total+delta < a.used && !force:
		outcome = lua.Below
	default:
		a.total += delta
	}
	a.adj = num // also of a refusal: a second sender must not decide again
	return AdjustReply{Outcome: outcome, Total: a.total, Answer: json.RawMessage(fmt.Sprintf(`{"total":%d}`, a.total))}
}

var errCrash = errors.New("crash")

// send is what edge does around the script; pause is where it can be interrupted.
func (s *store) send(db *DB, pause func(where string) bool, late func(func())) SendAdjust {
	return func(ctx context.Context, a Adjustment, force bool) (AdjustReply, error) {
		list, err := db.PublicationsOf(ctx, a.Tenant)
		if err != nil {
			return AdjustReply{}, err
		}
		for _, p := range list {
			s.conf = max(s.conf, p.TenantDoc.Version)
			if !pause("published") {
				return AdjustReply{}, errCrash
			}
			if err := db.DonePublication(ctx, p); err != nil {
				return AdjustReply{}, err
			}
		}
		loads, err := db.LoadAccounts(ctx, a.Tenant, quota.Chain{{Scope: a.Scope, ID: a.ID}})
		if err != nil {
			return AdjustReply{}, err
		}
		if !pause("before the script") {
			late(func() { s.adjust(loads, a.Num, a.Delta, force) })
			return AdjustReply{}, errCrash
		}
		reply := s.adjust(loads, a.Num, a.Delta, force)
		if !pause("after the script") {
			return AdjustReply{}, errCrash
		}
		if reply.Outcome == lua.NeedLoad {
			return AdjustReply{}, errors.New("stale values")
		}
		return reply, nil
	}
}

func always(string) bool { return true }

func TestAdjust(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	seed(t, db, 100)
	drain(t, db)
	var s store
	org := Subject{"t_x", quota.Org, "t_x"}
	adjust := func(o Op, subject Subject, delta int64) Adjustment {
		t.Helper()
		a, _, err := db.BeginAdjust(ctx, o, subject.Tenant, subject.Scope, subject.ID, delta)
		require.NoError(t, err)
		require.NoError(t, db.BringAdjusts(ctx, subject, s.send(db, always, nil)))
		a, err = db.GetAdjust(ctx, a.Tenant, a.Scope, a.ID, a.Num)
		require.NoError(t, err)
		return a
	}
	total := func() int64 {
		t.Helper()
		r, err := db.GetTenant(ctx, "t_x")
		require.NoError(t, err)
		return r.Total
	}
	raise := op("adjust")
	first := adjust(raise, org, 50)
	assert.Equal(t, AdjustApplied, first.State)
	assert.JSONEq(t, `{"total":150}`, string(first.Reply))
	assert.Equal(t, int64(150), total())
	again, repeat, err := db.BeginAdjust(ctx, raise, "t_x", quota.Org, "t_x", 50)
	require.NoError(t, err)
	assert.True(t, repeat)
	assert.Equal(t, first, again)

	s.account.used = 120
	assert.Equal(t, RefusedBelowUsage, adjust(op("adjust"), org, -31).Reason)
	assert.Equal(t, AdjustApplied, adjust(op("adjust"), org, -30).State)
	assert.Equal(t, AdjustRefused, adjust(op("adjust"), org, -121).State, "below zero")
	assert.Equal(t, RefusedTooLarge, adjust(op("adjust"), org, quota.CreditsMax-119).Reason)
	assert.Equal(t, RefusedUnlimited, adjust(op("adjust"), Subject{"t_x", quota.Key, "k_z"}, 1).Reason)
	assert.Equal(t, int64(120), total())
	assert.Equal(t, int64(120), s.account.total)

	for _, delta := range []int64{0, quota.CreditsMax + 1, -quota.CreditsMax - 1} {
		_, _, err := db.BeginAdjust(ctx, op("adjust"), "t_x", quota.Org, "t_x", delta)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	for _, missing := range []Subject{{"t_x", quota.App, "a_none"}, {"t_none", quota.Org, "t_none"}, {"t_x", quota.Org, "t_y"}} {
		_, _, err := db.BeginAdjust(ctx, op("adjust"), missing.Tenant, missing.Scope, missing.ID, 1)
		assert.ErrorIs(t, err, ErrNotFound)
	}
}

func TestPendingAdjusts(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	seed(t, db, 0)
	drain(t, db)
	org := Subject{"t_x", quota.Org, "t_x"}
	before, err := db.GetTenant(ctx, "t_x")
	require.NoError(t, err)
	for i := range pendingAdjustsMax {
		_, _, err := db.BeginAdjust(ctx, op("adjust"), "t_x", quota.Org, "t_x", int64(i+1))
		require.NoError(t, err)
	}
	_, _, err = db.BeginAdjust(ctx, op("adjust"), "t_x", quota.Org, "t_x", 1)
	assert.ErrorIs(t, err, ErrTooMany)
	after, err := db.GetTenant(ctx, "t_x")
	require.NoError(t, err)
	assert.Equal(t, before, after, "pending ones count nowhere")
	// Room is kept for all pending raises.
	_, _, err = db.PatchTenant(ctx, op("tenant.patch"), "t_x", TenantPatch{OverageLimit: Set(quota.CreditsMax - 5049)})
	assert.ErrorIs(t, err, ErrInvalid)
	_, _, err = db.PatchTenant(ctx, op("tenant.patch"), "t_x", TenantPatch{OverageLimit: Set(quota.CreditsMax - 5050)})
	assert.NoError(t, err)

	subjects, err := db.OpenSubjects(ctx, "default", time.Now().Add(time.Hour).UnixMilli(), 10)
	require.NoError(t, err)
	assert.Equal(t, []Subject{org}, subjects)
	subjects, err = db.OpenSubjects(ctx, "big", time.Now().Add(time.Hour).UnixMilli(), 10)
	require.NoError(t, err)
	assert.Empty(t, subjects)
	subjects, err = db.OpenSubjects(ctx, "default", 1, 10)
	require.NoError(t, err)
	assert.Empty(t, subjects, "younger than asked for")

	var s store
	require.NoError(t, db.BringAdjusts(ctx, org, s.send(db, always, nil)))
	after, err = db.GetTenant(ctx, "t_x")
	require.NoError(t, err)
	assert.Equal(t, int64(5050), after.Total)
	assert.Equal(t, int64(5050), s.account.total)
	subjects, err = db.OpenSubjects(ctx, "default", time.Now().Add(time.Hour).UnixMilli(), 10)
	require.NoError(t, err)
	assert.Empty(t, subjects)
}

func TestClaimIsExclusive(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	seed(t, db, 0)
	drain(t, db)
	_, _, err := db.BeginAdjust(ctx, op("adjust"), "t_x", quota.Org, "t_x", 1)
	require.NoError(t, err)
	org := Subject{"t_x", quota.Org, "t_x"}
	var s store
	err = db.BringAdjusts(ctx, org, func(ctx context.Context, a Adjustment, force bool) (AdjustReply, error) {
		short, cancel := context.WithTimeout(ctx, 2*claimPause)
		defer cancel()
		inner := db.BringAdjusts(short, org, func(context.Context, Adjustment, bool) (AdjustReply, error) {
			t.Error("two senders at once")
			return AdjustReply{}, errCrash
		})
		assert.ErrorIs(t, inner, ErrClaimed)
		return s.send(db, always, nil)(ctx, a, force)
	})
	require.NoError(t, err)
	// A failed sender gives the claim back.
	_, _, err = db.BeginAdjust(ctx, op("adjust"), "t_x", quota.Org, "t_x", 1)
	require.NoError(t, err)
	require.ErrorIs(t, db.BringAdjusts(ctx, org, s.send(db, func(string) bool { return false }, func(func()) {})), errCrash)
	require.NoError(t, db.BringAdjusts(ctx, org, s.send(db, always, nil)))
	assert.Equal(t, int64(2), s.account.total)
}

// TestAdjustHistories runs senders that stop between any two steps, scripts that
// run long after their caller gave up, a store that loses the account or all, and
// loads that were read long ago. However it goes: each adjustment has one outcome,
// and both sides agree on the total.
func TestAdjustHistories(t *testing.T) {
	var c clock
	c.ms.Store(1_000_000)
	db := openAt(t, fileURL(t), Options{Now: c.now})
	_, err := db.writer.Exec(`PRAGMA synchronous = OFF`) // crashes here are of senders, not of the machine
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(rt, db, &c)
		defer h.close()
		actions := map[string]func(){
			"begin": h.begin, "repeat": h.repeat, "start": h.start, "step": h.step, "crash": h.crash, "late": h.late,
			"read": h.readLoad, "arrive": h.arrive, "use": h.use, "evict": h.evict, "lose": h.lose, "wait": h.wait,
			"patch": h.patch, "publish": h.publish,
		}
		// Drawn by a fair index: rapid prefers the first of a list.
		weighted := []string{
			"begin", "begin", "repeat", "start", "start", "start", "start", "step", "step", "step", "step", "step", "step", "crash", "late",
			"read", "read", "arrive", "arrive", "use", "use", "evict", "evict", "lose", "wait", "wait", "patch", "publish",
		}
		fair := rapid.Custom(func(rt *rapid.T) string {
			return weighted[rapid.Uint64().Draw(rt, "index")*0x9e3779b97f4a7c15>>32%uint64(len(weighted))]
		})
		for _, name := range rapid.SliceOfN(fair, 40, 80).Draw(rt, "actions") {
			actions[name]()
			h.check()
		}
		h.settle()
	})
}

type history struct {
	rt      *rapid.T
	db      *DB
	ctx     context.Context
	clock   *clock
	store   store
	org     Subject
	ops     []Op
	deltas  map[string]int64 // by op id
	decided map[string]Adjustment
	nums    map[string]int64
	senders []sender
	scripts []func()    // sent by callers that gave up
	loads   []lua.Loads // read, not yet delivered
}

type sender struct {
	next func() (string, bool)
	stop func()
}

func newHistory(rt *rapid.T, db *DB, c *clock) *history {
	h := &history{
		rt: rt, db: db, ctx: context.Background(), clock: c,
		deltas: map[string]int64{}, decided: map[string]Adjustment{}, nums: map[string]int64{},
	}
	made, _, err := db.CreateTenant(h.ctx, op("tenant.create"), Tenant{Total: 100})
	require.NoError(rt, err)
	h.org = Subject{made.ID, quota.Org, made.ID}
	return h
}

func (h *history) close() {
	for len(h.senders) > 0 {
		h.drop(0)
	}
}

func (h *history) begin() {
	o := op("adjust")
	h.ops = append(h.ops, o)
	h.deltas[o.ID] = rapid.Int64Range(-60, 60).Filter(func(n int64) bool { return n != 0 }).Draw(h.rt, "delta")
	h.ask(o)
}

func (h *history) repeat() {
	if len(h.ops) > 0 {
		h.ask(rapid.SampledFrom(h.ops).Draw(h.rt, "op"))
	}
}

// ask sends an operation, for the first time or again, and holds it to what was said before.
func (h *history) ask(o Op) {
	a, repeat, err := h.db.BeginAdjust(h.ctx, o, h.org.Tenant, h.org.Scope, h.org.ID, h.deltas[o.ID])
	require.NoError(h.rt, err)
	num, known := h.nums[o.ID]
	require.Equal(h.rt, known, repeat)
	if known {
		require.Equal(h.rt, num, a.Num)
	}
	h.nums[o.ID] = a.Num
	if before, ok := h.decided[o.ID]; ok {
		require.Equal(h.rt, before.State, a.State, "an outcome never changes")
		require.Equal(h.rt, string(before.Reply), string(a.Reply))
	}
	if a.State != AdjustPending {
		h.decided[o.ID] = a
	}
}

// start begins a sender, unless none is needed or another holds the claim.
func (h *history) start() {
	if len(h.senders) >= 3 {
		return
	}
	next, stop := iter.Pull(func(yield func(string) bool) {
		list, err := h.db.OpenAdjusts(h.ctx, h.org)
		require.NoError(h.rt, err)
		var until int64
		require.NoError(h.rt, h.db.reader.QueryRow(`SELECT claim_until FROM account WHERE tenant = ?`, h.org.Tenant).Scan(&until))
		if len(list) == 0 || until >= h.clock.ms.Load() {
			return
		}
		claim, err := h.db.claim(h.ctx, h.org)
		require.NoError(h.rt, err)
		send := h.store.send(h.db, yield, func(script func()) { h.scripts = append(h.scripts, script) })
		// A crash leaves the claim to expire; a sender whose claim expired goes on until it notices.
		if err := h.db.bring(h.ctx, h.org, claim, send); !errors.Is(err, errCrash) {
			require.NoError(h.rt, h.db.release(h.ctx, h.org, claim))
		}
	})
	h.senders = append(h.senders, sender{next, stop})
	h.run(len(h.senders) - 1)
}

// run lets a sender go on to its next pause.
func (h *history) run(i int) {
	if _, ok := h.senders[i].next(); !ok {
		h.drop(i)
	}
}

func (h *history) drop(i int) {
	h.senders[i].stop()
	h.senders = append(h.senders[:i:i], h.senders[i+1:]...)
}

func (h *history) step() {
	if len(h.senders) > 0 {
		h.run(rapid.IntRange(0, len(h.senders)-1).Draw(h.rt, "sender"))
	}
}

func (h *history) crash() {
	if len(h.senders) > 0 {
		h.drop(rapid.IntRange(0, len(h.senders)-1).Draw(h.rt, "sender"))
	}
}

func (h *history) late() {
	if len(h.scripts) > 0 {
		i := rapid.IntRange(0, len(h.scripts)-1).Draw(h.rt, "script")
		h.scripts[i]()
		h.scripts = append(h.scripts[:i:i], h.scripts[i+1:]...)
	}
}

func (h *history) readLoad() {
	loads, err := h.db.LoadAccounts(h.ctx, h.org.Tenant, quota.Chain{{Scope: h.org.Scope, ID: h.org.ID}})
	require.NoError(h.rt, err)
	h.loads = append(h.loads, loads)
}

func (h *history) arrive() {
	if len(h.loads) > 0 {
		h.store.load(rapid.SampledFrom(h.loads).Draw(h.rt, "loads"))
	}
}

func (h *history) use() {
	if a := h.store.account; a != nil {
		a.used = min(a.total, rapid.SampledFrom([]int64{0, 50, 100, 200}).Draw(h.rt, "used"))
	}
}

func (h *history) evict() { h.store.account = nil }

func (h *history) wait() { h.clock.ms.Add(claimTTL.Milliseconds() + 1) }

// lose empties the store. Calls of before do not reach it any more: they carry not_after.
func (h *history) lose() {
	h.close()
	h.store, h.scripts, h.loads = store{}, nil, nil
}

func (h *history) patch() {
	_, _, err := h.db.PatchTenant(h.ctx, Op{}, h.org.Tenant, TenantPatch{OverageLimit: Set(rapid.Int64Range(0, 9).Draw(h.rt, "overage"))})
	require.NoError(h.rt, err)
}

func (h *history) publish() {
	list, err := h.db.PublicationsOf(h.ctx, h.org.Tenant)
	require.NoError(h.rt, err)
	for _, p := range list {
		h.store.conf = max(h.store.conf, p.TenantDoc.Version)
		require.NoError(h.rt, h.db.DonePublication(h.ctx, p))
	}
}

// check holds at every moment: SQL's total is what was there plus what is applied.
func (h *history) check() {
	r, err := h.db.GetTenant(h.ctx, h.org.Tenant)
	require.NoError(h.rt, err)
	var applied int64
	require.NoError(h.rt, h.db.reader.QueryRow(`SELECT COALESCE(SUM(delta), 0) FROM adjustment WHERE tenant = ? AND state = 'applied'`,
		h.org.Tenant).Scan(&applied))
	require.Equal(h.rt, 100+applied, r.Total)
}

// settle stops the faults and lets a repair run; then nothing may be open, and both sides agree.
func (h *history) settle() {
	h.close()
	h.wait()
	h.publish()
	require.NoError(h.rt, h.db.BringAdjusts(h.ctx, h.org, h.store.send(h.db, always, nil)))
	for _, script := range h.scripts {
		script()
	}
	h.publish()
	for _, loads := range h.loads {
		h.store.load(loads)
	}
	h.check()
	r, err := h.db.GetTenant(h.ctx, h.org.Tenant)
	require.NoError(h.rt, err)
	if a := h.store.account; a != nil {
		require.Equal(h.rt, r.Total, a.total)
	}
	for _, o := range h.ops {
		h.ask(o)
		require.Contains(h.rt, h.decided, o.ID)
	}
}
