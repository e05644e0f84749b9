package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of keys. More is refused.
const (
	modelsMax      = 256 // models of one key
	modelBytesMax  = 200 // one model's name
	liveSecretsMax = 8   // secrets of one key that have not expired: rotations within their overlap
)

// expirySlack is how far clocks may differ before a node still takes a secret
// that this one holds for expired.
const expirySlack = time.Hour

// Key is an API key as SQL holds it; its secrets are kept apart, as hashes.
type Key struct {
	ID     string     `json:"id"` // k_…, unique within its tenant; made at creation if empty
	Tenant string     `json:"tenant"`
	App    string     `json:"app"` // never changes
	Name   string     `json:"name"`
	Status lua.Status `json:"status"`
	Models []string   `json:"models,omitempty"` // what it may call; empty: every model
	Total  int64      `json:"total"`            // credits, or quota.Unlimited
	quota.Budget
	Version   int64     `json:"version"` // the tenant's version at the key's last change
	CreatedAt time.Time `json:"created_at"`
}

// KeyPatch changes a key. Its JSON form is the body of the PATCH.
type KeyPatch struct {
	Name   Field[string]   `json:"name"`
	Models Field[[]string] `json:"models"` // null or []: every model
	BudgetPatch
}

// doc gives the document that nodes read.
func (r *Key) doc() lua.KeyDoc {
	return lua.KeyDoc{
		ID: r.ID, App: r.App, Name: r.Name, Status: r.Status, Models: r.Models, Budget: r.Budget, Version: r.Version,
	}
}

func (r *Key) check() error {
	if err := check("id", quota.CheckID("k_", r.ID)); err != nil {
		return err
	}
	if err := checkName(r.Name); err != nil {
		return err
	}
	if len(r.Models) > modelsMax {
		return invalid("models", "more than %d", modelsMax)
	}
	for i, model := range r.Models {
		if model == "" || len(model) > modelBytesMax || !utf8.ValidString(model) {
			return invalid(fmt.Sprintf("models[%d]", i), "want 1 to %d bytes of UTF-8", modelBytesMax)
		}
	}
	if err := checkTotal(r.Total, 0); err != nil {
		return err
	}
	return checkBudget(r.Budget)
}

func checkHash(hash string) error {
	if len(hash) == 64 {
		for i := 0; ; i++ {
			if i == len(hash) {
				return nil
			}
			if c := hash[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				break
			}
		}
	}
	return invalid("hash", "want a SHA-256 as 64 lower-case hex digits")
}

// CreateKey adds a key with its `ever` account and its first secret, given as
// the hex SHA-256 of it. A repeat gives the key again; the secret of the second
// attempt is not stored, and the first cannot be shown again: rotate the key.
// A tenant or app that does not exist is ErrNotFound.
func (db *DB) CreateKey(ctx context.Context, op Op, want Key, secretHash string) (made Key, repeat bool, err error) {
	if want.ID == "" {
		want.ID = newID("k_")
	}
	want.Status = lua.Active
	if err := want.check(); err != nil {
		return Key{}, false, err
	}
	if err := checkHash(secretHash); err != nil {
		return Key{}, false, err
	}
	repeat, err = db.write(ctx, op, &made, func(t *tx) error {
		version, store, err := t.bump(ctx, want.Tenant)
		if err != nil {
			return err
		}
		if _, err := t.app(ctx, want.Tenant, want.App); err != nil {
			return err
		}
		made = want
		made.Version, made.CreatedAt = version, time.UnixMilli(t.now).UTC()
		if err := t.insertKey(ctx, &made); err != nil {
			return err
		}
		if err := t.insertAccount(ctx, made.Tenant, quota.Key, made.ID, made.Total); err != nil {
			return err
		}
		if err := t.insertSecret(ctx, &made, secretHash); err != nil {
			return err
		}
		return t.keyChanged(ctx, op, store, nil, &made)
	})
	return made, repeat, err
}

