package journal

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"
)

func TestNextWaits(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		opt := small(dir)
		opt.Sync = SyncAlways
		j, _, err := Open(opt)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = j.Reader("events").Next(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		var got []Entry
		done := make(chan error, 1)
		go func() {
			var err error
			got, err = j.Reader("events").Next(t.Context(), 1)
			done <- err
		}()
		synctest.Wait()
		pos, err := j.Append(committed(0))
		require.NoError(t, err)
		require.NoError(t, j.BeforeAnswer(t.Context(), pos))
		require.NoError(t, <-done)
		require.Equal(t, pos, got[0].After.Position)

		go func() {
			_, err := j.Reader("events").Next(t.Context(), 1)
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, j.Close())
		require.ErrorIs(t, <-done, ErrClosed)
		_, err = j.Reader("events").Next(t.Context(), 1)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, j.Reader("events").Commit(got[0].After), ErrClosed)
		_, err = j.Append(committed(1))
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, j.Err(), ErrClosed)
		require.NoError(t, j.WaitSynced(t.Context(), pos))
		require.ErrorIs(t, j.WaitSynced(t.Context(), pos+8), ErrClosed)
	})
}

func TestCommitBounds(t *testing.T) {
	j, _ := openTest(t, small(t.TempDir()))
	syncAll(t, j, appendMany(t, j, 0, 3))
	r := j.Reader("settlement")
	list := readAll(t, r, 3)
	require.NoError(t, r.Commit(list[1].After))
	require.NoError(t, r.Commit(list[1].After))
	require.ErrorIs(t, r.Commit(list[0].After), ErrCursor)
	require.ErrorIs(t, r.Commit(Cursor{list[2].After.Position + 8, 4}), ErrCursor)
	require.EqualValues(t, 1, r.Lag())
}

// A cursor that cannot be written leaves the last one in force.
func TestCommitOnABadDisk(t *testing.T) {
	f := newFaults()
	dir := t.TempDir()
	j, _ := openTest(t, f.options(dir))
	syncAll(t, j, appendMany(t, j, 0, 3))
	r := j.Reader("events")
	list := readAll(t, r, 3)
	require.NoError(t, r.Commit(list[0].After))
	fails(&f.fsync, os.ErrPermission)
	require.ErrorIs(t, r.Commit(list[1].After), os.ErrPermission)
	require.EqualValues(t, 2, r.Lag())
	f.fsync.Store(nil)
	require.NoError(t, r.Commit(list[1].After))
	require.EqualValues(t, 1, r.Lag())
}

