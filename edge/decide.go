package edge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"tollgate/edge/admission"
	"tollgate/edge/answer"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

// decisionAPI serves gateways that forward by themselves.
func (s *Server) decisionAPI(r *request, name string) error {
	type endpoint struct {
		method string
		serve  func(*request) error
	}
	endpoints := map[string]endpoint{
		"reserve": {fasthttp.MethodPost, s.quotaReserve},
		"settle":  {fasthttp.MethodPost, s.quotaSettle},
		"release": {fasthttp.MethodPost, s.quotaRelease},
		"consume": {fasthttp.MethodPost, s.quotaConsume},
		"balance": {fasthttp.MethodGet, s.quotaBalance},
	}
	if name == "auth" || strings.HasPrefix(name, "auth/") {
		return s.quotaAuth(r, name == "auth") // any method, and any path behind it: proxies pass the client's on
	}
	e, ok := endpoints[name]
	if !ok {
		return answer.New(answer.UnknownRoute, "There is no such endpoint below /v1/quota/.")
	}
	if string(r.ctx.Method()) != e.method {
		r.ctx.Response.Header.Set(fasthttp.HeaderAllow, e.method)
		return answer.New(answer.MethodNotAllowed, "/v1/quota/%s takes %s.", name, e.method)
	}
	return e.serve(r)
}

// decisionAnswer is the body of an admitted reserve or consume.
type decisionAnswer struct {
	RequestID string            `json:"request_id"`
	Reserved  *int64            `json:"reserved,omitempty"`
	Charged   *int64            `json:"charged,omitempty"`
	Overage   bool              `json:"overage"`
	Duplicate bool              `json:"duplicate"`
	Remaining map[string]*int64 `json:"remaining"`
	ExpiresAt string            `json:"expires_at,omitempty"`
	Node      string            `json:"node"`
	Path      string            `json:"path"`
}

func (s *Server) quotaReserve(r *request) error {
	in, err := readObject(r.ctx.PostBody(), "request_id", "cost", "model", "prompt_tokens", "max_tokens", "n", "local")
	if err != nil {
		return err
	}
	need := admission.Request{TTL: r.pol.HoldTTL}
	if err := s.reserveNeed(in, &need); err != nil {
		return err
	}
	d, err := s.decide(r, in, &need)
	if err != nil {
		return err
	}
	out := s.decisionAnswer(r, in, d)
	out.Reserved = &d.Reserved
	out.ExpiresAt = time.UnixMilli(d.Deadline).UTC().Format("2006-01-02T15:04:05.000Z")
	return r.writeJSON(out)
}

func (s *Server) quotaConsume(r *request) error {
	in, err := readObject(r.ctx.PostBody(), "request_id", "cost")
	if err != nil {
		return err
	}
	need := admission.Request{TTL: r.pol.HoldTTL, Consume: true}
	if need.Amount, err = in.amount("cost", 1); err != nil {
		return err
	}
	need.Tokens = min(need.Amount, quota.RateMax)
	need.OwnID = !in.has("request_id")
	d, err := s.decide(r, in, &need)
	if err != nil {
		return err
	}
	out := s.decisionAnswer(r, in, d)
	out.Charged = &d.Reserved
	return r.writeJSON(out)
}

// reserveNeed takes the amount from "cost", or from a model and token counts.
func (s *Server) reserveNeed(in *object, need *admission.Request) (err error) {
	if in.has("cost") {
		for _, other := range []string{"model", "prompt_tokens", "max_tokens", "n"} {
			if in.has(other) {
				return invalid(other, "give either cost, or model with prompt_tokens and max_tokens")
			}
		}
		need.Amount, err = in.amount("cost", 1)
		need.Tokens = min(need.Amount, quota.RateMax)
		return err
	}
	name, err := in.text("model", 1, 256)
	if err != nil {
		return err
	}
	prompt, err := in.number("prompt_tokens", 0, quota.TokensMax)
	if err != nil {
		return err
	}
	n := int64(1)
	if in.has("n") {
		if n, err = in.number("n", 1, choicesMax); err != nil {
			return err
		}
	}
	model, ok := s.model(name)
	if !ok {
		return invalid("model", "this model is not configured here")
	}
	output := model.MaxOutput
	if in.has("max_tokens") {
		if output, err = in.number("max_tokens", 0, quota.TokensMax); err != nil {
			return err
		}
	}
	need.Amount, err = model.Price.Estimate(prompt, output, n, model.ReserveFactor)
	if err != nil || need.Amount > quota.CreditsMax {
		return invalid("max_tokens", "the estimate of this request passes the largest amount, 9007199254740991")
	}
	need.Amount = max(need.Amount, 1)
	need.PriceID = model.Price.ID()
	need.Tokens = prompt + n*output
	return nil
}

