package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/edge/admin"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// binary is the built tollctl.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tollctl")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "tollctl")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		panic(string(out))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// rig is a node's admin API on real Redis and SQLite.
type rig struct {
	t     *testing.T
	redis *redistest.Server
	store *lua.Store
	db    *ledger.DB
	env   []string
}

func newRig(t *testing.T) *rig {
	s := &rig{t: t, redis: redistest.Start(t)}
	var err error
	s.store, err = lua.Open(t.Context(), lua.Options{Name: "default", URL: s.redis.URL()})
	require.NoError(t, err)
	t.Cleanup(s.store.Close)
	s.db, err = ledger.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "ledger.db"), ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.db.Close()) })
	stores := map[string]*lua.Store{"default": s.store}
	publisher, adjuster := ledger.NewPublisher(s.db, stores), ledger.NewAdjuster(s.db, stores)
	t.Cleanup(publisher.Close)
	t.Cleanup(adjuster.Close)
	api := admin.New(admin.Options{DB: s.db, Stores: stores, Publisher: publisher, Adjuster: adjuster, Token: "sesame"})
	server := httptest.NewServer(api.Handler())
	t.Cleanup(server.Close)
	s.env = []string{"TOLLGATE_ADMIN=" + server.URL, "TOLLGATE_ADMIN_TOKEN=sesame"}
	return s
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

