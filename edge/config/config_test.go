package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/quota"
)

// full is every field once, mostly on values that differ from the defaults where that is allowed.
const full = `
listen: 127.0.0.1:8081
tls: {cert: "", key: ""}
admin: {listen: 127.0.0.1:9091, token_env: TOLLGATE_ADMIN_TOKEN, metrics_open: false}
node: {id: "", region: "", share: auto}
data_dir: ./data
stores:
  default: {url: "redis://127.0.0.1:6379/0", connect: 200ms, timeout: auto, in_flight: 512}
  big: redis+cluster://10.0.0.1:7000,10.0.0.2:7000
  sentinel: redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster/2
ledger: {url: "sqlite://data/ledger.db", load_budget: 200ms, fold: consume, retain: 400d, reconcile: 1h, kafka: {brokers: [], topic: usage}}
upstreams:
  openai: {url: "https://api.openai.com", dialect: openai, auth: {header: Authorization, prefix: "Bearer ", env: TEST_OPENAI}}
  claude: {url: "https://api.anthropic.com", dialect: anthropic, auth: {header: x-api-key, env: TEST_CLAUDE}, headers: {anthropic-version: "2023-06-01"},
           timeout: {connect: 2s, first_byte: 120s, idle: 60s, total: 600s}, max_concurrency: 0, ask_usage: auto,
           on_disconnect: cancel, drain: {time: 30s, bytes: 4MiB, streams: 64}}
  pics: {url: "http://127.0.0.1:1", auth: {bearer_env: TEST_OPENAI}, timeout: 100s}
routes:
  - {path: "/v1/*", upstream: openai}
  - {path: "/img/*", upstream: pics, cost: 5}
models:
  "gpt-4o*": {max_output: 16384, min_output: 128, tokenizer: o200k, reserve_factor: 1.2, price: {call: 0, input: 1, cached_input: 0.5, cache_write: 1, output: 4}}
  "*": {max_output: 100, price: {input: 1.000000001, output: 1}}
policy:
  outage: local
  outage_cap: 100000
  fit: clamp
  warn_below: 12.5%
  hold_ttl: 15m
  stale: 1h
  timezone: Asia/Shanghai
  hard: false
  show: all
  interrupted: delivered
lease: {enabled: true, ttl: 5m, renew: 10s, reclaim: 21m, flush: 1s, hot_rate: 5}
journal: {sync: always, max_bytes: 4GiB}
idempotency_ttl: 24h
webhook: {url: "", secret_env: ""}
limits: {decision: auto, body: 32MiB, body_total: 1GiB, header: 64KiB}
shutdown: {delay: 0s, grace: 120s}
log: {level: info, format: text}
debug_headers: false
`

func TestFullFile(t *testing.T) {
	t.Setenv("TEST_OPENAI", "sk-one")
	t.Setenv("TEST_CLAUDE", "sk-two")
	c, err := Parse([]byte(full))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8081", c.Listen)
	require.Equal(t, "redis+cluster://10.0.0.1:7000,10.0.0.2:7000", c.Stores["big"].URL.Reveal())
	require.Equal(t, 512, c.Stores["big"].InFlight)
	require.Equal(t, 400*24*time.Hour, c.Ledger.Retain)
	require.Equal(t, Timeouts{2 * time.Second, 100 * time.Second, 60 * time.Second, 100 * time.Second}, c.Upstreams["pics"].Timeout)
	require.Equal(t, "Bearer sk-one", c.Upstreams["pics"].Auth.Prefix+c.Upstreams["pics"].Auth.Secret.Reveal())
	require.Equal(t, "none", c.Upstreams["pics"].Dialect)
	require.Equal(t, "2023-06-01", c.Upstreams["claude"].Headers["anthropic-version"])
	require.Equal(t, int64(5), *c.Routes.Match("/img/cat").Cost)
	require.Nil(t, c.Routes[0].Cost)
	require.Equal(t, quota.Decimal(1_200_000_000), c.Models["gpt-4o*"].ReserveFactor)
	require.Equal(t, quota.Price{Input: 1_000_000_001, CachedInput: 1_000_000_001, CacheWrite: 1_000_000_001, Output: quota.DecimalOne}, c.Models["*"].Price)
	require.Equal(t, int64(100), c.Models["*"].MinOutput)
	require.Equal(t, Percent(1250), c.Policy.WarnBelow)
	require.Equal(t, SyncAlways, c.Journal.Sync)
	require.Equal(t, []string{
		"journal.sync: accepted, has no effect in this version",
		"upstreams.claude.dialect: accepted, has no effect in this version",
		"upstreams.claude: no route leads there",
	}, c.Warnings)
}