func (t *tx) insertKey(ctx context.Context, r *Key) error {
	limits, models, err := r.columns()
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, `INSERT INTO api_key (tenant, id, app, name, status, models, day_credits, month_credits, limits, version, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Tenant, r.ID, r.App, r.Name, string(r.Status), models, r.Day, r.Month, limits, r.Version, t.now)
	if err != nil && t.d.isUnique(err) {
		return exists("key", r.ID)
	}
	return err
}

func (r *Key) columns() (limits, models string, err error) {
	l, err := json.Marshal(r.Limits)
	if err != nil {
		return "", "", err
	}
	m, err := json.Marshal(r.Models)
	return string(l), string(m), err
}

func (t *tx) insertSecret(ctx context.Context, key *Key, hash string) error {
	_, err := t.exec(ctx, `INSERT INTO api_secret (hash, tenant, key_id, expires_at, version, created_at) VALUES (?, ?, ?, 0, ?, ?)`,
		hash, key.Tenant, key.ID, key.Version, t.now)
	if err != nil && t.d.isUnique(err) {
		return exists("secret of key", key.ID)
	}
	return err
}

// PatchKey changes what the patch sets. A revoked key is ErrRevoked.
func (db *DB) PatchKey(ctx context.Context, op Op, tenant, id string, patch KeyPatch) (now Key, repeat bool, err error) {
	return db.changeKey(ctx, op, tenant, id, func(_ *tx, r *Key) error {
		if r.Status == lua.Revoked {
			return ErrRevoked
		}
		patch.Name.apply(&r.Name)
		patch.Models.apply(&r.Models)
		patch.BudgetPatch.apply(&r.Budget)
		return r.check()
	})
}

// SetKeyStatus suspends, resumes or revokes a key and all its secrets. Revoking
// is final; revoking again changes nothing that can be seen.
func (db *DB) SetKeyStatus(ctx context.Context, op Op, tenant, id string, status lua.Status) (now Key, repeat bool, err error) {
	if status != lua.Active && status != lua.Suspended && status != lua.Revoked {
		return Key{}, false, invalid("status", "a key is active, suspended or revoked")
	}
	return db.changeKey(ctx, op, tenant, id, func(_ *tx, r *Key) error {
		if r.Status == lua.Revoked && status != lua.Revoked {
			return ErrRevoked
		}
		r.Status = status
		return nil
	})
}

// RotateKey gives the key a new secret, by its hash. The older ones expire at
// the given time, in ms since 1970, if they do not expire before.
func (db *DB) RotateKey(ctx context.Context, op Op, tenant, id, secretHash string, oldExpireAt int64) (now Key, repeat bool, err error) {
	if err := checkHash(secretHash); err != nil {
		return Key{}, false, err
	}
	if oldExpireAt <= 0 {
		return Key{}, false, invalid("overlap", "ends before 1970")
	}
	return db.changeKey(ctx, op, tenant, id, func(t *tx, r *Key) error {
		if r.Status == lua.Revoked {
			return ErrRevoked
		}
		_, err := t.exec(ctx, `UPDATE api_secret SET expires_at = ? WHERE tenant = ? AND key_id = ? AND (expires_at = 0 OR expires_at > ?)`,
			oldExpireAt, tenant, id, oldExpireAt)
		if err != nil {
			return err
		}
		var live int
		err = t.row(ctx, `SELECT COUNT(*) FROM api_secret WHERE tenant = ? AND key_id = ? AND expires_at > ?`, []any{tenant, id, t.now}, &live)
		if err != nil {
			return err
		}
		if live >= liveSecretsMax {
			return fmt.Errorf("%w: the key has %d secrets that still work, the most there may be", ErrTooMany, live)
		}
		return t.insertSecret(ctx, r, secretHash)
	})
}

func (db *DB) changeKey(ctx context.Context, op Op, tenant, id string, change func(*tx, *Key) error) (now Key, repeat bool, err error) {
	repeat, err = db.write(ctx, op, &now, func(t *tx) error {
		version, store, err := t.bump(ctx, tenant)
		if err != nil {
			return err
		}
		before, err := t.key(ctx, tenant, id)
		if err != nil {
			return err
		}
		now = before
		now.Version = version
		// The documents of secrets carry the key's status. Those that ended say so themselves.
		_, err = t.exec(ctx, `UPDATE api_secret SET version = ? WHERE tenant = ? AND key_id = ? AND (expires_at = 0 OR expires_at > ?)`,
			version, tenant, id, t.now-expirySlack.Milliseconds())
		if err != nil {
			return err
		}
		if err := change(t, &now); err != nil {
			return err
		}
		limits, models, err := now.columns()
		if err != nil {
			return err
		}
		_, err = t.exec(ctx, `UPDATE api_key SET name = ?, status = ?, models = ?, day_credits = ?, month_credits = ?, limits = ?, version = ?
			WHERE tenant = ? AND id = ?`, now.Name, string(now.Status), models, now.Day, now.Month, limits, version, tenant, id)
		if err != nil {
			return err
		}
		return t.keyChanged(ctx, op, store, before, &now)
	})
	return now, repeat, err
}

// keyChanged queues the documents of the key and of its secrets of the same version.
func (t *tx) keyChanged(ctx context.Context, op Op, store string, before any, now *Key) error {
	hashes, err := collect(ctx, t, `SELECT hash FROM api_secret WHERE tenant = ? AND key_id = ? AND version = ?`,
		[]any{now.Tenant, now.ID, now.Version}, scanString)
	if err != nil {
		return err
	}
	for _, hash := range hashes {
		if err := t.publish(ctx, Publication{Tenant: now.Tenant, Kind: PublishSecret, Item: hash, Store: storeDefault, Version: now.Version}); err != nil {
			return err
		}
	}
	if err := t.publish(ctx, Publication{Tenant: now.Tenant, Kind: PublishKey, Item: now.ID, Store: store, Version: now.Version}); err != nil {
		return err
	}
	return t.log(ctx, op, now.Tenant, now.ID, before, now)
}

const keyColumns = `k.id, k.tenant, k.app, k.name, k.status, k.models, k.day_credits, k.month_credits, k.limits, k.version, k.created_at, a.total
	FROM api_key k JOIN account a ON a.tenant = k.tenant AND a.scope = 'key' AND a.scope_id = k.id AND a.window_name = ''`

func scanKey(row scanner) (r Key, err error) {
	var limits, models string
	var createdAt int64
	err = row.Scan(&r.ID, &r.Tenant, &r.App, &r.Name, &r.Status, &models, &r.Day, &r.Month, &limits, &r.Version, &createdAt, &r.Total)
	if err != nil {
		return r, err
	}
	r.CreatedAt = time.UnixMilli(createdAt).UTC()
	if err := json.Unmarshal([]byte(models), &r.Models); err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(limits), &r.Limits)
}

func (t *tx) key(ctx context.Context, tenant, id string) (Key, error) {
	list, err := collect(ctx, t, `SELECT `+keyColumns+` WHERE k.tenant = ? AND k.id = ?`, []any{tenant, id}, scanKey)
	return one(list, err)
}

// GetKey reads one key.
func (db *DB) GetKey(ctx context.Context, tenant, id string) (r Key, err error) {
	err = db.read(ctx, func(t *tx) error {
		r, err = t.key(ctx, tenant, id)
		return err
	})
	return r, err
}

// ListKeys reads up to limit (at most 1000) keys of a tenant with ids after the
// given one, in the order of ids. An unknown tenant is ErrNotFound.
func (db *DB) ListKeys(ctx context.Context, tenant, after string, limit int) (list []Key, err error) {
	err = db.read(ctx, func(t *tx) error {
		if _, err := t.tenant(ctx, tenant); err != nil {
			return err
		}
		list, err = collect(ctx, t, `SELECT `+keyColumns+` WHERE k.tenant = ? AND k.id > ? ORDER BY k.id LIMIT ?`,
			[]any{tenant, after, page(limit)}, scanKey)
		return err
	})
	return list, err
}