func command(t *testing.T, env []string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(env, "TZ=UTC")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	if testing.Verbose() {
		t.Logf("$ tollctl %s   (%d)\n%s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), out.String(), errs.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func (s *rig) run(args ...string) result { s.t.Helper(); return command(s.t, s.env, args...) }

// ok wants a command to succeed silently but for its output.
func (s *rig) ok(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	require.Zero(s.t, r.code, "%v: %s", args, r.err)
	require.Empty(s.t, r.err)
	return r.out
}

// The three commands of --help set up a tenant whose key works.
func TestHelpIsEnough(t *testing.T) {
	help := command(t, nil, "--help")
	require.Zero(t, help.code)
	s := newRig(t)
	var commands [][]string
	for line := range strings.Lines(help.out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "tollctl ") && !strings.Contains(line, "…") && !strings.HasPrefix(line, "tollctl [") {
			line = strings.ReplaceAll(line, `"Acme Ltd"`, "Acme-Ltd")
			commands = append(commands, strings.Fields(line)[1:])
		}
	}
	require.Len(t, commands, 5)
	var secret string
	for _, c := range commands {
		out := s.ok(c...)
		if c[0] == "key" {
			for word := range strings.FieldsSeq(out) {
				if strings.HasPrefix(word, "tg-") {
					secret = word
				}
			}
		}
	}
	require.NotEmpty(t, secret)
	all, err := s.redis.Do("KEYS", "tgkey:*")
	require.NoError(t, err)
	assert.Len(t, all, 1)
	assert.Contains(t, s.ok("usage", "t_acme"), "1,500,000")
	for line := range strings.Lines(help.out) {
		assert.LessOrEqual(t, len([]rune(line)), 120)
	}
}

func TestEveryCommand(t *testing.T) {
	s := newRig(t)
	assert.Contains(t, s.ok("tenant", "list"), "There are no tenants")
	out := s.ok("tenant", "create", "--id", "t_acme", "--name", "Acme Ltd", "--total", "1.5M", "--overage-limit", "50k",
		"--month", "500_000", "--rpm", "600", "--tpm", "90k:180k", "--concurrency", "20", "--timezone", "Europe/Berlin", "--policy", `{"outage":"deny"}`)
	for _, want := range []string{"1,500,000", "50,000", "500,000", "rpm 600, tpm 90,000:180,000, 20 at once", "unlimited", "Europe/Berlin", "tollctl app create t_acme"} {
		assert.Contains(t, out, want)
	}
	s.ok("tenant", "create", "--total", "unlimited", "--op-id", "x")
	s.ok("tenant", "create", "--total", "unlimited", "--op-id", "x")
	assert.Equal(t, 3, strings.Count(s.ok("tenant", "list"), "\n"), "a header and two tenants")
	assert.Contains(t, s.ok("tenant", "set", "t_acme", "--day", "100k", "--month", "unlimited", "--name", "Acme"), "Tenant t_acme is changed.")
	out = s.ok("tenant", "show", "t_acme")
	assert.Contains(t, out, "100,000")
	assert.Regexp(t, `per month +unlimited`, out)
	assert.Contains(t, s.ok("tenant", "suspend", "t_acme"), "is suspended")
	assert.Contains(t, s.ok("tenant", "resume", "t_acme"), "is active again")

	assert.Contains(t, s.ok("app", "list", "t_acme"), "has no apps")
	assert.Contains(t, s.ok("app", "create", "t_acme", "--id", "a_web", "--name", "Web shop", "--total", "0"), "tollctl key create t_acme --app a_web")
	assert.Contains(t, s.ok("app", "set", "t_acme", "a_web", "--rps", "10:20"), "rps 10:20")
	assert.Contains(t, s.ok("app", "list", "t_acme"), "rps 10:20")

	assert.Contains(t, s.ok("key", "list", "t_acme"), "has no keys")
	var key struct {
		ID     string `json:"key_id"`
		Secret string
	}
	require.NoError(t, json.Unmarshal([]byte(s.ok("key", "create", "t_acme", "--app", "a_web", "--name", "staging", "--models", "gpt-4o*, o3", "-o", "json")), &key))
	assert.Len(t, key.Secret, 33)
	assert.Contains(t, s.ok("key", "set", "t_acme", key.ID, "--day", "10k", "--models", "any"), "models")
	out = s.ok("key", "rotate", "t_acme", key.ID, "--overlap", "7d", "--op-id", "r")
	assert.Contains(t, out, "tg-")
	assert.Contains(t, out, "Secrets from before work until")
	again := s.run("key", "rotate", "t_acme", key.ID, "--overlap", "7d", "--op-id", "r")
	assert.Zero(t, again.code)
	assert.NotContains(t, again.out, "tg-")
	assert.Contains(t, again.err, "rotate the key")
	assert.Contains(t, s.ok("key", "suspend", "t_acme", key.ID), "is suspended")
	assert.Contains(t, s.ok("key", "resume", "t_acme", key.ID), "works again")
	assert.Contains(t, s.ok("key", "revoke", "t_acme", key.ID), "for ever")
	assert.Contains(t, s.ok("key", "list", "t_acme"), "revoked")

	assert.Contains(t, s.ok("quota", "add", "t_acme", "500k"), "2,000,000")
	assert.Contains(t, s.ok("quota", "cut", "t_acme", "1M"), "1,000,000 now")
	assert.Contains(t, s.ok("quota", "add", "t_acme", "7", "--scope", "app:a_web"), "the total of app a_web is 7 now")

	org := quota.Account{Scope: quota.Org, ID: "t_acme"}
	_, err := s.redis.Do("HSET", lua.AccountKey("t_acme", org), "spent", "123456", "prepaid", "2000", "leased", "500")
	require.NoError(t, err)
	out = s.ok("usage", "t_acme")
	assert.Regexp(t, `org +t_acme +Acme +ever +1,000,000 +123,456 +1,500 +875,044 +500`, out)
	assert.Regexp(t, `org +t_acme +Acme +day +100,000 `, out)
	assert.Regexp(t, `key +k_\S+ +staging +ever +unlimited +0 +0 +unlimited +0`, out)
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, len(strings.TrimRight(line, "\n")), 120, "fits a terminal")
	}
}