func TestDefaults(t *testing.T) {
	for _, text := range []string{"", "\n# nothing\n", "---\n", "listen:\nstores:\n"} {
		c, err := Parse([]byte(text))
		require.NoError(t, err, "%q", text)
		require.Empty(t, c.Warnings)
		require.Equal(t, "127.0.0.1:8080", c.Listen)
		require.Equal(t, "redis://127.0.0.1:6379/0", c.Stores["default"].URL.Reveal())
		require.Equal(t, "sqlite://data/ledger.db", c.Ledger.URL.Reveal())
		require.NoError(t, c.Validate())
	}
	c, err := Load("")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9090", c.Admin.Listen)
	c, err = Parse([]byte("data_dir: /srv/tollgate\nstores: {other: \"redis://a:1\"}"))
	require.NoError(t, err)
	require.Equal(t, "sqlite:///srv/tollgate/ledger.db", c.Ledger.URL.Reveal())
	require.Len(t, c.Stores, 2)
}

// Each row is a file and the faults it must have: path and a part of the problem.
func TestFaults(t *testing.T) {
	t.Setenv("TEST_TWO_LINES", "a\nb")
	up := `{a: {url: "http://h"}}`
	model := func(rest string) string { return "models: {m: {" + rest + "}}" }
	for _, tc := range []struct{ text, want string }{
		{"lisen: x", `lisen: unknown field, did you mean "listen"? (line 1)`},
		{"\npolicy: {hold_tll: 15m}", `policy.hold_tll: unknown field, did you mean "hold_ttl"? (line 2)`},
		{"upstreams: {a: {ur: x}}", `upstreams.a.ur: unknown field, did you mean "url"?`},
		{"upstreams: {a: {ur: x}}", "upstreams.a.url: is missing"},
		{"limits: [1]", "limits: must be a list of fields"},
		{"stores: 5", "stores: must be names with values"},
		{"routes: {a: b}", "routes: must be a list"},
		{"listen: {a: 1}", "listen: must be one value"},
		{"listen: a\nlisten: b", "mapping key \"listen\" already defined"},
		{"a: [", "[1:4]"},
		{"--- 1\n--- 2", "more than one YAML document"},
		{"listen: 127.0.0.1", "listen: \"127.0.0.1\" is not host:port"},
		{"listen: 127.0.0.1:99999", "listen: \"127.0.0.1:99999\": the port"},
		{"listen: 127.0.0.1:9090", "admin.listen: is the same address"},
		{"admin: {listen: \":9090\"}", "admin.listen: :9090 can be reached from other machines"},
		{"admin: {listen: \"10.0.0.1:9090\"}", "admin.listen: 10.0.0.1:9090 can be reached"},
		{"admin: {listen: \"example.org:9090\"}", "admin.listen: example.org:9090 can be reached"},
		{"admin: {token_env: TEST_MISSING}", "admin.token_env: the environment variable TEST_MISSING is not set"},
		{"admin: {token_env: TEST_TWO_LINES}", "admin.token_env: the secret has control characters"},
		{"admin: {token_file: /nowhere/token}", "admin.token_file: open /nowhere/token"},
		{"admin: {token_env: A, token_file: b}", "admin.token_file: token_env names a source already"},
		{"tls: {cert: x}", "tls: cert and key belong together"},
		{"tls: {cert: /nowhere/c, key: /nowhere/k}", "tls.cert: stat /nowhere/c"},
		{"node: {id: \"a b\"}", "node.id: \"a b\" must be at most 64"},
		{"node: {share: 1.5}", "node.share: 1.5 is out of bounds"},
		{"node: {share: most}", `node.share: "most" is not a number (words with a meaning: auto)`},
		{"node: {share: nan}", "node.share: "},
		{"data_dir: \"\"", "data_dir: must not be empty"},
		{"stores: {default: \"http://x\"}", "stores.default.url: must begin with redis://"},
		{"stores: {default: \"redis://a,b\"}", "stores.default.url: several hosts"},
		{"stores: {default: \"redis://a/x\"}", "stores.default.url: the database must be a number"},
		{"stores: {default: \"redis+cluster://a/1\"}", "stores.default.url: a cluster has database 0 only"},
		{"stores: {default: \"redis+sentinel://a:1\"}", "stores.default.url: needs the master's name"},
		{"stores: {default: {in_flight: 0}}", "stores.default.in_flight: 0 is out of bounds, from 1 to 65536"},
		{"stores: {default: {timeout: 0s}}", `stores.default.timeout: "0s" must be written as auto`},
		{"stores: {default: {timeout: 20ms}}", ""},
		{"stores: {\"a b\": \"redis://x\"}", "stores.a b: a name has"},
		{"ledger: {url: \"postgres://h/db\"}", "ledger.url: mysql:// and postgres:// are not built"},
		{"ledger: {url: \"file:x\"}", "ledger.url: must begin with sqlite://"},
		{"ledger: {retain: 1y}", `ledger.retain: "1y" is not a duration`},
		{"ledger: {load_budget: 200}", `ledger.load_budget: "200" is not a duration`},
		{"ledger: {load_budget: -1s}", `ledger.load_budget: "-1s" is not a duration`},
		{"ledger: {fold: all}", `ledger.fold: "all" is not one of consume, never`},
		{"ledger: {kafka: {topic: x}}", "ledger.kafka.topic: has no effect without"},
		{"ledger: {kafka: {brokers: [x]}}", `ledger.kafka.brokers[0]: "x" is not host:port`},
		{"upstreams: {a: {url: \"ftp://x\"}}", "upstreams.a.url: must begin with http"},
		{"upstreams: {a: {url: \"http://u:p@x\"}}", "upstreams.a.url: must not carry"},
		{"upstreams: {a: {url: \"http://x\", dialect: openia}}", `upstreams.a.dialect: "openia" is not one of openai, anthropic, none`},
		{"upstreams: {a: {url: \"http://x\", auth: {env: TEST_MISSING}}}", "upstreams.a.auth.env: the environment variable TEST_MISSING"},
		{"upstreams: {a: {url: \"http://x\", auth: {bearer_env: A, env: B}}}", "upstreams.a.auth.env: bearer_env and bearer_file already say it"},
		{"upstreams: {a: {url: \"http://x\", headers: {Authorization: y}}}", "upstreams.a.headers.Authorization: cannot be set here"},
		{"upstreams: {a: {url: \"http://x\", timeout: {first_byte: 30m}}}", "upstreams.a.timeout.first_byte: 30m0s is longer than the total"},
		{"upstreams: {a: {url: \"http://x\", timeout: 15m}}", "policy.hold_ttl: 15m0s is too short: a call to upstreams.a may take 15m0s, so holds must live at least 16m0s"},
		{"upstreams: {a: {url: \"http://x\", timeout: 20m}}\npolicy: {hold_ttl: 21m}", "lease.reclaim: 21m0s is too short"},
		{"upstreams: {a: {url: \"http://x\", timeout: 20m}}\npolicy: {hold_ttl: 21m}\nlease: {enabled: false}", ""},
		{"upstreams: " + up + "\nroutes: [{path: /v1/*, upstream: b}]", `routes[0].upstream: "b" is not one of upstreams, did you mean "a"?`},
		{"upstreams: " + up + "\nroutes: [{path: /v1/*, upstream: a}, {path: /v1/, upstream: a}]", "routes[1].path: \"/v1/\" has the same literal prefix as routes[0]"},
		{"upstreams: " + up + "\nroutes: [{path: v1, upstream: a}]", "routes[0].path: \"v1\" must be a path"},
		{"upstreams: " + up + "\nroutes: [{path: /v1/*/x, upstream: a}]", "routes[0].path: \"/v1/*/x\" must be a path"},
		{"upstreams: " + up + "\nroutes: [{path: /v1/quota/x, upstream: a}]", "routes[0].path: \"/v1/quota/x\" is never reached"},
		{"upstreams: " + up + "\nroutes: [{path: /x, upstream: a, cost: 0}]", "routes[0].cost: 0 is out of bounds"},
		{"upstreams: " + up + "\nroutes: [{path: /x, upstream: a, cost: 9007199254740992}]", "routes[0].cost: 9007199254740992 is out of bounds"},
		{model("price: {input: 1, output: 1}"), "models.m.max_output: 0 is out of bounds"},
		{model("max_output: 10"), "models.m.price: is missing"},
		{model("max_output: 10, price: {input: 1}"), "models.m.price: has only one of input and output"},
		{model("max_output: 10, price: {call: 1}"), ""},
		{model("max_output: 10, price: {input: -1, output: 1}"), "models.m.price"},
		{model("max_output: 10, min_output: 11, price: {call: 1}"), "models.m.min_output: 11 is above max_output"},
		{model("max_output: 10, reserve_factor: 2, price: {call: 1}"), "models.m.reserve_factor: 2 is out of bounds, from 1 to 1.5"},
		{"policy: {timezone: Mars/Base}", "policy.timezone: quota: unknown time zone"},
		{"policy: {warn_below: 101%}", `policy.warn_below: "101%" is not a percentage`},
		{"policy: {hard: yes}", `policy.hard: "yes" is neither true nor false`},
		{"policy: {outage_cap: 1e3}", `policy.outage_cap: "1e3" is not a whole number`},
		{"lease: {renew: 3m}", "lease.renew: 3m0s must be at most half of ttl"},
		{"lease: {flush: 20s}", "lease.flush: 20s must be at most renew"},
		{"journal: {sync: often}", `journal.sync: "often" is not a duration such as 200ms, 60s, 15m, 24h or 400d (words with a meaning: always, never)`},
		{"webhook: {secret_env: PATH}", "webhook.url: is empty, so a secret has no effect"},
		{"limits: {body: 2GiB}", "limits.body: 2GiB is out of bounds"},
		{"limits: {body: 512MiB, body_total: 256MiB}", "limits.body: 512MiB is above limits.body_total (256MiB)"},
		{"limits: {body: lots}", `limits.body: "lots" is not a size`},
		{"log: {level: loud}", `log.level: "loud" is not one of debug, info, warn, error`},
		{"<<: {a: b}", "not supported here"},
		{"listen: !!str x", "not supported here"},
		{"listen: *a", "alias"},
		{strings.Repeat("a: {", 50) + strings.Repeat("}", 50), "nested deeper than 32 levels"},
	} {
		_, err := Parse([]byte(tc.text))
		if tc.want == "" {
			require.NoError(t, err, tc.text)
			continue
		}
		require.ErrorContains(t, err, tc.want, tc.text)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := Parse([]byte("listen: x\nlimits: {body: 1}\nupstrems: {}\npolicy: {hold_ttl: 1s, fit: no}\n"))
	var faults Faults
	require.ErrorAs(t, err, &faults)
	paths := map[string]int{}
	for _, f := range faults {
		paths[f.Path] = f.Line
	}
	require.Equal(t, map[string]int{"listen": 1, "limits.body": 2, "upstrems": 3, "policy.hold_ttl": 4, "policy.fit": 4}, paths)
}

func TestAnchors(t *testing.T) {
	c, err := Parse([]byte("upstreams:\n  a: {url: \"http://a\", timeout: &t {total: 30s}}\n  b: {url: \"http://b\", timeout: *t}\n"))
	require.NoError(t, err)
	require.Equal(t, 30*time.Second, c.Upstreams["b"].Timeout.Total)
	require.Equal(t, 30*time.Second, c.Upstreams["b"].Timeout.FirstByte)
}

func TestSecretsAreNeverShown(t *testing.T) {
	const secret = "hunter2hunter2"
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	t.Setenv("TOLLGATE_ADMIN_TOKEN", secret)
	c, err := Parse(fmt.Appendf(nil, `
admin: {listen: "0.0.0.0:9090"}
stores:
  default: {url: "redis://u@h:1/0", password_file: %[1]s}
  other: redis://u:%[2]s@h:1/0
upstreams: {a: {url: "http://h", auth: {bearer_file: %[1]s}}}
webhook: {url: "http://h", secret_file: %[1]s}
`, file, secret))
	require.NoError(t, err)
	require.Equal(t, secret, c.Admin.Token.Reveal())
	require.Equal(t, secret, c.Webhook.Secret.Reveal())
	require.Equal(t, secret, c.Upstreams["a"].Auth.Secret.Reveal())
	require.Equal(t, "redis://u:"+secret+"@h:1/0", c.Stores["default"].URL.Reveal())
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "all", c, "token", c.Admin.Token, "url", c.Stores["other"].URL)
	text, err := json.Marshal(c)
	require.NoError(t, err)
	for _, shown := range []string{fmt.Sprintf("%v %+v %#v", *c, *c, *c), log.String(), string(text), strings.Join(c.Warnings, " ")} {
		require.NotContains(t, shown, secret)
	}

	same := *c
	same.Admin.Token, same.Node.ID, same.DataDir = NewSecret("other"), "n2", "/elsewhere"
	require.Equal(t, c.Hash(), same.Hash())
	same.Limits.Body++
	require.NotEqual(t, c.Hash(), same.Hash())

	for _, bad := range []string{
		"stores: {default: \"redis:/u:" + secret + "@h\"}", "ledger: {url: \"x://u:" + secret + "@h\"}",
		"upstreams: {a: {url: \"http://u:" + secret + "@h:x\"}}", "stores: {default: \"redis://u:" + secret + "/@h:x\"}",
		"a: b: \"redis://u:" + secret + "@h\"",
	} {
		_, err := Parse([]byte(bad))
		require.Error(t, err)
		require.NotContains(t, err.Error(), secret)
	}
}

