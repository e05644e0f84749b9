package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestDryRunOfAGoodFile(t *testing.T) {
	t.Parallel()
	got := run(t, []string{"TEST_KEY=secret-of-the-upstream"}, "tollgate", "-dryRun", "-config", configFile(t, `
listen: 127.0.0.1:18080
stores: {default: "redis://:pass-of-redis@127.0.0.1:6380/0"}
upstreams: {openai: {url: "https://api.openai.com", dialect: openai, auth: {bearer_env: TEST_KEY}}}
routes: [{path: "/v1/*", upstream: openai}]
models: {"*": {max_output: 100, price: {input: 1, output: 1}}}
webhook: {url: "http://127.0.0.1/hook"}
`))
	require.Zero(t, got.code, got.err)
	require.Equal(t, "tollgate: the configuration is good\n", got.out)
	require.Equal(t, "tollgate: warning: webhook.url: accepted, has no effect in this version\n", got.err)
	require.Zero(t, run(t, nil, "tollgate", "-dryRun").code, "the defaults are good")
}

// Every fault is named by its path and line at once, and no value of a secret is repeated.
func TestDryRunNamesEveryFault(t *testing.T) {
	t.Parallel()
	got := run(t, nil, "tollgate", "-dryRun", "-config", configFile(t, `
listn: 127.0.0.1:8080
admin: {listen: "0.0.0.0:9090", token_env: TEST_UNSET}
stores: {default: {url: "http://user:pass-of-redis@127.0.0.1:6380", conect: 1s, in_flight: 0}}
ledger: {url: "mysql://user:pass-of-sql@db/ledger"}
upstreams: {openai: {url: "ftp://x", timeout: {idle: 2h, total: 1m}, auth: {bearer_env: TEST_UNSET}}}
routes:
  - {path: "/v1/*", upstream: openia}
  - {path: "/v1/quota/x", upstream: openai}
models: {"*": {max_output: 100}}
policy: {outage: perhaps, hold_ttl: 90s, timezone: Europe/Berln}
shutdown: {grace: soon}
log: {level: loud}
`))
	require.Equal(t, 1, got.code)
	require.Empty(t, got.out)
	lines := strings.Split(strings.TrimSpace(got.err), "\n")
	require.Equal(t, "tollgate: the configuration has faults:", lines[0])
	want := []string{
		"listn", "admin.token_env", "admin.listen", "stores.default.url", "stores.default.conect", "stores.default.in_flight", "ledger.url",
		"upstreams.openai.url", "upstreams.openai.timeout.idle", "upstreams.openai.auth.bearer_env", "routes[0].upstream", "routes[1].path", "models.*.price",
		"policy.outage", "policy.hold_ttl", "policy.timezone", "shutdown.grace", "log.level",
	}
	for _, path := range want {
		found := false
		for _, line := range lines[1:] {
			found = found || strings.HasPrefix(line, path+": ") && strings.Contains(line, "(line ")
		}
		require.True(t, found, "%s is not named in\n%s", path, got.err)
	}
	require.Contains(t, got.err, `did you mean "listen"?`)
	require.Contains(t, got.err, `did you mean "connect"?`)
	require.NotContains(t, got.err, "pass-of-")
}

func TestFlags(t *testing.T) {
	t.Parallel()
	got := run(t, nil, "tollgate", "-version")
	require.Zero(t, got.code)
	require.Regexp(t, `^tollgate \S+ \(scripts [0-9a-f]+, go\S+\)\n$`, got.out)

	got = run(t, nil, "tollgate", "-help")
	require.Zero(t, got.code)
	for _, flag := range []string{"-config FILE", "-dryRun", "-version"} {
		require.Contains(t, got.out+got.err, flag)
	}
	for _, args := range [][]string{{"-confg", "x"}, {"-config"}, {"node.yaml"}, {"-dryRun", "node.yaml"}} {
		got = run(t, nil, "tollgate", args...)
		require.Equal(t, 2, got.code, "%v", args)
		require.NotEmpty(t, got.err)
		require.Empty(t, got.out)
	}
	for name, file := range map[string]string{"missing": "/nonexistent/node.yaml", "a folder": t.TempDir(), "no YAML": configFile(t, "listen: [")} {
		got = run(t, nil, "tollgate", "-config", file)
		require.Equal(t, 1, got.code, name)
		require.Contains(t, got.err, "configuration", name)
	}
}
