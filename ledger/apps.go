package ledger

import (
	"context"
	"encoding/json"
	"time"

	"tollgate/lua"
	"tollgate/quota"
)

// App is an app as SQL holds it.
type App struct {
	ID     string `json:"id"` // a_…, unique within its tenant; made at creation if empty
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	Total  int64  `json:"total"` // credits, or quota.Unlimited
	quota.Budget
	Version   int64     `json:"version"` // the tenant's version at the app's last change
	CreatedAt time.Time `json:"created_at"`
}

// AppPatch changes an app. Its JSON form is the body of the PATCH.
type AppPatch struct {
	Name Field[string] `json:"name"`
	BudgetPatch
}

// doc gives the document that nodes read.
func (r *App) doc() lua.AppDoc {
	return lua.AppDoc{ID: r.ID, Name: r.Name, Budget: r.Budget, Version: r.Version}
}

func (r *App) check() error {
	if err := check("id", quota.CheckID("a_", r.ID)); err != nil {
		return err
	}
	if err := checkName(r.Name); err != nil {
		return err
	}
	if err := checkTotal(r.Total, 0); err != nil {
		return err
	}
	return checkBudget(r.Budget)
}

// CreateApp adds an app and its `ever` account to want.Tenant. Version and
// CreatedAt are set here.
func (db *DB) CreateApp(ctx context.Context, op Op, want App) (made App, repeat bool, err error) {
	if want.ID == "" {
		want.ID = newID("a_")
	}
	if err := want.check(); err != nil {
		return App{}, false, err
	}
	repeat, err = db.write(ctx, op, &made, func(t *tx) error {
		version, store, err := t.bump(ctx, want.Tenant)
		if err != nil {
			return err
		}
		made = want
		made.Version, made.CreatedAt = version, time.UnixMilli(t.now).UTC()
		limits, err := json.Marshal(made.Limits)
		if err != nil {
			return err
		}
		_, err = t.exec(ctx, `INSERT INTO app (tenant, id, name, day_credits, month_credits, limits, version, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, made.Tenant, made.ID, made.Name, made.Day, made.Month, string(limits), version, t.now)
		if err != nil {
			if t.d.isUnique(err) {
				return exists("app", made.ID)
			}
			return err
		}
		if err := t.insertAccount(ctx, made.Tenant, quota.App, made.ID, made.Total); err != nil {
			return err
		}
		return t.appChanged(ctx, op, store, nil, &made)
	})
	return made, repeat, err
}

// PatchApp changes what the patch sets.
func (db *DB) PatchApp(ctx context.Context, op Op, tenant, id string, patch AppPatch) (now App, repeat bool, err error) {
	repeat, err = db.write(ctx, op, &now, func(t *tx) error {
		version, store, err := t.bump(ctx, tenant)
		if err != nil {
			return err
		}
		before, err := t.app(ctx, tenant, id)
		if err != nil {
			return err
		}
		now = before
		now.Version = version
		patch.Name.apply(&now.Name)
		patch.BudgetPatch.apply(&now.Budget)
		if err := now.check(); err != nil {
			return err
		}
		limits, err := json.Marshal(now.Limits)
		if err != nil {
			return err
		}
		_, err = t.exec(ctx, `UPDATE app SET name = ?, day_credits = ?, month_credits = ?, limits = ?, version = ? WHERE tenant = ? AND id = ?`,
			now.Name, now.Day, now.Month, string(limits), version, tenant, id)
		if err != nil {
			return err
		}
		return t.appChanged(ctx, op, store, before, &now)
	})
	return now, repeat, err
}

func (t *tx) appChanged(ctx context.Context, op Op, store string, before any, now *App) error {
	if err := t.publish(ctx, Publication{Tenant: now.Tenant, Kind: PublishApp, Item: now.ID, Store: store, Version: now.Version}); err != nil {
		return err
	}
	return t.log(ctx, op, now.Tenant, now.ID, before, now)
}

const appColumns = `p.id, p.tenant, p.name, p.day_credits, p.month_credits, p.limits, p.version, p.created_at, a.total
	FROM app p JOIN account a ON a.tenant = p.tenant AND a.scope = 'app' AND a.scope_id = p.id AND a.window_name = ''`

func scanApp(row scanner) (r App, err error) {
	var limits string
	var createdAt int64
	if err = row.Scan(&r.ID, &r.Tenant, &r.Name, &r.Day, &r.Month, &limits, &r.Version, &createdAt, &r.Total); err != nil {
		return r, err
	}
	r.CreatedAt = time.UnixMilli(createdAt).UTC()
	return r, json.Unmarshal([]byte(limits), &r.Limits)
}

func (t *tx) app(ctx context.Context, tenant, id string) (App, error) {
	list, err := collect(ctx, t, `SELECT `+appColumns+` WHERE p.tenant = ? AND p.id = ?`, []any{tenant, id}, scanApp)
	return one(list, err)
}

// GetApp reads one app.
func (db *DB) GetApp(ctx context.Context, tenant, id string) (r App, err error) {
	err = db.read(ctx, func(t *tx) error {
		r, err = t.app(ctx, tenant, id)
		return err
	})
	return r, err
}

// ListApps reads up to limit (at most 1000) apps of a tenant with ids after the
// given one, in the order of ids. An unknown tenant is ErrNotFound.
func (db *DB) ListApps(ctx context.Context, tenant, after string, limit int) (list []App, err error) {
	err = db.read(ctx, func(t *tx) error {
		if _, err := t.tenant(ctx, tenant); err != nil {
			return err
		}
		list, err = collect(ctx, t, `SELECT `+appColumns+` WHERE p.tenant = ? AND p.id > ? ORDER BY p.id LIMIT ?`,
			[]any{tenant, after, page(limit)}, scanApp)
		return err
	})
	return list, err
}