// Damage under a running node stops the reader for good; it skips nothing.
func TestReaderStopsAtDamage(t *testing.T) {
	dir := t.TempDir()
	j, _ := openTest(t, small(dir))
	ends := appendMany(t, j, 0, 10)
	syncAll(t, j, ends)
	file, err := os.OpenFile(segments(t, dir)[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{0xff}, int64(ends[4].Offset())+20)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	r := j.Reader("events")
	require.Equal(t, upTo(5), numbers(t, readAll(t, r, 5)))
	for range 2 {
		_, err = r.Next(t.Context(), 10)
		var where *CorruptError
		require.ErrorAs(t, err, &where)
		require.EqualValues(t, ends[4].Offset(), where.Offset)
	}
}

// Segments go when both readers have passed them, not before.
func TestDeletion(t *testing.T) {
	dir := t.TempDir()
	opt := small(dir)
	opt.MaxBytes = 16 << 20
	j, _ := openTest(t, opt)
	syncAll(t, j, appendMany(t, j, 0, 3000))
	before := len(segments(t, dir))
	a := readAll(t, j.readers[0], 3000)
	b := readAll(t, j.readers[1], 3000)
	require.NoError(t, j.readers[0].Commit(a[2998].After))
	require.NoError(t, j.readers[0].Commit(a[2999].After)) // now both slots are far
	require.NoError(t, j.readers[1].Commit(b[1000].After))
	require.NoError(t, j.readers[1].Commit(b[1001].After))
	want := b[1000].After.Position.Segment()
	first := func() uint64 { return positionOfFirst(j).Segment() }
	eventually(t, "deleted", func() bool { return first() == want })
	require.NoError(t, j.readers[1].Commit(b[2998].After))
	require.Less(t, first(), b[2998].After.Position.Segment(), "the other slot still needs it")
	require.NoError(t, j.readers[1].Commit(b[2999].After))
	eventually(t, "deleted", func() bool { return first() == b[2998].After.Position.Segment() })
	require.Less(t, len(segments(t, dir)), before)
}

// SyncNever: what readers had seen may be gone after a loss of power; they go on behind it.
func TestSyncNeverAndALossOfPower(t *testing.T) {
	live := t.TempDir()
	opt := small(live)
	opt.Sync = SyncNever
	j, _ := openTest(t, opt)
	ends := appendMany(t, j, 0, 10)
	syncAll(t, j, ends)
	list := readAll(t, j.Reader("events"), 10)
	require.NoError(t, j.Reader("events").Commit(list[7].After))

	dir := copyNewestFirst(t, live)
	file, err := os.OpenFile(segments(t, dir)[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, ends[9].Offset()-ends[4].Offset()), int64(ends[4].Offset()))
	require.NoError(t, err)
	require.NoError(t, file.Close())

	opt = small(dir)
	opt.Sync = SyncNever
	j, found := openTest(t, opt)
	require.Equal(t, 5, found.Records)
	require.Equal(t, []string{"events"}, found.Restarted)
	require.EqualValues(t, 0, j.Reader("events").Lag())
	require.EqualValues(t, 5, j.Reader("settlement").Lag())
	syncAll(t, j, appendMany(t, j, 20, 21))
	require.Equal(t, []int{20}, numbers(t, readAll(t, j.Reader("events"), 1)))
}

// calls plays the node's side of Options.Carry: it knows which calls run.
type calls struct {
	j     *Journal
	mu    sync.Mutex
	open  map[int]bool // not marked as ended
	acked sync.Map     // number → the end was acknowledged
}

func (c *calls) begin(n int) error {
	c.mu.Lock()
	c.open[n] = true
	c.mu.Unlock()
	_, err := appendRetry(c.j, &Reserved{Call: committed(n).Call})
	return err
}

func (c *calls) end(n int) error {
	c.mu.Lock()
	delete(c.open, n) // first
	c.mu.Unlock()
	_, err := appendRetry(c.j, committed(n))
	c.acked.Store(n, true)
	return err
}

func (c *calls) carry(emit func(Record) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range c.open {
		if err := emit(&Reserved{Call: committed(n).Call}); err != nil {
			return err
		}
	}
	return nil
}

// Whatever segments are deleted: a call that runs is still known, and none
// looks as if it ran whose end was acknowledged.
func TestCarryKeepsWhatRuns(t *testing.T) {
	dir := t.TempDir()
	c := &calls{open: map[int]bool{}}
	opt := small(dir)
	opt.MaxBytes = 4 << 20
	opt.Carry = c.carry
	j, _ := openTest(t, opt)
	c.j = j
	for n := range 20 { // long streams, which run all the time
		require.NoError(t, c.begin(n))
	}
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	var next atomic.Int64
	next.Store(20)
	for range 3 {
		loops.Go(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1))
				if err := c.begin(n); err != nil {
					t.Error(err)
				}
				if err := c.end(n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, r := range j.readers {
		loops.Go(func() {
			for {
				list, err := r.Next(ctx, 500)
				if err != nil {
					return
				}
				if err := r.Commit(list[len(list)-1].After); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 8 {
		before := positionOfFirst(j)
		eventually(t, "segments are deleted", func() bool { return positionOfFirst(j) > before })
		ended := map[int]bool{}
		c.acked.Range(func(n, _ any) bool { ended[n.(int)] = true; return true })
		open := map[int]bool{}
		copied := copyLocked(t, j)
		_, err := recoverDir(copied, func(e Entry) error {
			switch r := e.Record.(type) {
			case *Reserved:
				var n int
				_, err := fmt.Sscanf(r.RequestID, "%x", &n)
				open[n] = true
				return err
			case *Committed:
				delete(open, int(r.SpentTotal))
				open[-int(r.SpentTotal)-1] = true // ended, whatever is carried after it
			}
			return nil
		})
		require.NoError(t, err)
		for n := range open {
			if n >= 0 && !open[-n-1] {
				require.False(t, ended[n], "%d had ended before the copy", n)
			}
		}
		for n := range 20 {
			require.True(t, open[n], "%d runs", n)
		}
	}
	stop()
	loops.Wait()
}

// copyLocked copies a live log while no segment comes or goes.
func copyLocked(t testing.TB, j *Journal) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.readers {
		r.cursor.Lock()
		defer r.cursor.Unlock()
	}
	return copyNewestFirst(t, j.opt.Dir)
}

// Group commit: many waiters share few syncs.
func TestGroupCommit(t *testing.T) {
	f := newFaults()
	opt := f.options(t.TempDir())
	opt.Sync = time.Minute
	opt.MaxBytes = 16 << 20
	j, _ := openTest(t, opt)
	var all sync.WaitGroup
	const waiters, each = 64, 20
	for range waiters {
		all.Go(func() {
			for n := range each {
				pos, err := appendRetry(j, committed(n))
				if err == nil {
					err = j.WaitSynced(t.Context(), pos)
				}
				if err != nil {
					t.Error(err)
				}
				if got := Position(j.synced.Load()); got < pos {
					t.Errorf("synced %v, waited for %v", got, pos)
				}
			}
		})
	}
	all.Wait()
	require.Less(t, f.msyncs.Load(), int64(waiters*each/2))
}

func TestAppendsFromManyGoroutines(t *testing.T) {
	opt := small(t.TempDir())
	opt.MaxBytes = 64 << 20
	j, _ := openTest(t, opt)
	const writers, each = 8, 1500
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			last := Position(0)
			for i := range each {
				pos, err := appendRetry(j, committed(w*each+i))
				if err != nil || pos <= last {
					t.Error(pos, last, err)
				}
				last = pos
			}
		})
	}
	got := readAll(t, j.Reader("events"), writers*each)
	all.Wait()
	next := [writers]int{}
	for _, n := range numbers(t, got) {
		require.Equal(t, next[n/each], n%each, "each goroutine's records come in its order")
		next[n/each]++
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	opt := small(t.TempDir())
	opt.MaxBytes, opt.SegmentBytes = 128<<20, 16<<20
	j, _ := openTest(t, opt)
	like := committed(7)
	var failed error
	require.Zero(t, testing.AllocsPerRun(2000, func() {
		r := Committed{Call: like.Call, Outcome: like.Outcome, SpentTotal: 7} // on the stack
		if _, err := j.Append(&r); err != nil {
			failed = err
		}
		p := Progress{Tenant: "t_acme", RequestID: like.RequestID, Cost: 3}
		if _, err := j.Append(&p); err != nil {
			failed = err
		}
		_ = j.Err()
	}))
	require.NoError(t, failed)
}

func TestMetrics(t *testing.T) {
	j, _ := openTest(t, small(t.TempDir()))
	syncAll(t, j, appendMany(t, j, 0, 3))
	r := j.Reader("settlement")
	require.NoError(t, r.Commit(readAll(t, r, 2)[1].After))
	eventually(t, "the gauges follow", func() bool {
		return lagGauges["settlement"].Get() == 1 && lagGauges["events"].Get() == 3 && bytesGauge.Get() == float64(4*segmentBytesMin)
	})
	var text bytes.Buffer
	metrics.WritePrometheus(&text, false)
	for _, name := range []string{
		"tollgate_journal_bytes ", "tollgate_journal_seconds_left ", `tollgate_journal_lag_records{reader="settlement"} `,
		`tollgate_journal_lag_records{reader="events"} `, `tollgate_journal_sync_seconds_bucket{le="0.01"} `,
	} {
		require.Contains(t, "\n"+text.String(), "\n"+name)
	}
}
