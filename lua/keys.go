package lua

import (
	"fmt"
	"strconv"
	"strings"

	"tollgate/quota"
)

// LedgerKey holds the id of the ledger that a store belongs to.
const LedgerKey = "tgledger"

// SecretKey is the document of one API key, by the sha256 of the secret in hex.
func SecretKey(hash string) string { return "tgkey:{" + hash + "}" }

// ConfKey is the document of a tenant with its apps and keys.
func ConfKey(tenant string) string { return prefix(tenant) + "conf" }

// HoldKey is the record of one hold.
func HoldKey(tenant, id string) string { return prefix(tenant) + "req:" + id }

// DeadlinesKey is the index of what must end, by deadline.
func DeadlinesKey(tenant string) string { return prefix(tenant) + "deadlines" }

// AccountKey is one account.
func AccountKey(tenant string, a quota.Account) string { return prefix(tenant) + accountSuffix(a) }

// BucketKey is one token bucket.
func BucketKey(tenant string, b BucketArg) string {
	return "rl:{" + tenant + "}:" + b.Scope.String() + ":" + b.ID + ":" + bucketLetter(b.Unit)
}

func prefix(tenant string) string { return "quota:{" + tenant + "}:" }

func accountSuffix(a quota.Account) string {
	s := a.Scope.String() + ":" + a.ID
	if a.Window.Name != "" {
		s += ":" + a.Window.Name
	}
	return s
}

func bucketLetter(u quota.Unit) string {
	switch u {
	case quota.UnitRPS:
		return "s"
	case quota.UnitTPM:
		return "t"
	default:
		return "r"
	}
}

func bucketSeconds(u quota.Unit) string {
	if u == quota.UnitRPS {
		return "1"
	}
	return "60"
}

// chainText writes a chain as the hold's record keeps it: key suffixes, and
// start-end of each account's period.
func chainText(chain quota.Chain) (names, windows string) {
	var n, w strings.Builder
	for i, a := range chain {
		if i > 0 {
			n.WriteByte(' ')
			w.WriteByte(' ')
		}
		n.WriteString(accountSuffix(a))
		w.WriteString(strconv.FormatInt(a.Window.Start, 10))
		w.WriteByte('-')
		w.WriteString(strconv.FormatInt(a.Window.End, 10))
	}
	return n.String(), w.String()
}

// parseChain is the reverse of chainText.
func parseChain(names, windows string) (quota.Chain, error) {
	n, w := strings.Fields(names), strings.Fields(windows)
	if len(n) == 0 || len(n) != len(w) || len(n) > quota.ChainMax {
		return nil, fmt.Errorf("%w: chain of a hold", ErrReply)
	}
	chain := make(quota.Chain, len(n))
	for i := range n {
		part := strings.Split(n[i], ":")
		if len(part) < 2 || len(part) > 3 {
			return nil, fmt.Errorf("%w: chain of a hold", ErrReply)
		}
		a := quota.Account{ID: part[1]}
		switch part[0] {
		case "org":
			a.Scope = quota.Org
		case "app":
			a.Scope = quota.App
		case "key":
			a.Scope = quota.Key
		default:
			return nil, fmt.Errorf("%w: chain of a hold", ErrReply)
		}
		if len(part) == 3 {
			a.Period = quota.Day
			if strings.HasPrefix(part[2], "m") {
				a.Period = quota.Month
			}
			from, till, ok := strings.Cut(w[i], "-")
			start, err1 := strconv.ParseInt(from, 10, 64)
			end, err2 := strconv.ParseInt(till, 10, 64)
			if !ok || err1 != nil || err2 != nil {
				return nil, fmt.Errorf("%w: windows of a hold", ErrReply)
			}
			a.Window = quota.Window{Name: part[2], Start: start, End: end}
		}
		chain[i] = a
	}
	return chain, nil
}
