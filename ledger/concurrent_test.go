package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/quota"
)

// two opens one file twice, as two nodes of one machine do.
func two(t *testing.T) [2]*DB {
	url := fileURL(t)
	return [2]*DB{openAt(t, url, Options{}), openAt(t, url, Options{})}
}

// race runs fn eight times at once, by turns on both handles.
func race(dbs [2]*DB, fn func(db *DB, i int)) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { fn(dbs[i%2], i) })
	}
	wg.Wait()
}

func TestSameIDAtOnce(t *testing.T) {
	dbs := two(t)
	for round := range 20 {
		var made atomic.Int64
		race(dbs, func(db *DB, i int) {
			_, _, err := db.CreateTenant(t.Context(), op("tenant.create"), Tenant{ID: fmt.Sprintf("t_%d", round), Total: int64(i)})
			if err == nil {
				made.Add(1)
			} else {
				assert.ErrorIs(t, err, ErrExists)
			}
		})
		require.Equal(t, int64(1), made.Load())
	}
}

func TestSameOpAtOnce(t *testing.T) {
	dbs := two(t)
	seed(t, dbs[0], 100)
	for range 20 {
		create, adjust := op("app.create"), op("adjust")
		var first, began atomic.Int64
		var mu sync.Mutex
		ids, nums := map[string]bool{}, map[int64]bool{}
		race(dbs, func(db *DB, _ int) {
			made, repeat, err := db.CreateApp(t.Context(), create, App{Tenant: "t_x"})
			assert.NoError(t, err)
			a, again, err := db.BeginAdjust(t.Context(), adjust, "t_x", quota.Org, "t_x", 1)
			assert.NoError(t, err)
			if !repeat {
				first.Add(1)
			}
			if !again {
				began.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[made.ID], nums[a.Num] = true, true
		})
		require.Equal(t, int64(1), first.Load())
		require.Equal(t, int64(1), began.Load())
		require.Len(t, ids, 1, "all got the same answer")
		require.Len(t, nums, 1)
	}
	apps, err := dbs[1].ListApps(t.Context(), "t_x", "", 0)
	require.NoError(t, err)
	assert.Len(t, apps, 21)
}

func TestBringAtOnce(t *testing.T) {
	dbs := two(t)
	seed(t, dbs[0], 100)
	drain(t, dbs[0])
	var s store
	var mu sync.Mutex // the store is one thread
	org := Subject{"t_x", quota.Org, "t_x"}
	race(dbs, func(db *DB, _ int) {
		send := func() SendAdjust {
			inner := s.send(db, always, nil)
			return func(ctx context.Context, a Adjustment, force bool) (AdjustReply, error) {
				mu.Lock()
				defer mu.Unlock()
				return inner(ctx, a, force)
			}
		}()
		for range 5 {
			_, _, err := db.BeginAdjust(t.Context(), op("adjust"), "t_x", quota.Org, "t_x", 1)
			assert.NoError(t, err)
			assert.NoError(t, db.BringAdjusts(t.Context(), org, send))
		}
	})
	r, err := dbs[0].GetTenant(t.Context(), "t_x")
	require.NoError(t, err)
	assert.Equal(t, int64(140), r.Total)
	assert.Equal(t, int64(140), s.account.total)
	list, err := dbs[0].OpenAdjusts(t.Context(), org)
	require.NoError(t, err)
	assert.Empty(t, list)
}

// Every patch writes the same number everywhere: a load that mixes two
// versions would show two.
func TestLoadsAreOneSnapshot(t *testing.T) {
	dbs := two(t)
	who := seed(t, dbs[0], quota.Unlimited)
	chain := quota.Chain{
		{Scope: quota.Org, ID: who.Tenant},
		{Scope: quota.Org, ID: who.Tenant, Period: quota.Month, Window: quota.Window{Name: "m202611"}},
		{Scope: quota.Org, ID: who.Tenant, Period: quota.Day, Window: quota.Window{Name: "d20261130"}},
	}
	const patches = 150
	first := int64(0)
	for n := range int64(2) { // the first patch gives the versions their offset
		r, _, err := dbs[0].PatchTenant(t.Context(), Op{}, who.Tenant, same(n))
		require.NoError(t, err)
		first = r.Version - n
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for !stop.Load() {
				loads, err := dbs[i%2].LoadAccounts(t.Context(), who.Tenant, chain)
				if !assert.NoError(t, err) {
					return
				}
				n := loads.Version - first
				for j, a := range loads.Accounts {
					got := a.Total
					if j == 0 {
						got = a.OverageLimit
						assert.Equal(t, n, a.MaxInflight)
					}
					if !assert.Equal(t, n, got) {
						return
					}
				}
			}
		})
	}
	for n := int64(2); n < patches; n++ {
		_, _, err := dbs[n%2].PatchTenant(t.Context(), Op{}, who.Tenant, same(n))
		require.NoError(t, err)
	}
	stop.Store(true)
	wg.Wait()
}

