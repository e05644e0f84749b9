package journal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The test binary starts itself as the node that is to be killed.
const (
	childDir   = "TOLLGATE_JOURNAL_TEST_DIR"
	childFirst = "TOLLGATE_JOURNAL_TEST_FIRST"
	childRead  = "TOLLGATE_JOURNAL_TEST_READ"
)

// childMain appends from four goroutines for ever. It tells its parent what was
// acknowledged ("a 17"), what a reader is about to commit ("e 17", "s 17"), and
// that it has the lock ("open").
func childMain(dir string) {
	j, _, err := Open(small(dir))
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("open")
	first, _ := strconv.ParseInt(os.Getenv(childFirst), 10, 64)
	var next atomic.Int64
	next.Store(first)
	tell := func(kind string, n int64) { _, _ = os.Stdout.WriteString(kind + " " + strconv.FormatInt(n, 10) + "\n") }
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for {
				n := next.Add(1) - 1
				pos, err := appendRetry(j, committed(int(n)))
				if err == nil && g == 0 {
					err = j.WaitSynced(context.Background(), pos)
				}
				if err != nil {
					fmt.Println("error", err)
					return
				}
				tell("a", n)
			}
		})
	}
	for kind, name := range map[string]string{"e": "events", "s": "settlement"} {
		if os.Getenv(childRead) == "" {
			break
		}
		all.Go(func() {
			r := j.Reader(name)
			for {
				batch, err := r.Next(context.Background(), 50)
				if err != nil {
					fmt.Println("error", err)
					return
				}
				for _, e := range batch {
					tell(kind, e.Record.(*Committed).SpentTotal)
				}
				if err := r.Commit(batch[len(batch)-1].After); err != nil {
					fmt.Println("error", err)
				}
			}
		})
	}
	all.Wait()
}

// runAndKill starts a node on the directory, kills it after some lines, and
// gives the numbers of each kind of line.
func runAndKill(t *testing.T, dir string, first, lines int, reads bool) map[string][]int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childFirst+"="+strconv.Itoa(first))
	if reads {
		cmd.Env = append(cmd.Env, childRead+"=1")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	told := map[string][]int{}
	scanner := bufio.NewScanner(out)
	for n := 0; scanner.Scan(); n++ {
		kind, number, _ := strings.Cut(scanner.Text(), " ")
		require.NotEqual(t, "error", kind, scanner.Text())
		i, _ := strconv.Atoi(number)
		told[kind] = append(told[kind], i)
		if n == lines {
			require.NoError(t, cmd.Process.Kill()) // what is in the pipe is still read
		}
	}
	require.Error(t, cmd.Wait())
	require.Contains(t, told, "open")
	return told
}

// E11, F37: what was acknowledged is there after kill -9, once.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	var acknowledged []int
	next := 0
	for range 10 {
		told := runAndKill(t, dir, next, rand.IntN(400), false)
		acknowledged = append(acknowledged, told["a"]...)
		list, found := visited(t, small(dir))
		require.True(t, found.Killed)
		require.Nil(t, found.Torn)
		require.Empty(t, found.Dropped)
		there := map[int]bool{}
		for _, n := range numbers(t, list) {
			require.False(t, there[n], "%d is there twice", n)
			there[n] = true
			next = max(next, n+1)
		}
		for _, n := range acknowledged {
			require.True(t, there[n], "%d was acknowledged", n)
		}
	}
}

// E10: what a reader did not commit is read again, and nothing is left out, over kills and deletions of segments.
func TestKillWithReaders(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[int]bool{}
	read := map[string]map[int]bool{"e": {}, "s": {}}
	next := 0
	for range 10 {
		told := runAndKill(t, dir, next, 3000+rand.IntN(6000), true)
		for _, n := range told["a"] {
			acknowledged[n] = true
		}
		for kind, seen := range read {
			for _, n := range told[kind] {
				seen[n] = true
			}
		}
		list, _ := visited(t, small(dir))
		there := numbers(t, list)
		next = max(next, slices.Max(append(there, next-1))+1)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(there))), len(there))
	}
	j, _ := openTest(t, small(dir))
	require.Greater(t, positionOfFirst(j), Position(1<<32), "the test is to cover deletions")
	for kind, name := range map[string]string{"e": "events", "s": "settlement"} {
		r := j.Reader(name)
		for _, e := range readAll(t, r, int(r.Lag())) {
			read[kind][number(t, e.Record)] = true
		}
		for n := range acknowledged {
			require.True(t, read[kind][n], "%s never got %d", name, n)
		}
	}
}

