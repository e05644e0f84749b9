// Package upstream is a fake LLM server for tests, demonstrations and load runs.
//
// It answers OpenAI chat completions, legacy completions, embeddings and the
// model list. Two things make it useful as a witness: what an answer costs is a
// stated function of the request and of the [Behaviour] in force, and every call
// leaves one [Entry] that tells what was really put on the wire. A test compares
// the books of a node with [Server.Totals] and finds each difference in
// [Server.Log].
//
// Faults are asked for by name ("knobs"): server-wide through Options or flags,
// for chosen calls through a [Rule], or by one request itself in an x-fake-*
// header or fake-* query field. The later of these wins. An unknown knob is an
// error, never ignored.
//
// Invariant: each call begun is counted once as begun, and once as ended with
// one Entry, however it ends; tokens enter the totals of whole answers only when
// the last byte of the answer was handed to the connection without an error.
//
// Callers: tests, cmd/tollbench and the other packages below bench. The server
// is plain net/http and is never part of a node.
package upstream
