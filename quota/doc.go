// Package quota is tollgate's vocabulary: who pays (Principal), what may be
// spent (Account, Chain, Window), in which amounts (credits), at which price
// (Price), and what was decided (Decision).
//
// It is pure: no I/O, no clock, no goroutine, no randomness. Every function is
// a function of its arguments, so the node, the simulator and the tests decide
// alike. The invariant it keeps: an amount is always 0 … CreditsMax, and
// arithmetic that would leave that range is refused, never wrapped.
//
// Every package of tollgate may import quota; quota imports none of them.
package quota
