package quota

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Bounds of limits. RateMax keeps the bucket script's integer micro-tokens
// exact: RateMax · 10^6 · 60 < 2^53.
const (
	RateMax        int64 = 100_000_000
	ConcurrencyMax int64 = 1_000_000
)

// Bucket is a token bucket: Rate tokens per period flow in, Burst is its
// capacity. As JSON it is a number n (n per period, capacity n) or
// {"rate":n,"burst":b}. Both are 0 … RateMax; a bucket of capacity 0 allows nothing.
type Bucket struct {
	Rate  int64
	Burst int64
}

// UnmarshalJSON reads either form; other fields, fractions and numbers out of bounds are errors.
func (b *Bucket) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if len(data) > 0 && data[0] == '{' {
		var form struct {
			Rate  *int64 `json:"rate"`
			Burst *int64 `json:"burst"`
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&form); err != nil || form.Rate == nil {
			return fmt.Errorf(`%w: want a whole number or {"rate":n,"burst":n}`, ErrLimit)
		}
		b.Rate, b.Burst = *form.Rate, *form.Rate
		if form.Burst != nil {
			b.Burst = *form.Burst
		}
	} else {
		var n *int64 // nil for null, which is for the one who holds a *Bucket to read
		if err := json.Unmarshal(data, &n); err != nil || n == nil {
			return fmt.Errorf(`%w: want a whole number or {"rate":n,"burst":n}`, ErrLimit)
		}
		b.Rate, b.Burst = *n, *n
	}
	if b.Rate < 0 || b.Rate > RateMax || b.Burst < 0 || b.Burst > RateMax {
		return fmt.Errorf("%w: rate and burst must be 0 to %d", ErrLimit, RateMax)
	}
	return nil
}

// MarshalJSON writes the short form where it says everything.
func (b Bucket) MarshalJSON() ([]byte, error) {
	if b.Rate == b.Burst {
		return fmt.Appendf(nil, "%d", b.Rate), nil
	}
	return fmt.Appendf(nil, `{"rate":%d,"burst":%d}`, b.Rate, b.Burst), nil
}

// Limits are one scope's rates and concurrency. nil is unlimited, 0 allows nothing.
type Limits struct {
	RPM         *Bucket `json:"rpm,omitempty"`         // requests per minute
	RPS         *Bucket `json:"rps,omitempty"`         // requests per second
	TPM         *Bucket `json:"tpm,omitempty"`         // tokens per minute
	Concurrency *int64  `json:"concurrency,omitempty"` // requests running at once, 0 … ConcurrencyMax
}

// Validate checks what UnmarshalJSON of the parts cannot see.
func (l Limits) Validate() error {
	if l.Concurrency != nil && (*l.Concurrency < 0 || *l.Concurrency > ConcurrencyMax) {
		return fmt.Errorf("%w: concurrency must be 0 to %d", ErrLimit, ConcurrencyMax)
	}
	return nil
}

// Budget is what one scope may spend per period besides its `ever` total, and
// how fast. nil is unlimited, 0 allows nothing.
type Budget struct {
	Day    *int64 `json:"day,omitempty"`   // credits per calendar day of the tenant's zone
	Month  *int64 `json:"month,omitempty"` // credits per calendar month of the tenant's zone
	Limits Limits `json:"limits,omitzero"`
}

// limits says whether the scope has an account for the period.
func (b Budget) limits(p Period) bool {
	switch p {
	case Month:
		return b.Month != nil
	case Day:
		return b.Day != nil
	default:
		return true // `ever`, possibly unlimited
	}
}
