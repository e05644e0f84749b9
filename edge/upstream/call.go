package upstream

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// Call is one request and its answer. Fill it (CopyRequestHeader, AddHeader, SetBody), hand it to
// Upstream.Do, read the answer from Header and Read, and end with Close, always.
//
// One goroutine uses a Call; only Cancel may come from others. A Call is not used twice.
type Call struct {
	// Header is the head of the answer, valid after Do returned nil and until Close.
	Header fasthttp.ResponseHeader
	// SentAt and AnsweredAt are when the request was wholly written and when the answer's head was
	// complete; zero if it did not come to that. The time between is the upstream's, not ours.
	SentAt, AnsweredAt time.Time

	u      *Upstream
	head   *[]byte // pooled: request line and headers, later with the begin of the body
	method string
	err    error // first fault found while filling

	body     []byte
	stream   io.Reader
	size     int64 // of the body; streamUnsized: chunked
	sent     bool
	totalAt  time.Time
	answered bool

	framing framing

	mu struct {
		sync.Mutex
		conn     *conn              // while this call owns one
		stopDial context.CancelFunc // while dialling
		canceled bool
		closed   bool
	}
}

// streamUnsized is the size of a body that is sent in chunks.
const streamUnsized = -1

// NewCall begins a request. target is the path and query in origin form, as the client sent them;
// it is appended to the path of the upstream's URL unchanged. Both are copied.
func (u *Upstream) NewCall(method, target []byte) *Call {
	c := &Call{u: u, head: getHead(), method: string(method)}
	if !isToken(method) {
		c.fault("method")
	}
	if !isTarget(target) {
		c.fault("target")
	}
	b := append(*c.head, method...)
	b = append(b, ' ')
	b = append(b, u.end.prefix...)
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\n"...)
	*c.head = append(b, u.fixed...)
	return c
}

func (c *Call) fault(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: malformed %s", ErrRequest, what)
	}
}

// CopyRequestHeader copies the headers of a received request: all but hop-by-hop headers, framing,
// the tenant's credentials, Accept-Encoding, and those that Options set. Order, repeats and values
// stay as they came.
func (c *Call) CopyRequestHeader(src *fasthttp.RequestHeader) {
	var connection [][]byte
	for name, value := range src.AllInOrder() {
		if string(name) == fasthttp.HeaderConnection {
			connection = append(connection, value)
		}
	}
	for name, value := range src.AllInOrder() {
		if !has(hopByHop, name) && !listedAny(connection, name) {
			c.AddHeader(name, value)
		}
	}
}

// AddHeader adds one header, unless it is one of those that are written anew (see CopyRequestHeader).
func (c *Call) AddHeader(name, value []byte) {
	if has(hopByHop, name) || has(replaced, name) || has(c.u.owned, name) {
		return
	}
	if !isToken(name) || !isText(value) {
		c.fault("header")
		return
	}
	*c.head = appendHeader(*c.head, name, value)
}

func appendHeader[A, B string | []byte](dst []byte, name A, value B) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, '\r', '\n')
}

// SetBody sets the body. The bytes are lent: they must stay as they are until Do returned.
func (c *Call) SetBody(body []byte) { c.body, c.stream, c.size = body, nil, int64(len(body)) }

// SetBodyStream sets a body that is read while it is sent: size bytes exactly, or in chunks until
// io.EOF if size is negative. r is read by the goroutine of Do only, and not after Do returned.
func (c *Call) SetBodyStream(r io.Reader, size int64) {
	c.body, c.stream, c.size = nil, r, max(size, streamUnsized)
}

// Sent reports whether any byte of the request may have reached the upstream. When it is false,
// nothing happened there. To be asked after Do.
func (c *Call) Sent() bool { return c.sent }

// Cancel ends the call at once, whatever it waits for: Do or Read return ErrCanceled, and the
// connection is closed, which the upstream sees. Safe from any goroutine, at any time, repeatedly;
// after Close it does nothing.
func (c *Call) Cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.canceled {
		return
	}
	c.mu.canceled = true
	if c.mu.stopDial != nil {
		c.mu.stopDial()
	}
	if c.mu.conn != nil {
		c.mu.conn.interrupt()
	}
}

// Canceled reports whether Cancel came before Close.
func (c *Call) Canceled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.canceled
}

// Close ends the call. If the answer was read to its end its connection is kept for the next one,
// otherwise it is closed. Repeats do nothing. Header and Read must not be used afterwards.
func (c *Call) Close() {
	c.mu.Lock()
	cn := c.mu.conn
	c.mu.conn = nil
	c.mu.closed = true
	canceled := c.mu.canceled
	c.mu.Unlock()

	if c.head != nil {
		putHead(c.head)
		c.head = nil
	}
	if cn == nil {
		return
	}
	if !canceled && c.answered && c.framing.reusable(cn) {
		c.u.pool.put(cn, time.Now())
		return
	}
	c.u.pool.discard(cn)
}

// own makes cn the connection that Cancel interrupts. False: canceled already, cn was discarded.
func (c *Call) own(cn *conn) bool {
	c.mu.Lock()
	ok := !c.mu.canceled && !c.mu.closed
	if ok {
		c.mu.conn = cn
	}
	c.mu.Unlock()
	if !ok {
		c.u.pool.discard(cn)
	}
	return ok
}

// disown closes the call's connection.
func (c *Call) disown() {
	c.mu.Lock()
	cn := c.mu.conn
	c.mu.conn = nil
	c.mu.Unlock()
	if cn != nil {
		c.u.pool.discard(cn)
	}
}

// beginDial returns a context that ends after the connect timeout or with Cancel.
func (c *Call) beginDial() (context.Context, context.CancelFunc, bool) {
	end := time.Now().Add(c.u.timeout.Connect)
	if c.totalAt.Before(end) {
		end = c.totalAt
	}
	ctx, stop := context.WithDeadline(context.Background(), end)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.canceled {
		stop()
		return nil, nil, false
	}
	c.mu.stopDial = stop
	return ctx, func() {
		c.mu.Lock()
		c.mu.stopDial = nil
		c.mu.Unlock()
		stop()
	}, true
}

// deadline is the end of a phase of length d that begins now, within the total.
func (c *Call) deadline(d time.Duration) time.Time {
	at := time.Now().Add(d)
	if c.totalAt.Before(at) {
		return c.totalAt
	}
	return at
}

const (
	headBytes     = 4 << 10  // first size of a request's head; grows as needed
	headBytesKept = 64 << 10 // larger ones are left to the collector
)

var headPool sync.Pool

func getHead() *[]byte {
	if p, ok := headPool.Get().(*[]byte); ok {
		return p
	}
	b := make([]byte, 0, headBytes)
	return &b
}

func putHead(p *[]byte) {
	if cap(*p) > headBytesKept {
		return
	}
	*p = (*p)[:0]
	headPool.Put(p)
}
