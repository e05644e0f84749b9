package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"tollgate/lua"
	"tollgate/quota"
)

// Tenant is a tenant as SQL holds it.
type Tenant struct {
	ID           string          `json:"id"` // t_…; made at creation if empty
	Name         string          `json:"name"`
	Store        string          `json:"store"`    // never changes; empty at creation: "default"
	Timezone     string          `json:"timezone"` // tz database name; empty: UTC
	Status       lua.Status      `json:"status"`   // active or suspended
	Total        int64           `json:"total"`    // credits, or quota.Unlimited; adjustments change it, patches never
	OverageLimit int64           `json:"overage_limit"`
	Policy       json.RawMessage `json:"policy,omitempty"`
	quota.Budget
	Version   int64     `json:"version"` // raised by every change of anything of the tenant
	CreatedAt time.Time `json:"created_at"`
	// docVersion is the version at which what the tenant document shows last changed.
	docVersion int64
}

// TenantPatch changes a tenant. Its JSON form is the body of the PATCH.
type TenantPatch struct {
	Name         Field[string]          `json:"name"`
	OverageLimit Field[int64]           `json:"overage_limit"` // null: none
	Timezone     Field[string]          `json:"timezone"`      // null: UTC
	Policy       Field[json.RawMessage] `json:"policy"`        // an object is laid over the present one, null members removed; null removes all
	BudgetPatch
}

// storeDefault holds the documents of API keys, and tenants that name no store.
const storeDefault = "default"

// doc gives the document that nodes read.
func (r *Tenant) doc() lua.TenantDoc {
	return lua.TenantDoc{
		ID: r.ID, Name: r.Name, Status: r.Status, Timezone: r.Timezone, Store: r.Store,
		OverageLimit: r.OverageLimit, Policy: r.Policy, Budget: r.Budget, Version: r.docVersion,
	}
}

func (db *DB) checkTenant(r *Tenant) error {
	if err := check("id", quota.CheckID("t_", r.ID)); err != nil {
		return err
	}
	if err := checkName(r.Name); err != nil {
		return err
	}
	if r.Store != storeDefault && !slices.Contains(db.opt.Stores, r.Store) {
		return invalid("store", "%q is no configured store", r.Store)
	}
	if len(r.Timezone) > 64 {
		return invalid("timezone", "longer than 64 bytes")
	}
	if _, err := quota.LoadZone(r.Timezone); err != nil {
		return check("timezone", err)
	}
	if err := checkTotal(r.Total, r.OverageLimit); err != nil {
		return err
	}
	if err := checkBudget(r.Budget); err != nil {
		return err
	}
	return db.checkPolicy(r.Policy)
}

// CreateTenant adds a tenant and its `ever` account. Status, Version and
// CreatedAt are set here. A taken id is ErrExists.
func (db *DB) CreateTenant(ctx context.Context, op Op, want Tenant) (made Tenant, repeat bool, err error) {
	if want.ID == "" {
		want.ID = newID("t_")
	}
	if want.Store == "" {
		want.Store = storeDefault
	}
	if want.Timezone == "" {
		want.Timezone = "UTC"
	}
	if want.Policy, err = mergePolicy(nil, want.Policy); err != nil {
		return Tenant{}, false, err
	}
	want.Status, want.Version, want.docVersion = lua.Active, 1, 1
	if err := db.checkTenant(&want); err != nil {
		return Tenant{}, false, err
	}
	repeat, err = db.write(ctx, op, &made, func(t *tx) error {
		made = want
		made.CreatedAt = time.UnixMilli(t.now).UTC()
		if err := t.insertTenant(ctx, &made); err != nil {
			return err
		}
		if err := t.insertAccount(ctx, made.ID, quota.Org, made.ID, made.Total); err != nil {
			return err
		}
		if err := t.publish(ctx, Publication{Tenant: made.ID, Kind: PublishTenant, Item: made.ID, Store: made.Store, Version: 1}); err != nil {
			return err
		}
		return t.log(ctx, op, made.ID, made.ID, nil, made)
	})
	return made, repeat, err
}

