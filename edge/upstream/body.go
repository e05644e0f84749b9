package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	interimMax      = 8        // 1xx answers before the real one; more are ErrProtocol
	trailerBytesMax = 64 << 10 // trailers are read and dropped; more are ErrProtocol
)

// readHead reads the head of the answer into c.Header, over interim ones, and sets the framing.
func (c *Call) readHead(cn *conn, deadline time.Time) error {
	for range interimMax + 1 {
		n, err := cn.readHead(deadline)
		if err != nil {
			return err
		}
		err = parseHead(&c.Header, cn.buf[cn.r:cn.r+n])
		cn.r += n
		if err != nil {
			return fmt.Errorf("%w: head", ErrProtocol) // the parser's text quotes what it read
		}
		switch status := c.Header.StatusCode(); {
		case status == fasthttp.StatusSwitchingProtocols || status < 100 || status > 999:
			return fmt.Errorf("%w: status %d", ErrProtocol, status)
		case status >= 200:
			c.framing.begin(c.method, &c.Header)
			cn.idleMax = idleMax(c.u.idleMax, c.Header.Peek("Keep-Alive"))
			c.answered = true
			return nil
		}
	}
	return fmt.Errorf("%w: more than %d interim answers", ErrProtocol, interimMax)
}

// readHead reads until a whole head is buffered and returns its length, blank line included.
func (cn *conn) readHead(deadline time.Time) (int, error) {
	from := 0
	for {
		b := cn.buf[cn.r:cn.w]
		for {
			i := bytes.IndexByte(b[from:], '\n')
			if i < 0 {
				from = len(b)
				break
			}
			next := from + i + 1
			switch {
			case bytes.HasPrefix(b[next:], []byte("\n")):
				return next + 1, nil
			case bytes.HasPrefix(b[next:], []byte("\r\n")):
				return next + 2, nil
			case len(b)-next < 2: // the blank line may be cut in two
				from = next - 1
			default:
				from = next
				continue
			}
			break
		}
		if err := cn.fill(deadline, HeadBytesMax); err != nil {
			if errors.Is(err, io.ErrShortBuffer) {
				return 0, fmt.Errorf("%w: head larger than %d bytes", ErrProtocol, HeadBytesMax)
			}
			return 0, err
		}
	}
}

type headParser struct {
	src bytes.Reader
	buf *bufio.Reader
}

var headParsers = sync.Pool{New: func() any {
	p := &headParser{}
	p.buf = bufio.NewReaderSize(&p.src, HeadBytesMax)
	return p
}}

func parseHead(h *fasthttp.ResponseHeader, head []byte) error {
	p := headParsers.Get().(*headParser)
	p.src.Reset(head)
	p.buf.Reset(&p.src)
	err := h.Read(p.buf)
	p.src.Reset(nil)
	headParsers.Put(p)
	h.SetNoDefaultContentType(true)
	return err
}

// idleMax is how long a connection may be idle: ours, or a second less than the peer announced in
// Keep-Alive: timeout=N, since its clock began before ours.
func idleMax(ours time.Duration, keepAlive []byte) time.Duration {
	for item := range strings.SplitSeq(string(keepAlive), ",") {
		value, ok := strings.CutPrefix(strings.TrimSpace(item), "timeout=")
		if !ok {
			continue
		}
		if s, err := strconv.ParseUint(value, 10, 32); err == nil {
			theirs := time.Duration(s) * time.Second
			return min(ours, max(theirs-time.Second, theirs/2))
		}
	}
	return ours
}

type framingKind uint8

const (
	framingNone framingKind = iota
	framingSized
	framingChunked
	framingUntilClose
)

type chunkPart uint8

const (
	chunkSize    chunkPart = iota // the line before a chunk
	chunkData                     // left bytes of it
	chunkEnd                      // the line end after it
	chunkTrailer                  // lines after the last one
)

// framing knows where the answer's body ends (RFC 9112, 6.3).
type framing struct {
	kind         framingKind
	part         chunkPart
	keep         bool  // the connection may be used again after the body
	done         bool  // the end was read
	left         int64 // bytes of a sized body, or of the chunk
	trailerBytes int
	err          error // what Read returns from now on
}

func (f *framing) begin(method string, h *fasthttp.ResponseHeader) {
	*f = framing{keep: !h.ConnectionClose()}
	status, size := h.StatusCode(), h.ContentLength()
	switch {
	case method == "HEAD", status == fasthttp.StatusNoContent, status == fasthttp.StatusNotModified, size == 0:
		f.done = true
	case size > 0:
		f.kind, f.left = framingSized, int64(size)
	case size == -1:
		f.kind = framingChunked
	default:
		f.kind, f.keep = framingUntilClose, false
	}
}

// BodySize is the size of the answer's body in bytes, or -1 if only its end will tell.
func (c *Call) BodySize() int64 {
	switch c.framing.kind {
	case framingNone:
		return 0
	case framingSized:
		return int64(c.Header.ContentLength())
	}
	return -1
}

