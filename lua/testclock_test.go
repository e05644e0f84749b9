package lua

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"tollgate/lua/redistest"
)

// The keys that the altered scripts of a bench use beside the tenant's.
const (
	clockKey    = "test:clock"
	coverageKey = "test:coverage"
)

// bench is a store on a Redis of its own whose scripts read the time from a
// key and count their branches; their text is otherwise the shipped one.
type bench struct {
	redis *redistest.Server
	store *Store
	now   int64           // µs
	all   map[string]bool // every branch there is, by "file:line: text -> way"
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{redis: redistest.Start(t), all: map[string]bool{}}
	var err error
	b.store, err = Open(t.Context(), Options{Name: "bench", URL: b.redis.URL()})
	require.NoError(t, err)
	t.Cleanup(b.store.Close)
	b.store.instead = map[*script]*script{}
	for _, sc := range scripts {
		body := assembleWith(sc.name, b.alter)
		b.store.instead[sc] = &script{name: sc.name, body: body, exec: rueidis.NewLuaScript(body)}
	}
	b.setClock(t, 1_790_000_000_000_000)
	return b
}

func (b *bench) setClock(t require.TestingT, us int64) {
	b.now = us
	_, err := b.redis.Do("HSET", clockKey, "s", strconv.FormatInt(us/1_000_000, 10), "us", strconv.FormatInt(us%1_000_000, 10))
	require.NoError(t, err)
}

func (b *bench) millis() int64 { return b.now / 1000 }

var (
	timeCall  = "redis.call('TIME')"
	condition = regexp.MustCompile(`^(\s*(?:else)?if )(.*)( then)$`)
)

// coverageCode counts which way a condition went, without changing it.
const coverageCode = `
local function cov(branch, value)
  redis.call('HINCRBY', '` + coverageKey + `', branch .. (value and ' -> yes' or ' -> no'), 1)
  return value
end
`

// alter rewrites one line of a script for a bench.
func (b *bench) alter(file string, number int, line string) string {
	line = strings.Replace(line, timeCall, "redis.call('HMGET', '"+clockKey+"', 's', 'us')", 1)
	text := strings.TrimRight(line, "\n")
	m := condition.FindStringSubmatch(text)
	if m == nil {
		return line
	}
	name := fmt.Sprintf("%s:%d: %s", file, number, strings.TrimSpace(text))
	if file != "" {
		b.all[name+" -> yes"], b.all[name+" -> no"] = true, true
	}
	return m[1] + "cov(" + strconv.Quote(name) + ", " + m[2] + ")" + m[3] + "\n"
}

// assembleWith is assemble with a chance to alter each line of code.
func assembleWith(name string, alter func(file string, number int, line string) string) string {
	var out strings.Builder
	add := func(file string, write bool) {
		number := 0
		for line := range strings.Lines(source(file)) {
			number++
			if names, ok := strings.CutPrefix(strings.TrimSpace(line), "-- include: "); ok && write {
				writeCode(&out, coverageOnce(alter))
				for lib := range strings.FieldsSeq(names) {
					n := 0
					for part := range strings.Lines(source("lib/" + lib + ".lua")) {
						n++
						writeCode(&out, alter("lib/"+lib+".lua", n, part))
					}
				}
				continue
			}
			writeCode(&out, alter(file, number, line))
		}
	}
	add(name+".lua", true)
	return out.String()
}

// coverageOnce is the counting function, where the lines are altered at all.
func coverageOnce(alter func(string, int, string) string) string {
	if alter("", 0, "if x then\n") == "if x then\n" {
		return ""
	}
	return coverageCode
}

// The altered scripts are put together as the shipped ones are.
func TestAlteredScriptsAreTheShippedOnes(t *testing.T) {
	for _, sc := range scripts {
		plain := assembleWith(sc.name, func(_ string, _ int, line string) string { return line })
		require.Equal(t, sc.body, plain, sc.name)
		require.Equal(t, 1, strings.Count(sc.body, timeCall), "%s reads the clock once", sc.name)
		for line := range strings.Lines(sc.body) {
			text := strings.TrimRight(line, "\n")
			if strings.Contains(text, " then") || strings.HasPrefix(strings.TrimSpace(text), "if ") {
				require.Regexp(t, condition, text, "%s: a condition stands on one line of its own", sc.name)
			}
		}
	}
}