// choicesMax bounds n, the answers asked for in one request.
const choicesMax = 128

// decide admits one need of the decision API, or returns the refusal.
func (s *Server) decide(r *request, in *object, need *admission.Request) (*quota.Decision, error) {
	id := r.id
	if in.has("request_id") {
		var err error
		if id, err = in.requestID(); err != nil {
			return nil, err
		}
	} else {
		in.setText("request_id", r.id)
	}
	s.fill(r, need)
	need.Fresh = id == r.id
	need.ID = callerHoldID(r.who.Principal.Key, id)
	need.Fingerprint = fmt.Sprintf("%t:%d:%s", need.Consume, need.Amount, need.PriceID)
	d, hold, err := s.opt.Admission.Reserve(context.Background(), need)
	if err != nil {
		return nil, admissionRefusal(err)
	}
	if hold != nil {
		hold.Detach() // whoever knows the id ends it, or its deadline does
	}
	s.setDecisionHeaders(r, &d)
	if !d.Admitted() {
		return nil, s.refusalOf(r, &d)
	}
	return &d, nil
}

// fill writes what every need of this request shares.
func (s *Server) fill(r *request, need *admission.Request) {
	need.Principal, need.Budgets, need.Zone, need.Store = r.who.Principal, r.who.Budgets, r.who.Zone, r.who.Store
}

// callerHoldID scopes a caller's id to its API key.
func callerHoldID(key, id string) string {
	sum := sha256.Sum256([]byte(id))
	return key + ":" + hex.EncodeToString(sum[:])
}

func admissionRefusal(err error) error {
	switch {
	case errors.Is(err, admission.ErrConflict):
		return &answer.Refusal{Code: answer.RequestIDConflict, Message: "This request_id was used before with other content. Use a fresh one.", Param: "request_id", Retry: answer.RetryNo}
	case errors.Is(err, admission.ErrInFlight):
		return &answer.Refusal{Code: answer.IdempotencyInFlight, Message: "A call with this Idempotency-Key is still running. Try again when it has ended.", RetryAfter: time.Second, Retry: answer.RetryYes}
	case errors.Is(err, admission.ErrReplayed):
		return &answer.Refusal{Code: answer.IdempotencyReplayed, Message: "A call with this Idempotency-Key was answered and charged before; its answer is not kept. Use a fresh key for a new call.", Retry: answer.RetryNo}
	case errors.Is(err, admission.ErrTooLarge):
		return invalid("cost", "what is spent and reserved would pass the largest amount, 9007199254740991")
	case errors.Is(err, admission.ErrBusy):
		return &answer.Refusal{Code: answer.NodeBusy, Message: "This node waits for its store. Try again in a second.", RetryAfter: time.Second, Retry: answer.RetryYes}
	default:
		slog.Debug("a decision was not possible", "error", err)
		return answer.Unavailable("The quota could not be checked now; nothing was charged. Try again in a second.")
	}
}

func (s *Server) refusalOf(r *request, d *quota.Decision) error {
	show := r.pol.Show != "key" || d.Refusal.Scope == quota.Key
	return answer.FromDecision(d, show)
}

func (s *Server) decisionAnswer(r *request, in *object, d *quota.Decision) decisionAnswer {
	id, _ := in.text("request_id", 1, 128)
	return decisionAnswer{
		RequestID: id, Overage: d.Overage, Duplicate: d.Duplicate, Remaining: s.remaining(r, d),
		Node: s.opt.Node, Path: "direct",
	}
}

// remaining is the tightest limit of each scope; null without one. A repeat's
// decision carries no states, so they are read.
func (s *Server) remaining(r *request, d *quota.Decision) map[string]*int64 {
	out := map[string]*int64{"org": nil, "app": nil, "key": nil}
	states := d.States
	if states == nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.opt.Admission.Budget(r.who.Store))
		defer cancel()
		read, err := r.who.Store.ReadAccounts(ctx, r.who.Principal.Tenant, d.Chain)
		if err != nil {
			return out
		}
		states = make([]quota.AccountState, len(read))
		for i := range read {
			states[i].Total = quota.Unlimited
			if read[i] != nil {
				states[i] = *read[i]
			}
		}
	}
	for i, a := range states {
		scope := d.Chain[i].Scope
		if !a.Limited() || (r.pol.Show == "key" && scope != quota.Key) {
			continue
		}
		left := a.Remaining()
		if old := out[scope.String()]; old == nil || left < *old {
			out[scope.String()] = &left
		}
	}
	return out
}

