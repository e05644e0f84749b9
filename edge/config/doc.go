// Package config is a node's YAML configuration: what each field means, its default, and what is refused.
//
// The invariant: a [Config] that Load or Parse returned without an error is complete (defaults filled in, secrets read)
// and free of contradictions, so the code that uses it checks nothing again. All faults are reported at once, each with
// the path of its field; nothing that a file sets is ignored in silence: an unknown field is an error, and a known one
// that this version does not act on yet is a warning. Secrets are never part of a message, a log line or the hash.
//
// cmd/tollgate loads it and hands the parts down; packages below take their own options, not this package.
package config
