package journal

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// faults is a disk that fails on demand.
type faults struct {
	disk
	allocate, msync, fsync atomic.Pointer[error] // nil: as the real disk
	msyncs                 atomic.Int64
}

func newFaults() *faults {
	f := &faults{disk: realDisk()}
	instead := func(p *atomic.Pointer[error], real func() error) error {
		if err := p.Load(); err != nil {
			return *err
		}
		return real()
	}
	of := realDisk()
	f.disk.allocate = func(file *os.File, n int64) error {
		return instead(&f.allocate, func() error { return of.allocate(file, n) })
	}
	f.disk.fsync = func(file *os.File) error { return instead(&f.fsync, func() error { return of.fsync(file) }) }
	f.disk.msync = func(mapped []byte) error {
		f.msyncs.Add(1)
		return instead(&f.msync, func() error { return of.msync(mapped) })
	}
	return f
}

func fails(p *atomic.Pointer[error], err error) { p.Store(&err) }

func (f *faults) options(dir string) Options {
	opt := small(dir)
	opt.disk = &f.disk
	return opt
}

// fillUp appends until the bound stops it, and gives how many were taken. What
// only waits for the loop that makes segments is tried again.
func fillUp(t *testing.T, j *Journal, r Record) (n int) {
	t.Helper()
	for {
		_, err := j.Append(r)
		switch {
		case err == nil:
			n++
		case j.bytes()+j.opt.SegmentBytes > j.opt.MaxBytes:
			require.ErrorIs(t, err, ErrFull)
			return n
		default:
			require.ErrorIs(t, err, ErrFull)
			runtime.Gosched()
		}
	}
}

func commitAll(t *testing.T, j *Journal) {
	t.Helper()
	for _, r := range j.readers {
		for r.Lag() > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			list, err := r.Next(ctx, batchMost)
			cancel()
			require.NoError(t, err)
			require.NoError(t, r.Commit(list[len(list)-1].After))
		}
	}
}

// eventually polls without sleeping: the other goroutines run meanwhile.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}

// The size bound: calls are refused first, ends of running ones go on, then
// nothing fits; once the readers have caught up all is taken again.
func TestSizeBound(t *testing.T) {
	dir := t.TempDir()
	var carried atomic.Int64
	opt := small(dir)
	opt.Carry = func(emit func(Record) error) error {
		carried.Add(1)
		return emit(&Head{TabTotals{Tab: "tab", Spent: 7}})
	}
	j, _ := openTest(t, opt)
	require.NoError(t, j.Err())
	calls, ends := 0, 0
	// The last spare may still have been in the making when filling stopped: then there is room once more.
	eventually(t, "no room for calls", func() bool {
		calls += fillUp(t, j, &Reserved{Call: committed(0).Call})
		return errors.Is(j.Err(), ErrFull)
	})
	ends += fillUp(t, j, committed(0))
	require.Greater(t, ends, int(opt.SegmentBytes/300), "a segment was kept for the ends of running calls")
	require.LessOrEqual(t, j.bytes(), opt.MaxBytes)
	require.Len(t, segments(t, dir), int(opt.MaxBytes/opt.SegmentBytes))
	eventually(t, "synced", func() bool { return j.Reader("events").Lag() == int64(calls+ends) })

	commitAll(t, j)
	eventually(t, "room again", func() bool { return j.Err() == nil })
	require.Positive(t, carried.Load(), "the records of Carry had room when nothing else had")
	syncAll(t, j, appendMany(t, j, 1, 100))
	require.NoError(t, j.Close())

	list, _ := visited(t, opt)
	heads := 0
	for _, e := range list {
		if h, ok := e.Record.(*Head); ok {
			require.EqualValues(t, 7, h.Spent)
			heads++
		}
	}
	require.Positive(t, heads)
}

// F37: a full disk stops calls, not the node; and room brings them back.
func TestFullDisk(t *testing.T) {
	f := newFaults()
	dir := t.TempDir()
	j, _ := openTest(t, f.options(dir))
	fails(&f.allocate, unix.ENOSPC)
	r := &Reserved{Call: committed(0).Call}
	for n := 0; ; n++ {
		if _, err := j.Append(r); err != nil {
			require.ErrorIs(t, err, ErrFull)
			break
		}
		require.Less(t, n, 100_000)
	}
	require.ErrorIs(t, j.Err(), ErrFull)
	_, err := j.AppendSync(t.Context(), committed(1))
	require.NoError(t, err, "the end of a running call has room")
	f.allocate.Store(nil)
	eventually(t, "room again", func() bool { return j.Err() == nil })
}

// The same on a real file system of 4 MiB, where the journal may grow beyond that.
func TestFullTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("cannot mount:", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	opt := small(dir)
	opt.MaxBytes = 1 << 30
	j, _, err := Open(opt)
	require.NoError(t, err)
	n := 0
	for {
		_, err := appendFor(j, committed(n), 300*time.Millisecond)
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			break
		}
		n++
	}
	require.Greater(t, n, 8000)
	eventually(t, "synced", func() bool { return j.Reader("events").Lag() == int64(n) })
	require.NoError(t, j.Close())

	// A node starts on a full disk: what its last life kept ready has become free.
	j, found, err := Open(opt)
	require.NoError(t, err)
	require.Equal(t, n, found.Records)
	commitAll(t, j)
	eventually(t, "room again", func() bool { return j.Err() == nil })
	require.NoError(t, j.Close())
}

