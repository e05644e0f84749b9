// Package ledger keeps the durable truth in SQL: who exists (tenants, apps,
// keys, secrets as hashes), what they may spend (accounts, numbered
// adjustments), and what was done to them (operations, admin log).
//
// The invariant it keeps: every change is one transaction that writes the
// rows, raises the tenant's version, queues what Redis has to be told
// (publications), and records the operation that asked for it. So a crash at
// any moment leaves either nothing or a change that the publisher finishes;
// an operation repeated under its id has no second effect; and an adjustment
// counts in an account's total exactly when it is `applied`.
//
// SQL holds limits and folded usage; what runs at the moment is Redis' to
// know. The SQL part of the package therefore never talks to Redis: callers
// bring news there and come back with the outcome (BringAdjusts; Publications
// … DonePublication).
//
// Only edge and cmd use it. It imports lua for the shapes of documents.
package ledger
