package upstream

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	readBytes = 16 << 10 // read buffer of a connection in use
	// HeadBytesMax bounds the head of an answer; a larger one is ErrProtocol.
	HeadBytesMax = 64 << 10
	// pieceBytesMax is the most that is written under one idle deadline.
	pieceBytesMax = 256 << 10
)

// conn is one connection with what was read from it and not yet used: buf[r:w].
type conn struct {
	net    net.Conn // what is read and written: tcp, or TLS over it
	tcp    net.Conn
	peeker peeker
	isTLS  bool
	reused bool

	buf  []byte // nil while idle
	r, w int

	idleAt  time.Time     // since when it is idle
	idleMax time.Duration // how long it may be
}

func newConn(tcp, top net.Conn, idleMax time.Duration) *conn {
	return &conn{net: top, tcp: tcp, isTLS: tcp != top, peeker: newPeeker(tcp), idleMax: idleMax}
}

// interrupt makes running and later reads and writes fail at once. The descriptor's owner still
// has to discard the conn. Under TLS the TCP connection is closed itself, since a polite goodbye
// can wait for the peer.
func (cn *conn) interrupt() { _ = cn.tcp.Close() }

// buffered is how many read bytes wait in buf.
func (cn *conn) buffered() int { return cn.w - cn.r }

// fill reads once, appending to buf. It makes room first, up to bytesMax of unused bytes in all;
// beyond, it returns io.ErrShortBuffer.
func (cn *conn) fill(deadline time.Time, bytesMax int) error {
	if cn.buf == nil {
		cn.buf = getBuf()
	}
	if cn.r == cn.w {
		cn.r, cn.w = 0, 0
	}
	if cn.w == len(cn.buf) {
		switch {
		case cn.r > 0:
			cn.w = copy(cn.buf, cn.buf[cn.r:cn.w])
			cn.r = 0
		case len(cn.buf) >= bytesMax:
			return io.ErrShortBuffer
		default:
			bigger := make([]byte, min(2*len(cn.buf), bytesMax))
			copy(bigger, cn.buf)
			putBuf(cn.buf)
			cn.buf = bigger
		}
	}
	if err := cn.net.SetReadDeadline(deadline); err != nil {
		return err
	}
	n, err := cn.net.Read(cn.buf[cn.w:])
	cn.w += n
	if n > 0 {
		return nil // an error comes again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// write writes all of b and reports how many bytes the kernel or TLS took.
func (cn *conn) write(b []byte, deadline time.Time) (int, error) {
	if err := cn.net.SetWriteDeadline(deadline); err != nil {
		return 0, err
	}
	return cn.net.Write(b)
}

func (cn *conn) close() {
	_ = cn.tcp.Close()
	cn.dropBuf()
}

func (cn *conn) dropBuf() {
	if cn.buf != nil {
		putBuf(cn.buf)
		cn.buf, cn.r, cn.w = nil, 0, 0
	}
}

var bufPool = sync.Pool{New: func() any { return new([readBytes]byte) }}

func getBuf() []byte { return bufPool.Get().(*[readBytes]byte)[:] }

func putBuf(b []byte) {
	if len(b) == readBytes {
		bufPool.Put((*[readBytes]byte)(b))
	}
}
