package edge

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"tollgate/edge/answer"
	"tollgate/edge/config"
	"tollgate/edge/identity"
)

// request is one request under way. It never outlives its handler.
type request struct {
	ctx   *fasthttp.RequestCtx
	id    string // ours: names the hold and the event
	label string // the client's x-request-id, if it is well-formed
	shape answer.Shape
	start time.Time
	who   *identity.Identity
	pol   config.Policy
	as403 bool // refusals are told as 403; see deniesAs403
}

const headerRequestID = "X-Request-Id"

// newRequestID is a UUIDv7 in 32 hex digits.
func newRequestID() string {
	id := uuid.Must(uuid.NewV7())
	return strings.ReplaceAll(id.String(), "-", "")
}

// setID answers with the client's label or our id.
func (r *request) setID() {
	if label := r.ctx.Request.Header.Peek(headerRequestID); validLabel(label) {
		r.label = string(label)
		r.ctx.Response.Header.Set(headerRequestID, r.label)
		return
	}
	r.ctx.Response.Header.Set(headerRequestID, r.id)
}

// validLabel accepts 1–128 of [A-Za-z0-9._:-].
func validLabel(b []byte) bool {
	if len(b) == 0 || len(b) > 128 {
		return false
	}
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}

func (r *request) refuse(refusal *answer.Refusal) {
	refusals(string(refusal.Code)).Inc()
	id := r.id
	if r.label != "" {
		id = r.label
	}
	refusal.Write(r.ctx, r.shape, id)
	if r.as403 {
		r.ctx.Response.Header.Set("x-quota-status", strconv.Itoa(r.ctx.Response.StatusCode()))
		r.ctx.SetStatusCode(fasthttp.StatusForbidden)
	}
}

// route finds out what a request wants. A returned Refusal is the answer.
func (s *Server) route(r *request) error {
	path := string(r.ctx.URI().Path()) // normalised: no "..", no "//", unescaped
	lower := strings.ToLower(strings.TrimRight(path, "/"))
	switch lower {
	case "/healthz":
		r.ctx.SetContentType("text/plain")
		r.ctx.SetBodyString("ok\n")
		return nil
	case "/readyz":
		return s.readyz(r)
	}
	if strings.HasPrefix(lower, "/v1/messages") {
		r.shape = answer.Anthropic
	}
	r.as403 = deniesAs403(r.ctx, lower)
	if s.draining.Load() {
		return &answer.Refusal{Code: answer.Draining, Message: "This node is shutting down. Try again; another one will answer.", RetryAfter: time.Second, Retry: answer.RetryYes}
	}
	if !s.opt.Started() {
		return answer.Unavailable("This node is still starting. Try again in a second.")
	}
	if err := s.identify(r); err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(lower, "/v1/quota/"); ok {
		return s.decisionAPI(r, rest)
	}
	return s.proxy(r, path, lower)
}

func (s *Server) readyz(r *request) error {
	r.ctx.SetContentType("text/plain")
	if s.draining.Load() {
		r.ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		r.ctx.SetBodyString("draining\n")
		return nil
	}
	if err := s.opt.Ready(); err != nil {
		r.ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		r.ctx.SetBodyString(err.Error() + "\n")
		return nil
	}
	r.ctx.SetBodyString("ready\n")
	return nil
}

// identify finds out whose key the request carries.
func (s *Server) identify(r *request) error {
	secret, err := credential(&r.ctx.Request.Header)
	if err != nil {
		return err
	}
	budget, cancel := context.WithTimeout(context.Background(), identifyBudget(s.cfg))
	defer cancel()
	who, err := s.opt.Directory.Lookup(budget, secret)
	switch {
	case err == nil:
		r.who = who
		r.pol, err = s.policyOf(who)
		return err
	case errors.Is(err, identity.ErrUnknownKey):
		return answer.New(answer.InvalidAPIKey, "This API key is not known here. Check that it was copied whole; keys begin with tg-.")
	case errors.Is(err, identity.ErrDisabledKey):
		return answer.New(answer.KeyDisabled, "This API key is suspended, revoked or was replaced. Use another one.")
	case errors.Is(err, identity.ErrSuspendedTenant):
		return answer.New(answer.TenantSuspended, "This organisation is suspended.")
	default:
		return answer.Unavailable("The key could not be looked up now. Try again in a second.")
	}
}

// identifyBudget covers documents that Redis does not hold: one read from SQL.
func identifyBudget(cfg *config.Config) time.Duration {
	return cfg.Ledger.LoadBudget + time.Second
}

// policyOf is the tenant's policy: the node's, with what its document sets.
// Decoded once per document.
func (s *Server) policyOf(who *identity.Identity) (config.Policy, error) {
	raw := string(who.Tenant.Policy)
	if raw == "" {
		return s.cfg.Policy, nil
	}
	if p, ok := s.policies.Load(raw); ok {
		return p.(config.Policy), nil
	}
	p, err := s.cfg.Policy.Merge(who.Tenant.Policy)
	if err != nil {
		return p, err
	}
	s.policies.Store(raw, p)
	return p, nil
}

var bearer = []byte("bearer ")

// credential is the one key that a request carries, in any of three headers.
// It is lent: valid within the handler.
func credential(h *fasthttp.RequestHeader) ([]byte, error) {
	var found []byte
	for _, name := range [...]string{fasthttp.HeaderAuthorization, "X-Api-Key", "Api-Key"} {
		for _, value := range h.PeekAll(name) {
			value = bytes.TrimSpace(value)
			if name == fasthttp.HeaderAuthorization {
				if len(value) < len(bearer) || !bytes.EqualFold(value[:len(bearer)], bearer) {
					return nil, answer.New(answer.InvalidAPIKey, "The Authorization header must be of the form: Bearer <key>.")
				}
				value = bytes.TrimSpace(value[len(bearer):])
			}
			if len(value) == 0 {
				continue
			}
			if found != nil && !bytes.Equal(found, value) {
				return nil, &answer.Refusal{Code: answer.InvalidRequest, Message: "The request carries two different keys. Send one, in Authorization, x-api-key or api-key."}
			}
			found = value
		}
	}
	if found == nil {
		return nil, answer.New(answer.InvalidAPIKey, "No API key was sent. Put it into the header Authorization: Bearer <key>.")
	}
	return found, nil
}
