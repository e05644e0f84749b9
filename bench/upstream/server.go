package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Server. The zero value is a healthy server with a log in memory.
type Options struct {
	// Behaviour is how calls are answered when no rule and no request says else.
	Behaviour Behaviour
	// Models is what GET /v1/models lists; empty means one, "fake". Any model name is served.
	Models []string
	// LogEntries is how many entries the log keeps; 0 means 65536. Older ones are dropped and counted.
	LogEntries int
	// LogFile, if set, gets each entry as a JSON line, written when the call ends.
	LogFile string
}

// Server is the fake. Its methods may be called from any goroutine.
type Server struct {
	base    Behaviour
	models  []string
	logFile string
	log     callLog
	rules   rules
	http    *http.Server
	quit    chan struct{} // closed by Close: ends every wait
	served  chan struct{} // closed when the accept loop has ended

	mu struct {
		sync.Mutex
		listener net.Listener
		closed   bool
		release  chan struct{} // closed by Release, then renewed
		conns    map[net.Conn]*connState
		empty    chan struct{} // closed when the last connection has ended after Close
	}
}

// connState is what the server keeps of a connection, so as to close it when it idles.
type connState struct {
	idleClose atomic.Int64 // time.Duration; 0 = keep
	timer     *time.Timer  // runs while idle; guarded by Server.mu
}

type connKey struct{}

// New makes a Server. Start makes it listen; Close must follow.
func New(o Options) *Server {
	s := &Server{
		base: o.Behaviour, models: o.Models, logFile: o.LogFile,
		quit: make(chan struct{}), served: make(chan struct{}),
	}
	if len(s.models) == 0 {
		s.models = []string{"fake"}
	}
	s.log.entriesMax = o.LogEntries
	if s.log.entriesMax <= 0 {
		s.log.entriesMax = logEntriesMax
	}
	s.mu.release = make(chan struct{})
	s.mu.conns = make(map[net.Conn]*connState)
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: time.Minute,
		MaxHeaderBytes:    1 << 20,
		ConnState:         s.connState,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			state := &connState{}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.mu.conns[conn] = state
			return context.WithValue(ctx, connKey{}, state)
		},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	return s
}

// Start listens on addr ("127.0.0.1:0" picks a free port) and serves until
// Close. It fails when the behaviour is not valid, the log file cannot be
// opened or the address cannot be had.
func (s *Server) Start(addr string) error {
	if err := s.base.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.listener != nil || s.mu.closed {
		return ErrStarted
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	if s.logFile != "" {
		if err := s.log.openFile(s.logFile); err != nil {
			_ = listener.Close() // the first error is the one to tell
			return fmt.Errorf("upstream: log file: %w", err)
		}
	}
	s.mu.listener = listener
	go func() {
		defer close(s.served)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			slog.Error("fake upstream stopped", "error", err)
		}
	}()
	return nil
}

// Addr is the address it listens on, with its port; empty before Start.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.listener == nil {
		return ""
	}
	return s.mu.listener.Addr().String()
}

// URL is http:// and Addr.
func (s *Server) URL() string { return "http://" + s.Addr() }

// Close breaks off what is running, and waits until every goroutine of the server has ended. A second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.closed = true
	started := s.mu.listener != nil
	s.mu.Unlock()
	close(s.quit)
	err := s.http.Close()
	if started {
		<-s.served
	}
	s.mu.Lock()
	var empty chan struct{}
	for conn := range s.mu.conns { // also one accepted while http.Close looked through its list
		_ = conn.Close() // most are closed already
	}
	if len(s.mu.conns) > 0 {
		empty = make(chan struct{})
		s.mu.empty = empty
	}
	s.mu.Unlock()
	if empty != nil {
		<-empty
	}
	return errors.Join(err, s.log.closeFile())
}

// Shutdown takes no new calls, lets the running ones end until ctx does, then closes.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	return errors.Join(err, s.Close())
}

// Behave adds a rule. Errors wrap ErrKnob or ErrRules.
func (s *Server) Behave(r Rule) error { return s.rules.add(r, s.base) }

// Rules returns the rules that are not used up, with what is left of Skip and Times.
func (s *Server) Rules() []Rule { return s.rules.all() }

// ClearRules removes all rules.
func (s *Server) ClearRules() { s.rules.clear() }

// Log returns the entries it still has, by the order in which the calls ended.
func (s *Server) Log() []Entry { return s.log.entries(0) }

// Totals returns the sums.
func (s *Server) Totals() Totals { return s.log.totals() }

// Reset empties log, totals and rules. Calls that are running stay out of the new totals.
func (s *Server) Reset() {
	s.rules.clear()
	s.log.reset()
}

// Wait returns the first totals for which enough is true, or the last ones seen and the error of ctx.
func (s *Server) Wait(ctx context.Context, enough func(Totals) bool) (Totals, error) {
	return s.log.wait(ctx, enough)
}

// Release lets every call go on that the hang knob keeps silent now, as Totals.Silent counts them.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.mu.release)
	s.mu.release = make(chan struct{})
}

func (s *Server) released() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.release
}

// connState follows the connections: for Close to wait for them, and to close those that idle too long.
func (s *Server) connState(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.mu.conns[conn]
	if c == nil {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	switch state {
	case http.StateIdle:
		if d := time.Duration(c.idleClose.Load()); d > 0 {
			c.timer = time.AfterFunc(d, func() { _ = conn.Close() }) // may be closed already
		}
	case http.StateHijacked, http.StateClosed:
		delete(s.mu.conns, conn)
		if len(s.mu.conns) == 0 && s.mu.empty != nil {
			close(s.mu.empty)
			s.mu.empty = nil
		}
	}
}