func TestJSON(t *testing.T) {
	s := newRig(t)
	s.ok("tenant", "create", "--id", "t_acme", "--total", "10")
	for i := range 3 {
		s.ok("app", "create", "t_acme", "--id", "a_"+string(rune('a'+i)))
	}
	for _, args := range [][]string{
		{"tenant", "list"},
		{"tenant", "show", "t_acme"},
		{"tenant", "set", "t_acme", "--day", "1"},
		{"tenant", "suspend", "t_acme"},
		{"app", "list", "t_acme"},
		{"key", "list", "t_acme"},
		{"quota", "add", "t_acme", "1"},
		{"usage", "t_acme"},
	} {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(s.ok(append(args, "-o", "json")...)), &v), args)
	}
	r := s.run("app", "list", "t_acme", "--limit", "2", "-o", "json")
	var page struct {
		Apps []struct{ ID string }
		Next string
	}
	require.NoError(t, json.Unmarshal([]byte(r.out), &page))
	require.Len(t, page.Apps, 2)
	assert.Equal(t, "a_b", page.Next)
	r = s.run("app", "list", "t_acme", "--limit", "2")
	assert.Contains(t, r.err, "--after a_b")
	assert.Contains(t, s.ok("app", "list", "t_acme", "--after", "a_b"), "a_c")
}

func TestWrongUseAndRefusals(t *testing.T) {
	s := newRig(t)
	s.ok("tenant", "create", "--id", "t_acme", "--total", "10")
	s.ok("app", "create", "t_acme", "--id", "a_web")
	for _, row := range []struct {
		args string
		code int
		says string
	}{
		{"tenant frobnicate", 2, `there is no command "tollctl tenant frobnicate"`},
		{"tenat list", 2, "did you mean tenant?"},
		{"tenant creat", 2, "did you mean create?"},
		{"help nothing", 2, "no command"},
		{"tenant list --limit 0", 2, "at least 1"},
		{"tenant list --limti 5", 2, "unknown flag: --limti; see tollctl tenant list --help"},
		{"tenant list -o yaml", 2, "table or json"},
		{"tenant list extra", 2, `"extra" is one argument too many`},
		{"tenant show", 2, "TENANT is missing: tollctl tenant show TENANT"},
		{"tenant create", 2, "--total is missing"},
		{"tenant create --total 1m", 2, `"1m" is no amount`},
		{"tenant create --total 1.0000001M", 2, "is no amount"},
		{"tenant create --total 9007199254740992", 2, "is no amount"},
		{"tenant create --total -5", 2, "is no amount"},
		{"tenant create --total 1 --rpm 5/10", 2, "write it as 600, as 600:1200"},
		{"tenant create --total 1 --concurrency many", 2, "no number of calls"},
		{"tenant create --total 1 --overage-limit unlimited", 2, "--total unlimited"},
		{"tenant create --total 1 --policy deny", 2, "not JSON"},
		{"tenant create --total 1 --id acme", 2, "t_"},
		{"tenant create --total 1 --timezone Mars/Base", 2, "timezone"},
		{"tenant create --total 1 --id t_acme", 1, "taken"},
		{"tenant set t_acme", 2, "nothing to change"},
		{"tenant set t_acme --total 5", 2, "tollctl quota add"},
		{"tenant set t_none --day 5", 1, "There is no tenant t_none."},
		{"tenant show t_none", 1, "There is no tenant t_none."},
		{"tenant show ../keys", 2, "is not the id of a tenant"},
		{"app create t_none", 1, "There is no tenant t_none."},
		{"app set t_acme a_none --day 1", 1, "There is no app a_none"},
		{"key create t_acme", 2, "--app is missing"},
		{"key create t_acme --app a_none", 1, "There is no app a_none"},
		{"key revoke t_acme k_none", 1, "There is no key k_none"},
		{"key rotate t_acme k_none --overlap later", 2, "90d"},
		{"quota add t_acme", 2, "CREDITS is missing"},
		{"quota add t_acme 0", 2, "no amount to add"},
		{"quota add t_acme unlimited", 2, "no amount to add"},
		{"quota cut t_acme 11", 1, "at most 10"},
		{"quota add t_acme 5 --scope team:x", 2, "org, app:a_… or key:k_…"},
		{"quota add t_acme 5 --scope app:a_web", 1, "unlimited"},
		{"usage t_none", 1, "There is no tenant t_none."},
	} {
		r := s.run(strings.Fields(row.args)...)
		assert.Equal(t, row.code, r.code, "%s: %s", row.args, r.err)
		assert.Empty(t, r.out, row.args)
		assert.Contains(t, r.err, row.says, row.args)
		assert.Equal(t, 1, strings.Count(r.err, "\n"), "one line: %s", r.err)
	}
	for _, args := range [][]string{{}, {"tenant"}, {"key", "create", "--help"}, {"help", "quota", "cut"}, {"--version"}} {
		r := command(t, nil, args...)
		assert.Zero(t, r.code)
		assert.NotEmpty(t, r.out)
	}
}

