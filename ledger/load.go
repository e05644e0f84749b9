package ledger

import (
	"context"
	"fmt"
	"strings"

	"tollgate/lua"
	"tollgate/quota"
)

// Docs are the documents of one principal, read together.
type Docs struct {
	Tenant  lua.TenantDoc
	App     lua.AppDoc
	Key     lua.KeyDoc
	Version int64 // the tenant's, at least that of each document
}

// LoadDocs reads the documents of a principal from one snapshot. If one of the
// three does not exist, or the key is not of that app: ErrNotFound.
func (db *DB) LoadDocs(ctx context.Context, who quota.Principal) (d Docs, err error) {
	err = db.read(ctx, func(t *tx) error {
		p, err := t.principal(ctx, who)
		if err == nil {
			d = Docs{Tenant: p.tenant.doc(), App: p.app.doc(), Key: p.key.doc(), Version: p.tenant.Version}
		}
		return err
	})
	return d, err
}

// principal is a principal's rows; those of unnamed scopes are zero.
type principal struct {
	tenant Tenant
	app    App
	key    Key
}

// principal reads the rows of the ids that are not empty.
func (t *tx) principal(ctx context.Context, who quota.Principal) (p principal, err error) {
	if p.tenant, err = t.tenant(ctx, who.Tenant); err != nil {
		return p, err
	}
	if who.App != "" {
		if p.app, err = t.app(ctx, who.Tenant, who.App); err != nil {
			return p, err
		}
	}
	if who.Key != "" {
		p.key, err = t.key(ctx, who.Tenant, who.Key)
		if err == nil && who.App != "" && p.key.App != who.App {
			err = ErrNotFound
		}
	}
	return p, err
}

// LoadSecret reads the document of a secret by its hex SHA-256. An expired or
// revoked one is read like any other. Unknown: ErrNotFound.
func (db *DB) LoadSecret(ctx context.Context, hash string) (s Secret, err error) {
	err = db.read(ctx, func(t *tx) error {
		s, err = t.secret(ctx, hash)
		return err
	})
	return s, err
}

func (t *tx) secret(ctx context.Context, hash string) (s Secret, err error) {
	err = t.row(ctx, `SELECT s.tenant, k.app, k.id, t.store, k.status, s.expires_at, s.version FROM api_secret s
		JOIN api_key k ON k.tenant = s.tenant AND k.id = s.key_id JOIN tenant t ON t.id = s.tenant WHERE s.hash = ?`, []any{hash},
		&s.Doc.Tenant, &s.Doc.App, &s.Doc.Key, &s.Doc.Store, &s.Doc.Status, &s.Doc.ExpiresAt, &s.Version)
	return s, err
}

// LoadAccounts reads the accounts of a chain, in its order, and the tenant's
// version, from one snapshot. A tenant, app or key that does not exist is
// ErrNotFound.
//
// The total of an `ever` account is its own; that of a day or month is the
// scope's limit for it. An account of a day or month into which nothing was
// folded has no row: spent 0, fold 0. That is consistent, since no event with
// fold ≤ 0 exists.
func (db *DB) LoadAccounts(ctx context.Context, tenant string, chain quota.Chain) (loads lua.Loads, err error) {
	if len(chain) == 0 || len(chain) > quota.ChainMax {
		return loads, invalid("chain", "want 1 to %d accounts, got %d", quota.ChainMax, len(chain))
	}
	who := quota.Principal{Tenant: tenant}
	for _, account := range chain {
		switch account.Scope {
		case quota.Org:
			if account.ID != tenant {
				return loads, invalid("chain", "account of another tenant")
			}
		case quota.App:
			who.App = account.ID
		case quota.Key:
			who.Key = account.ID
		}
	}
	err = db.read(ctx, func(t *tx) error {
		p, err := t.principal(ctx, who)
		if err != nil {
			return err
		}
		rows, err := t.accounts(ctx, tenant, chain)
		if err != nil {
			return err
		}
		loads = lua.Loads{Version: p.tenant.Version, Accounts: make([]lua.AccountLoad, len(chain))}
		for i, account := range chain {
			if account.ID != who.ID(account.Scope) {
				return invalid("chain", "two ids of scope %s", account.Scope)
			}
			row, found := rows[accountName{account.Scope.String(), account.ID, account.Window.Name}]
			if !found && account.Period == quota.Ever {
				return fmt.Errorf("ledger: BUG: no account row for %s %s of %s", account.Scope, account.ID, tenant)
			}
			loads.Accounts[i] = p.load(account, row)
		}
		return nil
	})
	return loads, err
}

// load joins what the account's row and its scope's limits say.
func (p *principal) load(account quota.Account, row lua.AccountLoad) lua.AccountLoad {
	budget := &p.tenant.Budget
	switch account.Scope {
	case quota.App:
		budget = &p.app.Budget
	case quota.Key:
		budget = &p.key.Budget
	}
	row.MaxInflight = quota.Unlimited
	switch account.Period {
	case quota.Ever:
		if account.Scope == quota.Org {
			row.OverageLimit = p.tenant.OverageLimit
		}
		if slots := budget.Limits.Concurrency; slots != nil {
			row.MaxInflight = *slots
		}
	case quota.Month:
		row.Total = orUnlimited(budget.Month)
	case quota.Day:
		row.Total = orUnlimited(budget.Day)
	}
	return row
}

func orUnlimited(limit *int64) int64 {
	if limit == nil {
		return quota.Unlimited
	}
	return *limit
}

// accountName is the part of an account's primary key within a tenant.
type accountName struct{ scope, id, window string }

func (t *tx) accounts(ctx context.Context, tenant string, chain quota.Chain) (map[accountName]lua.AccountLoad, error) {
	args := []any{tenant}
	terms := make([]string, len(chain))
	for i, account := range chain {
		terms[i] = `(scope = ? AND scope_id = ? AND window_name = ?)`
		args = append(args, account.Scope.String(), account.ID, account.Window.Name)
	}
	rows := make(map[accountName]lua.AccountLoad, len(chain))
	err := t.each(ctx, `SELECT scope, scope_id, window_name, total, spent, fold, adj FROM account WHERE tenant = ? AND (`+
		strings.Join(terms, ` OR `)+`)`, args, func(row scanner) error {
		var name accountName
		var load lua.AccountLoad
		err := row.Scan(&name.scope, &name.id, &name.window, &load.Total, &load.Spent, &load.Fold, &load.Adj)
		rows[name] = load
		return err
	})
	return rows, err
}
