package edge_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
	"tollgate/quota"
)

// process is a node that is a process of its own: the shipped binary.
type process struct {
	cmd *exec.Cmd
	log *lockedBuffer
	*node
}

func buildNode(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "tollgate")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "tollgate/cmd/tollgate").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// process starts a node beside the rig's: same Redis, same ledger, same upstream.
func (r *rig) process(t *testing.T, bin string) *process {
	t.Helper()
	dir := t.TempDir()
	listen, admin := freeAddr(t), freeAddr(t)
	text := r.yaml + fmt.Sprintf("listen: %s\nadmin: {listen: %s}\ndata_dir: %s\nstores:\n  default: {url: %q}\nledger: {url: %q}\nlog: {level: debug}\nlimits: {decision: 1s}\n",
		listen, admin, dir, r.redis["default"].URL(), r.ledgerURL)
	file := filepath.Join(dir, "tollgate.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	p := &process{cmd: exec.Command(bin, "-config", file), log: &lockedBuffer{}, node: &node{rig: r, url: "http://" + listen}}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	require.Eventually(t, func() bool {
		res, err := r.client.Get(p.url + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, waitLong, 10*time.Millisecond, "the node does not become ready: %s", p.log)
	return p
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// kill is kill -9; the second time it does nothing.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // killed
	}
}

// B2: a node is killed in the middle of a stream. Another one frees its hold
// after the deadline, though it never served that tenant.
func TestKilledNodesHoldsAreFreed(t *testing.T) {
	r := newRig(t)
	bin := buildNode(t)
	dead, alive := r.process(t, bin), r.process(t, bin)
	witness := r.node()
	secret := r.tenant("t_1", 1000, concurrency(1))
	require.NoError(t, r.fake.Behave(fake.Rule{Times: 1, Set: fake.Settings{"hang": "6"}}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res := dead.open(ctx, t, secret, chat("fake-p12-c34", true))
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	require.True(t, lines.Scan())
	_, err := r.fake.Wait(within(t, waitLong), silent(1))
	require.NoError(t, err)
	held := witness.account("default", "t_1", quota.Org).Prepaid
	require.Positive(t, held)

	dead.kill()
	_, err = r.fake.Wait(within(t, waitLong), nothingRuns)
	require.NoError(t, err, "its upstream call ends with it")
	require.Equal(t, 429, alive.post("/v1/chat/completions", secret, chat("fake-p12-c34", false)).status, "the slot is held until the deadline")
	require.Equal(t, held, witness.account("default", "t_1", quota.Org).Prepaid)

	r.passDeadlines(t, "t_1")
	require.Zero(t, witness.books(t, "t_1"), "nothing is known of what the dead node delivered")
	require.Equal(t, 200, alive.post("/v1/chat/completions", secret, chat("fake-p12-c34", false)).status)
	require.EqualValues(t, wholeTokens, witness.books(t, "t_1"))
	require.Contains(t, alive.log.String(), "holds expired")
	require.NotRegexp(t, keyPattern, alive.log.String()+dead.log.String())
	require.NotContains(t, alive.log.String()+dead.log.String(), promptMark)
}

// passDeadlines lets every hold of a tenant be due.
func (r *rig) passDeadlines(t *testing.T, tenant string) {
	t.Helper()
	redis, index := r.redis["default"], "quota:{"+tenant+"}:deadlines"
	names, err := redis.Do("ZRANGE", index, "0", "-1")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names.([]any) {
		_, err = redis.Do("HSET", "quota:{"+tenant+"}:"+name.(string), "deadline", "1")
		require.NoError(t, err)
		_, err = redis.Do("ZADD", index, "XX", "1", name.(string))
		require.NoError(t, err)
	}
}

// SIGTERM with a running stream: the process waits for it, settles, and exits 0.
func TestTerminatedNodeEndsItsStreams(t *testing.T) {
	r := newRig(t)
	p := r.process(t, buildNode(t))
	witness := r.node()
	secret := r.tenant("t_1", 1000)
	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"delay-chunk": "20ms"}}))
	answered := make(chan string, 1)
	go func() {
		a, err := p.try(context.Background(), secret, chat("fake-p12-c34", true))
		answered <- fmt.Sprint(a.status, err, strings.Contains(string(a.body), "[DONE]"))
	}()
	_, err := r.fake.Wait(within(t, waitLong), func(s fake.Totals) bool { return s.Begun == 1 })
	require.NoError(t, err)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "200 <nil> true", <-answered)
	r.client.CloseIdleConnections()
	require.NoError(t, p.cmd.Wait(), "exit 0")
	require.EqualValues(t, wholeTokens, witness.books(t, "t_1"))
}
