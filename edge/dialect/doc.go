// Package dialect reads what passes between a client and an upstream: the fields
// of a request that size its hold, and the usage in the answer. It speaks OpenAI's
// chat completions.
//
// The invariants it keeps:
//
//   - Two readings of one request cannot differ in what it costs: a field that
//     sizes the hold and occurs twice, or in another spelling, is refused.
//   - An edit changes the bytes it is about and no other.
//   - A Meter sees every byte of an answer and changes none. It never fails, never
//     panics, and holds at most a few KiB however long the answer, its events or
//     its lines are.
//
// No I/O, no clock, no goroutine: bytes in, numbers out. Only package edge uses it.
package dialect
