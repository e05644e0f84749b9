package ledger

import (
	"context"

	"tollgate/lua"
	"tollgate/quota"
)

// Loader gives accounts as SQL knows them, for scripts that found them missing.
// Redis takes such values only under the tenant's published version: what is
// still queued of the tenant is published first, so that a crash between SQL
// and Redis does not keep its accounts from loading until the repair comes by.
type Loader struct {
	DB        *DB
	Publisher *Publisher
}

// LoadAccounts implements AccountLoader.
func (l Loader) LoadAccounts(ctx context.Context, tenant string, chain quota.Chain) (lua.Loads, error) {
	if queued, err := l.DB.PublicationsOf(ctx, tenant); err == nil && len(queued) > 0 {
		_ = l.Publisher.Publish(ctx, tenant) // where it fails, the load is refused as stale and asked for again
	}
	return l.DB.LoadAccounts(ctx, tenant, chain)
}
