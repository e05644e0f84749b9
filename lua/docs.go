package lua

import (
	"encoding/json"

	"tollgate/quota"
)

// Status says whether a tenant, key or secret may be used.
type Status string

// The statuses. Revoked is final and exists for keys and secrets only.
const (
	Active    Status = "active"
	Suspended Status = "suspended"
	Revoked   Status = "revoked"
)

// TenantDoc is what every node knows of a tenant: field `tenant` of quota:{t}:conf.
type TenantDoc struct {
	ID           string          `json:"id"`
	Name         string          `json:"name,omitempty"`
	Status       Status          `json:"status"`           // active or suspended
	Timezone     string          `json:"timezone"`         // tz database name; empty: UTC
	Store        string          `json:"store"`            // where the tenant's accounts live
	OverageLimit int64           `json:"overage_limit"`    // credits beyond the org's `ever` total
	Policy       json.RawMessage `json:"policy,omitempty"` // partial policy object; absent fields take the node's defaults
	quota.Budget                 // of scope org
	Version      int64           `json:"version"` // the tenant's version when this document last changed
}

// AppDoc is field `app:<id>` of quota:{t}:conf.
type AppDoc struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	quota.Budget
	Version int64 `json:"version"`
}

// KeyDoc is field `key:<id>` of quota:{t}:conf.
type KeyDoc struct {
	ID     string   `json:"id"`
	App    string   `json:"app"`
	Name   string   `json:"name,omitempty"`
	Status Status   `json:"status"`
	Models []string `json:"models,omitempty"` // what the key may call; empty: every model
	quota.Budget
	Version int64 `json:"version"`
}

// SecretDoc is field `doc` of tgkey:{<sha256 hex of the secret>} in store `default`.
type SecretDoc struct {
	Tenant    string `json:"tenant"`
	App       string `json:"app"`
	Key       string `json:"key"`
	Store     string `json:"store"` // the tenant's store
	Status    Status `json:"status"`
	ExpiresAt int64  `json:"expires_at,omitempty"` // ms since 1970; 0: never. Set when a rotation replaced the secret
}

// AccountLoad is an account as SQL knows it: what a script takes for an
// account that Redis does not hold. All amounts in credits.
type AccountLoad struct {
	Total        int64 // quota.Unlimited or 0 … quota.CreditsMax
	OverageLimit int64 // 0 except on the org's `ever` account
	MaxInflight  int64 // slots of the scope, on its `ever` account; -1: no limit
	Spent        int64 // as far as folded
	Fold         int64 // number of the fold that Spent came from; 0: none yet
	Adj          int64 // number of the last adjustment that was decided: Total contains it, or it was refused; 0: none yet
}

// Loads are the accounts of one chain, in its order, as of one version of the tenant.
type Loads struct {
	Version  int64 // tenant's version under which they were read
	Accounts []AccountLoad
}
