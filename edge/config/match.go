package config

import "strings"

// Models maps a pattern to what it means for the models whose names it matches: "*" stands for any text, also none.
// The pattern with the most literal characters wins; without "*" an unknown model is refused. At most [modelsMax].
type Models map[string]Model

// Match finds the model's settings and the pattern they stand under. An exact name costs one look-up, else every pattern
// is tried. It allocates nothing.
func (m Models) Match(name string) (pattern string, model Model, ok bool) {
	if model, ok = m[name]; ok && !strings.Contains(name, "*") {
		return name, model, true
	}
	best := -1
	for p := range m {
		// Equally long ones: the smaller text, so that every node decides alike.
		if n := literals(p); (n > best || n == best && p < pattern) && MatchModel(p, name) {
			pattern, best = p, n
		}
	}
	if best < 0 {
		return "", Model{}, false
	}
	return pattern, m[pattern], true
}

func literals(pattern string) int { return len(pattern) - strings.Count(pattern, "*") }

// MatchModel says whether one pattern, of the configuration or of a key's list of models, matches the whole name.
// It goes back to the last star only, so it takes at most len(pattern) × len(name) steps.
func MatchModel(pattern, name string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Routes are tried by their literals: the longest wins. At most [routesMax].
type Routes []Route

// Match finds the route of a path; nil when there is none. The path must be normalised already (no "..", no "//").
func (rs Routes) Match(path string) *Route {
	var best *Route
	for i := range rs {
		r := &rs[i]
		literal, prefix := r.literal()
		if (path == literal || prefix && strings.HasPrefix(path, literal)) && (best == nil || len(literal) > len(strings.TrimSuffix(best.Path, "*"))) {
			best = r
		}
	}
	return best
}

// literal is the path without its star, and whether it had one.
func (r *Route) literal() (string, bool) { return strings.CutSuffix(r.Path, "*") }