func (s *Server) quotaSettle(r *request) error {
	in, err := readObject(r.ctx.PostBody(), "request_id", "actual", "usage")
	if err != nil {
		return err
	}
	ctx, cancel := s.budget(r)
	defer cancel()
	id, rec, err := s.findHold(ctx, r, in)
	if err != nil {
		return err
	}
	args := &lua.SettleArgs{Tokens: -1}
	if args.Actual, err = s.actual(in, &rec); err != nil {
		return err
	}
	if in.has("usage") {
		if u, err := in.usage(); err == nil {
			args.Tokens = min(u.Tokens(), quota.RateMax)
		}
	} else if rec.PriceID == "" {
		args.Tokens = min(args.Actual, quota.RateMax)
	}
	args.Target = s.target(r, id, &rec)
	reply, err := s.settleNow(ctx, r, args)
	if err != nil {
		return err
	}
	switch reply.Outcome {
	case lua.Done:
	case lua.Unknown:
		return unknownRequest()
	case lua.Released:
		return answer.New(answer.AlreadyReleased, "This request was released before; it cannot be settled.")
	case lua.Conflict:
		return answer.New(answer.RequestIDConflict, "This request was settled before with another amount.")
	case lua.TooLarge:
		return invalid("actual", "what is spent would pass the largest amount, 9007199254740991")
	default:
		return answer.Unavailable("The settle could not be carried out now. Repeat it; it has an effect once.")
	}
	s.opt.Settler.Acknowledge(r.who.Store, lua.Confirmation{Tenant: r.who.Principal.Tenant, ID: id})
	return r.writeJSON(struct {
		RequestID string `json:"request_id"`
		Charged   int64  `json:"charged"`
		Refunded  int64  `json:"refunded"`
		Overrun   int64  `json:"overrun"`
		Duplicate bool   `json:"duplicate"`
		Late      bool   `json:"late"`
	}{in.clientID(), reply.Charged, reply.Refunded, max(0, reply.Charged-reply.Reserved), reply.Duplicate, reply.Late})
}

// budget bounds all that a request of the decision API asks of its store, but for what SQL delays.
func (s *Server) budget(r *request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.opt.Admission.Budget(r.who.Store))
}

// settleNow settles on the caller's time: the answer says how it ended.
func (s *Server) settleNow(ctx context.Context, r *request, args *lua.SettleArgs) (lua.SettleReply, error) {
	for range 3 {
		reply, err := r.who.Store.Settle(ctx, args)
		if err != nil {
			return reply, answer.Unavailable("The settle could not be carried out now. Repeat it; it has an effect once.")
		}
		if reply.Outcome != lua.NeedLoad {
			return reply, nil
		}
		load, cancel := context.WithTimeout(context.Background(), s.cfg.Ledger.LoadBudget)
		loads, err := s.opt.Loader.LoadAccounts(load, args.Tenant, args.Chain)
		cancel()
		if err != nil {
			break
		}
		args.Loads = &loads
		ctx, cancel = s.budget(r)
		defer cancel() // at most twice
	}
	return lua.SettleReply{}, answer.Unavailable("The settle could not be carried out now. Repeat it; it has an effect once.")
}

// actual is what a settle charges: "actual", or "usage" at the hold's prices.
func (s *Server) actual(in *object, rec *lua.HoldRecord) (int64, error) {
	if in.has("actual") == in.has("usage") {
		return 0, invalid("actual", "give either actual, in credits, or usage, in tokens")
	}
	if in.has("actual") {
		return in.amount("actual", 0)
	}
	u, err := in.usage()
	if err != nil {
		return 0, err
	}
	price, ok := s.prices[rec.PriceID]
	if !ok {
		return 0, invalid("usage", "this request was reserved by cost, or at prices this node no longer has; settle it with actual")
	}
	cost, err := price.Cost(u)
	if err != nil {
		return 0, invalid("usage", "its cost passes the largest amount, 9007199254740991")
	}
	return cost, nil
}

func (s *Server) quotaRelease(r *request) error {
	in, err := readObject(r.ctx.PostBody(), "request_id")
	if err != nil {
		return err
	}
	ctx, cancel := s.budget(r)
	defer cancel()
	id, rec, err := s.findHold(ctx, r, in)
	if err != nil {
		return err
	}
	reply, err := r.who.Store.Release(ctx, &lua.ReleaseArgs{Target: s.target(r, id, &rec), As: lua.StateReleased})
	if err != nil {
		return answer.Unavailable("The release could not be carried out now. Repeat it; it has an effect once.")
	}
	switch reply.Outcome {
	case lua.Done:
	case lua.Unknown:
		return unknownRequest()
	case lua.Settled:
		return answer.New(answer.AlreadySettled, "This request was settled before; it cannot be released.")
	default:
		return answer.Unavailable("The release could not be carried out now. Repeat it; it has an effect once.")
	}
	s.opt.Settler.Acknowledge(r.who.Store, lua.Confirmation{Tenant: r.who.Principal.Tenant, ID: id, Refunded: true})
	return r.writeJSON(struct {
		RequestID string `json:"request_id"`
		Refunded  int64  `json:"refunded"`
		Duplicate bool   `json:"duplicate"`
	}{in.clientID(), reply.Refunded, reply.Duplicate})
}