func TestModelMatch(t *testing.T) {
	m := Models{"*": {MaxOutput: 1}, "gpt-4o*": {MaxOutput: 2}, "gpt-4o": {MaxOutput: 3}, "gpt-*-mini": {MaxOutput: 4}, "*mini": {MaxOutput: 5}, "": {MaxOutput: 6}}
	for name, want := range map[string]string{
		"gpt-4o": "gpt-4o", "gpt-4o-2024": "gpt-4o*", "gpt-4o-mini": "gpt-*-mini", "o-mini": "*mini", "mini": "*mini", "claude": "*", "*": "*", "gpt-4o*": "gpt-4o*",
	} {
		pattern, model, ok := m.Match(name)
		require.True(t, ok)
		require.Equal(t, want, pattern, name)
		require.Equal(t, m[want], model)
	}
	_, _, ok := Models{"a*": {}}.Match("b")
	require.False(t, ok)
	require.True(t, MatchModel("a*b*c", "abbbcbc"))
	require.False(t, MatchModel("a*b*c", "abbbcb"))
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Match("gpt-4o-mini-x") }))
}

func TestRouteMatch(t *testing.T) {
	rs := Routes{{Path: "/*", Upstream: "all"}, {Path: "/v1/*", Upstream: "v1"}, {Path: "/v1/chat/*", Upstream: "chat"}, {Path: "/v1/chat", Upstream: "exact"}}
	for path, want := range map[string]string{"/": "all", "/v1": "all", "/v1/x": "v1", "/v1/chat": "exact", "/v1/chat/completions": "chat", "/v1/chats": "v1"} {
		require.Equal(t, want, rs.Match(path).Upstream, path)
	}
	require.Nil(t, rs[1:].Match("/img"))
	require.Zero(t, testing.AllocsPerRun(100, func() { rs.Match("/v1/chat/completions") }))
}

