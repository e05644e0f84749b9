package quota

// Usage is what an upstream reports that it did, in tokens, brought to one
// shape for all dialects: the five counts never overlap.
type Usage struct {
	Input       int64 // prompt tokens that were neither read from nor written to a cache
	CachedInput int64 // prompt tokens read from the provider's cache
	CacheWrite  int64 // prompt tokens written to the provider's cache
	Output      int64 // all generated tokens, reasoning included
	Reasoning   int64 // the part of Output that was reasoning; informative, never priced again
}

// Prompt is the whole prompt: plain, cached and cache-written.
func (u Usage) Prompt() int64 { return u.Input + u.CachedInput + u.CacheWrite }

// Tokens is prompt plus output: what tokens-per-minute limits count.
func (u Usage) Tokens() int64 { return u.Prompt() + u.Output }

// TokensMax bounds every count of a Usage and every output bound of a request;
// larger numbers are absurd and refused. What they cost at any legal price fits
// the 128-bit sums of Price.
const TokensMax int64 = 1 << 40

// Check refuses a usage with a count below 0 (ErrNegative) or above TokensMax
// (ErrTooLarge). It does not allocate.
func (u Usage) Check() error {
	return checkTokens(u.Input, u.CachedInput, u.CacheWrite, u.Output, u.Reasoning)
}

func checkTokens(counts ...int64) error {
	for _, n := range counts {
		if n < 0 {
			return ErrNegative
		}
		if n > TokensMax {
			return ErrTooLarge
		}
	}
	return nil
}

// Source says how a charge is known. The names are those of the SQL column usage_source.
type Source string

// The sources.
const (
	SourceUpstream  Source = "upstream"  // the upstream reported it
	SourcePartial   Source = "partial"   // a cut answer: what was delivered, counted here
	SourceEstimated Source = "estimated" // a whole answer without usage, counted here
	SourceFixed     Source = "fixed"     // the route's or the caller's cost
	SourceNone      Source = "none"      // nothing charged
)
