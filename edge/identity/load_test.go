package identity

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/quota"
)

// What Redis does not hold comes from SQL once, for all nodes.
func TestLoad(t *testing.T) {
	for _, store := range []string{DefaultStore, "gold"} {
		t.Run(store, func(t *testing.T) {
			c := newCustomer(store)
			c.docs.Version = 12
			sql, none := newBooks(c), newBooks()
			a, b := openNode(t, twoStores(t), sql, nil), openNode(t, twoStores(t), none, nil)
			who, err := a.find(c.secret)
			require.NoError(t, err)
			require.Equal(t, c.docs.Tenant, who.Tenant)
			require.Same(t, a.opt.Stores[store].Redis, who.Store)
			// Its own publication makes the node read again, from Redis.
			for range 100 {
				_, err = a.find(c.secret)
				require.NoError(t, err)
			}
			require.EqualValues(t, 1, sql.secretReads.Load())
			require.EqualValues(t, 1, sql.docReads.Load())
			who, err = b.find(c.secret)
			require.NoError(t, err)
			require.Equal(t, c.docs.Key, who.Key)
			require.Zero(t, none.secretReads.Load()+none.docReads.Load())
			// Redis now compares loads of accounts with the snapshot's version.
			chain := quota.Chain{{Scope: quota.Org, ID: c.doc.Tenant}}
			for _, load := range []struct {
				version int64
				want    lua.Outcome
			}{{1, lua.NeedLoad}, {12, lua.Done}} {
				reply, err := who.Store.Load(t.Context(), c.doc.Tenant, chain, &lua.Loads{
					Version: load.version, Accounts: []lua.AccountLoad{{Total: 100, MaxInflight: -1}},
				})
				require.NoError(t, err)
				require.Equal(t, load.want, reply.Outcome, "version %d", load.version)
			}
		})
	}
}

// Documents that a lookup publishes bring their limits to the accounts there.
func TestLoadBringsLimits(t *testing.T) {
	c := newCustomer("gold")
	c.docs.Version = 2
	limit := int64(70)
	c.docs.Tenant.OverageLimit, c.docs.App.Month = 30, &limit
	n := openNode(t, twoStores(t), newBooks(c), nil)
	gold := n.opt.Stores["gold"].Redis
	zone, err := quota.LoadZone(c.docs.Tenant.Timezone)
	require.NoError(t, err)
	chain := quota.Chain{
		{Scope: quota.Org, ID: c.doc.Tenant},
		{Scope: quota.App, ID: "a_1", Period: quota.Month, Window: quota.WindowAt(quota.Month, gold.Now(), zone)},
		{Scope: quota.App, ID: "a_1", Period: quota.Day, Window: quota.WindowAt(quota.Day, gold.Now(), zone)},
	}
	_, err = gold.Load(t.Context(), c.doc.Tenant, chain, &lua.Loads{Version: 1, Accounts: []lua.AccountLoad{
		{Total: 1000, OverageLimit: 5, MaxInflight: -1}, {Total: 50, MaxInflight: -1}, {Total: 9, MaxInflight: -1},
	}})
	require.NoError(t, err)
	_, err = n.find(c.secret)
	require.NoError(t, err)
	got, err := gold.ReadAccounts(t.Context(), c.doc.Tenant, chain)
	require.NoError(t, err)
	require.Equal(t, []*quota.AccountState{
		{Total: 1000, OverageLimit: 30}, {Total: 70}, {Total: quota.Unlimited},
	}, got)
}

// Parts that are missing are loaded, whichever they are.
func TestLoadMissingPart(t *testing.T) {
	for _, missing := range []string{"secret", "tenant", "app", "key"} {
		t.Run(missing, func(t *testing.T) {
			c := newCustomer("gold")
			c.docs.Version = 2
			sql := newBooks(c)
			n := openNode(t, twoStores(t), sql, nil)
			if missing != "secret" {
				c.publishSecret(t, n, 1)
			}
			for field, doc := range map[string]any{"tenant": c.docs.Tenant, "app": c.docs.App, "key": c.docs.Key} {
				if field == missing {
					continue
				}
				if field != "tenant" {
					field += ":" + field[:1] + "_1"
				}
				c.publishDoc(t, n, field, 1, doc)
			}
			_, err := n.find(c.secret)
			require.NoError(t, err)
			require.EqualValues(t, 1, sql.secretReads.Load()+sql.docReads.Load())
		})
	}
}

