package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"tollgate/edge/admission"
	"tollgate/edge/answer"
	"tollgate/edge/config"
	"tollgate/edge/identity"
	"tollgate/edge/tokens"
	"tollgate/edge/upstream"
	"tollgate/ledger"
	"tollgate/quota"
)

// Options are what a Server works with. All fields are needed.
type Options struct {
	Config    *config.Config
	Node      string // this node's id
	Directory *identity.Directory
	Admission *admission.Engine
	Settler   *ledger.Settler
	Loader    ledger.AccountLoader
	Upstreams map[string]*upstream.Upstream
	// Ready is what /readyz tells: why the node should get no calls; nil: it should.
	Ready func() error
	// Started says whether every store is known to belong to this ledger. Before, nothing is decided.
	Started func() bool
}

// Server is the data plane of one node.
type Server struct {
	opt      Options
	cfg      *config.Config
	http     *fasthttp.Server
	prices   map[string]quota.Price        // by price id
	words    map[string]*tokens.Vocabulary // by tokenizer of models; nil where prompts are weighed by their bytes
	matched  map[string]*atomic.Bool       // by pattern of models: whether a request ever matched it
	running  running
	draining atomic.Bool
	policies sync.Map    // policy JSON of a tenant → config.Policy; see policyOf
	reached  func(place) // tests only: hears of the places a call comes to, and may panic there
}

// place is a point of a call at which tests let the code panic.
type place uint8

const (
	placeHeld  place = iota // the hold is got
	placeReady              // the answer's head is there, and not handed to the server
	placeRead               // before each read of the answer's body
	placeEnd                // before the charge is known
)

func (s *Server) reach(p place) {
	if s.reached != nil {
		s.reached(p)
	}
}

// Bounds of the HTTP server beside those of the configuration.
const (
	readTimeout = 120 * time.Second // a whole request, head and body; slower clients get 408
	idleTimeout = 90 * time.Second  // a connection without a request
)

// New returns a Server; Serve makes it answer.
func New(o Options) *Server {
	s := &Server{opt: o, cfg: o.Config, prices: map[string]quota.Price{}, matched: map[string]*atomic.Bool{}, words: map[string]*tokens.Vocabulary{}}
	for _, m := range o.Config.Models {
		s.prices[m.Price.ID()] = m.Price
		if _, known := s.words[m.Tokenizer]; !known && m.Tokenizer != "bytes" {
			v, err := tokens.Named(m.Tokenizer)
			if err != nil {
				panic("BUG: edge: the configuration let an unknown tokenizer pass: " + m.Tokenizer)
			}
			v.Load() // now, not in the first request
			s.words[m.Tokenizer] = v
		}
	}
	for pattern := range o.Config.Models {
		s.matched[pattern] = new(atomic.Bool)
	}
	neverMatched.Set(float64(len(s.matched)))
	s.running.calls = map[*exchange]struct{}{}
	s.http = &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.badRequest,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		ReadBufferSize:               int(o.Config.Limits.Header),
		MaxRequestBodySize:           int(o.Config.Limits.Body),
		ReadTimeout:                  readTimeout,
		IdleTimeout:                  idleTimeout,
		DisablePreParseMultipartForm: true,
		CloseOnShutdown:              true,
		Logger:                       quiet{},
	}
	return s
}

// model finds the settings of a model, and notes that its pattern is of use.
func (s *Server) model(name string) (config.Model, bool) {
	pattern, m, ok := s.cfg.Models.Match(name)
	if !ok {
		unpriced.Inc()
		return m, false
	}
	if seen := s.matched[pattern]; !seen.Load() && seen.CompareAndSwap(false, true) {
		neverMatched.Dec()
	}
	return m, true
}

// vocabularyOf is what the prompts of a model are counted with; nil: nothing but their bytes.
func (s *Server) vocabularyOf(model string) *tokens.Vocabulary {
	_, m, _ := s.cfg.Models.Match(model)
	return s.words[m.Tokenizer]
}

// quiet drops fasthttp's own log lines: they name clients that left, which is
// counted, and may quote requests.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Serve answers on the listener until Shutdown.
func (s *Server) Serve(l net.Listener) error {
	if s.cfg.TLS.Cert != "" {
		return s.http.ServeTLS(l, s.cfg.TLS.Cert, s.cfg.TLS.Key)
	}
	return s.http.Serve(l)
}

// Drain makes the node refuse new calls; /readyz says so.
func (s *Server) Drain() { s.draining.Store(true) }

// Shutdown waits for running calls until ctx ends; what still runs then is cut
// and charged as delivered.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	done := make(chan error, 1)
	go func() { done <- s.http.ShutdownWithContext(context.WithoutCancel(ctx)) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	cut := s.running.cancelAll()
	slog.Warn("running calls were cut at the end of shutdown.grace", "calls", cut)
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		return fmt.Errorf("edge: connections still open after the cut: %w", ctx.Err())
	}
}

// handle answers one request. fasthttp does not recover, so this does.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	r := &request{ctx: ctx, id: newRequestID(), start: time.Now()}
	defer func() {
		if cause := recover(); cause != nil {
			panics.Inc()
			slog.Error("panic in a handler", "request", r.id, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
			ctx.Response.Reset()
			r.setID()
			r.refuse(answer.New(answer.InternalError, "The node failed to handle this request. Nothing was charged; try again."))
		}
	}()
	r.setID()
	if err := s.route(r); err != nil {
		var refusal *answer.Refusal
		if !errors.As(err, &refusal) {
			slog.Error("a handler failed", "request", r.id, "error", err)
			refusal = answer.New(answer.InternalError, "The node failed to handle this request. Nothing was charged; try again.")
		}
		r.refuse(refusal)
	}
}

// badRequest answers what fasthttp could not read as a request.
func (s *Server) badRequest(ctx *fasthttp.RequestCtx, err error) {
	r := &request{ctx: ctx, id: newRequestID()}
	r.setID()
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		r.refuse(answer.New(answer.RequestTooLarge, "The request body is larger than %s (limits.body).", s.cfg.Limits.Body))
	case errors.As(err, &small):
		r.refuse(answer.New(answer.HeadersTooLarge, "The request's headers are larger than %s (limits.header).", s.cfg.Limits.Header))
	case errors.As(err, &timeout) && timeout.Timeout():
		r.refuse(answer.New(answer.RequestTimeout, "The request did not arrive whole within %s.", readTimeout))
	default:
		r.refuse(answer.New(answer.InvalidRequest, "This is not a well-formed HTTP/1.1 request."))
	}
	ctx.SetConnectionClose()
}

// running is the set of forwarded calls that have not ended.
type running struct {
	mu    sync.Mutex
	calls map[*exchange]struct{}
	cut   bool // cancelAll was called: a call that was still being admitted is cut as it begins
}

func (r *running) add(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[x] = struct{}{}
	if r.cut {
		x.call.Cancel()
	}
}

func (r *running) remove(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, x)
}

func (r *running) cancelAll() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	for x := range r.calls {
		x.call.Cancel()
	}
	return len(r.calls)
}
