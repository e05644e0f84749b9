package main

import (
	"net"
	"sync"
)

// openListener knows the connections that it accepted and nobody has closed. At
// stop the last of them can be closed: a client that stopped reading its answer,
// or never sent the rest of its request, would keep the server waiting for ever.
type openListener struct {
	*net.TCPListener
	mu struct {
		sync.Mutex
		open map[*openConn]struct{} // as many as the process may have files
	}
}

// openConn is still a socket to those who look into it (syscall.Conn, io.ReaderFrom).
type openConn struct {
	*net.TCPConn
	of *openListener
}

func listen(addr string) (*openListener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	o := &openListener{TCPListener: l.(*net.TCPListener)}
	o.mu.open = map[*openConn]struct{}{}
	return o, nil
}

// Accept implements net.Listener.
func (l *openListener) Accept() (net.Conn, error) {
	tcp, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	c := &openConn{TCPConn: tcp, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.open[c] = struct{}{}
	return c, nil
}

// Close implements net.Conn.
func (c *openConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.mu.open, c)
	c.of.mu.Unlock()
	return c.TCPConn.Close()
}

// closeConns closes what is still open, and says how many that were. What was
// written before still reaches the client.
func (l *openListener) closeConns() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.mu.open)
	for c := range l.mu.open {
		_ = c.TCPConn.Close() // there is nobody to tell
	}
	clear(l.mu.open)
	return n
}
