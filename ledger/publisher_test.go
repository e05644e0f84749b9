package ledger

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// openStore connects to a private Redis of the test.
func openStore(t testing.TB, s *redistest.Server) *lua.Store {
	store, err := lua.Open(t.Context(), lua.Options{Name: "default", URL: s.URL()})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// redis starts a private Redis as store default.
func redis(t testing.TB) (*redistest.Server, *lua.Store, map[string]*lua.Store) {
	s := redistest.Start(t)
	store := openStore(t, s)
	return s, store, map[string]*lua.Store{"default": store}
}

func do(t require.TestingT, s *redistest.Server, args ...string) any {
	reply, err := s.Do(args...)
	require.NoError(t, err)
	return reply
}

// newPublisher is one whose repair does not run, so that a test sees its own calls only.
func newPublisher(db *DB, stores map[string]*lua.Store) *Publisher {
	return &Publisher{outbox: outbox{db: db, stores: stores}}
}

func TestPublishBringsDocuments(t *testing.T) {
	_, store, stores := redis(t)
	db := openNew(t)
	who := seed(t, db, 100)
	require.NoError(t, newPublisher(db, stores).Publish(t.Context(), who.Tenant))

	conf, err := store.ReadConf(t.Context(), who.Tenant, who.App, who.Key)
	require.NoError(t, err)
	want, err := db.LoadDocs(t.Context(), who)
	require.NoError(t, err)
	assert.Equal(t, Docs{Tenant: *conf.Tenant, App: *conf.App, Key: *conf.Key, Version: want.Version}, want)
	secret, ok, err := store.ReadSecret(t.Context(), hashOf("first"))
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, lua.SecretDoc{Tenant: "t_x", App: "a_y", Key: "k_z", Store: "default", Status: lua.Active}, secret)
	assert.Empty(t, drain(t, db), "all of it is done")
}

// Editing limits applies to the running period at once, and never to what was used.
func TestPublishSetsLimitsOfTheRunningPeriod(t *testing.T) {
	s, store, stores := redis(t)
	db := openNew(t)
	who := seed(t, db, 100)
	p := newPublisher(db, stores)
	require.NoError(t, p.Publish(t.Context(), who.Tenant))
	accounts := func(scope quota.Scope) quota.Chain {
		id, now := who.ID(scope), store.Now()
		return quota.Chain{
			{Scope: scope, ID: id},
			{Scope: scope, ID: id, Period: quota.Month, Window: quota.WindowAt(quota.Month, now, time.UTC)},
			{Scope: scope, ID: id, Period: quota.Day, Window: quota.WindowAt(quota.Day, now, time.UTC)},
		}
	}
	for _, scope := range quota.Scopes {
		loads, err := db.LoadAccounts(t.Context(), who.Tenant, accounts(scope))
		require.NoError(t, err)
		r, err := store.Load(t.Context(), who.Tenant, accounts(scope), &loads)
		require.NoError(t, err)
		require.Equal(t, lua.Done, r.Outcome)
		for i, account := range accounts(scope) {
			do(t, s, "HSET", lua.AccountKey(who.Tenant, account), "spent", strconv.Itoa(7+i), "prepaid", "2", "inflight", "1")
		}
	}
	change := func(day, month, slots *int64) {
		b := BudgetPatch{Day: Set(day), Month: Set(month), Limits: Set(&LimitsPatch{Concurrency: Set(slots)})}
		_, _, err := db.PatchTenant(t.Context(), op("tenant.set"), who.Tenant, TenantPatch{OverageLimit: Set(int64(50)), BudgetPatch: b})
		require.NoError(t, err)
		_, _, err = db.PatchApp(t.Context(), op("app.set"), who.Tenant, who.App, AppPatch{BudgetPatch: b})
		require.NoError(t, err)
		_, _, err = db.PatchKey(t.Context(), op("key.set"), who.Tenant, who.Key, KeyPatch{BudgetPatch: b})
		require.NoError(t, err)
		require.NoError(t, p.Publish(t.Context(), who.Tenant))
	}
	check := func(scope quota.Scope, total, month, day, overage int64, slots string) {
		t.Helper()
		states, err := store.ReadAccounts(t.Context(), who.Tenant, accounts(scope))
		require.NoError(t, err)
		assert.Equal(t, []*quota.AccountState{
			{Total: total, OverageLimit: overage, Spent: 7, Prepaid: 2},
			{Total: month, Spent: 8, Prepaid: 2},
			{Total: day, Spent: 9, Prepaid: 2},
		}, states, scope.String())
		assert.Equal(t, slots, do(t, s, "HGET", lua.AccountKey(who.Tenant, accounts(scope)[0]), "max_inflight"), scope.String())
	}
	change(new(int64(5)), new(int64(0)), new(int64(3)))
	check(quota.Org, 100, 0, 5, 50, "3")
	check(quota.App, quota.Unlimited, 0, 5, 0, "3")
	check(quota.Key, quota.Unlimited, 0, 5, 0, "3")
	change(nil, nil, nil)
	check(quota.Org, 100, quota.Unlimited, quota.Unlimited, 50, "-1")
	check(quota.Key, quota.Unlimited, quota.Unlimited, quota.Unlimited, 0, "-1")
}

