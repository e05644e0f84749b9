// Package admin is the administration's HTTP API, on a listener of its own:
// tenants, apps, keys, adjustments, usage, health, metrics and profiles.
//
// The invariants it keeps: every change goes through one transaction of the
// ledger, under an op_id that makes a repeat harmless, and is brought to Redis
// before the answer says so; whatever is not understood changes nothing and is
// answered with the field at fault; no answer, log line or database row holds a
// key, except the one answer that issues it; nothing but health is told without
// the token.
//
// cmd/tollgate serves it. Its only clients are operators' tools.
package admin
