package upstream

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// compressor is a gzip or deflate writer.
type compressor interface {
	io.WriteCloser
	Flush() error
}

// writer puts an answer on the wire the way the behaviour wants it, and keeps
// in the entry what really went out.
type writer struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	ctx   context.Context // done when the client is gone
	s     *Server
	b     *Behaviour
	e     *Entry
	age   int64 // of the call, for the log
	cutAt point
	hang  point
	form  sseForm

	sum     hash.Hash
	zip     compressor // nil for identity
	zipped  bytes.Buffer
	joined  bytes.Buffer // events that wait for join
	waiting []piece      // what joined holds
	begun   int          // events begun
}

// sleep waits d, unless the client goes or the server closes first.
func (o *writer) sleep(d time.Duration) error {
	if d <= 0 {
		return o.gone()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-o.ctx.Done():
		return errGone
	case <-o.s.quit:
		return errClosing
	}
}

func (o *writer) gone() error {
	select {
	case <-o.s.quit:
		return errClosing
	case <-o.ctx.Done():
		return errGone
	default:
		return nil
	}
}

// silent waits until Release, the client's going or the server's end.
func (o *writer) silent() error {
	released := o.s.released() // before it counts: whoever sees the count can release it
	o.s.log.silent(o.age, 1)
	defer o.s.log.silent(o.age, -1)
	select {
	case <-released:
		return nil
	case <-o.ctx.Done():
		return errGone
	case <-o.s.quit:
		return errClosing
	}
}

func (o *writer) silentAfterFlush() error {
	if err := o.rc.Flush(); err != nil {
		return errGone
	}
	return o.silent()
}

// head writes status and headers. bodyBytes is the length of the body, -1 when it is not known.
func (o *writer) head(status int, contentType string, bodyBytes int) error {
	h := o.w.Header()
	h.Set("Content-Type", contentType)
	if n := o.b.CookieLen; n > 0 {
		const name = "fake="
		h.Set("Set-Cookie", name+strings.Repeat("c", max(n-len(name), 0)))
	}
	switch o.b.Framing {
	case "chunked":
		bodyBytes = -1
	case "close":
		bodyBytes = -1
		h.Set("Transfer-Encoding", "identity") // net/http then ends the body with the connection
	}
	if bodyBytes >= 0 {
		h.Set("Content-Length", strconv.Itoa(bodyBytes))
	}
	if o.b.ConnClose {
		h.Set("Connection", "close")
	}
	pairs, err := parseHeader(o.b.Header)
	if err != nil {
		return err
	}
	for _, p := range pairs {
		h.Add(p[0], p[1])
	}
	o.w.WriteHeader(status)
	o.e.Status = status
	if o.cutAt.headers {
		return o.cut()
	}
	return nil
}

func bodiless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified
}

// body writes a whole body under its head.
func (o *writer) body(status int, contentType string, p piece) error {
	if bodiless(status) {
		return o.head(status, contentType, -1)
	}
	data, err := o.encode(p.data, true)
	if err != nil {
		return err
	}
	if err := o.head(status, contentType, len(data)); err != nil {
		return err
	}
	if o.hang.events == 0 {
		if err := o.silentAfterFlush(); err != nil {
			return err
		}
	}
	if o.b.Framing == "chunked" {
		if err := o.rc.Flush(); err != nil { // else net/http would send short bodies with a length
			return errGone
		}
	}
	if err := o.put(data, false); err != nil {
		return err
	}
	o.delivered(p)
	if o.cutAt.end || o.cutAt.events == o.e.Events {
		return o.cut()
	}
	return nil
}