func TestPublicationsNeverGoBack(t *testing.T) {
	_, store, stores := redis(t)
	db := openNew(t)
	who := seed(t, db, 100)
	p := newPublisher(db, stores)
	require.NoError(t, p.Publish(t.Context(), who.Tenant))
	_, _, err := db.SetTenantStatus(t.Context(), op("tenant.suspend"), who.Tenant, lua.Suspended)
	require.NoError(t, err)
	early, err := db.PublicationsOf(t.Context(), who.Tenant)
	require.NoError(t, err)
	require.Len(t, early, 1)
	_, _, err = db.PatchTenant(t.Context(), op("tenant.set"), who.Tenant, TenantPatch{Name: Set("later")})
	require.NoError(t, err)

	require.NoError(t, p.publish(t.Context(), &early[0]))
	late, err := db.PublicationsOf(t.Context(), who.Tenant)
	require.NoError(t, err)
	require.Len(t, late, 1, "the newer change is still to be brought")
	require.NoError(t, p.publish(t.Context(), &late[0]))
	require.NoError(t, p.publish(t.Context(), &early[0]), "an old message that comes late changes nothing")
	conf, err := store.ReadConf(t.Context(), who.Tenant, who.App, who.Key)
	require.NoError(t, err)
	assert.Equal(t, "later", conf.Tenant.Name)
	assert.Equal(t, lua.Suspended, conf.Tenant.Status)
}

// A store that is away costs its own publications a delay, and no others.
func TestRepairBringsWhatAnOutageLeft(t *testing.T) {
	home, _, stores := redis(t)
	big := redistest.Start(t)
	bigStore := openStore(t, big)
	stores["big"] = bigStore
	db := openNew(t)
	_, _, err := db.CreateTenant(t.Context(), op("tenant.create"), Tenant{ID: "t_b", Store: "big"})
	require.NoError(t, err)
	_, _, err = db.CreateApp(t.Context(), op("app.create"), App{Tenant: "t_b", ID: "a_b"})
	require.NoError(t, err)
	big.Stop()

	begun := time.Now()
	p := NewPublisher(db, stores)
	defer p.Close()
	require.Error(t, p.Publish(t.Context(), "t_b"))
	assert.Less(t, time.Since(begun), 2*publishTimeout, "a store that is away is asked once")
	_, _, err = db.CreateKey(t.Context(), op("key.create"), Key{Tenant: "t_b", App: "a_b", ID: "k_b"}, hashOf("b"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return do(t, home, "EXISTS", lua.SecretKey(hashOf("b"))) == int64(1)
	}, 10*time.Second, 20*time.Millisecond, "the secret's store is up")

	require.NoError(t, big.Restart())
	require.Eventually(t, func() bool {
		list, err := db.Publications(t.Context(), "", 0)
		return err == nil && len(list) == 0
	}, 15*time.Second, 20*time.Millisecond)
	conf, err := bigStore.ReadConf(t.Context(), "t_b", "a_b", "k_b")
	require.NoError(t, err)
	assert.NotNil(t, conf.Tenant)
	assert.NotNil(t, conf.App)
	assert.NotNil(t, conf.Key)
}
