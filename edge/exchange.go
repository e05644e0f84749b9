package edge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

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
	s        *Server
	kind     chargeKind
	upstream string          // its name in the configuration
	hold     *admission.Hold // nil when free of charge
	price    quota.Price
	prompt   int64 // tokens of the prompt, estimated
	strip    bool  // the usage chunk was asked for by this node: the client does not see it
	meter    *dialect.Meter
	call     *upstream.Call
	body     io.Reader     // what the client gets of the answer's body
	sealed   bool          // the body is compressed: nothing can be read from it
	status   int           // of the upstream's answer
	client   net.Conn      // whom the answer is written to
	patience time.Duration // for a client that does not read on: the upstream's idle timeout
	unwatch  func()
	gone     atomic.Bool // the client left
	ended    atomic.Bool
	whole    bool // the answer was read to its end
	failed   bool
	left     int64 // bytes of the answer's body still to come, where its size is known; else -1
}

// clientLeft runs on the watcher's goroutine.
func (x *exchange) clientLeft() {
	x.gone.Store(true)
	clientGone.Inc()
	x.call.Cancel()
}

// begin chooses how the answer's body is read, and returns its size, -1 if only its end will tell.
func (x *exchange) begin() int64 {
	x.body = x.call
	size := x.call.BodySize()
	x.left, x.whole = size, size == 0
	kind := dialect.KindOf(x.call.Header.ContentType())
	if kind == dialect.Stream {
		size = -1 // of a body of known size the server holds bytes back
	}
	if x.kind != byUsage {
		return size
	}
	encoding := x.call.Header.ContentEncoding()
	x.sealed = len(encoding) > 0 && !bytes.EqualFold(encoding, []byte("identity"))
	x.meter = dialect.NewMeter(kind)
	if !x.sealed {
		x.body = dialect.NewTap(x.call, x.meter, x.strip)
		if x.strip {
			size = -1
		}
	}
	return size
}

// Read hands the upstream's bytes on as they come.
func (x *exchange) Read(p []byte) (n int, err error) {
	defer x.recovered(&err)
	x.s.reach(placeRead)
	n, err = x.body.Read(p)
	if x.left > 0 && err == nil {
		// The server reads a body of known size no further than that: there is no EOF to see.
		x.left -= int64(n)
		x.whole = x.left == 0
	}
	switch {
	case errors.Is(err, io.EOF):
		x.whole = true
	case err != nil:
		x.failed = true
	}
	// What was read is written next. A client that takes nothing for so long is as good as gone.
	_ = x.client.SetWriteDeadline(time.Now().Add(x.patience))
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
// Read and Close outside of any handler. What was delivered before is charged at the end.
func (x *exchange) recovered(err *error) {
	cause := recover()
	if cause == nil {
		return
	}
	panics.Inc()
	slog.Error("panic in a body", "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
	x.failed = true
	*err = errors.New("edge: internal error")
}

// end settles or releases, once. answered says that the client got the head of an answer.
func (x *exchange) end(answered bool) {
	if !x.ended.CompareAndSwap(false, true) {
		return
	}
	defer x.s.running.remove(x)
	defer x.call.Close()
	if x.hold != nil {
		defer x.hold.Close() // does something only when the lines below panic
	}
	if x.unwatch != nil {
		x.unwatch()
	}
	if x.client != nil {
		_ = x.client.SetWriteDeadline(time.Time{})
	}
	if answered && !x.whole && !x.failed && !x.gone.Load() {
		clientGone.Inc() // noticed by the write
	}
	if x.hold != nil {
		x.s.reach(placeEnd)
		cost, tokens, source := x.charge(answered)
		usageSource(source).Inc()
		if source == quota.SourceNone {
			x.hold.Release()
		} else {
			x.hold.Settle(cost, tokens)
		}
	}
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
	source = quota.SourceUpstream
	if !x.whole {
		source = quota.SourcePartial
	}
	if usage, ok := x.meter.Usage(); ok {
		cost, err := x.price.Cost(usage)
		if err != nil {
			slog.Error("usage of an answer passes all bounds; the hold is charged", "error", err)
			return x.hold.Amount(), -1, quota.SourceEstimated
		}
		return cost, usage.Tokens(), source
	}
	delivered := x.meter.Delivered()
	switch {
	case x.status >= 300, x.meter.Failed(), !x.whole && delivered.Bytes == 0 && !x.sealed:
		return 0, 0, quota.SourceNone
	case x.sealed:
		return x.hold.Amount(), -1, quota.SourceEstimated
	}
	return x.estimate(delivered.Tokens())
}

// estimate charges an answer without usage by its delivered text, at most what is held.
func (x *exchange) estimate(output int64) (cost, tokens int64, source quota.Source) {
	source = quota.SourceEstimated
	if !x.whole {
		source = quota.SourcePartial
	}
	usage := quota.Usage{Input: x.prompt, Output: output}
	cost, err := x.price.Cost(usage)
	if err != nil || cost > x.hold.Amount() {
		cost = x.hold.Amount()
	}
	return cost, usage.Tokens(), source
}
