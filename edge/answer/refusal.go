package answer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"tollgate/quota"
)

// Refusal is everything a client is told when its request is not served.
type Refusal struct {
	Code       Code
	Message    string
	Param      string        // field of the request that was at fault; "": none
	Type       string        // OpenAI's error.type where it differs from the table's
	RetryAfter time.Duration // whole seconds go into Retry-After; 0: no such header
	Retry      Retry         // x-should-retry
	Limits     *Limits       // data.limit … data.scope; nil: nothing to tell
}

// Retry says what vendors' clients should do by themselves.
type Retry uint8

// The values of x-should-retry.
const (
	RetryUnsaid Retry = iota
	RetryNo
	RetryYes
)

// Limits are the numbers of the limit that was short.
type Limits struct {
	Shown     bool // whether Limit and Remaining may be told
	Limit     int64
	Remaining int64
	Reset     int64 // whole seconds until it is full or its period ends; 0: never by itself
	Scope     string
}

// New is a refusal that needs nothing but words.
func New(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Error makes a Refusal an error, for the way up through a handler.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Message }

// Unavailable is the answer when nobody can decide now.
func Unavailable(message string) *Refusal {
	return &Refusal{Code: QuotaUnavailable, Message: message, RetryAfter: time.Second, Retry: RetryYes}
}

// FromDecision words a refused decision. showNumbers is false where the key's
// holder may not see this scope's numbers (policy.show).
func FromDecision(d *quota.Decision, showNumbers bool) *Refusal {
	q := &d.Refusal
	r := &Refusal{Code: Code(q.Reason), RetryAfter: q.RetryAfter}
	who := scopeWord(q.Scope)
	if q.Unit != quota.UnitCredits {
		return r.fromRate(q, who, showNumbers)
	}
	what := periodWord(q.Period) + "quota of this " + who
	state := "is used up"
	if q.Remaining > 0 {
		state = "is too low for this request"
	}
	numbers := ""
	if showNumbers {
		numbers = fmt.Sprintf(": %d needed, %d of %d left", q.Need, q.Remaining, q.Limit)
		r.Limits = &Limits{Shown: true, Limit: q.Limit, Remaining: q.Remaining, Scope: q.Scope.String()}
	} else {
		r.Limits = &Limits{Scope: q.Scope.String()}
	}
	if q.Period != quota.Ever {
		r.Limits.Reset = seconds(q.RetryAfter)
	}
	switch {
	case q.Never:
		r.RetryAfter, r.Retry = 0, RetryNo
		r.Message = fmt.Sprintf("This request needs %d credits, more than the %s can ever carry.", q.Need, what)
		switch {
		case showNumbers && q.Limit == 0:
			r.Message = fmt.Sprintf("The %s is 0: nothing can be spent, and this request needs %d credits. Ask its owner to raise it.", what, q.Need)
		case showNumbers:
			r.Message = fmt.Sprintf("This request needs %d credits, more than the whole %s, %d. Ask for less (a smaller max_tokens or a shorter prompt).", q.Need, what, q.Limit)
		}
	case q.Pending:
		r.Retry = RetryYes
		r.Message = fmt.Sprintf("The %s %s%s. Credits are on their way back from other nodes; try again in a second.", what, state, numbers)
	case q.Reason == quota.PaymentRequired:
		r.RetryAfter, r.Retry = 0, RetryNo
		r.Message = fmt.Sprintf("The %s %s, its overage included%s. Top it up to go on.", what, state, numbers)
	case q.Period == quota.Ever:
		r.Retry = RetryNo
		r.Message = fmt.Sprintf("The %s %s%s. It does not refill by itself; ask its owner to top it up.", what, state, numbers)
	default:
		r.Message = fmt.Sprintf("The %s %s%s. It resets in %s.", what, state, numbers, waitWord(q.RetryAfter))
	}
	return r
}

