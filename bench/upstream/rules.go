package upstream

import (
	"fmt"
	"strings"
	"sync"
)

// rulesMax bounds the list of rules; one more is refused with ErrRules. Rules that are used up leave the list.
const rulesMax = 1024

// Rule changes the behaviour of the calls it matches. An empty Model or Path
// matches all; a Path that ends in * matches what begins with the rest.
type Rule struct {
	Model string `json:"model,omitempty"`
	Path  string `json:"path,omitempty"`
	// Skip lets this many matching calls pass first.
	Skip int `json:"skip,omitempty"`
	// Times is how many calls it then changes; 0 is all.
	Times int      `json:"times,omitempty"`
	Set   Settings `json:"set"`
}

func (r *Rule) matches(model, path string) bool {
	if r.Model != "" && r.Model != model {
		return false
	}
	if prefix, ok := strings.CutSuffix(r.Path, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return r.Path == "" || r.Path == path
}

type rules struct {
	mu struct {
		sync.Mutex
		list []Rule
	}
}

func (rs *rules) add(r Rule, base Behaviour) error {
	if r.Skip < 0 || r.Times < 0 {
		return fmt.Errorf("%w: rule: skip and times must not be negative", ErrKnob)
	}
	if err := r.Set.apply(&base); err != nil {
		return err
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.mu.list) >= rulesMax {
		return fmt.Errorf("%w: %d", ErrRules, rulesMax)
	}
	rs.mu.list = append(rs.mu.list, r)
	return nil
}

func (rs *rules) all() []Rule {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return append([]Rule{}, rs.mu.list...)
}

func (rs *rules) clear() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.mu.list = nil
}

// apply lets every matching rule change b, in the order they were added, and counts it on the rule.
func (rs *rules) apply(b *Behaviour, model, path string) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	kept := rs.mu.list[:0]
	var failed error
	for _, r := range rs.mu.list {
		used := false
		switch {
		case !r.matches(model, path):
		case r.Skip > 0:
			r.Skip--
		default:
			if err := r.Set.apply(b); err != nil && failed == nil {
				failed = err
			}
			if r.Times > 0 {
				r.Times--
				used = r.Times == 0
			}
		}
		if !used {
			kept = append(kept, r)
		}
	}
	rs.mu.list = kept
	return failed
}
