package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, written as 64KiB, 32MiB, 4GiB or a whole number of bytes.
type Size int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

// UnmarshalText reads a size; fractions and negative sizes are refused.
func (s *Size) UnmarshalText(text []byte) error {
	unit, number := int64(1), string(text)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			unit, number = u.bytes, strings.TrimSpace(rest)
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("%q is not a size such as 64KiB, 32MiB or 4GiB", text)
	}
	*s = Size(n * unit)
	return nil
}

// String writes the size in the largest unit that divides it.
func (s Size) String() string {
	for i := 3; i >= 0; i-- {
		if u := sizeUnits[i]; s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// Percent is a share in hundredths of a percent, written as 10% or 0.5%: 0 to 100 %.
type Percent int64

const (
	percent  Percent = 100
	whole            = 100 * percent
	hundreds         = 2 // places after the point
)

// UnmarshalText reads a percentage with at most two places after the point.
func (p *Percent) UnmarshalText(text []byte) error {
	number, fraction, _ := strings.Cut(strings.TrimSpace(strings.TrimSuffix(string(text), "%")), ".")
	bad := fmt.Errorf("%q is not a percentage from 0%% to 100%% with at most two places", text)
	if len(fraction) > hundreds {
		return bad
	}
	n, err := strconv.ParseUint(number+fraction+"00"[len(fraction):], 10, 32)
	if err != nil || Percent(n) > whole {
		return bad
	}
	*p = Percent(n)
	return nil
}

// String writes the share as it stands in the file.
func (p Percent) String() string {
	return strconv.FormatFloat(float64(p)/float64(percent), 'f', -1, 64) + "%"
}

// Of returns this share of an amount, rounded down, without overflow for any amount of credits.
func (p Percent) Of(amount int64) int64 {
	return amount/int64(whole)*int64(p) + amount%int64(whole)*int64(p)/int64(whole)
}

// Secret is a value that is used and never shown: every way of printing it writes [secret].
type Secret struct{ value string }

const hidden = "[secret]"

// NewSecret is for tests and for what does not come from a file.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal returns the value itself.
func (s Secret) Reveal() string { return s.value }

// IsSet says whether there is one.
func (s Secret) IsSet() bool { return s.value != "" }

func (s Secret) String() string               { return hidden }
func (s Secret) GoString() string             { return hidden }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// ConnURL is the address of a store or a database. It may carry a password, so it prints without it.
type ConnURL struct{ raw string }

// NewConnURL is for tests and for what does not come from a file.
func NewConnURL(raw string) ConnURL { return ConnURL{raw} }

// Reveal returns the whole URL, password included.
func (u ConnURL) Reveal() string { return u.raw }

// Scheme is what stands before "://", lower case.
func (u ConnURL) Scheme() string {
	scheme, _, _ := strings.Cut(u.raw, "://")
	return strings.ToLower(scheme)
}

// UnmarshalText takes any text; Validate knows which schemes are right where.
func (u *ConnURL) UnmarshalText(text []byte) error {
	u.raw = string(text)
	return nil
}

// split cuts scheme://user:password@rest at the last "@": too much rather than too little is taken for a password.
func (u ConnURL) split() (scheme, user, password, rest string) {
	scheme, rest, ok := strings.Cut(u.raw, "://")
	if !ok {
		return "", "", "", u.raw
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, password, _ = strings.Cut(rest[:i], ":")
		rest = rest[i+1:]
	}
	return scheme, user, password, rest
}

// String leaves the user and the password out.
func (u ConnURL) String() string {
	scheme, user, password, rest := u.split()
	switch {
	case scheme == "" && rest != "":
		return "(not a URL)"
	case scheme == "":
		return ""
	case user+password != "":
		return scheme + "://" + hidden + "@" + rest
	}
	return scheme + "://" + rest
}

// GoString is String.
func (u ConnURL) GoString() string { return u.String() }

// LogValue is String.
func (u ConnURL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is String.
func (u ConnURL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

var errTwoPasswords = errors.New("the URL already carries a password")

func (u ConnURL) withPassword(password string) (ConnURL, error) {
	scheme, user, old, rest := u.split()
	if old != "" {
		return u, errTwoPasswords
	}
	return ConnURL{scheme + "://" + url.UserPassword(user, password).String() + "@" + rest}, nil
}

var errDuration = errors.New("not a duration such as 200ms, 60s, 15m, 24h or 400d")

// parseDuration reads what time.ParseDuration reads, and days.
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		if err != nil || n < 0 || n > int64(math.MaxInt64/day) {
			return 0, fmt.Errorf("%q is %w", text, errDuration)
		}
		return time.Duration(n) * day, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is %w", text, errDuration)
	}
	return d, nil
}
