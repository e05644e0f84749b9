package admission

import (
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"tollgate/ledger"
	"tollgate/lua"
)

// Hold is an amount frozen for one request. It ends exactly once, by Settle or
// Release; `defer hold.Close()` right after it was got frees it on every other
// way out, a panic included. A second end does nothing and is counted.
type Hold struct {
	settler *ledger.Settler
	end     ledger.End
	amount  int64
	ended   atomic.Bool
}

var (
	holdsOpen     = metrics.NewGauge(`tollgate_holds_open`, nil)
	prepaidGauge  = metrics.NewGauge(`tollgate_prepaid_credits`, nil)
	holdEndsTwice = metrics.NewCounter(`tollgate_hold_ends_repeated_total`)
)

func newHold(settler *ledger.Settler, r *Request, target lua.Target, reply *lua.ReserveReply) *Hold {
	holdsOpen.Inc()
	prepaidGauge.Add(float64(reply.Amount))
	return &Hold{
		settler: settler, amount: reply.Amount,
		end: ledger.End{Store: r.Store, Target: target, Forget: r.OwnID},
	}
}

// Pass hands the hold over to a new owner, who ends it from now on; Close of
// the old one does nothing any more. It must not have ended.
func (h *Hold) Pass() *Hold {
	if h == nil {
		return nil
	}
	if !h.ended.CompareAndSwap(false, true) {
		panic("BUG: admission: a hold was passed on after its end")
	}
	return &Hold{settler: h.settler, end: h.end, amount: h.amount}
}

// Amount is what is frozen, in credits.
func (h *Hold) Amount() int64 { return h.amount }

// Settle charges the actual, in credits, and frees the hold. tokens corrects
// the tpm buckets; -1: no correction. It never blocks.
func (h *Hold) Settle(actual, tokens int64) {
	h.finish(ledger.Charge, actual, tokens)
}

// Release frees the hold; nothing is charged. It never blocks.
func (h *Hold) Release() { h.finish(ledger.Free, 0, -1) }

// Close releases the hold if it has not ended.
func (h *Hold) Close() {
	if !h.ended.Load() {
		h.Release()
	}
}

// Detach gives the hold up to its caller-chosen id: whoever knows the id ends
// it, or the reaper does at its deadline.
func (h *Hold) Detach() {
	h.closeOnce()
}

func (h *Hold) finish(kind ledger.EndKind, actual, tokens int64) {
	if !h.closeOnce() {
		holdEndsTwice.Inc()
		return
	}
	end := h.end
	end.Kind, end.Actual, end.Tokens = kind, actual, tokens
	h.settler.Submit(end)
}

func (h *Hold) closeOnce() bool {
	if !h.ended.CompareAndSwap(false, true) {
		return false
	}
	holdsOpen.Dec()
	prepaidGauge.Add(-float64(h.amount))
	return true
}
