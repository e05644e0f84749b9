package edge

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync/atomic"

	"tollgate/edge/admission"
	"tollgate/edge/dialect"
	"tollgate/edge/upstream"
	"tollgate/quota"
)

// chargeKind says what an exchange costs.
type chargeKind uint8

const (
	freeOfCharge chargeKind = iota
	fixedCost               // what is held, if the upstream did the work
	byUsage                 // what the upstream reports, or an estimate of what was delivered
)

// exchange is one forwarded call from its hold to its settlement. It is the
// body stream of the answer: fasthttp reads it, and closes it on every way out.
type exchange struct {
	s       *Server
	kind    chargeKind
	hold    *admission.Hold // nil when free of charge
	price   quota.Price
	prompt  int64 // tokens of the prompt, estimated
	meter   *dialect.Meter
	call    *upstream.Call
	status  int // of the upstream's answer
	unwatch func()
	gone    atomic.Bool // the client left
	ended   atomic.Bool
	whole   bool // the answer was read to its end
	failed  bool
}

// clientLeft runs on the watcher's goroutine.
func (x *exchange) clientLeft() {
	x.gone.Store(true)
	clientGone.Inc()
	x.call.Cancel()
}

// Read hands the upstream's bytes on as they come.
func (x *exchange) Read(p []byte) (n int, err error) {
	defer x.recovered(&err)
	if x.meter != nil && x.meter.Rewrites() {
		n, err = x.meter.ReadFrom(x.call, p)
	} else {
		n, err = x.call.Read(p)
		if x.meter != nil && n > 0 {
			x.meter.Write(p[:n])
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		x.whole = true
	case err != nil:
		x.failed = true
	}
	return n, err
}

// Close ends the exchange. fasthttp calls it after the last Read, or when the
// client can no longer be written to.
func (x *exchange) Close() (err error) {
	defer x.recovered(&err)
	x.end(true)
	return nil
}

// recovered keeps a defect here from taking the process down: fasthttp calls
// Read and Close outside of any handler. The hold's end is not forgotten.
func (x *exchange) recovered(err *error) {
	cause := recover()
	if cause == nil {
		return
	}
	panics.Inc()
	slog.Error("panic in a body", "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
	if x.hold != nil {
		x.hold.Close()
	}
	*err = errors.New("edge: internal error")
}

// end settles or releases, once. answered says that the client got the head of an answer.
func (x *exchange) end(answered bool) {
	if !x.ended.CompareAndSwap(false, true) {
		return
	}
	if x.unwatch != nil {
		x.unwatch()
	}
	if answered && !x.whole && !x.failed && !x.gone.Load() {
		clientGone.Inc() // noticed by the write
	}
	if x.hold != nil {
		cost, tokens, source := x.charge(answered)
		usageSource(source).Inc()
		if source == quota.SourceNone {
			x.hold.Release()
		} else {
			x.hold.Settle(cost, tokens)
		}
	}
	x.call.Close()
	x.s.running.remove(x)
}

// charge says what the exchange costs, and how that is known.
func (x *exchange) charge(answered bool) (cost, tokens int64, source quota.Source) {
	if !answered {
		return 0, 0, quota.SourceNone
	}
	if x.kind == fixedCost {
		if x.status >= 400 {
			return 0, 0, quota.SourceNone
		}
		return x.hold.Amount(), -1, quota.SourceFixed
	}
	usage, ok := x.meter.Usage()
	if ok {
		cost, err := x.price.Cost(usage)
		if err == nil {
			source := quota.SourceUpstream
			if !x.whole {
				source = quota.SourcePartial
			}
			return cost, usage.Tokens(), source
		}
		slog.Error("usage of an answer passes all bounds; the hold is charged", "error", err)
		return x.hold.Amount(), -1, quota.SourceEstimated
	}
	if x.status >= 400 || (!x.whole && !x.meter.Delivered()) {
		return 0, 0, quota.SourceNone
	}
	return x.estimate()
}

// estimate charges an answer without usage by its delivered text, at most what is held.
func (x *exchange) estimate() (cost, tokens int64, source quota.Source) {
	source = quota.SourceEstimated
	if !x.whole {
		source = quota.SourcePartial
	}
	usage := quota.Usage{Input: x.prompt, Output: x.meter.DeliveredTokens()}
	cost, err := x.price.Cost(usage)
	if err != nil || cost > x.hold.Amount() {
		cost = x.hold.Amount()
	}
	return cost, usage.Tokens(), source
}
