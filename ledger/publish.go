package ledger

import (
	"context"
	"fmt"

	"tollgate/lua"
)

// PublishKind says what Redis has to be told.
type PublishKind string

// The kinds.
const (
	PublishTenant PublishKind = "tenant" // write TenantDoc
	PublishApp    PublishKind = "app"    // write AppDoc
	PublishKey    PublishKind = "key"    // write KeyDoc
	PublishSecret PublishKind = "secret" // write Secret under the hash Item
)

// Publication is one thing that a store has not been told for certain. Content
// is as of the reading, not of the change: it may be newer than Version.
type Publication struct {
	Tenant  string
	Kind    PublishKind
	Item    string // id of what changed, or the secret's hash
	Store   string // where to write it
	Version int64  // of the change that queued it; DonePublication compares it

	TenantDoc *lua.TenantDoc // kind tenant
	AppDoc    *lua.AppDoc    // kind app
	KeyDoc    *lua.KeyDoc    // kind key
	Secret    *Secret        // kind secret
}

// Secret is the document of an API key's secret and its version.
type Secret struct {
	Doc     lua.SecretDoc
	Version int64
}

// publish queues p. All writers of a tenant hold its row, so that update-or-insert cannot race.
func (t *tx) publish(ctx context.Context, p Publication) error {
	n, err := t.exec(ctx, `UPDATE publication SET version = ?, store = ?, queued_at = ? WHERE tenant = ? AND kind = ? AND item = ?`,
		p.Version, p.Store, t.now, p.Tenant, string(p.Kind), p.Item)
	if err != nil || n > 0 {
		return err
	}
	_, err = t.exec(ctx, `INSERT INTO publication (tenant, kind, item, store, version, queued_at) VALUES (?, ?, ?, ?, ?, ?)`,
		p.Tenant, string(p.Kind), p.Item, p.Store, p.Version, t.now)
	return err
}

// Publications reads up to limit (at most 1000) of what the store has to be
// told, oldest first; store "" means all stores. Several callers may do the
// same ones: every write to Redis carries a version or number and counts once.
func (db *DB) Publications(ctx context.Context, store string, limit int) (list []Publication, err error) {
	where, args := `WHERE store = ?`, []any{store, page(limit)}
	if store == "" {
		where, args = ``, args[1:]
	}
	return db.publications(ctx, where+` ORDER BY queued_at, tenant, version LIMIT ?`, args)
}

// PublicationsOf reads what stores have to be told of one tenant: what a caller
// brings there at once after its own change.
func (db *DB) PublicationsOf(ctx context.Context, tenant string) ([]Publication, error) {
	return db.publications(ctx, `WHERE tenant = ? ORDER BY queued_at, version LIMIT ?`, []any{tenant, listMax})
}

func (db *DB) publications(ctx context.Context, rest string, args []any) (list []Publication, err error) {
	err = db.read(ctx, func(t *tx) error {
		list, err = collect(ctx, t, `SELECT tenant, kind, item, store, version FROM publication `+rest, args,
			func(row scanner) (p Publication, err error) {
				err = row.Scan(&p.Tenant, &p.Kind, &p.Item, &p.Store, &p.Version)
				return p, err
			})
		if err != nil {
			return err
		}
		for i := range list {
			if err := t.fill(ctx, &list[i]); err != nil {
				return fmt.Errorf("ledger: publication %s %s of %s: %w", list[i].Kind, list[i].Item, list[i].Tenant, err)
			}
		}
		return nil
	})
	return list, err
}

func (t *tx) fill(ctx context.Context, p *Publication) error {
	switch p.Kind {
	case PublishTenant:
		r, err := t.tenant(ctx, p.Tenant)
		doc := r.doc()
		p.TenantDoc = &doc
		return err
	case PublishApp:
		r, err := t.app(ctx, p.Tenant, p.Item)
		doc := r.doc()
		p.AppDoc = &doc
		return err
	case PublishKey:
		r, err := t.key(ctx, p.Tenant, p.Item)
		doc := r.doc()
		p.KeyDoc = &doc
		return err
	case PublishSecret:
		s, err := t.secret(ctx, p.Item)
		p.Secret = &s
		return err
	}
	return fmt.Errorf("ledger: unknown publication kind %q in the database", p.Kind)
}

// DonePublication takes p off the queue, unless a newer change has queued it again.
func (db *DB) DonePublication(ctx context.Context, p Publication) error {
	_, err := db.write(ctx, Op{}, nil, func(t *tx) error {
		_, err := t.exec(ctx, `DELETE FROM publication WHERE tenant = ? AND kind = ? AND item = ? AND version = ?`,
			p.Tenant, string(p.Kind), p.Item, p.Version)
		return err
	})
	return err
}
