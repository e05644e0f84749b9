package main_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/lua/redistest"
)

// A node that starts before its Redis lives, says that it is not ready, decides nothing, and is ready by itself later.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.node()
	secret := first.tenant("t_early", 100)
	first.kill()
	r.redis.Stop()

	n := r.serving(&settings{})
	require.Equal(t, 200, n.do("GET", n.url+"/healthz", "", "").status)
	require.Equal(t, 200, n.do("GET", n.admin+"/healthz", "", "").status)
	a := n.do("GET", n.url+"/readyz", "", "")
	require.Equal(t, 503, a.status)
	require.Contains(t, string(a.body), "stores")
	a = n.do("GET", n.admin+"/readyz", "", "")
	require.Equal(t, 503, a.status)
	state := a.json(t)
	require.Equal(t, false, state["ready"])
	require.Contains(t, state["reason"], "starting")
	require.Equal(t, map[string]any{"default": "unavailable"}, state["stores"])
	require.Equal(t, "ok", state["ledger"])
	a = n.consume(secret, 1)
	require.Equal(t, 503, a.status, "%v", a)
	require.Equal(t, "quota_unavailable", a.code())
	require.NotEmpty(t, a.header.Get("Retry-After"))

	require.NoError(t, r.redis.Restart())
	n.awaitReady()
	require.Equal(t, 200, n.consume(secret, 1).status)
	require.Equal(t, 200, n.do("GET", n.admin+"/readyz", "", "").status)
}

func TestPortsInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at := taken.Addr().String()
	for name, s := range map[string]*settings{"listen": {listen: at}, "admin.listen": {admin: at}} {
		p := r.launch(s)
		require.Equal(t, 1, p.code(), name)
		require.Contains(t, p.out.String(), name+": listen tcp "+at+": bind: address already in use")
	}
	// A second node with the first one's configuration.
	n := r.node()
	p := r.launch(&settings{listen: strings.TrimPrefix(n.url, "http://"), admin: strings.TrimPrefix(n.admin, "http://")})
	require.Equal(t, 1, p.code())
}

// Two ledgers never share a Redis: the second one's node ends, and changes nothing.
func TestForeignLedger(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node()
	secret := n.tenant("t_own", 100)
	other := &settings{ledger: "sqlite://" + filepath.Join(t.TempDir(), "other.db")}
	p := r.launch(other)
	require.Equal(t, 1, p.code())
	require.Regexp(t, `level=ERROR msg="the node stops" error="[^"]*store default belongs to [^"]*this node's ledger is`, p.out.String())
	require.Equal(t, 200, n.consume(secret, 1).status)

	// Also when both wait for a Redis that comes later: one of them wins.
	late := redistest.Start(t)
	late.Stop()
	mine := r.launch(&settings{redis: late.URL()})
	theirs := r.launch(&settings{redis: late.URL(), ledger: other.ledger})
	mine.printed("a store does not answer yet")
	theirs.printed("a store does not answer yet")
	require.NoError(t, late.Restart())
	eventually(t, "one of the two ends", func() bool { return !mine.running() || !theirs.running() })
	require.True(t, mine.running() || theirs.running())
	for _, p := range []*process{mine, theirs} {
		if !p.running() {
			require.Equal(t, 1, p.code())
			require.Contains(t, p.out.String(), "belongs to")
		}
	}
}

// A Redis that was emptied is bound again; one that was given to another ledger meanwhile is left alone.
func TestRedisIsBoundAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node(settings{shutdown: "{delay: 10m}"})
	owner, err := r.redis.Do("GET", "tgledger")
	require.NoError(t, err)
	require.NotEmpty(t, owner)
	_, err = r.redis.Do("FLUSHALL")
	require.NoError(t, err)
	eventually(t, "the store is bound again", func() bool {
		now, err := r.redis.Do("GET", "tgledger")
		return err == nil && now == owner
	})
	require.True(t, n.running())
	_, err = r.redis.Do("SET", "tgledger", "another-ledger")
	require.NoError(t, err)
	require.Equal(t, 1, n.code())
	require.Contains(t, n.out.String(), "belongs to another-ledger")
}

// A ledger that cannot be opened is told by where it is, and why.
func TestLedgerThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("this is no database\n", 100)), 0o600))
	locked := filepath.Join(dir, "locked")
	require.NoError(t, os.Mkdir(locked, 0o500))
	cases := map[string]struct{ path, why string }{
		"below a file": {filepath.Join(file, "ledger.db"), "not a directory"},
		"a folder":     {dir, "unable to open"},
		"no database":  {file, "not a database"},
	}
	if os.Geteuid() != 0 { // root may write everywhere
		cases["no permission"] = struct{ path, why string }{filepath.Join(locked, "ledger.db"), "permission denied"}
	}
	for name, c := range cases {
		p := r.launch(&settings{ledger: "sqlite://" + c.path})
		require.Equal(t, 1, p.code(), name)
		require.Contains(t, p.out.String(), "ledger.url: sqlite://"+c.path, name)
		require.Contains(t, p.out.String(), c.why, name)
	}
	// A missing folder is made.
	deep := filepath.Join(dir, "a", "b", "ledger.db")
	r.node(settings{ledger: "sqlite://" + deep})
	require.FileExists(t, deep)

	got := run(t, []string{"TEST_ADMIN_TOKEN=x", "TEST_UPSTREAM_KEY=x"}, "tollgate", "-config",
		configFile(t, r.yaml(&settings{}, filepath.Join(file, "data"))))
	require.Equal(t, 1, got.code)
	require.Contains(t, got.err, fmt.Sprintf("data_dir: mkdir %s: not a directory", file))
}
