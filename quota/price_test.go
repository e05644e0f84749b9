package quota

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func dec(text string) Decimal {
	d, err := ParseDecimal(text)
	if err != nil {
		panic(err)
	}
	return d
}

func TestCost(t *testing.T) {
	cached := Price{Input: dec("1"), CachedInput: dec("0.1"), CacheWrite: dec("1.25"), Output: dec("4")}
	dearest := NewPrice(0, math.MaxInt64, math.MaxInt64)
	for _, tc := range []struct {
		what  string
		price Price
		usage Usage
		want  int64
		err   error
	}{
		{what: "one credit per token", price: NewPrice(0, DecimalOne, DecimalOne), usage: Usage{Input: 7, Output: 3}, want: 10},
		{what: "cached tokens at their own price, once", price: cached, usage: Usage{Input: 2006 - 1920, CachedInput: 1920, Output: 300}, want: 86 + 192 + 1200},
		{what: "cache writes at their own price", price: cached, usage: Usage{Input: 3, CacheWrite: 12304, Output: 550}, want: 3 + 15380 + 2200},
		{what: "reasoning is part of the output", price: cached, usage: Usage{Output: 10, Reasoning: 9}, want: 40},
		{what: "nothing used costs the call", price: NewPrice(dec("2.5"), 0, 0), want: 3},
		{what: "free is free", usage: Usage{Input: 1 << 40, Output: 1 << 40}},
		{what: "rounded up", price: NewPrice(0, 1, 0), usage: Usage{Input: 1}, want: 1},
		{what: "rounded once, not per part", price: NewPrice(dec("0.3"), dec("0.3"), dec("0.4")), usage: Usage{Input: 1, Output: 1}, want: 1},
		{what: "an exact sum is not rounded", price: NewPrice(0, dec("0.001"), 0), usage: Usage{Input: 3000}, want: 3},
		{what: "the largest cost", price: NewPrice(dec("8191"), dec("8192"), 0), usage: Usage{Input: 1<<40 - 1}, want: CreditsMax},
		{what: "a billionth above the largest", price: NewPrice(dec("8191.000000001"), dec("8192"), 0), usage: Usage{Input: 1<<40 - 1}, err: ErrTooLarge},
		{what: "all counts at their bounds", price: NewPrice(0, dec("1000"), dec("1000")), usage: Usage{Input: 1 << 40, CachedInput: 1 << 40, CacheWrite: 1 << 40, Output: 1 << 40}, want: 4000 << 40},
		{what: "2^53", price: NewPrice(0, dec("8192"), 0), usage: Usage{Input: 1 << 40}, err: ErrTooLarge},
		{what: "far too large", price: dearest, usage: Usage{Input: 1 << 40, CachedInput: 1 << 40, CacheWrite: 1 << 40, Output: 1 << 40}, err: ErrTooLarge},
		{what: "absurd counts", price: cached, usage: Usage{Output: 1<<40 + 1}, err: ErrTooLarge},
		{what: "absurd counts that are free", usage: Usage{Reasoning: math.MaxInt64}, err: ErrTooLarge},
		{what: "negative counts never pay back", price: cached, usage: Usage{Input: 100, Output: -1}, err: ErrNegative},
		{what: "negative prices never pay back", price: Price{Call: 1, Output: -1}, usage: Usage{Input: 1}, err: ErrNegative},
	} {
		t.Run(tc.what, func(t *testing.T) {
			got, err := tc.price.Cost(tc.usage)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestEstimate(t *testing.T) {
	one := NewPrice(0, DecimalOne, DecimalOne)
	for _, tc := range []struct {
		what             string
		price            Price
		prompt, bound, n int64
		factor           Decimal
		want             int64
		err              error
	}{
		{what: "prompt and bound", price: one, prompt: 20, bound: 80, n: 1, factor: DecimalOne, want: 100},
		{what: "n answers share a prompt", price: one, prompt: 20, bound: 80, n: 3, factor: DecimalOne, want: 260},
		{what: "the factor counts on all, rounded up once", price: NewPrice(dec("0.1"), DecimalOne, DecimalOne), prompt: 3, bound: 2, n: 1, factor: dec("1.2"), want: 7},
		{what: "a prompt token takes its dearest price", price: Price{Input: 1e9, CachedInput: 1e8, CacheWrite: 125e7, Output: 0}, prompt: 100, n: 1, factor: DecimalOne, want: 125},
		{what: "free", prompt: 1 << 40, bound: 1 << 40, n: 1, factor: FactorMax},
		{what: "the largest", price: NewPrice(dec("8191"), dec("8192"), 0), prompt: 1<<40 - 1, n: 1, factor: DecimalOne, want: CreditsMax},
		{what: "many long answers", price: one, bound: 1 << 40, n: 8191, factor: DecimalOne, want: 8191 << 40},
		{what: "factor below 1", price: one, n: 1, factor: DecimalOne - 1, err: ErrFactor},
		{what: "factor above 1.5", price: one, n: 1, factor: FactorMax + 1, err: ErrFactor},
		{what: "no answers", price: one, prompt: 1, factor: DecimalOne, err: ErrCount},
		{what: "negative answers", price: one, prompt: 1, n: -1, factor: DecimalOne, err: ErrNegative},
		{what: "absurd n", price: one, n: 1<<40 + 1, factor: DecimalOne, err: ErrTooLarge},
		{what: "negative bound", price: one, bound: math.MinInt64, n: 1, factor: DecimalOne, err: ErrNegative},
		{what: "absurd bound", price: one, bound: math.MaxInt64, n: 1, factor: DecimalOne, err: ErrTooLarge},
		{what: "absurd n times bound", bound: 1 << 40, n: 1 << 40, factor: DecimalOne, err: ErrTooLarge},
		{what: "only the factor makes it too large", price: NewPrice(0, dec("8191"), 0), prompt: 1 << 40, n: 1, factor: FactorMax, err: ErrTooLarge},
		{what: "everything at its bound", price: NewPrice(math.MaxInt64, math.MaxInt64, math.MaxInt64), prompt: 1 << 40, bound: 1 << 40, n: 8191, factor: FactorMax, err: ErrTooLarge},
		{what: "negative price", price: Price{Call: -1}, n: 1, factor: DecimalOne, err: ErrNegative},
	} {
		t.Run(tc.what, func(t *testing.T) {
			got, err := tc.price.Estimate(tc.prompt, tc.bound, tc.n, tc.factor)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestPriceID(t *testing.T) {
	p := Price{Call: dec("0"), Input: dec("1"), CachedInput: dec("0.5"), CacheWrite: dec("1"), Output: dec("4")}
	// Books of years refer to it: a change of this value is a change of all ids.
	require.Equal(t, "aec3d27d73f6554c", p.ID())
	seen := map[string]Price{}
	for i := range 5 {
		var q Price
		*[]*Decimal{&q.Call, &q.Input, &q.CachedInput, &q.CacheWrite, &q.Output}[i] = 1
		require.NotContains(t, seen, q.ID())
		seen[q.ID()] = q
	}
}

func drawPrice(t *rapid.T) Price {
	price := rapid.OneOf(
		rapid.Int64Range(0, 20_000_000_000),
		rapid.Int64Range(0, math.MaxInt64),
		rapid.SampledFrom([]int64{0, 1, 1e9, math.MaxInt64}),
	)
	d := func(name string) Decimal { return Decimal(price.Draw(t, name)) }
	return Price{Call: d("call"), Input: d("input"), CachedInput: d("cached"), CacheWrite: d("write"), Output: d("output")}
}

func drawTokens(t *rapid.T, name string) int64 {
	return rapid.OneOf(
		rapid.Int64Range(0, 100_000),
		rapid.Int64Range(0, TokensMax),
		rapid.SampledFrom([]int64{0, 1, TokensMax - 1, TokensMax}),
	).Draw(t, name)
}

// naiveCredits is ⌈ sum of the products · factor ⌉ over rationals.
func naiveCredits(factor Decimal, products ...[2]int64) *big.Int {
	sum := new(big.Rat)
	for _, p := range products {
		term := new(big.Rat).SetFrac(big.NewInt(p[1]), big.NewInt(int64(DecimalOne)))
		sum.Add(sum, term.Mul(term, new(big.Rat).SetInt64(p[0])))
	}
	sum.Mul(sum, big.NewRat(int64(factor), int64(DecimalOne)))
	quotient, rest := new(big.Int).QuoRem(sum.Num(), sum.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient
}

func requireCredits(t require.TestingT, want *big.Int, got int64, err error) {
	if want.Cmp(big.NewInt(CreditsMax)) > 0 {
		require.ErrorIs(t, err, ErrTooLarge)
		require.Zero(t, got)
		return
	}
	require.NoError(t, err)
	require.Equal(t, want.Int64(), got)
}

func TestCostAgainstRationals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrice(t)
		u := Usage{
			Input: drawTokens(t, "input tokens"), CachedInput: drawTokens(t, "cached tokens"),
			CacheWrite: drawTokens(t, "written tokens"), Output: drawTokens(t, "output tokens"),
		}
		want := naiveCredits(DecimalOne, [2]int64{1, int64(p.Call)}, [2]int64{u.Input, int64(p.Input)},
			[2]int64{u.CachedInput, int64(p.CachedInput)}, [2]int64{u.CacheWrite, int64(p.CacheWrite)},
			[2]int64{u.Output, int64(p.Output)})
		got, err := p.Cost(u)
		requireCredits(t, want, got, err)
	})
}

func TestEstimateAgainstRationals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrice(t)
		prompt, bound, n := drawTokens(t, "prompt"), drawTokens(t, "bound"), rapid.Int64Range(1, 200).Draw(t, "n")
		factor := Decimal(rapid.Int64Range(int64(FactorMin), int64(FactorMax)).Draw(t, "factor"))
		dearest := max(p.Input, p.CachedInput, p.CacheWrite)
		want := naiveCredits(factor, [2]int64{1, int64(p.Call)}, [2]int64{prompt, int64(dearest)}, [2]int64{n * bound, int64(p.Output)})
		got, err := p.Estimate(prompt, bound, n, factor)
		requireCredits(t, want, got, err)
	})
}

// What a call may cost at most is never less than what it costs.
func TestEstimateCoversCost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrice(t)
		n := rapid.Int64Range(1, 8).Draw(t, "n")
		prompt := rapid.Int64Range(0, 1_000_000).Draw(t, "prompt")
		bound := rapid.Int64Range(0, 100_000).Draw(t, "bound")
		cached := rapid.Int64Range(0, prompt).Draw(t, "cached")
		written := rapid.Int64Range(0, prompt-cached).Draw(t, "written")
		u := Usage{Input: prompt - cached - written, CachedInput: cached, CacheWrite: written, Output: rapid.Int64Range(0, n*bound).Draw(t, "output")}
		estimate, err := p.Estimate(prompt, bound, n, DecimalOne)
		if err != nil {
			require.ErrorIs(t, err, ErrTooLarge)
			return
		}
		cost, err := p.Cost(u)
		require.NoError(t, err)
		require.LessOrEqual(t, cost, estimate)
	})
}

func TestPricingDoesNotAllocate(t *testing.T) {
	p := Price{Call: 1, Input: dec("0.15"), CachedInput: dec("0.075"), CacheWrite: dec("0.2"), Output: dec("0.6")}
	u := Usage{Input: 1200, CachedInput: 800, CacheWrite: 100, Output: 300}
	var sink int64
	require.Zero(t, testing.AllocsPerRun(100, func() {
		cost, err := p.Cost(u)
		estimate, err2 := p.Estimate(2100, 4096, 1, FactorMax)
		if err != nil || err2 != nil {
			panic("refused")
		}
		sink += cost + estimate
	}))
}
