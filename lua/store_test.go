package lua_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

func open(t testing.TB, url string) *lua.Store {
	t.Helper()
	s, err := lua.Open(t.Context(), lua.Options{Name: "default", URL: url})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func chainOf(tenant string) quota.Chain {
	return quota.Chain{
		{Scope: quota.Org, ID: tenant}, {Scope: quota.App, ID: "a_1"}, {Scope: quota.Key, ID: "k_1"},
	}
}

func loadsOf(total int64, n int) *lua.Loads {
	l := &lua.Loads{Version: 1}
	for i := range n {
		a := lua.AccountLoad{Total: quota.Unlimited, MaxInflight: -1}
		if i == 0 {
			a.Total = total
		}
		l.Accounts = append(l.Accounts, a)
	}
	return l
}

func reserveArgs(s *lua.Store, tenant, id string, amount int64, loads *lua.Loads) *lua.ReserveArgs {
	return &lua.ReserveArgs{
		Target: lua.Target{Tenant: tenant, ID: id, Chain: chainOf(tenant), Loads: loads},
		Amount: amount, TTL: time.Minute, Fingerprint: "f", Attempt: "attempt-" + id, PriceID: "p", Node: "n",
		NotAfter: s.Now() + 2000,
	}
}

func TestReserveSettleRelease(t *testing.T) {
	r := redistest.Shared(t)
	s := open(t, r.URL())
	ctx := context.Background()
	tenant := "t_" + strings.ToLower(t.Name())

	got, err := s.Reserve(ctx, reserveArgs(s, tenant, "1", 60, nil))
	require.NoError(t, err)
	require.Equal(t, lua.NeedLoad, got.Outcome)

	got, err = s.Reserve(ctx, reserveArgs(s, tenant, "1", 60, loadsOf(100, 3)))
	require.NoError(t, err)
	require.Equal(t, lua.Done, got.Outcome)
	require.Equal(t, quota.AccountState{Total: 100, Prepaid: 60}, got.States[0])

	again, err := s.Reserve(ctx, reserveArgs(s, tenant, "1", 60, nil))
	require.NoError(t, err)
	require.True(t, again.Duplicate)
	require.EqualValues(t, 60, again.Amount)

	short, err := s.Reserve(ctx, reserveArgs(s, tenant, "2", 41, nil))
	require.NoError(t, err)
	require.Equal(t, lua.Short, short.Outcome)

	rec, ok, err := s.ReadHold(ctx, tenant, "1")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, chainOf(tenant), rec.Chain)

	target := lua.Target{Tenant: tenant, ID: "1", Chain: rec.Chain}
	settled, err := s.Settle(ctx, &lua.SettleArgs{Target: target, Actual: 45, Tokens: -1})
	require.NoError(t, err)
	require.Equal(t, lua.Done, settled.Outcome)
	require.EqualValues(t, 15, settled.Refunded)
	require.Equal(t, quota.AccountState{Total: 100, Spent: 45}, settled.States[0])

	released, err := s.Release(ctx, &lua.ReleaseArgs{Target: target, As: lua.StateReleased})
	require.NoError(t, err)
	require.Equal(t, lua.Settled, released.Outcome)

	void, err := s.Release(ctx, &lua.ReleaseArgs{Target: lua.Target{Tenant: tenant, ID: "9", Chain: rec.Chain}, As: lua.StateVoid, Attempt: "attempt-9"})
	require.NoError(t, err)
	require.Equal(t, lua.Done, void.Outcome)
	late, err := s.Reserve(ctx, reserveArgs(s, tenant, "9", 1, nil))
	require.NoError(t, err)
	require.Equal(t, lua.Voided, late.Outcome)
}

func TestDocuments(t *testing.T) {
	r := redistest.Shared(t)
	heard := make(chan []string, 16)
	s, err := lua.Open(t.Context(), lua.Options{Name: "default", URL: r.URL(), OnInvalidate: func(keys []string) { heard <- keys }})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	ctx := t.Context()
	_, ok, err := s.ReadSecret(ctx, "abc")
	require.NoError(t, err)
	require.False(t, ok)
	out, err := s.PublishSecret(ctx, "abc", 2, []byte(`{"tenant":"t_1"}`))
	require.NoError(t, err)
	require.Equal(t, lua.Done, out)
	require.Equal(t, []string{lua.SecretKey("abc")}, <-heard)
	doc, ok, err := s.ReadSecret(ctx, "abc")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "t_1", doc.Tenant)
	out, err = s.PublishSecret(ctx, "abc", 1, []byte(`{"tenant":"t_2"}`))
	require.NoError(t, err)
	require.Equal(t, lua.Old, out)
}