func (r *Refusal) fromRate(q *quota.Refusal, who string, showNumbers bool) *Refusal {
	unit := unitWord(q.Unit)
	if q.Unit == quota.UnitTPM {
		r.Type = "tokens"
	}
	r.Limits = &Limits{Scope: q.Scope.String(), Reset: seconds(q.RetryAfter)}
	limit := "limit on " + unit
	if showNumbers {
		r.Limits.Shown, r.Limits.Limit, r.Limits.Remaining = true, q.Limit, q.Remaining
		limit = fmt.Sprintf("limit on %s (%d at once)", unit, q.Limit)
	}
	if q.Unit == quota.UnitConcurrency {
		limit = "limit on requests at the same time"
		if showNumbers {
			limit = fmt.Sprintf("limit of %d requests at the same time", q.Limit)
		}
	}
	if q.Never {
		r.Code, r.Type, r.RetryAfter, r.Retry = InsufficientQuota, "", 0, RetryNo
		r.Message = fmt.Sprintf("This request counts as %d, more than this %s's %s can ever carry.", q.Need, who, limit)
		return r
	}
	r.Message = fmt.Sprintf("This %s's %s is reached. Try again in %s.", who, limit, waitWord(q.RetryAfter))
	return r
}

// Write answers with the refusal. The caller has set x-request-id.
func (r *Refusal) Write(ctx *fasthttp.RequestCtx, shape Shape, requestID string) {
	line, ok := table[r.Code]
	if !ok {
		panic("BUG: answer: code without a line in the table: " + string(r.Code))
	}
	ctx.Response.ResetBody()
	ctx.SetStatusCode(line.status)
	ctx.SetContentType("application/json")
	h := &ctx.Response.Header
	if r.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(r.RetryAfter), 10))
	}
	retry := r.Retry
	if retry == RetryUnsaid && line.status == fasthttp.StatusConflict {
		retry = RetryNo // vendors' clients repeat a 409 by themselves
	}
	switch retry {
	case RetryNo:
		h.Set("x-should-retry", "false")
	case RetryYes:
		h.Set("x-should-retry", "true")
	}
	ctx.SetBody(r.body(line, shape, requestID))
}

func (r *Refusal) body(line row, shape Shape, requestID string) []byte {
	if shape == Anthropic {
		return mustJSON(map[string]any{
			"type":       "error",
			"error":      map[string]any{"type": line.anthropic, "message": r.Message},
			"request_id": requestID,
		})
	}
	kind := line.openAI
	if r.Type != "" {
		kind = r.Type
	}
	var param any
	if r.Param != "" {
		param = r.Param
	}
	data := map[string]any{"limit": nil, "remaining": nil, "reset": nil, "retry_after": nil, "scope": nil}
	if l := r.Limits; l != nil {
		data["scope"] = l.Scope
		if l.Shown {
			data["limit"], data["remaining"] = l.Limit, l.Remaining
		}
		if l.Reset > 0 {
			data["reset"] = l.Reset
		}
	}
	if r.RetryAfter > 0 {
		data["retry_after"] = seconds(r.RetryAfter)
	}
	return mustJSON(struct {
		Error any    `json:"error"`
		Code  int    `json:"code"`
		Msg   string `json:"msg"`
		Data  any    `json:"data"`
	}{
		Error: struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Param   any    `json:"param"`
			Code    Code   `json:"code"`
		}{r.Message, kind, param, r.Code},
		Code: line.status, Msg: r.Message, Data: data,
	})
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: answer: " + err.Error())
	}
	return b
}

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// waitWord says how long, in whole seconds.
func waitWord(d time.Duration) string {
	switch n := seconds(d); {
	case n == 1:
		return "1 second"
	case n < 120:
		return strconv.FormatInt(n, 10) + " seconds"
	default:
		return (time.Duration(n) * time.Second).String()
	}
}

func scopeWord(s quota.Scope) string {
	switch s {
	case quota.Org:
		return "organisation"
	case quota.App:
		return "application"
	default:
		return "API key"
	}
}

func periodWord(p quota.Period) string {
	switch p {
	case quota.Day:
		return "daily "
	case quota.Month:
		return "monthly "
	default:
		return ""
	}
}

func unitWord(u quota.Unit) string {
	switch u {
	case quota.UnitRPS:
		return "requests per second"
	case quota.UnitRPM:
		return "requests per minute"
	case quota.UnitTPM:
		return "tokens per minute"
	default:
		return "credits"
	}
}
