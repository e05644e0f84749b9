package dialect

import (
	"math"

	"github.com/valyala/fastjson"

	"tollgate/quota"
)

// parseUsage reads a usage object of chat completions into counts that do not overlap.
//
// Cached and cache-written tokens are part of prompt_tokens, reasoning tokens of completion_tokens.
// The classes may overlap each other, so the uncached rest is not below 0. Some upstreams leave
// reasoning out of completion_tokens and only the total shows it: Output is
// max(completion_tokens, total_tokens − prompt_tokens).
func parseUsage(raw []byte) (quota.Usage, bool) {
	if len(raw) == 0 {
		return quota.Usage{}, false
	}
	p := parsers.Get()
	defer parsers.Put(p)
	v, err := p.ParseBytes(raw)
	if err != nil {
		return quota.Usage{}, false
	}
	c := counts{ok: true}
	prompt, hasPrompt := c.get(v, "prompt_tokens")
	completion, hasCompletion := c.get(v, "completion_tokens")
	total, hasTotal := c.get(v, "total_tokens")
	if !hasPrompt && !hasCompletion && !hasTotal {
		return quota.Usage{}, false
	}
	if !hasPrompt {
		prompt = max(0, total-completion)
	}
	cached := c.first(v, []string{"prompt_tokens_details", "cached_tokens"}, []string{"prompt_cache_hit_tokens"})
	write := c.first(v, []string{"prompt_tokens_details", "cache_write_tokens"},
		[]string{"prompt_tokens_details", "cache_creation_tokens"})
	reasoning := c.first(v, []string{"completion_tokens_details", "reasoning_tokens"})
	u := quota.Usage{
		CachedInput: min(cached, prompt),
		CacheWrite:  min(write, prompt),
		Output:      max(completion, total-prompt),
	}
	u.Input = max(0, prompt-u.CachedInput-u.CacheWrite)
	u.Reasoning = min(reasoning, u.Output)
	return u, c.ok
}

// counts reads numbers, and remembers if one of them cannot be a number of tokens.
type counts struct{ ok bool }

// get returns a number and whether it is there; null is not.
func (c *counts) get(v *fastjson.Value, path ...string) (int64, bool) {
	v = v.Get(path...)
	if absent(v) {
		return 0, false
	}
	n, err := v.Int64()
	if err != nil { // 123.0 is a whole number too
		f, err := v.Float64()
		if err != nil || f != math.Trunc(f) || math.Abs(f) > float64(quota.TokensMax) {
			c.ok = false
			return 0, true
		}
		n = int64(f)
	}
	if n < 0 || n > quota.TokensMax {
		c.ok = false
		return 0, true
	}
	return n, true
}

func (c *counts) first(v *fastjson.Value, paths ...[]string) int64 {
	for _, path := range paths {
		if n, ok := c.get(v, path...); ok {
			return n
		}
	}
	return 0
}
