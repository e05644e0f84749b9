package edge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"tollgate/edge/admission"
	"tollgate/edge/answer"
	"tollgate/edge/config"
	"tollgate/edge/dialect"
	"tollgate/edge/upstream"
	"tollgate/lua"
	"tollgate/quota"
)

// proxy forwards a request to the upstream of its route. path is normalised;
// lower is the same without trailing slashes, in lower case, so that no
// spelling of a metered path escapes its meter.
func (s *Server) proxy(r *request, path, lower string) error {
	route := s.cfg.Routes.Match(path)
	if route == nil {
		return answer.New(answer.UnknownRoute, "No route leads to this path.")
	}
	up := s.opt.Upstreams[route.Upstream]
	cfg := s.cfg.Upstreams[route.Upstream]
	switch {
	case cfg.Dialect == "openai" && lower == "/v1/chat/completions":
		if err := r.wantMethod(fasthttp.MethodPost); err != nil {
			return err
		}
		return s.proxyChat(r, up, &cfg, route.Upstream)
	case cfg.Dialect == "openai" && (lower == "/v1/models" || strings.HasPrefix(lower, "/v1/models/")):
		if err := r.wantMethod(fasthttp.MethodGet); err != nil {
			return err
		}
		return s.proxyFree(r, up, route.Upstream)
	case route.Cost == nil:
		return answer.New(answer.UnknownRoute, "This path is no endpoint that the node can size, and its route has no cost.")
	}
	return s.proxyFixed(r, up, route)
}

func (r *request) wantMethod(method string) error {
	if string(r.ctx.Method()) == method {
		return nil
	}
	r.ctx.Response.Header.Set(fasthttp.HeaderAllow, method)
	return answer.New(answer.MethodNotAllowed, "This endpoint takes %s.", method)
}

// proxyFree forwards a call that costs nothing and draws on the request buckets only.
func (s *Server) proxyFree(r *request, up *upstream.Upstream, name string) error {
	need := admission.Request{}
	s.fill(r, &need)
	d, err := s.opt.Admission.Pass(context.Background(), &need)
	if err != nil {
		return admissionRefusal(err)
	}
	s.setDecisionHeaders(r, &d)
	if !d.Admitted() {
		return s.refusalOf(r, &d)
	}
	return s.forward(&exchange{s: s, kind: freeOfCharge, upstream: name}, r, up, r.ctx.PostBody())
}

// proxyFixed forwards a call that costs what its route says.
func (s *Server) proxyFixed(r *request, up *upstream.Upstream, route *config.Route) error {
	cost := *route.Cost
	need := admission.Request{Amount: cost, Requests: cost, Tokens: min(cost, quota.RateMax)}
	hold, err := s.admit(r, &need)
	if err != nil {
		return err
	}
	defer hold.Close()
	return s.forward(&exchange{s: s, kind: fixedCost, upstream: route.Upstream, hold: hold}, r, up, r.ctx.PostBody())
}

// proxyChat sizes a chat completion, freezes its upper estimate and forwards it.
func (s *Server) proxyChat(r *request, up *upstream.Upstream, cfg *config.Upstream, name string) error {
	if enc := r.ctx.Request.Header.Peek(fasthttp.HeaderContentEncoding); len(enc) > 0 && !bytes.EqualFold(enc, []byte("identity")) {
		return answer.New(answer.InvalidRequest, "Send the body without Content-Encoding: a request has to be read to be sized.")
	}
	body := r.ctx.PostBody()
	chat, err := dialect.ParseChat(body, s.vocabularyOf)
	if err != nil {
		return badField(err)
	}
	model, ok := s.model(chat.Model)
	if !ok {
		return invalid("model", "this model is not configured here")
	}
	if !allowed(r.who.Key.Models, chat.Model) {
		return &answer.Refusal{Code: answer.ModelNotAllowed, Message: "This API key may not use this model.", Param: "model"}
	}
	need, err := s.chatNeed(&chat, &model)
	if err != nil {
		return err
	}
	hold, bound, err := s.admitChat(r, &chat, &model, need)
	if err != nil {
		return err
	}
	defer hold.Close()
	s.reach(placeHeld)
	if bound > 0 {
		if body, err = chat.Clamp(body, bound); err != nil {
			return badField(err)
		}
	}
	x := &exchange{s: s, kind: byUsage, upstream: name, hold: hold, price: model.Price, prompt: promptEstimate(&chat)}
	if chat.Stream && !chat.SetUsage && cfg.AskUsage != "never" {
		if body, x.strip, err = dialect.AskUsage(body); err != nil {
			return badField(err)
		}
	}
	return s.forward(x, r, up, body)
}

// promptEstimate is what the prompt of an answer without usage is charged as:
// what the model's vocabulary counts, else four bytes a token and the chat
// format around each message.
func promptEstimate(chat *dialect.Request) int64 {
	if chat.Prompt.Counted {
		return dialect.PromptTokensMax(*chat)
	}
	return (chat.Prompt.TextBytes+3)/4 + 4*chat.Prompt.Messages + 3
}

