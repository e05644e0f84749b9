package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/lua"
	"tollgate/quota"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		childMain(dir)
	}
	goleak.VerifyTestMain(m)
}

// small are options for tests: little disk, quick to make.
func small(dir string) Options {
	return Options{Dir: dir, Node: "n1", Region: "eu", Sync: time.Millisecond, MaxBytes: 2 << 20, SegmentBytes: segmentBytesMin}
}

// openTest opens a journal and closes it with the test.
func openTest(t testing.TB, opt Options) (*Journal, Recovered) {
	t.Helper()
	j, found, err := Open(opt)
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	return j, found
}

// visited opens a journal and gives what it still holds; it is closed again.
func visited(t testing.TB, opt Options) ([]Entry, Recovered) {
	t.Helper()
	var list []Entry
	opt.Visit = func(e Entry) error { list = append(list, e); return nil }
	j, found, err := Open(opt)
	require.NoError(t, err)
	require.NoError(t, j.Close())
	return list, found
}

// committed is a record as a node writes it for a chat completion.
func committed(n int) *Committed {
	c := &Committed{
		Call: Call{
			Store: "default", RequestID: fmt.Sprintf("%032x", n), ClientRequestID: "client-1", Tenant: "t_acme", App: "a_web", Key: "k_1",
			Model: "gpt-4o-mini", Route: "/v1/*", Upstream: "openai", Path: "direct", Attempt: "a1", OwnID: true,
			Reserved: 4096, PriceID: "p1", Deadline: 1_800_000_900_000, Created: 1_800_000_000_000,
			Chain: quota.Chain{
				{Scope: quota.Org, ID: "t_acme"},
				{Scope: quota.App, ID: "a_web"},
				{Scope: quota.Key, ID: "k_1"},
				{Scope: quota.Key, ID: "k_1", Period: quota.Day, Window: quota.Window{Name: "d20261130", Start: 1_796_000_000_000, End: 1_796_086_400_000}},
			},
			Buckets: []lua.BucketArg{{Scope: quota.Key, ID: "k_1", Unit: quota.UnitTPM, Limit: quota.Bucket{Rate: 100_000, Burst: 100_000}}},
		},
		Outcome: Outcome{
			Requests: 1, Cost: 812, Usage: quota.Usage{Input: 200, CachedInput: 100, Output: 153}, Source: quota.SourceUpstream, Tokens: 453,
			UpstreamRequestID: "req_0123456789abcdef", UpstreamStatus: 200, ResponseBytes: 2310, Ended: 1_800_000_002_000,
		},
		SpentTotal: int64(n),
	}
	return c
}

// number is the number that a record of committed was made with.
func number(t testing.TB, r Record) int {
	c, ok := r.(*Committed)
	require.True(t, ok, "%T", r)
	require.Equal(t, committed(int(c.SpentTotal)), c)
	return int(c.SpentTotal)
}

func numbers(t testing.TB, list []Entry) []int {
	out := make([]int, 0, len(list))
	for _, e := range list {
		out = append(out, number(t, e.Record))
	}
	return out
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// appendMany appends committed(from) … committed(to-1) and gives the positions behind them.
func appendMany(t testing.TB, j *Journal, from, to int) (ends []Position) {
	t.Helper()
	for i := from; i < to; i++ {
		pos, err := appendRetry(j, committed(i))
		require.NoError(t, err)
		ends = append(ends, pos)
	}
	return ends
}

// appendRetry appends, and lets the loop that makes segments run when it was outrun.
func appendRetry(j *Journal, r Record) (Position, error) {
	for deadline := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		pos, err := j.Append(r)
		if !errors.Is(err, ErrFull) || time.Now().After(deadline) {
			return pos, err
		}
	}
}

func syncAll(t testing.TB, j *Journal, ends []Position) {
	t.Helper()
	if len(ends) > 0 {
		require.NoError(t, j.WaitSynced(t.Context(), ends[len(ends)-1]))
	}
}

// readAll reads until it has n records.
func readAll(t testing.TB, r *Reader, n int) (list []Entry) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for len(list) < n {
		batch, err := r.Next(ctx, n-len(list))
		require.NoError(t, err)
		list = append(list, batch...)
	}
	return list
}

// segments lists the segment files of a data directory, oldest first.
func segments(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, dirName, "*"+segmentSuffix))
	require.NoError(t, err)
	slices.Sort(list)
	return list
}
