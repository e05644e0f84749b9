package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"tollgate/ledger"
	"tollgate/lua"
)

// Bounds of the API.
const (
	bodyBytesMax   = 64 << 10         // of a request; more is 413
	headerBytesMax = 16 << 10         // of a request; more is 431
	readTimeout    = 10 * time.Second // of a whole request
	answerTimeout  = 30 * time.Second // from the request's header to the end of the answer
	profileTimeout = 10 * time.Minute // the same for /debug/pprof
	idleTimeout    = 2 * time.Minute
	publishTimeout = time.Second // for bringing a change to Redis before it is answered; then the repair does it
)

// Options are what a Server needs; all but Token, MetricsOpen and Ready must be set.
type Options struct {
	DB        *ledger.DB
	Stores    map[string]*lua.Store // by their name in the configuration
	Publisher *ledger.Publisher
	Adjuster  *ledger.Adjuster
	// Token is the bearer token that every request but health needs. "" is only
	// for a listener on loopback: then requests must name a loopback host.
	Token string
	// MetricsOpen serves /metrics without the token.
	MetricsOpen bool
	// Ready says why no tenant can be served now. nil: always ready.
	Ready func() error
}

// Server answers the administration's requests. It starts nothing, so there is nothing to close.
type Server struct {
	opt     Options
	token   [sha256.Size]byte
	handler http.Handler
}

// New makes a server; see Handler and HTTPServer.
func New(opt Options) *Server {
	s := &Server{opt: opt, token: sha256.Sum256([]byte(opt.Token))}
	mux := http.NewServeMux()
	s.routes(mux)
	s.handler = s.guarded(mux)
	return s
}

// Handler is the whole API.
func (s *Server) Handler() http.Handler { return s.handler }

// HTTPServer is the API with bounds on time and size, ready for Serve.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytesMax,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
}

var (
	requests = func(status int) *metrics.Counter {
		return metrics.GetOrCreateCounter(`tollgate_admin_requests_total{status="` + strconv.Itoa(status) + `"}`)
	}
	adminPanics = metrics.NewCounter(`tollgate_admin_panics_total`)
)

// guarded stands before every handler: bounds, who may ask, and panics.
func (s *Server) guarded(next http.Handler) http.Handler {
	// A web page in the browser of whoever runs the node must not reach an API on loopback.
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if cause := recover(); cause != nil {
				if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(cause)
				}
				adminPanics.Inc()
				slog.Error("panic in an administration handler", "path", r.URL.Path, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
				fail(w, &Error{Status: http.StatusInternalServerError, Code: codeInternal, Message: "The node failed at this; its log says how."})
			}
		}()
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		timeout := answerTimeout
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			timeout = profileTimeout
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout)) // a recorder has none
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, bodyBytesMax)
		if err := s.admit(r, crossOrigin); err != nil {
			fail(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admit says who may ask.
func (s *Server) admit(r *http.Request, crossOrigin *http.CrossOriginProtection) *Error {
	if err := crossOrigin.Check(r); err != nil {
		return &Error{Status: http.StatusForbidden, Code: codeForbidden, Message: "Requests that a web page of another origin makes are refused."}
	}
	switch r.URL.Path {
	case "/healthz", "/readyz":
		return nil
	case "/metrics":
		if s.opt.MetricsOpen {
			return nil
		}
	}
	if s.opt.Token == "" {
		if !isLoopback(r.Host) {
			return &Error{Status: http.StatusForbidden, Code: codeForbidden, Message: "Without a token this API is only for loopback addresses. Ask for 127.0.0.1 or localhost, or configure admin.token_env."}
		}
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(given[:], s.token[:]) != 1 {
		return &Error{Status: http.StatusUnauthorized, Code: codeUnauthorized, Message: "This needs the node's admin token, as the header Authorization: Bearer TOKEN."}
	}
	return nil
}

// isLoopback says whether the Host header names this machine. A name that an
// attacker's DNS resolves to 127.0.0.1 does not.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

// reply is a result: a status and what is marshalled.
type reply struct {
	status int
	body   any
	repeat bool // the op_id was seen before; this is its first answer
}

// handler answers one request; an error is turned into an answer by explain.
type handler func(*Server, *http.Request) (reply, error)

// serve makes a handler of the mux out of one.
func (s *Server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := h(s, r)
		if err != nil {
			fail(w, explain(err, subject(r)))
			return
		}
		if out.repeat {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		write(w, out.status, out.body)
	}
}

// subject names the thing that a request's path is about.
func subject(r *http.Request) string {
	switch t := r.PathValue("tenant"); {
	case r.PathValue("app") != "":
		return "app " + r.PathValue("app") + " of tenant " + t
	case r.PathValue("key") != "":
		return "key " + r.PathValue("key") + " of tenant " + t
	default:
		return "tenant " + t
	}
}

// write answers with JSON. A value that cannot be marshalled is a bug of this package.
func write(w http.ResponseWriter, status int, body any) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		panic("BUG: admin: " + err.Error())
	}
	requests(status).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text.Bytes()) // the client may be gone
}

// fail answers {"error":{"code","message","param"}}, with the numbers beside it.
func fail(w http.ResponseWriter, e *Error) {
	body := map[string]any{}
	if e.Numbers != nil {
		text, err := json.Marshal(e.Numbers)
		if err != nil || json.Unmarshal(text, &body) != nil {
			panic("BUG: admin: numbers of an error must be an object")
		}
	}
	body["error"] = struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Param   string `json:"param,omitempty"`
	}{e.Code, e.Message, e.Param}
	if e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.Retry))
	}
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tollgate admin"`)
	}
	write(w, e.Status, body)
}

// publish brings a tenant's changes to Redis before they are answered. false:
// not all of it could be; the repair goes on.
func (s *Server) publish(ctx context.Context, tenant string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	err := s.opt.Publisher.Publish(ctx, tenant)
	if err != nil {
		slog.Warn("a change has not reached Redis yet", "tenant", tenant, "error", err)
	}
	return err == nil
}