func (s *Server) chatNeed(chat *dialect.Request, model *config.Model) (*admission.Request, error) {
	output := model.MaxOutput
	if chat.HasOutput {
		output = chat.Output
	}
	prompt := dialect.PromptTokensMax(*chat)
	amount, err := model.Price.Estimate(prompt, output, chat.N, model.ReserveFactor)
	if err != nil {
		amountRejected.Inc()
		return nil, invalid("max_tokens", "the estimate of this request passes the largest amount, 9007199254740991")
	}
	return &admission.Request{
		Amount: max(amount, 1), PriceID: model.Price.ID(), Tokens: prompt + chat.N*output,
	}, nil
}

// clampTries bounds how often a request without a bound of its own is fitted to what is left.
const clampTries = 3

// admitChat reserves. A request without an output bound, for which the model's
// maximum does not fit, is fitted to what is left; bound is then what to write
// into the request, else 0.
func (s *Server) admitChat(r *request, chat *dialect.Request, model *config.Model, need *admission.Request) (hold *admission.Hold, bound int64, err error) {
	for range clampTries {
		d, hold, err := s.reserve(r, need)
		if err != nil {
			return nil, 0, err
		}
		if d.Admitted() {
			s.setDecisionHeaders(r, &d)
			return hold, bound, nil
		}
		if chat.HasOutput || r.pol.Fit == "refuse" {
			s.setDecisionHeaders(r, &d)
			return nil, 0, s.refusalOf(r, &d)
		}
		bound = fit(&d, dialect.PromptTokensMax(*chat), chat.N, model)
		if bound == 0 {
			s.setDecisionHeaders(r, &d)
			return nil, 0, s.refusalOf(r, &d)
		}
		need.Amount, err = model.Price.Estimate(dialect.PromptTokensMax(*chat), bound, chat.N, model.ReserveFactor)
		if err != nil {
			return nil, 0, invalid("max_tokens", "it is too large")
		}
		need.Amount = max(need.Amount, 1)
		need.Tokens = dialect.PromptTokensMax(*chat) + chat.N*bound
	}
	return nil, 0, answer.Unavailable("The quota changes too quickly to fit this request into what is left. Try again in a second.")
}