func TestNoNode(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := "TOLLGATE_ADMIN=" + l.Addr().String()
	require.NoError(t, l.Close())
	r := command(t, []string{closed}, "tenant", "list")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, "no node answers at http://127.0.0.1:")

	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer broken.Close()
	r = command(t, []string{"TOLLGATE_ADMIN=" + broken.URL}, "quota", "add", "t_acme", "5", "--op-id", "once")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, "repeat the command with --op-id once")

	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	r = command(t, []string{"TOLLGATE_ADMIN=" + other.URL}, "tenant", "list")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, "no tollgate admin API")

	s := newRig(t)
	r = command(t, s.env[:1], "tenant", "list")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "set TOLLGATE_ADMIN_TOKEN")
	r = command(t, []string{s.env[0], "TOLLGATE_ADMIN_TOKEN=wrong"}, "tenant", "list")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "check TOLLGATE_ADMIN_TOKEN")
	for _, address := range []string{"ftp://x", "http://", "http://user:pw@host", "http://a b"} {
		r = command(t, []string{"TOLLGATE_ADMIN=" + address}, "tenant", "list")
		assert.Equal(t, 2, r.code, address)
		assert.Contains(t, r.err, "TOLLGATE_ADMIN must be")
	}
}

func TestWhileRedisIsAway(t *testing.T) {
	s := newRig(t)
	s.ok("tenant", "create", "--id", "t_acme", "--total", "10")
	s.redis.Stop()
	r := s.run("quota", "add", "t_acme", "5")
	assert.Zero(t, r.code)
	assert.Contains(t, r.out, "Pending: ")
	_, again, _ := strings.Cut(r.out, "tollctl ")
	require.NoError(t, s.redis.Restart())
	require.Eventually(t, func() bool {
		return strings.Contains(s.run(strings.Fields(again)...).out, "the total of tenant t_acme is 15 now")
	}, 20*time.Second, 100*time.Millisecond)
	s.redis.Stop()
	r = s.run("tenant", "suspend", "t_acme")
	assert.Zero(t, r.code)
	assert.Contains(t, r.err, "as soon as Redis does")
	r = s.run("usage", "t_acme")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, "Try again")
}

func TestParseCredits(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "1_000": 1000, "1k": 1000, "1K": 1000, "1.5k": 1500, "2M": 2_000_000, "0.000001M": 1, "1.50k": 1500,
		"1G": 1_000_000_000, "9007199254740991": quota.CreditsMax, "9007199.254740991G": quota.CreditsMax, "1.5000k": 1500,
	} {
		n, ok := parseCredits(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, n, text)
	}
	for _, text := range []string{
		"", "k", "-1", "+1", "1.5", "1.", "1.k", ".5k", "1,000", "1 000", "1e3", "0x10", "1m", "1g", "1kk", "_1", "1__0", "1_",
		"0.0001k", "1.0000001M", "9007199254740992", "9007199.254740992G", "99999999999999999999G", "unlimited", "１",
	} {
		_, ok := parseCredits(text)
		assert.False(t, ok, text)
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1: "-1", -999: "-999", -1000: "-1,000", quota.CreditsMax: "9,007,199,254,740,991"} {
		assert.Equal(t, want, grouped(n))
	}
}

// Interrupting a command ends it at once.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer hung.Close()
	t.Setenv("TOLLGATE_ADMIN", hung.URL)
	var out, errs bytes.Buffer
	assert.Equal(t, exitUnreachable, run(ctx, []string{"tenant", "list"}, &out, &errs))
	assert.Contains(t, errs.String(), "interrupted")
}