func unknownRequest() error {
	return &answer.Refusal{Code: answer.UnknownRequest, Message: "No request of this id is known for this API key.", Param: "request_id"}
}

// findHold reads the record of the caller's request_id.
func (s *Server) findHold(ctx context.Context, r *request, in *object) (id string, rec lua.HoldRecord, err error) {
	clientID, err := in.requestID()
	if err != nil {
		return "", rec, err
	}
	id = callerHoldID(r.who.Principal.Key, clientID)
	rec, ok, err := r.who.Store.ReadHold(ctx, r.who.Principal.Tenant, id)
	if err != nil {
		return "", rec, answer.Unavailable("The request could not be looked up now. Try again in a second.")
	}
	if !ok || rec.Chain == nil {
		return "", rec, unknownRequest()
	}
	return id, rec, nil
}

// target is the hold with the tpm buckets that its end corrects.
func (s *Server) target(r *request, id string, rec *lua.HoldRecord) lua.Target {
	t := lua.Target{Tenant: r.who.Principal.Tenant, ID: id, Chain: rec.Chain, Mark: lua.Mark{Name: rec.Mark, TTL: s.cfg.IdempotencyTTL}}
	for _, scope := range quota.Scopes {
		if limit := r.who.Budgets[scope].Limits.TPM; limit != nil {
			t.Buckets = append(t.Buckets, lua.BucketArg{Scope: scope, ID: r.who.Principal.ID(scope), Unit: quota.UnitTPM, Limit: *limit})
		}
	}
	return t
}

// accountAnswer is one account as a key's holder sees it; null is unlimited.
type accountAnswer struct {
	Total        *int64 `json:"total"`
	Spent        int64  `json:"spent"`
	InFlight     int64  `json:"in_flight"`
	Leased       int64  `json:"leased"`
	Available    *int64 `json:"available"`
	Remaining    *int64 `json:"remaining"`
	OverageLimit int64  `json:"overage_limit"`
}

func newAccountAnswer(a quota.AccountState) accountAnswer {
	out := accountAnswer{Spent: a.Spent, InFlight: a.InFlight(), Leased: a.Leased, OverageLimit: a.OverageLimit}
	if a.Limited() {
		available, remaining := a.Available(), a.Remaining()
		out.Total, out.Available, out.Remaining = &a.Total, &available, &remaining
	}
	return out
}

func (s *Server) quotaBalance(r *request) error {
	store, tenant := r.who.Store, r.who.Principal.Tenant
	chain := quota.NewChain(r.who.Principal, r.who.Budgets, store.Now(), r.who.Zone)
	ctx, cancel := context.WithTimeout(context.Background(), s.opt.Admission.Budget(store)+s.cfg.Ledger.LoadBudget)
	defer cancel()
	states, err := s.readOrLoad(ctx, store, tenant, chain)
	if err != nil {
		return answer.Unavailable("The balance could not be read now. Try again in a second.")
	}
	out := map[string]any{"day": map[string]accountAnswer{}, "month": map[string]accountAnswer{}}
	for i, a := range chain {
		if r.pol.Show == "key" && a.Scope != quota.Key {
			continue
		}
		if a.Period == quota.Ever {
			out[a.Scope.String()] = newAccountAnswer(states[i])
		} else {
			out[a.Period.String()].(map[string]accountAnswer)[a.Scope.String()] = newAccountAnswer(states[i])
		}
	}
	return r.writeJSON(out)
}

// readOrLoad reads a chain and brings what Redis does not hold.
func (s *Server) readOrLoad(ctx context.Context, store *lua.Store, tenant string, chain quota.Chain) ([]quota.AccountState, error) {
	for range 3 {
		read, err := store.ReadAccounts(ctx, tenant, chain)
		if err != nil {
			return nil, err
		}
		states := make([]quota.AccountState, len(read))
		missing := false
		for i := range read {
			if read[i] == nil {
				missing = true
				break
			}
			states[i] = *read[i]
		}
		if !missing {
			return states, nil
		}
		loads, err := s.opt.Loader.LoadAccounts(ctx, tenant, chain)
		if err != nil {
			return nil, err
		}
		reply, err := store.Load(ctx, tenant, chain, &loads)
		if err != nil {
			return nil, err
		}
		if reply.Outcome == lua.Done {
			return reply.States, nil
		}
	}
	return nil, fmt.Errorf("%w: accounts changed while they were read", ledger.ErrNotFound)
}

func (r *request) writeJSON(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	r.ctx.SetContentType("application/json")
	r.ctx.SetBody(body)
	return nil
}
