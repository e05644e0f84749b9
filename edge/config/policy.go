package config

import (
	"time"

	"tollgate/quota"
)

// Policy is what may differ by tenant. In a tenant's document it is a JSON object with any of these fields, written as in
// the file ("hold_ttl": "15m"); what it leaves out, or sets to null, follows the node's configuration.
type Policy struct {
	// Outage says who may spend while the tenant's store is away: local (a bucket on this node with a cap on debt), deny
	// (503) or allow (everything, counted). Default local.
	Outage string `yaml:"outage" oneof:"local|deny|allow"`
	// OutageCap is the most credits of debt, per key and node, that Redis has not acknowledged. Default 100000. Too high
	// oversells in an outage, too low refuses paying customers.
	OutageCap int64 `yaml:"outage_cap" min:"0" max:"9007199254740991"`
	// Fit says what happens to a request without an output bound when less than the model's maximum is left: clamp (lower
	// its bound to what is left) or refuse. Default clamp.
	Fit string `yaml:"fit" oneof:"clamp|refuse"`
	// WarnBelow is the share of the total below which answers carry X-Quota-Warning. Default 10%; 0% never warns.
	WarnBelow Percent `yaml:"warn_below"`
	// HoldTTL is how long a hold lives without an end; at least the longest upstream total + 1 min. Default 15m. Longer
	// keeps credits of a dead node frozen.
	HoldTTL time.Duration `yaml:"hold_ttl" min:"1m" max:"12h"`
	// Stale is how long a known key stays known while the store is away. Default 1h. Longer lets a revoked key live on in
	// an outage, shorter refuses known customers.
	Stale time.Duration `yaml:"stale" min:"0s" max:"7d"`
	// Timezone is a name of the tz database; days and months begin at its midnight. Default UTC.
	Timezone string `yaml:"timezone"`
	// Hard never gives back a cut-off node's freeze without its report or an operator. Default false: it may then be spent
	// twice, at most the freeze.
	Hard bool `yaml:"hard"`
	// Show says whose numbers a key's holder may see: all levels, or the key's own. Default all.
	Show string `yaml:"show" oneof:"all|key"`
	// Interrupted says what a stream costs whose node died: delivered (what the journal knows) or release (nothing).
	// Default delivered.
	Interrupted string `yaml:"interrupted" oneof:"delivered|release"`
}

// Merge returns p with what a tenant's policy document sets; raw may be empty or null. The error names every fault by its
// path, unknown fields included; p is returned unchanged then.
func (p Policy) Merge(raw []byte) (Policy, error) {
	if len(raw) == 0 {
		return p, nil
	}
	root, err := parseJSON(raw)
	if err != nil {
		return p, Faults{{Path: "policy", Problem: err.Error()}}
	}
	merged := p
	d := decoder{}
	d.into("policy", root, &merged)
	if len(d.faults) == 0 {
		d.faults = boundsOf("policy", merged)
		d.faults = append(d.faults, merged.check()...)
	}
	if len(d.faults) > 0 {
		return p, d.faults
	}
	return merged, nil
}

// ValidatePolicyJSON checks a tenant's policy document by itself. A node's configuration may still refuse it: see
// [Config.CheckPolicy].
func ValidatePolicyJSON(raw []byte) error {
	_, err := defaultPolicy().Merge(raw)
	return err
}

// CheckPolicy checks a tenant's policy document against this node's configuration: hold_ttl has to outlive every upstream
// call, and leases every hold.
func (c *Config) CheckPolicy(raw []byte) error {
	p, err := c.Policy.Merge(raw)
	if err != nil {
		return err
	}
	if faults := c.checkHoldTTL(p.HoldTTL); len(faults) > 0 {
		return faults
	}
	return nil
}

// check is what the bounds in the tags cannot say.
func (p Policy) check() Faults {
	if _, err := quota.LoadZone(p.Timezone); err != nil {
		return Faults{{Path: "policy.timezone", Problem: err.Error()}}
	}
	return nil
}
