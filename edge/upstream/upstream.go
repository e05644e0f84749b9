package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Upstream is one upstream and its connections. Safe for concurrent use.
type Upstream struct {
	name    string
	end     endpoint
	fixed   []byte              // headers that every request carries, credential included
	owned   map[string]struct{} // lower-case names in fixed that Options brought
	timeout Timeouts
	idleMax time.Duration
	pool    pool
	counts  counters
	stop    chan struct{}
	stopped sync.WaitGroup
	once    sync.Once
}

// New checks Options (ErrOptions) and starts the goroutine that closes old idle connections.
// It does not connect.
func New(o Options) (*Upstream, error) {
	end, err := parseEndpoint(&o)
	if err != nil {
		return nil, err
	}
	u := &Upstream{name: o.Name, end: end, timeout: o.Timeout.withDefaults(), owned: names(), stop: make(chan struct{})}
	u.counts.name = o.Name
	u.pool.connsMax = o.ConnsMax
	if u.pool.connsMax <= 0 {
		u.pool.connsMax = connsMaxDefault
	}
	u.fixed = appendHeader(u.fixed, "Host", end.host)
	u.fixed = appendHeader(u.fixed, "Accept-Encoding", "identity")
	set := func(name, value string) error {
		low := string(appendLower(nil, []byte(name)))
		_, twice := u.owned[low]
		_, hop := hopByHop[low]
		if !isToken(name) || !isText(value) || twice || hop || low == "content-length" || low == "host" || low == "accept-encoding" {
			return fmt.Errorf("%w: %s: header %q cannot be set", ErrOptions, o.Name, name)
		}
		u.owned[low] = struct{}{}
		u.fixed = appendHeader(u.fixed, name, value)
		return nil
	}
	if o.Auth.Secret != "" {
		if err := set(o.Auth.Header, o.Auth.Prefix+o.Auth.Secret); err != nil {
			return nil, err
		}
	}
	for name, value := range o.Headers {
		if err := set(name, value); err != nil {
			return nil, err
		}
	}
	u.idleMax = o.IdleMax
	if u.idleMax <= 0 {
		u.idleMax = idleMaxDefault
	}
	u.stopped.Go(func() { u.sweepLoop(u.idleMax) })
	return u, nil
}

func (u *Upstream) sweepLoop(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-u.stop:
			return
		case now := <-t.C:
			u.pool.sweep(now)
		}
	}
}

// Close closes idle connections and makes new calls fail with ErrClosed. Calls in flight go on;
// their connections are closed as they end.
func (u *Upstream) Close() {
	u.once.Do(func() { close(u.stop) })
	u.pool.close()
	u.stopped.Wait()
}

// Conns reports how many connections are open, and how many of them are idle.
func (u *Upstream) Conns() (open, idle int) { return u.pool.counts() }

// Do sends the request and waits for the head of the answer, whatever its status; redirects are
// not followed. After nil the body is to be read from c. After an error the connection is gone
// already; Close must be called all the same.
func (u *Upstream) Do(c *Call) error {
	err := u.do(c)
	if err != nil {
		c.disown()
	}
	u.counts.count(c, err)
	return err
}

// staleMax bounds how many idle connections one call may find broken while writing, before any byte
// of it was taken; then ErrUnreachable.
const staleMax = 4

func (u *Upstream) do(c *Call) error {
	if c.err != nil {
		return c.err
	}
	c.totalAt = time.Now().Add(u.timeout.Total)
	finishHead(c)
	for try := 1; ; try++ {
		cn, err := u.connect(c)
		if err != nil {
			return err
		}
		if !c.own(cn) {
			return ErrCanceled
		}
		err = c.writeRequest(cn)
		if err == nil {
			break
		}
		if c.sent && c.earlyAnswer(cn, err) {
			return nil
		}
		if !c.sent && cn.reused && try < staleMax && !c.Canceled() && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.disown()
			continue
		}
		return c.writeError(err)
	}
	c.SentAt = time.Now()
	if err := c.readHead(c.mu.conn, c.deadline(u.timeout.FirstByte)); err != nil {
		return c.headError(err)
	}
	c.AnsweredAt = time.Now()
	return nil
}

// connect returns a live connection, idle or new.
func (u *Upstream) connect(c *Call) (*conn, error) {
	cn, err := u.pool.get(time.Now())
	if cn != nil || err != nil {
		return cn, err
	}
	ctx, done, ok := c.beginDial()
	if !ok {
		u.pool.giveUp()
		return nil, ErrCanceled
	}
	defer done()
	cn, err = u.dial(ctx)
	if err == nil {
		return cn, nil
	}
	u.pool.giveUp()
	switch {
	case c.Canceled():
		return nil, ErrCanceled
	case !time.Now().Before(c.totalAt):
		return nil, ErrTimeoutTotal
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnreachable, u.name, err)
}

var dialer = net.Dialer{KeepAlive: 15 * time.Second}

func (u *Upstream) dial(ctx context.Context) (*conn, error) {
	tcp, err := dialer.DialContext(ctx, "tcp", u.end.addr)
	if err != nil {
		return nil, err
	}
	if u.end.tls == nil {
		return newConn(tcp, tcp, u.idleMax), nil
	}
	top := tls.Client(tcp, u.end.tls)
	if err := top.HandshakeContext(ctx); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return newConn(tcp, top, u.idleMax), nil
}

// writeError says why the request could not be written.
func (c *Call) writeError(err error) error {
	switch {
	case c.Canceled():
		return ErrCanceled
	case errors.Is(err, ErrRequestBody):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return c.timeoutError(ErrTimeoutIdle)
	case c.sent:
		return fmt.Errorf("%w: %s: %w", ErrNoAnswer, c.u.name, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnreachable, c.u.name, err)
}

// headError says why there is no head of an answer.
func (c *Call) headError(err error) error {
	switch {
	case c.Canceled():
		return ErrCanceled
	case errors.Is(err, ErrProtocol):
		return fmt.Errorf("%w (%s)", err, c.u.name)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return c.timeoutError(ErrTimeoutFirstByte)
	}
	return fmt.Errorf("%w: %s: %w", ErrNoAnswer, c.u.name, err)
}

// bodyError says why the body ended before its end.
func (c *Call) bodyError(err error) error {
	switch {
	case c.Canceled():
		return ErrCanceled
	case errors.Is(err, ErrProtocol):
		return fmt.Errorf("%w (%s)", err, c.u.name)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return c.timeoutError(ErrTimeoutIdle)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %s", ErrCut, c.u.name)
	}
	return fmt.Errorf("%w: %s: %w", ErrCut, c.u.name, err)
}

func (c *Call) timeoutError(phase error) error {
	if !time.Now().Before(c.totalAt) {
		phase = ErrTimeoutTotal
	}
	return fmt.Errorf("%w: %s", phase, c.u.name)
}
