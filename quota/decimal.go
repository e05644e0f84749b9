package quota

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Decimal is an exact number ≥ 0 in billionths: 1.25 is 1_250_000_000. Its text
// is digits, or digits, a point and 1 to 9 digits; so 0 … 9223372036.854775807.
// No signs, exponents, spaces, bare points or leading zeros: a price should not
// depend on what a reader takes "010" or "1e3" for.
type Decimal int64

// DecimalOne is 1.
const DecimalOne Decimal = 1_000_000_000

// decimalPlaces is how many digits may follow the point.
const decimalPlaces = 9

// ParseDecimal reads a Decimal; it never passes through a float. The errors are
// ErrNegative, ErrTooLarge and ErrDecimal.
func ParseDecimal(text string) (Decimal, error) {
	d, err := parseDecimal(text)
	if err != nil {
		const shown = 40 // bytes of a bad text that an error repeats
		if len(text) > shown {
			text = text[:shown] + "…"
		}
		return 0, fmt.Errorf("%w: %q", err, text)
	}
	return d, nil
}

func parseDecimal(text string) (Decimal, error) {
	if positive, ok := strings.CutPrefix(text, "-"); ok {
		if _, err := parseDecimal(positive); errors.Is(err, ErrDecimal) {
			return 0, err
		}
		return 0, ErrNegative
	}
	whole, part, point := strings.Cut(text, ".")
	switch {
	case !isDigits(whole), len(whole) > 1 && whole[0] == '0':
		return 0, ErrDecimal
	case point && (!isDigits(part) || len(part) > decimalPlaces):
		return 0, ErrDecimal
	}
	billionths, err := strconv.ParseInt(whole+part+"000000000"[len(part):], 10, 64)
	if err != nil { // digits only, so out of range
		return 0, fmt.Errorf("%w (as a decimal 9223372036.854775807)", ErrTooLarge)
	}
	return Decimal(billionths), nil
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// String writes the shortest text that parses to d.
func (d Decimal) String() string {
	text, _ := d.AppendText(nil)
	return string(text)
}

// AppendText appends what String gives. It never fails.
func (d Decimal) AppendText(b []byte) ([]byte, error) {
	whole, part := d/DecimalOne, d%DecimalOne
	if d < 0 { // no text parses to this; shown for messages only
		b, whole, part = append(b, '-'), -whole, -part
	}
	b = fmt.Appendf(b, "%d", int64(whole))
	if part == 0 {
		return b, nil
	}
	b = fmt.Appendf(b, ".%09d", int64(part))
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b, nil
}

// MarshalText writes what String gives.
func (d Decimal) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText is ParseDecimal, for configuration and flags. It wants the text
// as it was written: many YAML readers hand over what a float made of it.
func (d *Decimal) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDecimal(string(text))
	return err
}

// MarshalJSON writes a JSON number.
func (d Decimal) MarshalJSON() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalJSON reads a JSON number, no string and no null.
func (d *Decimal) UnmarshalJSON(data []byte) error { return d.UnmarshalText(data) }
