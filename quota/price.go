package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
)

// Price is what a model costs, in credits per call and per token, exact.
//
// In configuration cached_input and cache_write may be left out and then equal
// input; NewPrice does that. A Price in memory is always complete: 0 is free.
type Price struct {
	Call        Decimal `json:"call"         yaml:"call"`         // per call that is charged at all
	Input       Decimal `json:"input"        yaml:"input"`        // per prompt token
	CachedInput Decimal `json:"cached_input" yaml:"cached_input"` // per prompt token read from a cache
	CacheWrite  Decimal `json:"cache_write"  yaml:"cache_write"`  // per prompt token written to a cache
	Output      Decimal `json:"output"       yaml:"output"`       // per generated token
}

// NewPrice is a price that makes no difference between plain and cached prompt tokens.
func NewPrice(call, input, output Decimal) Price {
	return Price{Call: call, Input: input, CachedInput: input, CacheWrite: input, Output: output}
}

// Bounds of the factor on estimates. Below 1 an honest estimate would be an
// overrun by design; far above, credits lie frozen for nothing.
const (
	FactorMin = DecimalOne
	FactorMax = DecimalOne * 3 / 2
)

// Validate refuses negative prices, which only code can make.
func (p Price) Validate() error {
	if p.Call|p.Input|p.CachedInput|p.CacheWrite|p.Output < 0 {
		return fmt.Errorf("%w: price", ErrNegative)
	}
	return nil
}

// Cost is what the usage costs in credits:
//
//	⌈ call + input·Input + cached·CachedInput + write·CacheWrite + output·Output ⌉
//
// rounded up once, at the end. ErrNegative and ErrTooLarge for counts that are
// no counts (see Usage.Check) and for a cost above CreditsMax. It does not allocate.
func (p Price) Cost(u Usage) (int64, error) {
	if err := u.Check(); err != nil {
		return 0, err
	}
	if err := p.Validate(); err != nil {
		return 0, err
	}
	// Each product is below 2^40 · 2^63, so the sum stays far below 2^128.
	sum := uint128{lo: uint64(p.Call)}
	sum.addProduct(u.Input, p.Input)
	sum.addProduct(u.CachedInput, p.CachedInput)
	sum.addProduct(u.CacheWrite, p.CacheWrite)
	sum.addProduct(u.Output, p.Output)
	return sum.credits(uint64(DecimalOne))
}

// Estimate is the most that a call can cost, in credits, for n answers of at
// most outputBound tokens each:
//
//	⌈ (call + promptTokens · max(Input, CachedInput, CacheWrite) + n · outputBound · Output) · factor ⌉
//
// A prompt token takes the highest of the three prices because nobody knows
// beforehand whether the provider's cache has it. So for every usage within the
// bounds, Cost ≤ Estimate. factor is FactorMin … FactorMax, else ErrFactor;
// n ≥ 1, else ErrCount; counts above TokensMax, n·outputBound above CreditsMax
// or a result above CreditsMax are ErrTooLarge. It does not allocate.
func (p Price) Estimate(promptTokens, outputBound, n int64, factor Decimal) (int64, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if factor < FactorMin || factor > FactorMax {
		return 0, ErrFactor
	}
	if err := checkTokens(promptTokens, outputBound, n); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, ErrCount
	}
	output, err := Mul(n, outputBound)
	if err != nil {
		return 0, err
	}
	// Below 2^63 + 2^40·2^63 + 2^53·2^63.
	sum := uint128{lo: uint64(p.Call)}
	sum.addProduct(promptTokens, max(p.Input, p.CachedInput, p.CacheWrite))
	sum.addProduct(output, p.Output)
	// The factor is at least 1: what is too large without it is too large. What
	// passes is below 2^83, and with the factor below 2^114.
	if _, err := sum.credits(uint64(DecimalOne)); err != nil {
		return 0, err
	}
	sum.mul(uint64(factor))
	return sum.credits(uint64(DecimalOne) * uint64(DecimalOne))
}

// ID names the price by its content: 16 hex digits, equal for equal prices on
// every node and in every version. Usage events carry it. It allocates; keep it.
func (p Price) ID() string {
	text := fmt.Sprintf("price/1 call=%s input=%s cached_input=%s cache_write=%s output=%s",
		p.Call, p.Input, p.CachedInput, p.CacheWrite, p.Output)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// uint128 is an unsigned sum of money in small parts of a credit. Its methods
// do not check for a carry out of 128 bits; callers bound their operands.
type uint128 struct{ hi, lo uint64 }

// addProduct adds count·price; neither is negative.
func (s *uint128) addProduct(count int64, price Decimal) {
	hi, lo := bits.Mul64(uint64(count), uint64(price))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

func (s *uint128) mul(factor uint64) {
	hi, lo := bits.Mul64(s.lo, factor)
	s.hi, s.lo = s.hi*factor+hi, lo
}

// credits is ⌈ s / parts ⌉, or ErrTooLarge if that is above CreditsMax.
func (s *uint128) credits(parts uint64) (int64, error) {
	if s.hi >= parts { // the quotient would not fit 64 bits
		return 0, ErrTooLarge
	}
	whole, rest := bits.Div64(s.hi, s.lo, parts)
	if whole > uint64(CreditsMax) || (whole == uint64(CreditsMax) && rest > 0) {
		return 0, ErrTooLarge
	}
	if rest > 0 {
		whole++
	}
	return int64(whole), nil
}
