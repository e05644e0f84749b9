package upstream

import (
	"net"
	"syscall"
	"time"
)

// Watch calls gone once if the peer of conn closes or resets it, within a millisecond, although
// nobody reads. It is for the time in which a server works on a request: nothing else may read conn
// until stop was called. A peer that only shut down its sending side counts as gone.
//
// stop ends the watch and waits for it: gone is not running and will not be called afterwards, and
// conn is as it was, without a read deadline and without a byte missing. gone runs on the watch's
// goroutine; it must not block, and must not call stop. stop may be called repeatedly.
//
// The watch ends by itself when the peer sends something (a pipelined request), since what comes
// behind that cannot be seen. On a conn that is no plain socket it never fires: under TLS a
// goodbye looks like data. The same on systems without MSG_PEEK. A client that leaves is then
// noticed by the next write, as without a watch.
func Watch(conn net.Conn, gone func()) (stop func()) {
	sc, ok := conn.(syscall.Conn)
	if !ok || !canPeek {
		return func() {}
	}
	raw, err := sc.SyscallConn()
	if err != nil || conn.SetReadDeadline(time.Time{}) != nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		left := false
		err := raw.Read(func(fd uintptr) bool {
			switch peek(fd) {
			case peekNothing:
				return false // until the poller sees something
			case peekGone:
				left = true
			}
			return true
		})
		if err == nil && left {
			gone()
		}
	}()
	return func() {
		// A deadline in the past wakes the poller.
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = conn.SetReadDeadline(time.Time{})
	}
}

// peekResult is what a look at a socket's receive queue shows.
type peekResult uint8

const (
	peekNothing peekResult = iota // open, nothing to read
	peekData
	peekGone // closed by the peer, or broken
)

// peeker looks at an idle connection before it is used again.
type peeker struct {
	raw   syscall.RawConn
	state *peekResult
	look  func(fd uintptr) bool // made once: a look allocates nothing
}

func newPeeker(conn net.Conn) peeker {
	sc, ok := conn.(syscall.Conn)
	if !ok || !canPeek {
		return peeker{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return peeker{}
	}
	state := new(peekResult)
	return peeker{raw: raw, state: state, look: func(fd uintptr) bool {
		*state = peek(fd)
		return true
	}}
}

// quiet reports whether the peer has neither closed the connection nor sent anything. Where that
// cannot be seen the answer is no: a new connection costs less than a lost request.
func (p *peeker) quiet() bool {
	if p.raw == nil || p.raw.Read(p.look) != nil {
		return false
	}
	return *p.state == peekNothing
}
