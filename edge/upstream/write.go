package upstream

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// finishHead ends the head of the request with its framing.
func finishHead(c *Call) {
	b := *c.head
	switch {
	case c.size == streamUnsized:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case c.size > 0 || c.method == "POST" || c.method == "PUT" || c.method == "PATCH":
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, c.size, 10)
		b = append(b, "\r\n"...)
	}
	*c.head = append(b, "\r\n"...)
}

// writeRequest writes head and body. As long as c.sent is false it may be called again with another
// connection: the body stream is not touched before the head has been taken.
func (c *Call) writeRequest(cn *conn) error {
	head := *c.head
	first := head
	body := c.body
	if len(body) > 0 && len(body) <= readBytes { // a small body travels in the same segment
		first = append(first, body...)
		body = nil
		*c.head = first[:len(head)]
	}
	if err := c.writePiece(cn, first); err != nil {
		return err
	}
	for len(body) > 0 {
		n := min(len(body), pieceBytesMax)
		if err := c.writePiece(cn, body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	switch {
	case c.stream == nil:
		return nil
	case c.size == streamUnsized:
		return c.writeChunks(cn)
	}
	return c.writeSized(cn)
}

// writePiece writes p under a new idle deadline. On TCP a failed write of no byte has sent nothing;
// what TLS has put on the wire by then cannot be known.
func (c *Call) writePiece(cn *conn, p []byte) error {
	if cn.isTLS {
		c.sent = true
	}
	n, err := cn.write(p, c.deadline(c.u.timeout.Idle))
	if n > 0 {
		c.sent = true
	}
	return err
}

func (c *Call) writeSized(cn *conn) error {
	buf := getBuf()
	defer putBuf(buf)
	for left := c.size; left > 0; {
		n, err := c.stream.Read(buf[:min(int64(len(buf)), left)])
		if n > 0 {
			left -= int64(n)
			if err := c.writePiece(cn, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil && left > 0 {
			return bodyStreamError(err)
		}
	}
	return nil
}

func (c *Call) writeChunks(cn *conn) error {
	buf := getBuf()
	defer putBuf(buf)
	const lead = len("3ffa\r\n") // the size line of the largest chunk that fits
	for {
		n, err := c.stream.Read(buf[lead : len(buf)-2])
		if n > 0 {
			size := strconv.AppendInt(make([]byte, 0, lead), int64(n), 16)
			from := lead - len(size) - 2
			copy(buf[from:], size)
			copy(buf[lead-2:], "\r\n")
			copy(buf[lead+n:], "\r\n")
			if err := c.writePiece(cn, buf[from:lead+n+2]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return c.writePiece(cn, []byte("0\r\n\r\n"))
		default:
			return bodyStreamError(err)
		}
	}
}

// bodyStreamError keeps the reader's error as text only: a deadline of the client's connection must
// not pass for one of ours.
func bodyStreamError(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %s", ErrRequestBody, err.Error())
}

// earlyWait is how long an answer is waited for after the upstream stopped taking the request.
const earlyWait = 250 * time.Millisecond

// earlyAnswer tries to read the answer of an upstream that did not want the whole request, such as
// 413, and closed. Such a connection is not used again.
func (c *Call) earlyAnswer(cn *conn, err error) bool {
	if c.Canceled() || errors.Is(err, ErrRequestBody) || errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if c.readHead(cn, c.deadline(earlyWait)) != nil {
		return false
	}
	c.framing.keep = false
	c.AnsweredAt = time.Now()
	return true
}