// A secret whose principal is in neither place is unknown.
func TestLoadNothing(t *testing.T) {
	sql := newBooks()
	n := openNode(t, twoStores(t), sql, nil)
	c := newCustomer("gold")
	c.publishSecret(t, n, 1)
	for range 3 {
		_, err := n.find(c.secret)
		require.ErrorIs(t, err, ErrUnknownKey)
	}
	require.EqualValues(t, 1, sql.docReads.Load())
	c.publishDoc(t, n, "tenant", 1, c.docs.Tenant)
	c.publishDoc(t, n, "app:a_1", 1, c.docs.App)
	c.publishDoc(t, n, "key:k_1", 1, c.docs.Key)
	soon(t, "known", func() bool { _, err := n.find(c.secret); return err == nil })
}

// SQL away: nobody can know, which is not remembered.
func TestLoadFails(t *testing.T) {
	c := newCustomer("gold")
	sql := newBooks(c)
	n := openNode(t, twoStores(t), sql, nil)
	down := errors.New("down")
	sql.fail.Store(&down)
	for range 2 {
		_, err := n.find(c.secret)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, err, down)
	}
	sql.fail.Store(nil)
	_, err := n.find(c.secret)
	require.NoError(t, err)
}

// One budget covers all that a lookup does with SQL.
func TestLoadBudget(t *testing.T) {
	c := newCustomer("gold")
	sql := newBooks(c)
	hold := make(chan struct{})
	defer close(hold)
	sql.hold.Store(&hold)
	n := openNode(t, twoStores(t), sql, func(o *Options) { o.LoadBudget = 50 * time.Millisecond })
	start := time.Now()
	_, err := n.find(c.secret)
	require.ErrorIs(t, err, ErrUnavailable)
	require.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
	require.Less(t, time.Since(start), time.Second)
}

// Keys of one tenant take turns; those of others do not wait for them.
func TestOneReadPerTenant(t *testing.T) {
	var all []*customer
	sql := newBooks()
	n := openNode(t, twoStores(t), sql, nil)
	for range 3 {
		first := newCustomer("gold")
		for i := range 8 {
			c := newCustomer("gold")
			c.doc, c.docs = first.doc, first.docs
			c.doc.Key = fmt.Sprintf("k_%d", i)
			c.docs.Key.ID = c.doc.Key
			sql.add(c)
			c.publishSecret(t, n, 1)
			all = append(all, c)
		}
	}
	hold := make(chan struct{})
	sql.hold.Store(&hold)
	var run sync.WaitGroup
	for _, c := range all {
		run.Go(func() {
			_, err := n.find(c.secret)
			require.NoError(t, err)
		})
	}
	soon(t, "one read of each tenant", func() bool { return sql.docReads.Load() == 3 })
	close(hold)
	run.Wait()
	require.Zero(t, sql.together.Load())
	require.EqualValues(t, len(all), sql.docReads.Load())
	require.Empty(t, n.turns.m)
}

// No more than 50 reads in any second, and no lookup waits longer than its budget.
func TestLoadsArePaced(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("known %v", known), func(t *testing.T) {
			sql := newBooks()
			n := openNode(t, twoStores(t), sql, func(o *Options) {
				o.SecretLoads, o.DocLoads, o.LoadBudget = nil, nil, 200*time.Millisecond
			})
			var run sync.WaitGroup
			var unknown, unavailable atomic.Int64
			start := time.Now()
			const lookups = 300
			for range lookups {
				c := newCustomer("gold")
				if known {
					c.publishSecret(t, n, 1)
				}
				run.Go(func() {
					switch _, err := n.find(c.secret); {
					case errors.Is(err, ErrUnknownKey):
						unknown.Add(1)
					case errors.Is(err, ErrUnavailable):
						unavailable.Add(1)
					}
				})
			}
			run.Wait()
			took := time.Since(start)
			reads := sql.secretReads.Load() + sql.docReads.Load()
			t.Logf("%d reads in %v", reads, took)
			require.LessOrEqual(t, float64(reads), 5+45*took.Seconds()+1)
			require.Equal(t, reads, unknown.Load())
			require.EqualValues(t, lookups, unknown.Load()+unavailable.Load())
			require.Positive(t, unavailable.Load())
		})
	}
}
