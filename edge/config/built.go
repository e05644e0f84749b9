package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// notBuilt lists the fields that this version accepts but does not act on. Whoever builds the part removes its line.
// "*" stands for any one name. holds are values that the node keeps to anyway, so that they need no warning.
var notBuilt = []struct {
	path  string
	holds []string
}{
	{path: "node.region"},
	{path: "node.share"},
	{path: "ledger.fold"},
	{path: "ledger.retain"},
	{path: "ledger.reconcile"},
	{path: "ledger.kafka.brokers"},
	{path: "ledger.kafka.topic"},
	{path: "upstreams.*.dialect", holds: []string{"openai", "none"}},
	{path: "upstreams.*.on_disconnect", holds: []string{"cancel"}},
	{path: "upstreams.*.drain"},
	{path: "policy.outage", holds: []string{"deny"}},
	{path: "policy.outage_cap"},
	{path: "policy.stale"},
	{path: "policy.hard"},
	{path: "policy.interrupted"},
	{path: "lease.enabled", holds: []string{"false"}},
	{path: "lease.ttl"},
	{path: "lease.renew"},
	{path: "lease.reclaim"},
	{path: "lease.flush"},
	{path: "lease.hot_rate"},
	{path: "journal.sync"},
	{path: "journal.max_bytes"},
	{path: "webhook.url"},
	{path: "limits.body_total"},
}

// warnings says what the file sets in vain, and what nobody will ever reach.
func (c *Config) warnings() []string {
	var out []string
	standard := c.standard()
	for _, path := range sorted(c.set) {
		for _, nb := range notBuilt {
			if !matchPath(nb.path, path) {
				continue
			}
			value, ok := lookup(reflect.ValueOf(*c), path)
			usual, _ := lookup(reflect.ValueOf(*standard), path)
			if !ok || show(value) == show(usual) || slices.Contains(nb.holds, show(value)) {
				continue
			}
			out = append(out, path+": accepted, has no effect in this version")
		}
	}
	used := map[string]bool{}
	for i := range c.Routes {
		used[c.Routes[i].Upstream] = true
	}
	for _, name := range sorted(c.Upstreams) {
		if !used[name] {
			out = append(out, fmt.Sprintf("upstreams.%s: no route leads there", name))
		}
	}
	if len(c.Models) > 0 && len(c.Routes) > 0 && !slices.ContainsFunc(c.Routes, func(r Route) bool { return c.Upstreams[r.Upstream].Dialect != "none" }) {
		out = append(out, "models: no route leads to an upstream with a dialect, so only /v1/quota/reserve uses them")
	}
	return out
}

func matchPath(pattern, path string) bool {
	before, after, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == path
	}
	// Names may contain dots, so the star is whatever stands between the two ends.
	return len(path) > len(pattern)-1 && strings.HasPrefix(path, before) && strings.HasSuffix(path, after)
}

// standard is the default configuration with elements of the same names, on their defaults.
func (c *Config) standard() *Config {
	d := Default()
	d.Upstreams, d.Models = map[string]Upstream{}, Models{}
	for name := range c.Stores {
		d.Stores[name] = defaultStore("")
	}
	for name := range c.Upstreams {
		d.Upstreams[name] = defaultUpstream()
	}
	for name := range c.Models {
		d.Models[name] = defaultModel()
	}
	return d
}

// lookup follows a path through structs and maps. A map's key is the longest name that leads on, since names have dots.
func lookup(v reflect.Value, path string) (reflect.Value, bool) {
	if path == "" {
		return v, true
	}
	switch v.Kind() {
	case reflect.Struct:
		name, rest, _ := strings.Cut(path, ".")
		if i, ok := fieldOf(v.Type(), name); ok {
			return lookup(v.Field(i), rest)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if rest, ok := strings.CutPrefix(path, key.String()); ok && (rest == "" || rest[0] == '.') {
				if found, ok := lookup(v.MapIndex(key), strings.TrimPrefix(rest, ".")); ok {
					return found, true
				}
			}
		}
	}
	return reflect.Value{}, false
}