func same(n int64) TenantPatch {
	return TenantPatch{OverageLimit: Set(n), BudgetPatch: BudgetPatch{
		Day: Set(&n), Month: Set(&n), Limits: Set(&LimitsPatch{Concurrency: Set(&n)}),
	}}
}

func TestLoadAccounts(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	_, _, err := db.CreateTenant(ctx, op("tenant.create"), Tenant{
		ID: "t_x", Total: 1000, OverageLimit: 50, Budget: quota.Budget{Month: new(int64(300)), Limits: quota.Limits{Concurrency: new(int64(9))}},
	})
	require.NoError(t, err)
	_, _, err = db.CreateApp(ctx, op("app.create"), App{ID: "a_y", Tenant: "t_x", Total: 0})
	require.NoError(t, err)
	_, _, err = db.CreateApp(ctx, op("app.create"), App{ID: "a_other", Tenant: "t_x", Total: 0})
	require.NoError(t, err)
	_, _, err = db.CreateKey(ctx, op("key.create"), Key{
		ID: "k_z", Tenant: "t_x", App: "a_y", Total: quota.Unlimited, Budget: quota.Budget{Day: new(int64(0))},
	}, hashOf("s"))
	require.NoError(t, err)
	month, day := quota.Window{Name: "m202611"}, quota.Window{Name: "d20261130"}
	chain := quota.Chain{
		{Scope: quota.Org, ID: "t_x"},
		{Scope: quota.App, ID: "a_y"},
		{Scope: quota.Key, ID: "k_z"},
		{Scope: quota.Org, ID: "t_x", Period: quota.Month, Window: month},
		{Scope: quota.Key, ID: "k_z", Period: quota.Day, Window: day},
		{Scope: quota.App, ID: "a_y", Period: quota.Day, Window: day},
	}
	// What a fold leaves behind.
	_, err = db.writer.Exec(`UPDATE account SET spent = 7, fold = 3 WHERE scope = 'key'`)
	require.NoError(t, err)
	_, err = db.writer.Exec(`INSERT INTO account (tenant, scope, scope_id, window_name, total, spent, fold, adj, adj_issued, claim, claim_until)
		VALUES ('t_x', 'org', 't_x', 'm202611', -1, 20, 3, 0, 0, '', 0)`)
	require.NoError(t, err)

	loads, err := db.LoadAccounts(ctx, "t_x", chain)
	require.NoError(t, err)
	assert.Equal(t, int64(4), loads.Version)
	assert.Equal(t, []lua.AccountLoad{
		{Total: 1000, OverageLimit: 50, MaxInflight: 9},
		{Total: 0, MaxInflight: -1},
		{Total: -1, MaxInflight: -1, Spent: 7, Fold: 3},
		{Total: 300, MaxInflight: -1, Spent: 20, Fold: 3},
		{Total: 0, MaxInflight: -1},
		{Total: -1, MaxInflight: -1},
	}, loads.Accounts)

	for name, chain := range map[string]quota.Chain{
		"tenant":           {{Scope: quota.Org, ID: "t_none"}},
		"app":              {{Scope: quota.Org, ID: "t_x"}, {Scope: quota.App, ID: "a_none"}},
		"key":              {{Scope: quota.Org, ID: "t_x"}, {Scope: quota.Key, ID: "k_none"}},
		"key of other app": {{Scope: quota.Org, ID: "t_x"}, {Scope: quota.App, ID: "a_other"}, {Scope: quota.Key, ID: "k_z"}},
	} {
		_, err := db.LoadAccounts(ctx, chain[0].ID, chain)
		assert.ErrorIs(t, err, ErrNotFound, name)
	}
	for _, chain := range []quota.Chain{nil, make(quota.Chain, quota.ChainMax+1), {{Scope: quota.Org, ID: "t_y"}}, {{Scope: quota.App, ID: "a_y"}, {Scope: quota.App, ID: "a_other"}}} {
		_, err := db.LoadAccounts(ctx, "t_x", chain)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err = db.LoadDocs(ctx, quota.Principal{Tenant: "t_x", App: "a_other", Key: "k_z"})
	assert.True(t, errors.Is(err, ErrNotFound))
}
