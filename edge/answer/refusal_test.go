package answer

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"tollgate/quota"
)

// written is a refusal as a client gets it.
type written struct {
	status     int
	retryAfter string
	retry      string // x-should-retry
	body       map[string]any
}

func write(t *testing.T, r *Refusal, shape Shape) written {
	t.Helper()
	var ctx fasthttp.RequestCtx
	ctx.SetBodyString("left over")
	r.Write(&ctx, shape, "id-1")
	w := written{
		status:     ctx.Response.StatusCode(),
		retryAfter: string(ctx.Response.Header.Peek("Retry-After")),
		retry:      string(ctx.Response.Header.Peek("x-should-retry")),
	}
	require.NoError(t, json.Unmarshal(ctx.Response.Body(), &w.body), "%s", ctx.Response.Body())
	require.Equal(t, "application/json", string(ctx.Response.Header.ContentType()))
	return w
}

func account(scope quota.Scope, p quota.Period, need, limit, remaining int64, wait time.Duration) quota.Refusal {
	return quota.Refusal{Reason: quota.InsufficientQuota, Scope: scope, Period: p, Unit: quota.UnitCredits, Need: need, Limit: limit, Remaining: remaining, RetryAfter: wait}
}

// Each refusal, as the tenant's developer reads it, with and without numbers.
func TestWordsOfRefusals(t *testing.T) {
	never := account(quota.Key, quota.Ever, 500, 100, 40, 0)
	never.Never = true
	nothing := account(quota.Key, quota.Ever, 5, 0, 0, 0)
	nothing.Never = true
	pending := account(quota.Org, quota.Ever, 50, 100, 40, time.Second)
	pending.Pending = true
	paid := account(quota.Org, quota.Ever, 1, 110, 0, 0)
	paid.Reason = quota.PaymentRequired
	rate := func(scope quota.Scope, unit quota.Unit, need, limit, remaining int64, wait time.Duration) quota.Refusal {
		return quota.Refusal{Reason: quota.RateExceeded, Scope: scope, Unit: unit, Need: need, Limit: limit, Remaining: remaining, RetryAfter: wait}
	}
	big := rate(quota.Key, quota.UnitTPM, 5000, 1000, 1000, 0)
	big.Never, big.Reason = true, quota.InsufficientQuota

	for name, c := range map[string]struct {
		refusal           quota.Refusal
		status            int
		code, kind        string
		retryAfter, retry string
		shown, hidden     string
	}{
		"used up": {
			account(quota.Org, quota.Ever, 1, 100, 0, time.Minute), 429, "insufficient_quota", "insufficient_quota", "60", "false",
			"The quota of this organisation is used up: 1 needed, 0 of 100 left. It does not refill by itself; ask its owner to top it up.",
			"The quota of this organisation is used up. It does not refill by itself; ask its owner to top it up.",
		},
		"too low": {
			account(quota.App, quota.Ever, 41, 100, 40, time.Minute), 429, "insufficient_quota", "insufficient_quota", "60", "false",
			"The quota of this application is too low for this request: 41 needed, 40 of 100 left. It does not refill by itself; ask its owner to top it up.",
			"The quota of this application is too low for this request. It does not refill by itself; ask its owner to top it up.",
		},
		"day": {
			account(quota.Key, quota.Day, 5, 100, 0, 3725*time.Second), 429, "insufficient_quota", "insufficient_quota", "3725", "",
			"The daily quota of this API key is used up: 5 needed, 0 of 100 left. It resets in 1h2m5s.",
			"The daily quota of this API key is used up. It resets in 1h2m5s.",
		},
		"month": {
			account(quota.Key, quota.Month, 5, 100, 4, 30*time.Second), 429, "insufficient_quota", "insufficient_quota", "30", "",
			"The monthly quota of this API key is too low for this request: 5 needed, 4 of 100 left. It resets in 30 seconds.",
			"The monthly quota of this API key is too low for this request. It resets in 30 seconds.",
		},
		"never": {
			never, 429, "insufficient_quota", "insufficient_quota", "", "false",
			"This request needs 500 credits, more than the whole quota of this API key, 100. Ask for less (a smaller max_tokens or a shorter prompt).",
			"This request needs 500 credits, more than the quota of this API key can ever carry.",
		},
		"nothing allowed": {
			nothing, 429, "insufficient_quota", "insufficient_quota", "", "false",
			"The quota of this API key is 0: nothing can be spent, and this request needs 5 credits. Ask its owner to raise it.",
			"This request needs 5 credits, more than the quota of this API key can ever carry.",
		},
		"pending": {
			pending, 429, "insufficient_quota", "insufficient_quota", "1", "true",
			"The quota of this organisation is too low for this request: 50 needed, 40 of 100 left. Credits are on their way back from other nodes; try again in a second.",
			"The quota of this organisation is too low for this request. Credits are on their way back from other nodes; try again in a second.",
		},
		"overage used up": {
			paid, 402, "payment_required", "insufficient_quota", "", "false",
			"The quota of this organisation is used up, its overage included: 1 needed, 0 of 110 left. Top it up to go on.",
			"The quota of this organisation is used up, its overage included. Top it up to go on.",
		},
		"requests": {
			rate(quota.Key, quota.UnitRPM, 1, 60, 0, 1*time.Second), 429, "rate_limit_exceeded", "requests", "1", "",
			"This API key's limit on requests per minute (60 at once) is reached. Try again in 1 second.",
			"This API key's limit on requests per minute is reached. Try again in 1 second.",
		},
		"tokens": {
			rate(quota.Org, quota.UnitTPM, 500, 1000, 20, 29*time.Second), 429, "rate_limit_exceeded", "tokens", "29", "",
			"This organisation's limit on tokens per minute (1000 at once) is reached. Try again in 29 seconds.",
			"This organisation's limit on tokens per minute is reached. Try again in 29 seconds.",
		},
		"concurrency": {
			rate(quota.App, quota.UnitConcurrency, 1, 3, 0, time.Second), 429, "rate_limit_exceeded", "requests", "1", "",
			"This application's limit of 3 requests at the same time is reached. Try again in 1 second.",
			"This application's limit on requests at the same time is reached. Try again in 1 second.",
		},
		"above a bucket": {
			big, 429, "insufficient_quota", "insufficient_quota", "", "false",
			"This request counts as 5000, more than this API key's limit on tokens per minute (1000 at once) can ever carry.",
			"This request counts as 5000, more than this API key's limit on tokens per minute can ever carry.",
		},
	} {
		for _, show := range []bool{true, false} {
			w := write(t, FromDecision(&quota.Decision{Refusal: c.refusal}, show), OpenAI)
			e := w.body["error"].(map[string]any)
			want := c.shown
			if !show {
				want = c.hidden
			}
			require.Equal(t, want, e["message"], name)
			require.Equal(t, want, w.body["msg"], name)
			require.Equal(t, c.status, w.status, name)
			require.EqualValues(t, c.status, w.body["code"], name)
			require.Equal(t, c.code, e["code"], name)
			require.Equal(t, c.kind, e["type"], name)
			require.Nil(t, e["param"], name)
			require.Equal(t, c.retryAfter, w.retryAfter, name)
			require.Equal(t, c.retry, w.retry, name)
			data := w.body["data"].(map[string]any)
			require.Len(t, data, 5, name)
			require.Equal(t, c.refusal.Scope.String(), data["scope"], name)
			if show {
				require.EqualValues(t, c.refusal.Limit, data["limit"], name)
				require.EqualValues(t, c.refusal.Remaining, data["remaining"], name)
			} else {
				require.Nil(t, data["limit"], name)
				require.Nil(t, data["remaining"], name)
			}
			require.Equal(t, c.retryAfter == "", data["retry_after"] == nil, name)
			if c.refusal.Period == quota.Ever && c.refusal.Unit == quota.UnitCredits {
				require.Nil(t, data["reset"], name)
			}
		}
	}
}

