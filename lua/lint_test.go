package lua

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/lua/redistest"
)

var (
	luaToken = regexp.MustCompile(`'[^'\n]*'|"[^"\n]*"|--[^\n]*|[A-Za-z_]\w*|\d+|\.\.|\s+|.`)
	luaName  = regexp.MustCompile(`^[A-Za-z_]`)
)

// What a script may use without declaring it: the language, and what Redis offers.
var luaKnown = strings.Fields(`and break do else elseif end false for function if in local nil not or repeat return then true until while
	redis KEYS ARGV tonumber tostring ipairs pairs type math string table cjson`)

// globals lists the names that a script uses and has not declared before.
func globals(body string) (found []string) {
	declared := slices.Clone(luaKnown)
	var tokens []string
	for _, tok := range luaToken.FindAllString(body, -1) {
		if strings.TrimSpace(tok) != "" && !strings.HasPrefix(tok, "--") {
			tokens = append(tokens, tok)
		}
	}
	at := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return tokens[i]
	}
	for i := 0; i < len(tokens); i++ {
		switch tokens[i] {
		case "local", "for": // local a, b = …   local function f   for i = …   for k, v in …
			j := i + 1
			if at(j) == "function" {
				j++
			}
			declared = append(declared, at(j))
			for at(j+1) == "," {
				j += 2
				declared = append(declared, at(j))
			}
		case "function": // parameters
			j := i + 1
			if at(j) != "(" {
				j++
			}
			for ; at(j) != ")" && at(j) != ""; j++ {
				if luaName.MatchString(at(j)) {
					declared = append(declared, at(j))
				}
			}
		default:
			field := at(i-1) == "." || (at(i+1) == "=" && at(i+2) != "=" && (at(i-1) == "{" || at(i-1) == ","))
			if luaName.MatchString(tokens[i]) && !field && !slices.Contains(declared, tokens[i]) {
				found = append(found, tokens[i])
			}
		}
	}
	return found
}

func TestScriptsUseNoGlobals(t *testing.T) {
	require.Equal(t, []string{"oops", "x"}, globals("local a, b = 1, 2\nlocal function f(c) return a.q + b + c end\noops = f({ y = 1 })\nreturn x"))
	for _, sc := range scripts {
		body := sc.body
		if shebang, rest, _ := strings.Cut(body, "\n"); strings.HasPrefix(shebang, "#!lua") {
			body = rest
		}
		require.Empty(t, globals(body), sc.name)
	}
}

// Each file says what it takes and gives, and declares its flags on purpose.
func TestScriptHeaders(t *testing.T) {
	oom := map[string]bool{"reserve": false, "settle": true, "release": true, "account": true, "publish": true, "bucket": false}
	entries, err := sources.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, entries, len(scripts)+1, "every file is a script, beside lib/")
	for _, sc := range scripts {
		lines := strings.Split(source(sc.name+".lua"), "\n")
		require.Equal(t, "#!lua", strings.TrimSuffix(lines[0], " flags=allow-oom"), sc.name)
		require.Equal(t, oom[sc.name], strings.Contains(lines[0], "allow-oom"), sc.name)
		require.True(t, strings.HasPrefix(lines[1], "-- "+sc.name+": "), sc.name)
		header, _, ok := strings.Cut(strings.Join(lines, "\n"), "-- include: ")
		require.True(t, ok, sc.name)
		at := -1
		for _, part := range []string{"-- KEYS  ", "-- ARGV  ", "-- Reply ", "-- Keeps "} {
			next := strings.Index(header, part)
			require.Greater(t, next, at, "%s: %s", sc.name, part)
			at = next
		}
		require.NotContains(t, sc.body, "tostring(", "%s: integers are written by int()", sc.name)
		require.NotRegexp(t, `redis\.call\('[A-Z]+', '`, sc.body, "%s: every key comes from KEYS", sc.name)
		require.NotContains(t, sc.body, "redis.pcall", sc.name)
	}
}

// Redis takes every script, and refuses one that uses a global.
func TestScriptsLoad(t *testing.T) {
	r := redistest.Shared(t)
	for _, sc := range scripts {
		_, err := r.Do("SCRIPT", "LOAD", sc.body)
		require.NoError(t, err, sc.name)
	}
	_, err := r.Do("EVAL", "#!lua\nx = 1", "0")
	require.Error(t, err)
	require.Len(t, ScriptsHash, 12)
}
