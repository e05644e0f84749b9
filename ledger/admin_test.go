package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/quota"
)

func TestCreateTenantBounds(t *testing.T) {
	db := openAt(t, fileURL(t), Options{
		Stores: []string{"big"},
		CheckPolicy: func(p []byte) error {
			return map[bool]error{true: errors.New("no such field")}[strings.Contains(string(p), "typo")]
		},
	})
	for name, row := range map[string]struct {
		want  Tenant
		field string // "" : accepted
	}{
		"nothing given":          {Tenant{}, ""},
		"unlimited":              {Tenant{Total: quota.Unlimited, OverageLimit: quota.CreditsMax}, ""},
		"largest":                {Tenant{Total: quota.CreditsMax}, ""},
		"store":                  {Tenant{Store: "big"}, ""},
		"long name":              {Tenant{Name: strings.Repeat("ü", 200)}, ""},
		"zone":                   {Tenant{Timezone: "Europe/Berlin"}, ""},
		"policy":                 {Tenant{Policy: json.RawMessage(`{"outage":"deny"}`)}, ""},
		"total below -1":         {Tenant{Total: -2}, "total"},
		"total too large":        {Tenant{Total: quota.CreditsMax + 1}, "total"},
		"overage negative":       {Tenant{OverageLimit: -1}, "overage_limit"},
		"sum too large":          {Tenant{Total: quota.CreditsMax, OverageLimit: 1}, "overage_limit"},
		"unknown store":          {Tenant{Store: "small"}, "store"},
		"unknown zone":           {Tenant{Timezone: "Mars/Base"}, "timezone"},
		"local zone":             {Tenant{Timezone: "Local"}, "timezone"},
		"name too long":          {Tenant{Name: strings.Repeat("ü", 201)}, "name"},
		"name with control":      {Tenant{Name: "a\nb"}, "name"},
		"name not UTF-8":         {Tenant{Name: "a\xff"}, "name"},
		"id of another kind":     {Tenant{ID: "a_x"}, "id"},
		"id too long":            {Tenant{ID: "t_" + strings.Repeat("x", 63)}, "id"},
		"day negative":           {Tenant{Budget: quota.Budget{Day: new(int64(-1))}}, "day"},
		"month too large":        {Tenant{Budget: quota.Budget{Month: ptr(quota.CreditsMax + 1)}}, "month"},
		"bucket too large":       {Tenant{Budget: quota.Budget{Limits: quota.Limits{TPM: &quota.Bucket{Rate: quota.RateMax + 1}}}}, "limits.tpm"},
		"concurrency too large":  {Tenant{Budget: quota.Budget{Limits: quota.Limits{Concurrency: ptr(quota.ConcurrencyMax + 1)}}}, "limits.concurrency"},
		"policy no object":       {Tenant{Policy: json.RawMessage(`[]`)}, "policy"},
		"policy refused":         {Tenant{Policy: json.RawMessage(`{"typo":1}`)}, "policy"},
		"policy too long":        {Tenant{Policy: json.RawMessage(`{"x":"` + strings.Repeat("x", policyBytesMax) + `"}`)}, "policy"},
		"policy of null members": {Tenant{Policy: json.RawMessage(`{"typo":null}`)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			made, repeat, err := db.CreateTenant(t.Context(), op("tenant.create"), row.want)
			assert.False(t, repeat)
			if row.field != "" {
				var bad *InvalidError
				require.ErrorAs(t, err, &bad)
				require.ErrorIs(t, err, ErrInvalid)
				assert.Equal(t, row.field, bad.Field)
				return
			}
			require.NoError(t, err)
			assert.NoError(t, quota.CheckID("t_", made.ID))
			assert.Equal(t, lua.Active, made.Status)
			assert.NotEmpty(t, made.Store)
			assert.NotEmpty(t, made.Timezone)
			read, err := db.GetTenant(t.Context(), made.ID)
			require.NoError(t, err)
			assert.Equal(t, made, read)
		})
	}
}