// Read reads the body of the answer. It returns as soon as there is a byte of it, and takes no
// longer than the idle timeout. io.EOF is the true end of the body; any other end is an error of
// this package. Errors stay.
func (c *Call) Read(p []byte) (int, error) {
	f := &c.framing
	cn := c.mu.conn
	switch {
	case f.err != nil:
		return 0, f.err
	case cn == nil || !c.answered:
		return 0, ErrClosed
	case len(p) == 0:
		return 0, nil
	}
	var n int
	var err error
	if f.kind == framingChunked {
		n, err = c.readChunked(cn, p)
	} else {
		n, err = c.readPlain(cn, p)
	}
	if err != nil {
		f.err = c.bodyError(err)
	} else if f.done {
		f.err = io.EOF
	}
	if n > 0 {
		return n, nil
	}
	return 0, f.err
}

// readPlain reads a body of known size, or one that ends with the connection.
func (c *Call) readPlain(cn *conn, p []byte) (int, error) {
	f := &c.framing
	if f.done {
		return 0, nil
	}
	if f.kind == framingSized && int64(len(p)) > f.left {
		p = p[:f.left]
	}
	n, err := c.readSome(cn, p)
	if f.kind == framingSized {
		f.left -= int64(n)
		f.done = f.left == 0
		if f.done {
			err = nil
		}
	} else if errors.Is(err, io.EOF) {
		f.done, err = true, nil
	}
	return n, err
}

// readSome takes what is buffered, or else reads the connection once.
func (c *Call) readSome(cn *conn, p []byte) (int, error) {
	if cn.buffered() > 0 {
		n := copy(p, cn.buf[cn.r:cn.w])
		cn.r += n
		return n, nil
	}
	if err := cn.net.SetReadDeadline(c.deadline(c.u.timeout.Idle)); err != nil {
		return 0, err
	}
	return cn.net.Read(p)
}

// readChunked fills p with the data of as many chunks as are buffered, and waits only while it has none.
func (c *Call) readChunked(cn *conn, p []byte) (int, error) {
	f := &c.framing
	n := 0
	for n < len(p) {
		if err := f.skipLines(cn); err != nil {
			return n, err
		}
		if f.done {
			return n, nil
		}
		if f.part == chunkData && cn.buffered() > 0 {
			m := copy(p[n:min(int64(len(p)), int64(n)+f.left)], cn.buf[cn.r:cn.w])
			cn.r += m
			n += m
			f.took(m)
			continue
		}
		if n > 0 {
			return n, nil
		}
		if f.part == chunkData && f.left >= readBytes && len(p) >= readBytes { // spare a copy
			m, err := c.readSome(cn, p[:min(int64(len(p)), f.left)])
			f.took(m)
			return m, err
		}
		if err := cn.fill(c.deadline(c.u.timeout.Idle), max(readBytes, len(cn.buf))); err != nil {
			if errors.Is(err, io.ErrShortBuffer) {
				err = fmt.Errorf("%w: chunk line too long", ErrProtocol)
			}
			return 0, err
		}
	}
	return n, nil
}

func (f *framing) took(n int) {
	f.left -= int64(n)
	if f.left == 0 {
		f.part = chunkEnd
	}
}

// skipLines parses the buffered lines between chunks, until data, the end, or a line that is not
// whole yet.
func (f *framing) skipLines(cn *conn) error {
	for f.part != chunkData && !f.done {
		b := cn.buf[cn.r:cn.w]
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return nil
		}
		cn.r += i + 1
		line := bytes.TrimSuffix(b[:i], []byte("\r"))
		switch f.part {
		case chunkSize:
			size, ok := parseChunkSize(line)
			if !ok {
				return fmt.Errorf("%w: chunk size", ErrProtocol)
			}
			f.left, f.part = size, chunkData
			if size == 0 {
				f.part = chunkTrailer
			}
		case chunkEnd:
			if len(line) != 0 {
				return fmt.Errorf("%w: chunk end", ErrProtocol)
			}
			f.part = chunkSize
		case chunkTrailer:
			f.trailerBytes += i + 1
			if f.trailerBytes > trailerBytesMax {
				return fmt.Errorf("%w: trailer too long", ErrProtocol)
			}
			f.done = len(line) == 0
		}
	}
	return nil
}

// parseChunkSize reads the hexadecimal size before any extension.
func parseChunkSize(line []byte) (int64, bool) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimRight(line, " \t")
	if len(line) == 0 || len(line) > 15 { // 15 digits fit an int64
		return 0, false
	}
	var n int64
	for _, b := range line {
		switch {
		case '0' <= b && b <= '9':
			n = n<<4 | int64(b-'0')
		case 'a' <= b && b <= 'f':
			n = n<<4 | int64(b-'a'+10)
		case 'A' <= b && b <= 'F':
			n = n<<4 | int64(b-'A'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// reusable reports whether the connection stands exactly behind the answer. The end of a chunked
// body counts if it has arrived, though nobody read so far.
func (f *framing) reusable(cn *conn) bool {
	if !f.keep || f.err != nil && f.err != io.EOF {
		return false
	}
	if f.kind == framingChunked && !f.done && f.skipLines(cn) != nil {
		return false
	}
	return f.done && cn.buffered() == 0
}
