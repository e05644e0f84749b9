// Package lua is every atomic operation on Redis: the .lua files, embedded, and
// one typed Go method for each; and the few plain reads beside them.
//
// The invariant it keeps: an amount changes only inside a script that has
// checked everything before its first write (all or nothing), and every script
// can be repeated without a second effect. All keys of one call share the
// tenant's hash tag, so Redis Cluster works. A call never outlives its context
// by more than scheduling, also when Redis is frozen.
//
// ledger, prefetch and edge call it; it knows quota and nothing above.
package lua