func TestPatch(t *testing.T) {
	db := openNew(t)
	seed(t, db, 100)
	drain(t, db)
	patch := func(body string) Tenant {
		t.Helper()
		var p TenantPatch
		require.NoError(t, decodeStrict([]byte(body), &p))
		now, _, err := db.PatchTenant(t.Context(), op("tenant.patch"), "t_x", p)
		require.NoError(t, err)
		read, err := db.GetTenant(t.Context(), "t_x")
		require.NoError(t, err)
		assert.Equal(t, read, now)
		return now
	}
	r := patch(`{"day":5,"month":0,"limits":{"rpm":60,"tpm":{"rate":10,"burst":20},"concurrency":0},"policy":{"outage":"deny","hard":true},"overage_limit":7}`)
	assert.Equal(t, int64(5), *r.Day)
	assert.Equal(t, int64(0), *r.Month, "0 allows nothing, it does not mean no limit")
	version := r.Version

	r = patch(`{"month":null,"limits":{"rpm":null},"policy":{"hard":null,"fit":"refuse"}}`)
	assert.Equal(t, version+1, r.Version)
	assert.Equal(t, int64(5), *r.Day, "absent leaves")
	assert.Nil(t, r.Month, "null removes")
	assert.Nil(t, r.Limits.RPM)
	assert.Equal(t, &quota.Bucket{Rate: 10, Burst: 20}, r.Limits.TPM)
	assert.Equal(t, int64(0), *r.Limits.Concurrency)
	assert.JSONEq(t, `{"outage":"deny","fit":"refuse"}`, string(r.Policy))
	assert.Equal(t, int64(7), r.OverageLimit)
	assert.Equal(t, "X", r.Name)

	r = patch(`{"limits":null,"policy":null,"overage_limit":null,"timezone":"Asia/Tokyo"}`)
	assert.Equal(t, quota.Limits{}, r.Limits)
	assert.Empty(t, r.Policy)
	assert.Zero(t, r.OverageLimit)
	assert.Equal(t, "UTC", patch(`{"timezone":null}`).Timezone)
	assert.Equal(t, int64(100), r.Total)

	for _, body := range []string{`{"total":5}`, `{"store":"big"}`, `{"limits":{"rps":1,"x":1}}`, `{"day":1.5}`, `{"day":"5"}`, `{"limits":{"rpm":-1}}`, `{"day":9223372036854775808}`} {
		assert.Error(t, decodeStrict([]byte(body), &TenantPatch{}), body)
	}
	_, _, err := db.PatchTenant(t.Context(), op("tenant.patch"), "t_x", TenantPatch{OverageLimit: Set(quota.CreditsMax)})
	assert.ErrorIs(t, err, ErrInvalid, "total + overage_limit above the largest amount")
	_, _, err = db.PatchTenant(t.Context(), op("tenant.patch"), "t_none", TenantPatch{})
	assert.ErrorIs(t, err, ErrNotFound)

	app, _, err := db.PatchApp(t.Context(), op("app.patch"), "t_x", "a_y", AppPatch{Name: Set("Y"), BudgetPatch: BudgetPatch{Day: Set(new(int64(3)))}})
	require.NoError(t, err)
	key, _, err := db.PatchKey(t.Context(), op("key.patch"), "t_x", "k_z", KeyPatch{Models: Set([]string{"m"})})
	require.NoError(t, err)
	docs, err := db.LoadDocs(t.Context(), quota.Principal{Tenant: "t_x", App: "a_y", Key: "k_z"})
	require.NoError(t, err)
	assert.Equal(t, app.doc(), docs.App)
	assert.Equal(t, key.doc(), docs.Key)
	assert.Equal(t, key.Version, docs.Version)
	assert.Less(t, docs.App.Version, docs.Key.Version)
	_, _, err = db.PatchApp(t.Context(), op("app.patch"), "t_x", "a_none", AppPatch{})
	assert.ErrorIs(t, err, ErrNotFound)
}

