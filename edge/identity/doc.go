// Package identity finds out who pays: it turns the secret of an API key into
// the documents of its key, app and tenant, kept decoded in the node's memory.
//
// The invariant it keeps: an identity is handed out only while nothing is known
// to have changed since its documents were read. Every read notes, before it
// begins, how many changes its stores have told of (Feed), and its result counts
// only while that number stands; so a change that comes in the middle of a read
// is never lost. A change reaches the next Lookup after Redis has told of it, a
// lost connection counts as a change of everything, and after 30 s a document is
// read again in any case.
//
// SQL is asked only for what Redis does not hold, at a bounded rate; what it
// says is published, so that the next node finds it in Redis.
//
// Only edge calls it.
package identity