func TestAnthropicShape(t *testing.T) {
	r := FromDecision(&quota.Decision{Refusal: account(quota.Org, quota.Ever, 1, 100, 0, time.Minute)}, true)
	w := write(t, r, Anthropic)
	require.Equal(t, map[string]any{
		"type":       "error",
		"error":      map[string]any{"type": "billing_error", "message": r.Message},
		"request_id": "id-1",
	}, w.body)
}

// Every code has a line, a status that clients know how to take, and both types.
func TestTableIsWhole(t *testing.T) {
	for code, line := range table {
		require.True(t, line.status >= 400 && line.status < 600, code)
		require.NotEmpty(t, line.openAI, code)
		require.NotEmpty(t, line.anthropic, code)
		w := write(t, New(code, "Words."), OpenAI)
		require.Equal(t, line.status, w.status)
		require.Equal(t, code.Status(), w.status)
		if w.status == 409 {
			require.Equal(t, "false", w.retry, "vendors' clients would repeat %s", code)
		}
	}
	for _, reason := range []quota.Reason{quota.InsufficientQuota, quota.PaymentRequired, quota.RateExceeded} {
		require.NotZero(t, Code(reason).Status(), "the reason is a code")
	}
	require.Panics(t, func() { write(t, New("nonsense", ""), OpenAI) })
}

// Retry-After is in whole seconds, rounded up.
func TestRetryAfterIsWhole(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		time.Nanosecond: "1", 900 * time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", time.Hour: "3600",
	} {
		require.Equal(t, want, write(t, &Refusal{Code: NodeBusy, RetryAfter: wait}, OpenAI).retryAfter)
	}
	require.True(t, strings.HasSuffix(Unavailable("x").Error(), ": x"))
	require.Equal(t, "1", write(t, Unavailable("x"), OpenAI).retryAfter)
}