func TestKeys(t *testing.T) {
	var c clock
	c.ms.Store(1_000_000)
	db := openAt(t, fileURL(t), Options{Now: c.now})
	ctx := t.Context()
	who := seed(t, db, 100)
	secret := func(hash string) lua.SecretDoc {
		t.Helper()
		s, err := db.LoadSecret(ctx, hash)
		require.NoError(t, err)
		return s.Doc
	}
	status := func(want lua.Status, err error) {
		t.Helper()
		if _, _, got := db.SetKeyStatus(ctx, op("key.status"), "t_x", "k_z", want); err != nil {
			require.ErrorIs(t, got, err)
		} else {
			require.NoError(t, got)
		}
	}
	first := lua.SecretDoc{Tenant: who.Tenant, App: who.App, Key: who.Key, Store: "default", Status: lua.Active}
	assert.Equal(t, first, secret(hashOf("first")))

	// Rotation: both work until the old one expires; a sooner end is kept.
	_, _, err := db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", hashOf("second"), 1_000_500)
	require.NoError(t, err)
	_, _, err = db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", hashOf("third"), 1_000_900)
	require.NoError(t, err)
	assert.Equal(t, int64(1_000_500), secret(hashOf("first")).ExpiresAt)
	assert.Equal(t, int64(1_000_900), secret(hashOf("second")).ExpiresAt)
	assert.Zero(t, secret(hashOf("third")).ExpiresAt)
	_, _, err = db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", hashOf("first"), 1_000_900)
	assert.ErrorIs(t, err, ErrExists)
	_, _, err = db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", "ABC", 1_000_900)
	assert.ErrorIs(t, err, ErrInvalid)

	// The status reaches every secret that can still work.
	drain(t, db)
	status(lua.Suspended, nil)
	kinds := map[PublishKind]int{}
	for _, p := range drain(t, db) {
		kinds[p.Kind]++
		if p.Kind == PublishSecret {
			assert.Equal(t, lua.Suspended, p.Secret.Doc.Status)
			assert.Equal(t, p.Version, p.Secret.Version)
		}
	}
	assert.Equal(t, map[PublishKind]int{PublishSecret: 3, PublishKey: 1}, kinds)
	c.ms.Add(2 * expirySlack.Milliseconds())
	status(lua.Active, nil)
	assert.Len(t, drain(t, db), 2, "the key and the one secret that has not ended")

	for i := range liveSecretsMax - 1 {
		_, _, err = db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", hashOf(strings.Repeat("x", i+1)), c.ms.Load()+1000)
		require.NoError(t, err)
	}
	_, _, err = db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", hashOf("too many"), c.ms.Load()+1000)
	assert.ErrorIs(t, err, ErrTooMany)

	status(lua.Revoked, nil)
	status(lua.Revoked, nil)
	status(lua.Active, ErrRevoked)
	status(lua.Suspended, ErrRevoked)
	assert.Equal(t, lua.Revoked, secret(hashOf("third")).Status)
	_, _, err = db.PatchKey(ctx, op("key.patch"), "t_x", "k_z", KeyPatch{Name: Set("n")})
	assert.ErrorIs(t, err, ErrRevoked)
	_, _, err = db.RotateKey(ctx, op("key.rotate"), "t_x", "k_z", hashOf("late"), c.ms.Load()+1)
	assert.ErrorIs(t, err, ErrRevoked)

	_, err = db.LoadSecret(ctx, hashOf("unknown"))
	assert.ErrorIs(t, err, ErrNotFound)
	_, _, err = db.CreateKey(ctx, op("key.create"), Key{Tenant: "t_x", App: "a_none"}, hashOf("a"))
	assert.ErrorIs(t, err, ErrNotFound)
	_, _, err = db.CreateKey(ctx, op("key.create"), Key{Tenant: "t_none", App: "a_y"}, hashOf("a"))
	assert.ErrorIs(t, err, ErrNotFound)
}

func TestTenantStatus(t *testing.T) {
	db := openNew(t)
	seed(t, db, 1)
	r, _, err := db.SetTenantStatus(t.Context(), op("tenant.suspend"), "t_x", lua.Suspended)
	require.NoError(t, err)
	assert.Equal(t, lua.Suspended, r.Status)
	_, _, err = db.SetTenantStatus(t.Context(), op("tenant.suspend"), "t_x", lua.Revoked)
	assert.ErrorIs(t, err, ErrInvalid)
	r, _, err = db.SetTenantStatus(t.Context(), op("tenant.resume"), "t_x", lua.Active)
	require.NoError(t, err)
	assert.Equal(t, lua.Active, r.Status)
}

func TestOps(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	seed(t, db, 1)
	create := op("key.create")
	want := Key{Tenant: "t_x", App: "a_y", Total: 5}
	made, repeat, err := db.CreateKey(ctx, create, want, hashOf("shown once"))
	require.NoError(t, err)
	assert.False(t, repeat)
	again, repeat, err := db.CreateKey(ctx, create, want, hashOf("another"))
	require.NoError(t, err)
	assert.True(t, repeat)
	assert.Equal(t, made, again, "the same answer")
	_, err = db.LoadSecret(ctx, hashOf("another"))
	assert.ErrorIs(t, err, ErrNotFound, "no second effect")

	other := create
	other.Digest[0]++
	_, _, err = db.CreateKey(ctx, other, want, hashOf("another"))
	assert.ErrorIs(t, err, ErrOpConflict)
	other = create
	other.What = "app.create"
	_, _, err = db.CreateApp(ctx, other, App{Tenant: "t_x"})
	assert.ErrorIs(t, err, ErrOpConflict)

	// A refused operation has no effect and may be tried again under its id.
	retry := op("tenant.create")
	_, _, err = db.CreateTenant(ctx, retry, Tenant{ID: "t_x"})
	assert.ErrorIs(t, err, ErrExists)
	_, repeat, err = db.CreateTenant(ctx, retry, Tenant{ID: "t_x2"})
	require.NoError(t, err)
	assert.False(t, repeat)

	for _, bad := range []Op{{ID: strings.Repeat("x", 129)}, {ID: "a\nb"}, {ID: "ü"}, {Who: strings.Repeat("x", 201)}} {
		_, _, err = db.CreateTenant(ctx, bad, Tenant{})
		assert.ErrorIs(t, err, ErrInvalid)
	}

	// Neither secrets nor their hashes are in what administrators read.
	for _, query := range []string{`SELECT answer FROM op`, `SELECT old_doc || new_doc FROM admin_log`} {
		rows, err := db.reader.QueryContext(ctx, query)
		require.NoError(t, err)
		n := 0
		for ; rows.Next(); n++ {
			var text string
			require.NoError(t, rows.Scan(&text))
			for _, secret := range []string{"first", "shown once", "another"} {
				assert.NotContains(t, text, secret)
				assert.NotContains(t, text, hashOf(secret))
			}
		}
		require.NoError(t, errors.Join(rows.Err(), rows.Close()))
		assert.Equal(t, 5, n, query)
	}
}

