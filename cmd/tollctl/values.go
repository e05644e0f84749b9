package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tollgate/quota"
)

const unlimited = "unlimited"

// suffixes are decimal, and only those that nobody reads in two ways: m could be milli, and KiB is no amount of credits.
var suffixes = map[byte]int64{'k': 1e3, 'K': 1e3, 'M': 1e6, 'G': 1e9}

// parseCredits reads 1000000, 1_000_000, 1M, 250k, 1.5G: 0 to 2^53-1.
func parseCredits(text string) (int64, bool) {
	number, unit := text, int64(1)
	if text == "" {
		return 0, false
	}
	if n, ok := suffixes[text[len(text)-1]]; ok {
		number, unit = text[:len(text)-1], n
	}
	whole, fraction, hasPoint := strings.Cut(number, ".")
	if hasPoint && (fraction == "" || unit == 1) {
		return 0, false
	}
	for group := range strings.SplitSeq(whole, "_") {
		if group == "" || strings.Trim(group, "0123456789") != "" {
			return 0, false
		}
	}
	if strings.Trim(fraction, "0123456789") != "" {
		return 0, false
	}
	for unit > 1 { // move the point to the right, one place for each zero of the unit
		digit := byte('0')
		if fraction != "" {
			digit, fraction = fraction[0], fraction[1:]
		}
		whole += string(digit)
		unit /= 10
	}
	if strings.Trim(fraction, "0") != "" {
		return 0, false // less than one credit
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(whole, "_", ""), 10, 64)
	return n, err == nil && n <= quota.CreditsMax
}

// amount is an amount of credits, or nil for unlimited.
func amount(name, text string) (*int64, error) {
	if text == unlimited {
		return nil, nil
	}
	n, ok := parseCredits(text)
	if !ok {
		return nil, wrongUse("%s: %q is no amount; write it as 1000000, 1_000_000, 1M, 250k or unlimited (at most 9007199254740991)", name, text)
	}
	return &n, nil
}

// rate is n or rate:burst, or nil for unlimited.
func rate(name, text string) (*quota.Bucket, error) {
	if text == unlimited {
		return nil, nil
	}
	first, second, both := strings.Cut(text, ":")
	n, ok := parseCredits(first)
	b := quota.Bucket{Rate: n, Burst: n}
	if both && ok {
		b.Burst, ok = parseCredits(second)
	}
	if !ok || b.Rate > quota.RateMax || b.Burst > quota.RateMax {
		return nil, wrongUse("%s: %q is no rate; write it as 600, as 600:1200 for a burst of 1200, or unlimited (at most %d)", name, text, quota.RateMax)
	}
	return &b, nil
}

// limitFlags are the flags that tenants, apps and keys share.
type limitFlags struct{ day, month, rpm, rps, tpm, concurrency string }

func (f *limitFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.day, "day", "", "`CREDITS` per calendar day, or unlimited")
	flags.StringVar(&f.month, "month", "", "`CREDITS` per calendar month, or unlimited")
	flags.StringVar(&f.rpm, "rpm", "", "requests per minute: `RATE` or RATE:BURST, or unlimited")
	flags.StringVar(&f.rps, "rps", "", "requests per second: `RATE` or RATE:BURST, or unlimited")
	flags.StringVar(&f.tpm, "tpm", "", "tokens per minute: `RATE` or RATE:BURST, or unlimited")
	flags.StringVar(&f.concurrency, "concurrency", "", "calls running at once: a `NUMBER`, or unlimited")
}

// into puts the flags that were given into a body; unlimited is null.
func (f *limitFlags) into(cmd *cobra.Command, body map[string]any) error {
	for name, text := range map[string]string{"day": f.day, "month": f.month} {
		if !cmd.Flags().Changed(name) {
			continue
		}
		n, err := amount("--"+name, text)
		if err != nil {
			return err
		}
		body[name] = n
	}
	limits := map[string]any{}
	for name, text := range map[string]string{"rpm": f.rpm, "rps": f.rps, "tpm": f.tpm} {
		if !cmd.Flags().Changed(name) {
			continue
		}
		b, err := rate("--"+name, text)
		if err != nil {
			return err
		}
		limits[name] = b
	}
	if cmd.Flags().Changed("concurrency") {
		n, err := amount("--concurrency", f.concurrency)
		if err != nil || n != nil && *n > quota.ConcurrencyMax {
			return wrongUse("--concurrency: %q is no number of calls; write 0 to %d, or unlimited", f.concurrency, quota.ConcurrencyMax)
		}
		limits["concurrency"] = n
	}
	if len(limits) > 0 {
		body["limits"] = limits
	}
	return nil
}

// noTotal lets a set command say how totals are changed, for those who try --total.
func noTotal(cmd *cobra.Command) (check func() error) {
	cmd.Flags().String("total", "", "")
	_ = cmd.Flags().MarkHidden("total") // exists: it was just added
	return func() error {
		if cmd.Flags().Changed("total") {
			return wrongUse("a total is changed by a difference: tollctl quota add or tollctl quota cut")
		}
		return nil
	}
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(text) - 3; i > start; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// credits writes an amount; nil is unlimited.
func credits(n *int64) string {
	if n == nil {
		return unlimited
	}
	return grouped(*n)
}

// limitsLine lists the limits that there are.
func limitsLine(l quota.Limits) string {
	var list []string
	for _, each := range []struct {
		name  string
		limit *quota.Bucket
	}{{"rpm", l.RPM}, {"rps", l.RPS}, {"tpm", l.TPM}} {
		if each.limit != nil {
			text := each.name + " " + grouped(each.limit.Rate)
			if each.limit.Rate != each.limit.Burst {
				text += ":" + grouped(each.limit.Burst)
			}
			list = append(list, text)
		}
	}
	if l.Concurrency != nil {
		list = append(list, grouped(*l.Concurrency)+" at once")
	}
	if len(list) == 0 {
		return unlimited
	}
	return strings.Join(list, ", ")
}
