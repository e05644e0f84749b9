package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Options describe one upstream. Zero durations and counts take the defaults below.
type Options struct {
	Name    string            // label of metrics and errors
	URL     string            // http:// or https://, host, optional port and path prefix; nothing else
	Auth    Auth              // the upstream's credential; replaces whatever the client sent
	Headers map[string]string // set on every request; the client's of the same names are dropped
	Timeout Timeouts
	// ConnsMax bounds open connections, hence calls in flight. Beyond it Do returns ErrBusy at once,
	// counted in tollgate_upstream_requests_total{status="busy"}. Default 8192. Too low refuses work;
	// too high lets one upstream use up the process' file descriptors.
	ConnsMax int
	// IdleMax is how long an unused connection is kept. Default 4 s: below the 5 s after which common
	// model servers close theirs, so that a request hardly ever races with that. Lower costs handshakes.
	IdleMax time.Duration
	RootCAs *x509.CertPool // nil: the system's
}

// Auth is how the upstream wants to be authenticated: "Header: Prefix+Secret".
// With an empty Secret no header is sent.
type Auth struct {
	Header, Prefix, Secret string
}

// String hides the secret, so that Options can be printed.
func (a Auth) String() string { return a.Header + ": (hidden)" }

// GoString is String.
func (a Auth) GoString() string { return a.String() }

// Timeouts bound the phases of one call. Too low cuts honest long answers; too high
// keeps a hold and a connection for an upstream that is gone.
type Timeouts struct {
	Connect   time.Duration // name look-up, TCP and TLS handshake together; default 2 s
	FirstByte time.Duration // from the last byte of the request to the end of the answer's head; default 120 s
	Idle      time.Duration // between two pieces of the answer, or of the request on its way out; default 60 s
	Total     time.Duration // all of it, from Do to the last byte; default 600 s
}

const (
	connsMaxDefault = 8192
	idleMaxDefault  = 4 * time.Second

	connectDefault   = 2 * time.Second
	firstByteDefault = 120 * time.Second
	idleDefault      = 60 * time.Second
	totalDefault     = 600 * time.Second

	// tlsSessionsMax bounds the TLS session cache; the oldest is forgotten and costs a full handshake.
	tlsSessionsMax = 64
)

func (t Timeouts) withDefaults() Timeouts {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&t.Connect, connectDefault)
	set(&t.FirstByte, firstByteDefault)
	set(&t.Idle, idleDefault)
	set(&t.Total, totalDefault)
	return t
}

// endpoint is what Options.URL says.
type endpoint struct {
	addr   string      // host:port to dial
	host   string      // value of the Host header
	prefix string      // path before every target, without a final slash
	tls    *tls.Config // nil for http
}

func parseEndpoint(o *Options) (endpoint, error) {
	bad := func(why string) (endpoint, error) {
		return endpoint{}, fmt.Errorf("%w: %s: url %s", ErrOptions, o.Name, why)
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return bad("does not parse") // the parser's text would quote a password
	}
	switch {
	case u.Hostname() == "":
		return bad("has no host")
	case u.User != nil:
		return bad("must not carry a user or password; use auth")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return bad("must not have a query or a fragment")
	}
	e := endpoint{host: u.Host, prefix: strings.TrimRight(u.EscapedPath(), "/")}
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
		e.tls = &tls.Config{
			ServerName:         u.Hostname(),
			RootCAs:            o.RootCAs,
			NextProtos:         []string{"http/1.1"},
			ClientSessionCache: tls.NewLRUClientSessionCache(tlsSessionsMax),
			MinVersion:         tls.VersionTLS12,
		}
	default:
		return bad("must begin with http:// or https://")
	}
	e.addr = net.JoinHostPort(u.Hostname(), port)
	if !isText(e.host) || !isTarget(e.prefix) && e.prefix != "" {
		return bad("has characters that cannot stand in a request")
	}
	return e, nil
}