func TestPolicyMerge(t *testing.T) {
	base := defaultPolicy()
	p, err := base.Merge([]byte(`{"outage":"deny","hold_ttl":"20m","warn_below":"5%","fit":null,"hard":true}`))
	require.NoError(t, err)
	want := base
	want.Outage, want.HoldTTL, want.WarnBelow, want.Hard = "deny", 20*time.Minute, 5*percent, true
	require.Equal(t, want, p)
	for _, same := range []string{"", "null", "{}"} {
		p, err := base.Merge([]byte(same))
		require.NoError(t, err)
		require.Equal(t, base, p)
	}
	for raw, problem := range map[string]string{
		`{"outrage":"deny"}`:                `policy.outrage: unknown field, did you mean "outage"?`,
		`{"outage":"maybe"}`:                "policy.outage: \"maybe\" is not one of local, deny, allow",
		`{"outage":"deny","outage":"deny"}`: `"outage" is there twice`,
		`{"hold_ttl":900}`:                  `policy.hold_ttl: "900" is not a duration`,
		`{"hold_ttl":"1s"}`:                 "policy.hold_ttl: 1s is out of bounds",
		`{"outage_cap":-1}`:                 "policy.outage_cap: -1 is out of bounds",
		`{"outage_cap":1.5}`:                `policy.outage_cap: "1.5" is not a whole number`,
		`{"timezone":"../x"}`:               "policy.timezone: quota: unknown time zone",
		`{"hard":{}}`:                       "policy.hard: must be one value",
		`[]`:                                "policy: must be a list of fields",
		`{} {}`:                             "not one JSON value",
		`{"a"`:                              "not JSON",
		`7`:                                 "policy: must be a list of fields",
	} {
		p, err := base.Merge([]byte(raw))
		require.ErrorContains(t, err, problem, raw)
		require.Equal(t, base, p)
		require.Error(t, ValidatePolicyJSON([]byte(raw)))
	}
	c, err := Parse([]byte(`upstreams: {a: {url: "http://h"}}`))
	require.NoError(t, err)
	require.NoError(t, c.CheckPolicy([]byte(`{"hold_ttl":"11m"}`)))
	require.ErrorContains(t, c.CheckPolicy([]byte(`{"hold_ttl":"10m"}`)), "must live at least 11m0s")
	require.ErrorContains(t, c.CheckPolicy([]byte(`{"hold_ttl":"30m"}`)), "lease.reclaim: 21m0s is too short")
}

