package edge_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/edge/identity"
	"tollgate/ledger"
	"tollgate/lua"
)

// effect is how soon a change has to be felt on every node.
const effect = 100 * time.Millisecond

// changed makes a change in SQL and publishes it, as the admin API does.
func (r *rig) changed(t *testing.T, change func(ctx context.Context) error) time.Time {
	t.Helper()
	p := ledger.NewPublisher(r.db, r.publishTo)
	defer p.Close()
	require.NoError(t, change(t.Context()))
	now := time.Now()
	require.NoError(t, p.Publish(t.Context(), "t_1"))
	return now
}

// Revoking, suspending, resuming, rotating and changing limits is felt on every
// node within a tenth of a second.
func TestChangesAreFeltEverywhere(t *testing.T) {
	r := newRig(t)
	nodes := []*node{r.node(), r.node()}
	r.publishTo = nodes[0].stores
	secret := r.tenant("t_1", 1_000_000)
	op := ledger.Op{What: "test"}
	ctx := t.Context()
	var all []time.Duration
	expect := func(what, secret string, status int, code string, since time.Time) {
		t.Helper()
		var wait sync.WaitGroup
		took := make([]time.Duration, len(nodes))
		for i, n := range nodes {
			wait.Go(func() {
				for time.Since(since) < 5*time.Second {
					a := n.post(consume, secret, `{"cost":1}`)
					if a.status == status && (code == "" || a.code(t) == code) {
						break
					}
				}
				took[i] = time.Since(since)
			})
		}
		wait.Wait()
		require.Less(t, slices.Max(took), time.Second, "%s is felt late", what)
		all = append(all, took...)
	}
	expect("a new key", secret, 200, "", r.changed(t, func(context.Context) error { return nil }))

	now := r.changed(t, func(ctx context.Context) error {
		_, _, err := r.db.SetTenantStatus(ctx, op, "t_1", lua.Suspended)
		return err
	})
	expect("a suspended tenant", secret, 403, "tenant_suspended", now)
	now = r.changed(t, func(ctx context.Context) error {
		_, _, err := r.db.SetTenantStatus(ctx, op, "t_1", lua.Active)
		return err
	})
	expect("a resumed tenant", secret, 200, "", now)

	for _, c := range []struct {
		status lua.Status
		want   int
		code   string
	}{{lua.Suspended, 403, "key_disabled"}, {lua.Active, 200, ""}} {
		now = r.changed(t, func(ctx context.Context) error {
			_, _, err := r.db.SetKeyStatus(ctx, op, "t_1", "k_1", c.status)
			return err
		})
		expect("a key that is "+string(c.status), secret, c.want, c.code, now)
	}

	// Limits of the running period, up, down and away; also of what was refused before.
	for _, c := range []struct {
		patch ledger.BudgetPatch
		want  int
		code  string
	}{
		{ledger.BudgetPatch{Day: ledger.Set(new(int64(1)))}, 429, "insufficient_quota"},
		{ledger.BudgetPatch{Day: ledger.Set(new(int64(100_000)))}, 200, ""},
		{ledger.BudgetPatch{Month: ledger.Set(new(int64(0)))}, 429, "insufficient_quota"},
		{ledger.BudgetPatch{Month: ledger.Set((*int64)(nil)), Day: ledger.Set((*int64)(nil))}, 200, ""},
	} {
		now = r.changed(t, func(ctx context.Context) error {
			_, _, err := r.db.PatchKey(ctx, op, "t_1", "k_1", ledger.KeyPatch{BudgetPatch: c.patch})
			return err
		})
		expect("a limit", secret, c.want, c.code, now)
	}

	// A rotation with an overlap: both secrets work, then the old one ends by itself.
	fresh := identity.NewSecret()
	now = r.changed(t, func(ctx context.Context) error {
		_, _, err := r.db.RotateKey(ctx, op, "t_1", "k_1", identity.HexHash(fresh), time.Now().Add(1500*time.Millisecond).UnixMilli())
		return err
	})
	expect("a new secret", fresh, 200, "", now)
	require.Equal(t, 200, nodes[0].post(consume, secret, `{"cost":1}`).status, "the old one still works")
	expect("an old secret", secret, 403, "key_disabled", now.Add(1500*time.Millisecond))
	require.Equal(t, 200, nodes[1].post(consume, fresh, `{"cost":1}`).status)

	// Revoked: on every node, also in the middle of a call, which ends as it would have.
	require.NoError(t, r.fake.Behave(fakeHang))
	running := make(chan reply, 1)
	go func() { running <- nodes[0].post("/v1/chat/completions", fresh, chat("fake-p12-c34", false)) }()
	_, err := r.fake.Wait(ctx, silent(1))
	require.NoError(t, err)
	now = r.changed(t, func(ctx context.Context) error {
		_, _, err := r.db.SetKeyStatus(ctx, op, "t_1", "k_1", lua.Revoked)
		return err
	})
	expect("a revoked key", fresh, 403, "key_disabled", now)
	r.fake.Release()
	require.Equal(t, 200, (<-running).status)
	nodes[0].books(t, "t_1")

	slices.Sort(all)
	t.Log(all)
	// A busy machine delays one or the other.
	require.Less(t, all[len(all)*3/4], effect)
}

// A top-up ends the memory of a shortage on every node.
func TestTopUpIsFeltEverywhere(t *testing.T) {
	r := newRig(t)
	nodes := []*node{r.node(), r.node()}
	r.publishTo = nodes[0].stores
	secret := r.tenant("t_1", 5)
	for _, n := range nodes {
		for range 5 {
			n.post(consume, secret, `{"cost":1}`)
		}
		require.Equal(t, 429, n.post(consume, secret, `{"cost":1}`).status)
	}
	a := ledger.NewAdjuster(r.db, r.publishTo)
	defer a.Close()
	_, _, err := a.Adjust(t.Context(), ledger.Op{What: "adjust"}, "t_1", 0, "t_1", 100)
	require.NoError(t, err)
	since := time.Now()
	for _, n := range nodes {
		require.Eventually(t, func() bool { return n.post(consume, secret, `{"cost":1}`).status == 200 }, time.Second-time.Since(since), time.Millisecond)
		for range 10 {
			require.Equal(t, 200, n.post(consume, secret, `{"cost":1}`).status)
		}
	}
}
