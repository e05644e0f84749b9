package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// doBudget bounds one Do: a server that hangs longer makes it fail, so a test does not hang with it.
const doBudget = 10 * time.Second

// Error is an error reply of Redis, with its code first: "NOSCRIPT …", "MOVED …".
type Error string

func (e Error) Error() string { return string(e) }

// Do sends one command and reads its RESP2 reply: string for simple and bulk strings, int64, nil, or []any of these.
// An error reply comes back as an [Error], anything else is a failure of the connection; the next call dials anew.
// Calls on one server run one after the other.
func (s *Server) Do(args ...string) (any, error) {
	s.client.Lock()
	defer s.client.Unlock()
	if s.client.conn == nil {
		c, err := net.DialTimeout("tcp", s.Addr(), doBudget)
		if err != nil {
			return nil, err
		}
		s.client.conn = &conn{Conn: c, r: bufio.NewReader(c)}
	}
	reply, err := s.client.conn.do(args)
	if err != nil {
		s.client.conn.Close()
		s.client.conn = nil
		return nil, err
	}
	if e, ok := reply.(Error); ok {
		return nil, e
	}
	return reply, nil
}

func (s *Server) dropConn() {
	s.client.Lock()
	defer s.client.Unlock()
	if s.client.conn != nil {
		s.client.conn.Close()
		s.client.conn = nil
	}
}

type conn struct {
	net.Conn
	r *bufio.Reader
}

func (c *conn) do(args []string) (any, error) {
	if err := c.SetDeadline(time.Now().Add(doBudget)); err != nil {
		return nil, err
	}
	msg := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		msg = fmt.Appendf(msg, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := c.Write(msg); err != nil {
		return nil, err
	}
	return c.reply()
}

func (c *conn) reply() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, errors.New("redistest: short reply line")
	}
	rest := line[1 : len(line)-2]
	switch line[0] {
	case '+':
		return rest, nil
	case '-':
		return Error(rest), nil
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return nil, err
		}
		buf := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, buf); err != nil {
			return nil, err
		}
		return string(buf[:n]), nil
	case '*':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return nil, err
		}
		list := make([]any, n)
		for i := range list {
			if list[i], err = c.reply(); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("redistest: unknown reply %q", line)
}