// fit is the largest output bound, from the model's minimum to its maximum,
// whose estimate fits every account and bucket of a refused decision; 0 if none
// does, or if something else than credits or tokens was short.
func fit(d *quota.Decision, prompt, n int64, model *config.Model) int64 {
	credits := quota.CreditsMax
	for _, a := range d.States {
		if a.Limited() {
			credits = min(credits, a.Total+a.OverageLimit-a.Prepaid-a.Spent)
		}
	}
	tokens := quota.CreditsMax
	for _, b := range d.Buckets {
		if b.Unit == quota.UnitTPM {
			tokens = min(tokens, b.Remaining)
		}
	}
	fits := func(bound int64) bool {
		amount, err := model.Price.Estimate(prompt, bound, n, model.ReserveFactor)
		return err == nil && max(amount, 1) <= credits && prompt+n*bound <= tokens
	}
	low, high := minOutput(model), model.MaxOutput
	if !fits(low) || fits(high) { // fits(high): credits and tokens are not what was short
		return 0
	}
	for low+1 < high {
		middle := low + (high-low)/2
		if fits(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

func minOutput(m *config.Model) int64 {
	if m.MinOutput > 0 {
		return min(m.MinOutput, m.MaxOutput)
	}
	return min(256, m.MaxOutput)
}

// admit reserves a need of a proxied call, or returns the refusal.
func (s *Server) admit(r *request, need *admission.Request) (*admission.Hold, error) {
	d, hold, err := s.reserve(r, need)
	if err != nil {
		return nil, err
	}
	s.setDecisionHeaders(r, &d)
	if !d.Admitted() {
		return nil, s.refusalOf(r, &d)
	}
	return hold, nil
}

func (s *Server) reserve(r *request, need *admission.Request) (d quota.Decision, hold *admission.Hold, err error) {
	s.fill(r, need)
	if need.Mark, err = s.onceMark(r); err != nil {
		return d, nil, err
	}
	need.ID, need.Fresh, need.OwnID, need.TTL = r.id, true, true, r.pol.HoldTTL
	d, hold, err = s.opt.Admission.Reserve(context.Background(), need)
	if err != nil {
		err = admissionRefusal(err)
	}
	return d, hold, err
}

// idempotencyKeyMax bounds an Idempotency-Key, in bytes.
const idempotencyKeyMax = 255

// onceMark is the mark of the request's Idempotency-Key, scoped to its API key;
// only the hash leaves this function.
func (s *Server) onceMark(r *request) (lua.Mark, error) {
	values := r.ctx.Request.Header.PeekAll("Idempotency-Key")
	if len(values) == 0 {
		return lua.Mark{}, nil
	}
	key := values[0]
	ok := len(values) == 1 && len(key) >= 1 && len(key) <= idempotencyKeyMax
	for _, c := range key {
		ok = ok && c >= ' ' && c <= '~'
	}
	if !ok {
		return lua.Mark{}, invalid("Idempotency-Key", "send one, of 1 to "+strconv.Itoa(idempotencyKeyMax)+" printable ASCII characters")
	}
	sum := sha256.Sum256(key)
	return lua.Mark{Name: lua.MarkName(r.who.Principal.Key, hex.EncodeToString(sum[:])), TTL: s.cfg.IdempotencyTTL}, nil
}

// forward sends the call and starts the answer. It takes over the exchange's
// hold: the exchange ends it when the answer's body has ended.
func (s *Server) forward(x *exchange, r *request, up *upstream.Upstream, body []byte) error {
	x.call = up.NewCall(r.ctx.Method(), r.ctx.URI().RequestURI())
	x.call.CopyRequestHeader(&r.ctx.Request.Header)
	if len(body) > 0 || !r.ctx.IsGet() {
		x.call.SetBody(body)
	}
	x.hold = x.hold.Pass()
	s.running.add(x)
	handed := false
	defer func() {
		if !handed {
			x.end(false)
		}
	}()
	x.client, x.patience = r.ctx.Conn(), s.cfg.Upstreams[x.upstream].Timeout.Idle
	x.unwatch = upstream.Watch(x.client, x.clientLeft)
	begin := time.Now()
	err := up.Do(x.call)
	if x.gone.Load() {
		r.ctx.SetConnectionClose() // nobody is left to answer
		return nil
	}
	if err != nil {
		return x.forwardError(err)
	}
	if !x.call.SentAt.IsZero() {
		addedSeconds.Update(begin.Sub(r.start).Seconds() + max(0, x.call.SentAt.Sub(begin).Seconds()))
	}
	x.status = x.call.Header.StatusCode()
	if x.status == fasthttp.StatusUnauthorized {
		slog.Error("upstream refuses this node's credential", "upstream", x.upstream)
		return &answer.Refusal{Code: answer.UpstreamAuthFailed, Message: "The upstream did not accept this node's own credential. Your key is fine; tell the operator.", Retry: answer.RetryNo}
	}
	h := &r.ctx.Response.Header
	if id := x.call.Header.Peek(headerRequestID); len(id) > 0 {
		h.SetBytesV("x-upstream-request-id", id)
	}
	x.call.CopyHeader(h, ownedHeader)
	size := x.begin()
	s.reach(placeReady)
	handed = true
	r.ctx.Response.ImmediateHeaderFlush = size < 0
	r.ctx.SetBodyStream(x, int(size))
	return nil
}

// ownedHeader names what only this node may tell: its own limits and ids.
func ownedHeader(name []byte) bool {
	lower := bytes.ToLower(name)
	return bytes.HasPrefix(lower, []byte("x-ratelimit-")) || bytes.HasPrefix(lower, []byte("anthropic-ratelimit-")) ||
		bytes.HasPrefix(lower, []byte("x-quota-")) || string(lower) == "x-request-id" || string(lower) == "server"
}

// forwardError words why there is no answer of the upstream. Nothing is charged.
func (x *exchange) forwardError(err error) error {
	switch {
	case errors.Is(err, upstream.ErrTimeoutFirstByte), errors.Is(err, upstream.ErrTimeoutTotal), errors.Is(err, upstream.ErrTimeoutIdle):
		return answer.New(answer.UpstreamTimeout, "The upstream did not answer in time. Nothing was charged.")
	case errors.Is(err, upstream.ErrBusy):
		return &answer.Refusal{Code: answer.UpstreamBusy, Message: "All of this node's connections to the upstream are in use. Nothing was charged; try again.", RetryAfter: time.Second, Retry: answer.RetryYes}
	case errors.Is(err, upstream.ErrRequest):
		return answer.New(answer.InvalidRequest, "The request has a header or path that cannot be forwarded. Nothing was charged.")
	case errors.Is(err, upstream.ErrCanceled), errors.Is(err, upstream.ErrClosed):
		return &answer.Refusal{Code: answer.Draining, Message: "The call was cut because this node shuts down. Nothing was charged; try again.", RetryAfter: time.Second, Retry: answer.RetryYes}
	default:
		return answer.New(answer.UpstreamUnreachable, "The upstream could not be reached. Nothing was charged.")
	}
}

// badField passes a parser's fault on: it names the field and never quotes the body.
func badField(err error) error {
	var f *dialect.FieldError
	if errors.As(err, &f) {
		return &answer.Refusal{Code: answer.InvalidRequest, Message: f.Error(), Param: f.Param}
	}
	return answer.New(answer.InvalidRequest, "The body is not a well-formed request.")
}

// allowed says whether a key's list of models, if it has one, names the model.
func allowed(list []string, model string) bool {
	if len(list) == 0 {
		return true
	}
	for _, pattern := range list {
		if config.MatchModel(pattern, model) {
			return true
		}
	}
	return false
}