// stream writes the events under a head of their own.
func (o *writer) stream(status int, events func(yield func(piece) bool)) error {
	if err := o.head(status, "text/event-stream", -1); err != nil {
		return err
	}
	var err error
	if o.form.bom {
		o.joined.WriteString("\xef\xbb\xbf")
	}
	for p := range events {
		if err = o.event(p); err != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := o.flushJoined(); err != nil {
		return err
	}
	tail, err := o.encode(nil, true)
	if err != nil {
		return err
	}
	if err := o.put(tail, true); err != nil {
		return err
	}
	if o.cutAt.end {
		return o.cut()
	}
	return nil
}

func (o *writer) event(p piece) error {
	if o.begun == o.hang.events {
		if err := o.flushJoined(); err != nil {
			return err
		}
		if err := o.silentAfterFlush(); err != nil {
			return err
		}
	}
	if o.begun > 0 {
		if err := o.sleep(o.b.DelayChunk); err != nil {
			return err
		}
	}
	o.form.frame(&o.joined, p.data, o.begun)
	o.begun++
	o.waiting = append(o.waiting, p)
	if len(o.waiting) < o.b.Join && o.begun != o.cutAt.events {
		return nil
	}
	if err := o.flushJoined(); err != nil {
		return err
	}
	if o.begun == o.cutAt.events {
		return o.cut()
	}
	return nil
}

func (o *writer) flushJoined() error {
	if len(o.waiting) == 0 {
		return nil
	}
	data, err := o.encode(o.joined.Bytes(), false)
	if err != nil {
		return err
	}
	if err := o.put(data, true); err != nil {
		return err
	}
	o.joined.Reset()
	for _, p := range o.waiting {
		o.delivered(p)
	}
	o.waiting = o.waiting[:0]
	return nil
}

func (o *writer) delivered(p piece) {
	o.e.Events++
	o.e.WrittenTokens += p.tokens
	if p.reported != nil {
		o.e.Reported = p.reported
	}
}

// frame writes one event of a stream.
func (f sseForm) frame(to *bytes.Buffer, data []byte, number int) {
	if f.comments {
		to.WriteString(": keep-alive" + f.eol + f.eol)
	}
	if f.ids {
		to.WriteString("event: message" + f.eol + "id: " + strconv.Itoa(number) + f.eol)
	}
	name := "data: "
	if f.noSpace {
		name = "data:"
	}
	if f.multiline && len(data) > 1 && data[0] == '{' {
		to.WriteString(name + "{" + f.eol)
		data = data[1:]
	}
	to.WriteString(name)
	to.Write(data)
	to.WriteString(f.eol + f.eol)
}

// encode applies Content-Encoding to the next part of the body, flushed; the last part also ends it.
func (o *writer) encode(data []byte, last bool) ([]byte, error) {
	if o.zip == nil {
		return data, nil
	}
	o.zipped.Reset()
	if _, err := o.zip.Write(data); err != nil {
		return nil, err
	}
	end := o.zip.Flush
	if last {
		end = o.zip.Close
	}
	if err := end(); err != nil {
		return nil, err
	}
	return o.zipped.Bytes(), nil
}

func (o *writer) setEncoding() error {
	switch o.b.Encoding {
	case "gzip":
		o.zip = gzip.NewWriter(&o.zipped)
	case "deflate":
		z, err := flate.NewWriter(&o.zipped, flate.DefaultCompression)
		if err != nil {
			return err
		}
		o.zip = z
	default:
		return nil
	}
	o.w.Header().Set("Content-Encoding", o.b.Encoding)
	return nil
}

// put writes body bytes in pieces, and cuts where the behaviour says so.
func (o *writer) put(data []byte, flush bool) error {
	for first := true; len(data) > 0; first = false {
		if !first {
			if err := o.sleep(o.b.DelayPiece); err != nil {
				return err
			}
		} else if err := o.gone(); err != nil {
			return err
		}
		part := data
		if o.b.Split > 0 {
			part = data[:min(o.b.Split, len(data))]
			flush = true
		}
		cut := false
		if left := o.cutAt.bodyBytes - o.e.BodyBytes; o.cutAt.bodyBytes >= 0 && int64(len(part)) >= left {
			part, cut = part[:left], true
		}
		n, err := o.w.Write(part)
		o.e.BodyBytes += int64(n)
		o.sum.Write(part[:n])
		if err == nil && flush {
			err = o.rc.Flush()
		}
		if err != nil {
			return errGone
		}
		if cut {
			return o.cut()
		}
		data = data[len(part):]
	}
	return nil
}

// cut ends the connection here, without what HTTP would end the answer with.
func (o *writer) cut() error {
	o.e.Cut = true
	if o.e.Status != 0 {
		if err := o.rc.Flush(); err != nil {
			return errGone
		}
	}
	conn, _, err := o.rc.Hijack()
	if err != nil {
		return errGone
	}
	if tcp, ok := conn.(*net.TCPConn); ok && o.b.Reset {
		_ = tcp.SetLinger(0) // a failure leaves an orderly close, still a cut
	}
	_ = conn.Close() // the peer may have closed it first
	return errCut
}

func (o *writer) sumHex() string { return hex.EncodeToString(o.sum.Sum(nil)) }

func newWriter(c *call) (*writer, error) {
	o := &writer{w: c.w, rc: http.NewResponseController(c.w), ctx: c.r.Context(), s: c.s, b: &c.b, e: &c.e, age: c.age, sum: sha256.New()}
	var err error
	if o.cutAt, err = parseCut(c.b.Cut); err != nil {
		return nil, err
	}
	if c.b.Reset && c.b.Cut == "" {
		o.cutAt.before = true
	}
	if o.hang, err = parseHang(c.b.Hang); err != nil {
		return nil, err
	}
	o.form, err = parseSSE(c.b.SSE)
	return o, err
}