func (t *tx) insertTenant(ctx context.Context, r *Tenant) error {
	limits, err := json.Marshal(r.Limits)
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, `INSERT INTO tenant (id, name, store, timezone, status, overage_limit, day_credits, month_credits,
		limits, policy, version, doc_version, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Name, r.Store, r.Timezone, string(r.Status), r.OverageLimit, r.Day, r.Month,
		string(limits), string(r.Policy), r.Version, r.docVersion, t.now, t.now)
	if err != nil && t.d.isUnique(err) {
		return exists("tenant", r.ID)
	}
	return err
}

// insertAccount makes a scope's `ever` account.
func (t *tx) insertAccount(ctx context.Context, tenant string, scope quota.Scope, id string, total int64) error {
	_, err := t.exec(ctx, `INSERT INTO account (tenant, scope, scope_id, window_name, total, spent, fold, adj, adj_issued, claim, claim_until)
		VALUES (?, ?, ?, '', ?, 0, 0, 0, 0, '', 0)`, tenant, scope.String(), id, total)
	return err
}

// bump raises the tenant's version and gives it with the tenant's store. Every
// change calls it first: the row it writes is the lock that puts a tenant's
// changes in order.
func (t *tx) bump(ctx context.Context, tenant string) (version int64, store string, err error) {
	n, err := t.exec(ctx, `UPDATE tenant SET version = version + 1, updated_at = ? WHERE id = ?`, t.now, tenant)
	if err != nil {
		return 0, "", err
	}
	if n == 0 {
		return 0, "", ErrNotFound
	}
	err = t.row(ctx, `SELECT version, store FROM tenant WHERE id = ?`, []any{tenant}, &version, &store)
	return version, store, err
}

// PatchTenant changes what the patch sets.
func (db *DB) PatchTenant(ctx context.Context, op Op, id string, patch TenantPatch) (now Tenant, repeat bool, err error) {
	return db.changeTenant(ctx, op, id, func(t *tx, r *Tenant) error {
		patch.Name.apply(&r.Name)
		patch.OverageLimit.apply(&r.OverageLimit)
		patch.Timezone.apply(&r.Timezone)
		patch.BudgetPatch.apply(&r.Budget)
		if r.Timezone == "" {
			r.Timezone = "UTC"
		}
		if patch.Policy.Set {
			base := r.Policy
			if len(patch.Policy.Value) == 0 || string(patch.Policy.Value) == "null" {
				base, patch.Policy.Value = nil, nil
			}
			var err error
			if r.Policy, err = mergePolicy(base, patch.Policy.Value); err != nil {
				return err
			}
		}
		if err := db.checkTenant(r); err != nil {
			return err
		}
		// Top-ups on their way must still fit under the new overage limit.
		raise, err := t.pendingRaise(ctx, id, quota.Org, id)
		if err != nil || r.Total == quota.Unlimited {
			return err
		}
		return checkTotal(r.Total+raise, r.OverageLimit)
	})
}

// SetTenantStatus suspends or resumes a tenant.
func (db *DB) SetTenantStatus(ctx context.Context, op Op, id string, status lua.Status) (now Tenant, repeat bool, err error) {
	if status != lua.Active && status != lua.Suspended {
		return Tenant{}, false, invalid("status", "a tenant is active or suspended")
	}
	return db.changeTenant(ctx, op, id, func(_ *tx, r *Tenant) error {
		r.Status = status
		return nil
	})
}

func (db *DB) changeTenant(ctx context.Context, op Op, id string, change func(*tx, *Tenant) error) (now Tenant, repeat bool, err error) {
	repeat, err = db.write(ctx, op, &now, func(t *tx) error {
		version, store, err := t.bump(ctx, id)
		if err != nil {
			return err
		}
		before, err := t.tenant(ctx, id)
		if err != nil {
			return err
		}
		now = before
		now.docVersion = version
		if err := change(t, &now); err != nil {
			return err
		}
		limits, err := json.Marshal(now.Limits)
		if err != nil {
			return err
		}
		_, err = t.exec(ctx, `UPDATE tenant SET name = ?, timezone = ?, status = ?, overage_limit = ?, day_credits = ?,
			month_credits = ?, limits = ?, policy = ?, doc_version = ? WHERE id = ?`,
			now.Name, now.Timezone, string(now.Status), now.OverageLimit, now.Day, now.Month, string(limits), string(now.Policy), version, id)
		if err != nil {
			return err
		}
		if err := t.publish(ctx, Publication{Tenant: id, Kind: PublishTenant, Item: id, Store: store, Version: version}); err != nil {
			return err
		}
		return t.log(ctx, op, id, id, before, now)
	})
	return now, repeat, err
}

const tenantColumns = `t.id, t.name, t.store, t.timezone, t.status, t.overage_limit, t.day_credits, t.month_credits, t.limits, t.policy,
	t.version, t.doc_version, t.created_at, a.total
	FROM tenant t JOIN account a ON a.tenant = t.id AND a.scope = 'org' AND a.scope_id = t.id AND a.window_name = ''`

func scanTenant(row scanner) (r Tenant, err error) {
	var limits, policy string
	var createdAt int64
	err = row.Scan(&r.ID, &r.Name, &r.Store, &r.Timezone, &r.Status, &r.OverageLimit, &r.Day, &r.Month, &limits, &policy,
		&r.Version, &r.docVersion, &createdAt, &r.Total)
	if err != nil {
		return r, err
	}
	if policy != "" {
		r.Policy = json.RawMessage(policy)
	}
	r.CreatedAt = time.UnixMilli(createdAt).UTC()
	return r, json.Unmarshal([]byte(limits), &r.Limits)
}

func (t *tx) tenant(ctx context.Context, id string) (Tenant, error) {
	list, err := collect(ctx, t, `SELECT `+tenantColumns+` WHERE t.id = ?`, []any{id}, scanTenant)
	return one(list, err)
}

// GetTenant reads one tenant.
func (db *DB) GetTenant(ctx context.Context, id string) (r Tenant, err error) {
	err = db.read(ctx, func(t *tx) error {
		r, err = t.tenant(ctx, id)
		return err
	})
	return r, err
}

// ListTenants reads up to limit (at most 1000) tenants with ids after the given one, in the order of ids.
func (db *DB) ListTenants(ctx context.Context, after string, limit int) (list []Tenant, err error) {
	err = db.read(ctx, func(t *tx) error {
		list, err = collect(ctx, t, `SELECT `+tenantColumns+` WHERE t.id > ? ORDER BY t.id LIMIT ?`, []any{after, page(limit)}, scanTenant)
		return err
	})
	return list, err
}

// TenantsAfter reads up to limit (at most 1000) ids of a store's tenants after
// the given one, in their order: one step of a walk over all of them.
func (db *DB) TenantsAfter(ctx context.Context, store, after string, limit int) (ids []string, err error) {
	err = db.read(ctx, func(t *tx) error {
		ids, err = collect(ctx, t, `SELECT id FROM tenant WHERE store = ? AND id > ? ORDER BY id LIMIT ?`,
			[]any{store, after, page(limit)}, scanString)
		return err
	})
	return ids, err
}

func scanString(row scanner) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// collect reads all rows of a bounded query.
func collect[T any](ctx context.Context, t *tx, query string, args []any, scan func(scanner) (T, error)) ([]T, error) {
	var list []T
	err := t.each(ctx, query, args, func(row scanner) error {
		r, err := scan(row)
		list = append(list, r)
		return err
	})
	return list, err
}

// one takes the only element, or gives ErrNotFound.
func one[T any](list []T, err error) (T, error) {
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		var none T
		return none, err
	}
	return list[0], nil
}