func TestLists(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	seed(t, db, 1)
	for _, id := range []string{"t_c", "t_a", "t_b"} {
		_, _, err := db.CreateTenant(ctx, op("tenant.create"), Tenant{ID: id, Store: "big"})
		require.NoError(t, err)
	}
	ids, err := db.TenantsAfter(ctx, "big", "", 2)
	require.NoError(t, err)
	assert.Equal(t, []string{"t_a", "t_b"}, ids)
	ids, err = db.TenantsAfter(ctx, "big", "t_b", 2)
	require.NoError(t, err)
	assert.Equal(t, []string{"t_c"}, ids)
	ids, err = db.TenantsAfter(ctx, "big", "t_c", 2)
	require.NoError(t, err)
	assert.Empty(t, ids)
	list, err := db.ListTenants(ctx, "t_a", 2)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, "t_b", list[0].ID)
	apps, err := db.ListApps(ctx, "t_x", "", 0)
	require.NoError(t, err)
	assert.Len(t, apps, 1)
	keys, err := db.ListKeys(ctx, "t_x", "", 0)
	require.NoError(t, err)
	assert.Len(t, keys, 1)
	_, err = db.ListKeys(ctx, "t_none", "", 0)
	assert.ErrorIs(t, err, ErrNotFound)
	var plan string
	var a, b, c int
	require.NoError(t, db.reader.QueryRow(`EXPLAIN QUERY PLAN SELECT id FROM tenant WHERE store = 'x' AND id > 'y' ORDER BY id LIMIT 5`).Scan(&a, &b, &c, &plan))
	assert.Contains(t, plan, "COVERING INDEX tenant_by_store")
}

func TestPublications(t *testing.T) {
	db := openNew(t)
	ctx := t.Context()
	seed(t, db, 1)
	list, err := db.Publications(ctx, "default", 0)
	require.NoError(t, err)
	require.Len(t, list, 4)
	// Changed while a publisher holds the old reading: stays queued, newer.
	_, _, err = db.PatchApp(ctx, op("app.patch"), "t_x", "a_y", AppPatch{Name: Set("new")})
	require.NoError(t, err)
	for _, p := range list {
		require.NoError(t, db.DonePublication(ctx, p))
	}
	list, err = db.PublicationsOf(ctx, "t_x")
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, PublishApp, list[0].Kind)
	assert.Equal(t, "new", list[0].AppDoc.Name)
	assert.Equal(t, list[0].Version, list[0].AppDoc.Version)
	require.NoError(t, db.DonePublication(ctx, list[0]))
	list, err = db.Publications(ctx, "", 0)
	require.NoError(t, err)
	assert.Empty(t, list)

	// Secrets go to the default store, everything else to the tenant's.
	_, _, err = db.CreateTenant(ctx, op("tenant.create"), Tenant{ID: "t_big", Store: "big"})
	require.NoError(t, err)
	_, _, err = db.CreateApp(ctx, op("app.create"), App{ID: "a_y", Tenant: "t_big"})
	require.NoError(t, err)
	_, _, err = db.CreateKey(ctx, op("key.create"), Key{Tenant: "t_big", App: "a_y"}, hashOf("big"))
	require.NoError(t, err)
	list, err = db.Publications(ctx, "default", 0)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, "big", list[0].Secret.Doc.Store)
	list, err = db.Publications(ctx, "big", 0)
	require.NoError(t, err)
	assert.Len(t, list, 3)
}

func TestWritesAreBounded(t *testing.T) {
	url := fileURL(t)
	db := openAt(t, url, Options{WriteTimeout: 50 * time.Millisecond})
	other := openAt(t, url, Options{})
	held, err := other.writer.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	begin := time.Now()
	_, _, err = db.CreateTenant(t.Context(), op("tenant.create"), Tenant{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(begin), 2*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = db.ListTenants(ctx, "", 1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = db.ListTenants(t.Context(), "", 1)
	require.NoError(t, err, "readers do not wait for writers")
	require.NoError(t, held.Rollback())
	_, _, err = db.CreateTenant(t.Context(), op("tenant.create"), Tenant{})
	require.NoError(t, err)
}