// appendFor tries for a while, since segments may only be late.
func appendFor(j *Journal, r Record, patience time.Duration) (pos Position, err error) {
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		if pos, err = j.Append(r); err == nil || time.Now().After(end) {
			return pos, err
		}
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("cannot mount:", err)
	}
	defer func() { require.NoError(t, unix.Unmount(dir, 0)) }()
	j, _, err := Open(small(dir))
	require.NoError(t, err)
	syncAll(t, j, appendMany(t, j, 0, 10))
	require.NoError(t, j.Close())
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, _, err = Open(small(dir))
	require.ErrorIs(t, err, unix.EROFS)
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	list, _ := visited(t, small(dir))
	require.Equal(t, upTo(10), numbers(t, list))
}

// F37, a failed sync: calls stop at once and for good, the ends of running
// calls are still kept against the death of the process, and a restart finds all.
func TestFailedSync(t *testing.T) {
	f := newFaults()
	dir := t.TempDir()
	j, _ := openTest(t, f.options(dir))
	syncAll(t, j, appendMany(t, j, 0, 10))
	fails(&f.msync, unix.EIO)
	pos, err := j.Append(committed(10))
	require.NoError(t, err)
	err = j.WaitSynced(t.Context(), pos)
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, err, unix.EIO)
	f.msync.Store(nil) // the second sync would succeed, and lie
	require.ErrorIs(t, j.Err(), ErrBroken)
	require.ErrorIs(t, j.WaitSynced(t.Context(), pos), ErrBroken)
	_, err = j.Append(&Reserved{})
	require.ErrorIs(t, err, ErrBroken)
	_, err = j.Append(committed(11))
	require.NoError(t, err)
	require.Len(t, readAll(t, j.Reader("events"), 10), 10)
	require.EqualValues(t, 10, j.Reader("events").Lag(), "readers never see what was not synced")
	require.ErrorIs(t, j.Close(), ErrBroken)

	list, found := visited(t, small(dir))
	require.Equal(t, upTo(12), numbers(t, list))
	require.True(t, found.Killed)
}

func TestOpenFails(t *testing.T) {
	for name, fail := range map[string]func(*faults){
		"no room for one segment": func(f *faults) { fails(&f.allocate, unix.ENOSPC) },
		"the disk does not sync":  func(f *faults) { fails(&f.fsync, unix.EIO) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaults()
			dir := t.TempDir()
			fail(f)
			_, _, err := Open(f.options(dir))
			require.Error(t, err)
			openTest(t, small(dir)) // and leaves nothing behind, the lock included
		})
	}
}

// A page that the disk takes back, which a file system that keeps its word
// never does, breaks the journal and not the process.
func TestFaultInTheMapping(t *testing.T) {
	dir := t.TempDir()
	opt := small(dir)
	opt.Sync = time.Minute
	j, _ := openTest(t, opt)
	appendMany(t, j, 0, 3)
	require.NoError(t, os.Truncate(segments(t, dir)[0], 0))
	_, err := j.Append(committed(3))
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, j.Err(), ErrBroken)
	_, err = j.Append(committed(4))
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorIs(t, j.WaitSynced(t.Context(), 1<<40), ErrBroken)
	require.ErrorIs(t, j.Close(), ErrBroken)
}

func TestFaultInTheSyncLoop(t *testing.T) {
	dir := t.TempDir()
	j, _ := openTest(t, small(dir))
	require.NoError(t, os.Truncate(segments(t, dir)[0], 0))
	require.ErrorIs(t, j.WaitSynced(t.Context(), 1<<40), ErrBroken)
	require.ErrorIs(t, j.Close(), ErrBroken)
}

// Sync is a duration: readers get a record after it, in virtual time, and not before; somebody who waits gets it at once.
func TestSyncByDuration(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		opt := small(dir)
		opt.Sync = 10 * time.Second
		j, _, err := Open(opt)
		require.NoError(t, err)
		begin := time.Now()
		appendMany(t, j, 0, 1)
		require.Len(t, readAll(t, j.Reader("events"), 1), 1)
		require.Equal(t, 10*time.Second, time.Since(begin))
		syncAll(t, j, appendMany(t, j, 1, 2))
		require.Equal(t, 10*time.Second, time.Since(begin))
		require.NoError(t, j.Close())
	})
}

// A failed preparation is tried again by itself.
func TestSparesAreTriedAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults()
		var made int
		of := f.disk.allocate
		f.disk.allocate = func(file *os.File, n int64) error {
			if made++; made > 1 {
				return of(file, n)
			}
			fails(&f.allocate, unix.ENOSPC) // from the second on
			return realDisk().allocate(file, n)
		}
		j, _, err := Open(f.options(dir))
		require.NoError(t, err)
		require.ErrorIs(t, j.Err(), ErrFull, "started, so that the readers can make room")
		f.allocate.Store(nil)
		<-time.After(spareRetry + time.Millisecond)
		synctest.Wait()
		require.NoError(t, j.Err())
		require.NoError(t, j.Close())
	})
}

// At rest the mark on disk is brought up to what is synced, once.
func TestMarkAtRest(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults()
		opt := f.options(dir)
		opt.Sync = 10 * time.Millisecond
		j, _, err := Open(opt)
		require.NoError(t, err)
		<-time.After(3 * time.Second)
		synctest.Wait()
		syncAll(t, j, appendMany(t, j, 0, 1))
		before := f.msyncs.Load()
		<-time.After(time.Hour)
		synctest.Wait()
		require.Equal(t, before+1, f.msyncs.Load())
		require.NoError(t, j.Close())
	})
}
