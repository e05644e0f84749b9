package quota

import "fmt"

// Scope is one level of a principal.
type Scope uint8

// The three scopes, in the order in which a chain lists them.
const (
	Org Scope = iota
	App
	Key
)

// Scopes lists all scopes in chain order.
var Scopes = [3]Scope{Org, App, Key}

// String gives the name used in Redis keys, JSON, metrics and SQL.
func (s Scope) String() string {
	switch s {
	case Org:
		return "org"
	case App:
		return "app"
	case Key:
		return "key"
	}
	return fmt.Sprintf("scope(%d)", uint8(s))
}

// Principal is who pays: three opaque ids. None of them is secret, none is personal.
type Principal struct {
	Tenant string // t_…
	App    string // a_…
	Key    string // k_…
}

// ID gives the id of one scope.
func (p Principal) ID(s Scope) string {
	switch s {
	case App:
		return p.App
	case Key:
		return p.Key
	default:
		return p.Tenant
	}
}

// CheckID accepts prefix ("t_", "a_", "k_") + 1…62 of [A-Za-z0-9_-], else ErrID.
func CheckID(prefix, id string) error {
	rest := len(id) - len(prefix)
	if rest < 1 || rest > 62 || id[:len(prefix)] != prefix {
		return fmt.Errorf("%w: want %s and 1 to 62 of [A-Za-z0-9_-]", ErrID, prefix)
	}
	for i := len(prefix); i < len(id); i++ {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: want %s and 1 to 62 of [A-Za-z0-9_-]", ErrID, prefix)
		}
	}
	return nil
}