func positionOfFirst(j *Journal) Position {
	j.mu.Lock()
	defer j.mu.Unlock()
	return positionAt(j.mu.files[0].serial, 0)
}

func TestTwoNodesOnOneDirectory(t *testing.T) {
	dir := t.TempDir()
	openTest(t, small(dir))
	_, _, err := Open(small(dir))
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, strconv.Itoa(os.Getpid()))

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.Output()
	require.Error(t, err)
	require.Contains(t, string(out), ErrLocked.Error())
}

// copyNewestFirst copies a live log such that the copy is one that a kill could
// have left: an older segment's copy is never older than a newer one's.
func copyNewestFirst(t testing.TB, from string) (to string) {
	t.Helper()
	for {
		to = t.TempDir()
		err := tryCopy(t, from, to)
		if errors.Is(err, os.ErrNotExist) {
			continue // a segment was deleted meanwhile: begin again
		}
		require.NoError(t, err)
		return to
	}
}

func tryCopy(t testing.TB, from, to string) error {
	require.NoError(t, os.Mkdir(filepath.Join(to, dirName), 0o700))
	files, err := filepath.Glob(filepath.Join(from, dirName, "*"+cursorSuffix))
	require.NoError(t, err)
	newest := segments(t, from)
	slices.Reverse(newest)
	for _, path := range append(files, newest...) {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, dirName, filepath.Base(path)), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// The files of a log under load, copied at any instant, hold all that was acknowledged before.
func TestCopyAtRandomInstants(t *testing.T) {
	dir := t.TempDir()
	opt := small(dir)
	opt.MaxBytes = 64 << 20
	j, _ := openTest(t, opt)
	const writers = 3
	var acknowledged [writers]atomic.Int64 // writer w has appended w, w+writers, … below this
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for n := w; ctx.Err() == nil && n < 20_000; n += writers {
				if _, err := appendRetry(j, committed(n)); err != nil {
					t.Error(err)
					return
				}
				acknowledged[w].Store(int64(n + 1))
			}
		})
	}
	for range 12 {
		var before [writers]int64
		for w := range writers {
			before[w] = acknowledged[w].Load()
		}
		copied := small(copyNewestFirst(t, dir))
		copied.MaxBytes = opt.MaxBytes
		list, _ := visited(t, copied)
		there := map[int]bool{}
		for _, n := range numbers(t, list) {
			require.False(t, there[n])
			there[n] = true
		}
		for w := range writers {
			for n := w; n < int(before[w]); n += writers {
				require.True(t, there[n], "%d was acknowledged before the copy", n)
			}
		}
	}
	stop()
	all.Wait()
}

// TestHistories plays random histories with appenders that are interrupted
// between taking space and publishing, and compares what is found after a crash
// with a list.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "journal")
		require.NoError(t, err)
		defer func() { _ = os.RemoveAll(dir) }()
		h := history{dir: dir}
		h.open(t)
		defer func() {
			h.publishAll() // also where a step gave up: Close waits for those who took space
			_ = h.j.Close()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"append":  h.append,
			"claim":   h.claim,
			"publish": h.publish,
			"read":    h.read,
			"crash":   h.crash,
			"restart": h.restart,
		})
		h.publishAll()
		h.crash(t)
	})
}

// history is a journal beside a naive list of what is in it.
type history struct {
	dir     string
	j       *Journal
	next    int
	list    []kept    // published, in the order of positions
	pending []claimed // taken by appenders that do not come back for now
	cursor  [2]Cursor // committed
}

type kept struct {
	pos    Position // behind it
	number int
}

type claimed struct {
	kept
	s       *segment
	stripe  uintptr
	offset  uint32
	encoded []byte
}

func (h *history) open(t *rapid.T) {
	opt := small(h.dir)
	opt.Sync = SyncNever // the loop shows what is published; disks are for other tests
	var list []Entry
	opt.Visit = func(e Entry) error { list = append(list, e); return nil }
	noSync := realDisk()
	noSync.fsync, noSync.msync = func(*os.File) error { return nil }, func([]byte) error { return nil }
	opt.disk = &noSync
	j, found, err := Open(opt)
	require.NoError(t, err)
	require.Nil(t, found.Torn)
	h.j = j
	h.compare(t, list)
}

// compare checks that the log is the list, but for segments that both readers have passed.
func (h *history) compare(t *rapid.T, list []Entry) {
	oldest := min(h.cursor[0].Position, h.cursor[1].Position)
	var want []int
	for _, k := range h.list {
		want = append(want, k.number)
	}
	got := make([]int, 0, len(list))
	for _, e := range list {
		got = append(got, int(e.Record.(*Committed).SpentTotal))
	}
	require.LessOrEqual(t, len(got), len(want))
	gone := len(want) - len(got)
	require.Equal(t, want[gone:], append([]int(nil), got...))
	if gone > 0 {
		require.LessOrEqual(t, h.list[gone-1].pos, oldest, "what was deleted was passed")
	}
}