func TestUnits(t *testing.T) {
	var s Size
	for text, want := range map[string]Size{"0": 0, "64KiB": 64 << 10, "1 MiB": 1 << 20, "1MB": 1e6, "12": 12, "3B": 3} {
		require.NoError(t, s.UnmarshalText([]byte(text)))
		require.Equal(t, want, s, text)
	}
	for _, text := range []string{"", "KiB", "-1", "1.5MiB", "9223372036854775807KiB", "1 PiB"} {
		require.Error(t, s.UnmarshalText([]byte(text)), text)
	}
	require.Equal(t, "32MiB", (32 * mib).String())
	require.Equal(t, "1000B", Size(1000).String())
	require.Equal(t, int64(quota.CreditsMax), whole.Of(quota.CreditsMax))
	require.Equal(t, int64(1), (10 * percent).Of(19))
	require.Equal(t, "12.5%", Percent(1250).String())
}

// Every default, and every bound in a tag, must itself be legal.
func TestTagsAreWellFormed(t *testing.T) {
	c := Default()
	c.complete()
	c.Upstreams = map[string]Upstream{"a": defaultUpstream()}
	c.Models = Models{"m": {MaxOutput: 1, MinOutput: 1, Tokenizer: "bytes", ReserveFactor: quota.DecimalOne}}
	require.Empty(t, boundsOf("", *c))
}

// What no longer exists under its path would never warn.
func TestNotBuiltPathsExist(t *testing.T) {
	c := Default()
	c.Stores["x"] = defaultStore("")
	c.Upstreams = map[string]Upstream{"x": defaultUpstream()}
	c.Models = Models{"x": defaultModel()}
	for _, nb := range notBuilt {
		_, ok := lookup(reflect.ValueOf(*c), strings.ReplaceAll(nb.path, "*", "x"))
		require.True(t, ok, nb.path)
	}
}

// Any text is either refused or gives a configuration that validates.
func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("a: &x [*x]"))
	f.Add([]byte("? [a]\n: b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err == nil {
			require.NoError(t, c.Validate())
		}
	})
}

// Any policy document is refused, or merges into one that merges to itself again.
func FuzzPolicyMerge(f *testing.F) {
	f.Add([]byte(`{"outage":"deny","hold_ttl":"20m","warn_below":"5%","fit":null,"hard":true}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := defaultPolicy().Merge(raw)
		if err == nil {
			again, err := p.Merge(raw)
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
	})
}
