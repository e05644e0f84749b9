package edge_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
	"tollgate/ledger"
	"tollgate/quota"
)

// promptMark stands in the prompts of these tests. No log, metric or error may show it.
const promptMark = "xyzzy-promptmark"

// logged is everything that was logged in this test process.
var logged lockedBuffer

type lockedBuffer struct {
	mu struct {
		sync.Mutex
		buf bytes.Buffer
	}
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.buf.String()
}

func init() {
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

func metricsText() string {
	var b bytes.Buffer
	metrics.WritePrometheus(&b, false)
	return b.String()
}

// metric reads one value of /metrics; 0 when it is not there.
func metric(name string) float64 {
	for line := range strings.Lines(metricsText()) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				panic(line)
			}
			return v
		}
	}
	return 0
}

var keyPattern = regexp.MustCompile(`tg-[0-9A-Za-z]{30}`)

// atTheEnd looks at what all tests together left behind: no secret in a log or a
// metric, no open hold, none that ended twice.
func atTheEnd(code int) {
	fault := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "FAIL: after all tests: "+format+"\n", args...)
		code = 1
	}
	for name, text := range map[string]string{"the logs": logged.String(), "the metrics": metricsText()} {
		if key := keyPattern.FindString(text); key != "" {
			fault("%s show an API key", name)
		}
		for _, secret := range []string{promptMark, "upstream-secret"} {
			if strings.Contains(text, secret) {
				fault("%s show %q", name, secret)
			}
		}
	}
	if code != 0 && os.Getenv("TOLLGATE_LOG") != "" {
		fmt.Fprintln(os.Stderr, logged.String())
	}
	if code == 0 {
		for _, name := range []string{"tollgate_holds_open", "tollgate_prepaid_credits", "tollgate_hold_ends_repeated_total", "tollgate_settle_refused_total"} {
			if v := metric(name); v != 0 {
				fault("%s is %v", name, v)
			}
		}
	}
	os.Exit(code)
}

// hash reads a hash of Redis whole.
func (r *rig) hash(store, key string) map[string]string {
	r.t.Helper()
	got, err := r.redis[store].Do("HGETALL", key)
	require.NoError(r.t, err)
	list, _ := got.([]any)
	m := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		m[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return m
}

// books waits until nothing of a tenant is held, demands that all its accounts
// agree, and returns what was spent. where: "store" other than default.
func (n *node) books(t require.TestingT, tenant string, where ...string) int64 {
	store := "default"
	if len(where) > 0 {
		store = where[0]
	}
	var why string
	var spent int64
	clean := func() bool {
		if n.settler.Pending(n.stores[store]) > 0 {
			why = "ends are pending"
			return false
		}
		if left, err := n.redis[store].Do("ZCARD", "quota:{"+tenant+"}:deadlines"); err != nil || fmt.Sprint(left) != "0" {
			why = fmt.Sprint("holds are left: ", left, err)
			return false
		}
		for i, name := range []string{"org:" + tenant, "app:a_1", "key:k_1"} {
			a := n.hash(store, "quota:{"+tenant+"}:"+name)
			if a["prepaid"] != "0" || a["inflight"] != "0" {
				why = fmt.Sprint(name, ": ", a)
				return false
			}
			s, err := strconv.ParseInt(a["spent"], 10, 64)
			if err != nil || (i > 0 && s != spent) {
				why = fmt.Sprint(name, " disagrees: ", a)
				return false
			}
			spent = s
		}
		return true
	}
	for end := time.Now().Add(5 * time.Second); !clean(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(t, "the books do not close", "%s: %s", tenant, why)
		}
	}
	return spent
}

// untouched demands that a tenant's accounts were never loaded, or carry nothing.
func (n *node) untouched(t require.TestingT, tenant string) {
	if a := n.hash("default", "quota:{"+tenant+"}:"+quota.Org.String()+":"+tenant); len(a) > 0 {
		require.Equal(t, "0", a["spent"])
		require.Equal(t, "0", a["prepaid"])
	}
}

// change makes a tenant of the rig differ.
type change = func(*ledger.Tenant, *ledger.App, *ledger.Key)

func concurrency(n int64) change {
	return func(_ *ledger.Tenant, _ *ledger.App, k *ledger.Key) { k.Limits.Concurrency = &n }
}

// How long tests wait for what comes by itself, and how often they look.
const (
	waitLong  = 10 * time.Second
	tickShort = 5 * time.Millisecond
)

// fakeHang keeps every call silent before its first byte; silent waits for n of them.
var fakeHang = fake.Rule{Set: fake.Settings{"hang": "before"}}

func silent(n int64) func(fake.Totals) bool {
	return func(s fake.Totals) bool { return s.Silent == n }
}

func nothingRuns(s fake.Totals) bool { return s.InFlight == 0 }