func (h *history) add(k kept) {
	i, _ := slices.BinarySearchFunc(h.list, k.pos, func(k kept, pos Position) int { return int(int64(k.pos) - int64(pos)) })
	h.list = slices.Insert(h.list, i, k)
}

// record has a random size, up to a whole segment's worth of texts.
func (h *history) record(t *rapid.T) Record {
	c := committed(h.next)
	h.next++
	for _, p := range []*string{&c.Model, &c.Route, &c.ClientRequestID} {
		*p = strings.Repeat("x", rapid.SampledFrom([]int{0, 1, 300, textBytesMax}).Draw(t, "bytes"))
	}
	return c
}

func (h *history) append(t *rapid.T) {
	for range rapid.IntRange(1, 30).Draw(t, "records") {
		r := h.record(t)
		pos, err := h.j.Append(r)
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			return
		}
		h.add(kept{pos, h.next - 1})
	}
}

func (h *history) claim(t *rapid.T) {
	if len(h.pending) > 5 {
		return
	}
	encoded := make([]byte, recordBytesMax)
	n, err := encode(encoded, h.record(t))
	require.NoError(t, err)
	s := h.j.current.Load()
	stripe := s.enter()
	offset, ok := s.claim(n)
	if !ok {
		s.leave(stripe)
		return
	}
	h.pending = append(h.pending, claimed{kept{positionAt(s.serial, offset+slotBytes(n)), h.next - 1}, s, stripe, offset, encoded[:n]})
}

func (h *history) publish(t *rapid.T) {
	if len(h.pending) > 0 {
		h.publishOne(rapid.IntRange(0, len(h.pending)-1).Draw(t, "which"))
	}
}

func (h *history) publishAll() {
	for len(h.pending) > 0 {
		h.publishOne(0)
	}
}

func (h *history) publishOne(i int) {
	c := h.pending[i]
	h.pending = slices.Delete(h.pending, i, i+1)
	c.s.fill(c.offset, c.encoded)
	c.s.leave(c.stripe)
	h.add(c.kept)
}

// read takes a batch if there is one and commits a part of it.
func (h *history) read(t *rapid.T) {
	which := rapid.IntRange(0, 1).Draw(t, "reader")
	r := h.j.readers[which]
	// Behind the last record that was read there may be the end of a segment and nothing more yet.
	from, synced := r.reading.next.Position, Position(h.j.synced.Load())
	if !slices.ContainsFunc(h.list, func(k kept) bool { return k.pos > from && k.pos <= synced }) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	batch, err := r.Next(ctx, rapid.IntRange(1, 100).Draw(t, "most"))
	require.NoError(t, err)
	for _, e := range batch {
		i, ok := slices.BinarySearchFunc(h.list, e.After.Position, func(k kept, pos Position) int { return int(int64(k.pos) - int64(pos)) })
		require.True(t, ok)
		require.EqualValues(t, h.list[i].number, e.Record.(*Committed).SpentTotal)
	}
	c := batch[rapid.IntRange(0, len(batch)-1).Draw(t, "commit")].After
	require.NoError(t, r.Commit(c))
	h.cursor[which] = c
}

// crash looks at a copy of the files as they are: what is pending is a hole there.
func (h *history) crash(t *rapid.T) {
	h.j.mu.Lock() // no segment comes or goes
	to, err := os.MkdirTemp("", "journal")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(to) }()
	err = os.CopyFS(to, os.DirFS(h.dir))
	h.j.mu.Unlock()
	if err != nil {
		t.Skip("a segment was deleted while it was copied")
	}
	var list []Entry
	found, err := recoverDir(to, func(e Entry) error { list = append(list, e); return nil })
	require.NoError(t, err)
	require.Nil(t, found.Torn)
	require.Empty(t, found.Dropped)
	h.compare(t, list)
}

func (h *history) restart(t *rapid.T) {
	h.publishAll()
	require.NoError(t, h.j.Close())
	h.open(t)
}

// recoverDir is Open's look at a directory, without what comes after it.
func recoverDir(dir string, visit func(Entry) error) (found Recovered, err error) {
	j := &Journal{dir: filepath.Join(dir, dirName), opt: Options{Dir: dir, Visit: visit}, disk: realDisk()}
	j.disk.fsync = func(*os.File) error { return nil }
	_, err = j.recover(&found)
	j.abandon()
	return found, err
}
