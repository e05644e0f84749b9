// Package admission decides whether a principal may spend, on the direct path:
// one reserve script in Redis per decision. It brings the chain of accounts
// together, loads what Redis does not hold, repeats what Redis' time or a
// reload asks for, and hands every amount that was frozen to a Hold.
//
// The invariant it keeps: whoever gets a Hold ends it exactly once (End, or the
// deferred Close), and a reserve whose outcome is unknown is voided.
//
// Only edge calls it.
package admission
