package journal

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// tickAlways is how often records that nobody waits for are synced with SyncAlways, and how often
	// appended ones are shown to the readers with SyncNever.
	tickAlways = 10 * time.Millisecond
	// stallSpins and stallPause: an appender may be interrupted between taking space and publishing. Who waits for
	// a record behind it lets it run, first by yielding, then by pauses.
	stallSpins = 64
	stallPause = 50 * time.Microsecond
	// markEvery is how long a mark may be older on disk than what is synced.
	markEvery = time.Second
)

// frontier is how far the log is published without a gap. Only the sync loop
// moves it, and Close after that loop has ended.
type frontier struct {
	seg      *segment
	offset   uint32
	retiring []*segment // synced and ended, but perhaps with a late appender inside
	marked   bool       // the mark on disk is that of the last sync
	markedAt time.Time
}

// advance walks over what is published. It gives the segments that it went
// through, each to be synced up to its frontier, and how many records it saw.
func (f *frontier) advance() (through []*segment, records int64) {
	through = append(through, f.seg)
	for {
		word := atomic.LoadUint64(f.seg.word(f.offset))
		switch stateOf(word) {
		case statePublished:
			f.offset += slotBytes(lengthOf(word))
			records++
		case stateEnd:
			next := f.seg.next.Load()
			if next == nil {
				return through, records // ended by Close
			}
			f.seg.tail.Store(f.offset)
			f.retiring = append(f.retiring, f.seg)
			f.seg, f.offset = next, headBytes
			through = append(through, next)
		default:
			return through, records // nothing, or an appender at work
		}
	}
}

// used says that a segment behind the frontier's may hold records: an appender
// stalled for so long that the frontier has not reached it.
func (f *frontier) used(s *segment) bool {
	return atomic.LoadUint64(s.word(headBytes)) != 0
}

func (j *Journal) syncLoop() {
	every := j.opt.Sync
	if every <= 0 {
		every = tickAlways
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-j.demandSync:
		case <-ticker.C:
		case <-j.stop:
			j.drain()
			close(j.drained)
			return
		}
		j.syncOnce()
		// Whoever came while the disk was at work is served at once, all together.
		for stalls := 0; j.wanted.Load() > j.synced.Load() && j.broken() == nil; stalls++ {
			if j.syncOnce() {
				stalls = 0
				continue
			}
			yield(stalls)
		}
	}
}

func yield(stalls int) {
	if stalls < stallSpins {
		runtime.Gosched()
		return
	}
	time.Sleep(stallPause)
}

// drain syncs all that was appended before Close. No append begins any more;
// one that has begun is waited for.
func (j *Journal) drain() {
	left := func(s *segment) {
		for stalls := 0; !s.empty(); stalls++ {
			yield(stalls)
		}
	}
	for _, s := range j.sync.retiring {
		left(s)
	}
	for s := j.sync.seg; s != nil; s = s.next.Load() {
		left(s)
	}
	for j.broken() == nil && j.syncOnce() {
	}
}

// syncOnce brings what is published to the disk and shows it to the readers.
// False: there was nothing new.
func (j *Journal) syncOnce() (more bool) {
	if j.broken() != nil {
		return false
	}
	f := &j.sync
	defer j.guard(&f.seg)()
	through, records := f.advance()
	now := positionAt(f.seg.serial, f.offset)
	if uint64(now) == j.synced.Load() {
		j.refreshMark()
		j.retire()
		return false
	}
	if !j.opt.lazy() {
		begin := time.Now()
		for _, s := range through {
			if err := j.syncSegment(s); err != nil {
				j.fail(stateFailed, err)
				return false
			}
		}
		syncSeconds.UpdateDuration(begin)
		f.marked = false
	}
	j.records.Add(records)
	j.synced.Store(uint64(now))
	j.broadcast()
	j.retire()
	return true
}

// guard is deferred by who touches a mapping outside of Append: a fault there
// breaks the journal instead of ending the process. seg is what is touched at
// the time of the fault.
func (j *Journal) guard(seg **segment) (end func()) {
	fatal := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(fatal)
		cause := recover()
		if cause == nil {
			return
		}
		fault := asFault((*seg).data, cause)
		if fault == nil {
			panic(cause)
		}
		j.fail(stateFault, fmt.Errorf("%s: %w", (*seg).path, fault))
	}
}

func (o *Options) lazy() bool { return o.Sync == SyncNever }

// syncSegment syncs a segment up to the frontier, or whole if the frontier is
// behind it, and notes that in its head, which lies in the range that the next
// sync writes.
func (j *Journal) syncSegment(s *segment) error {
	end := s.tail.Load() + wordBytes // of an ended one; advance has set its tail
	if s == j.sync.seg {
		end = j.sync.offset
	}
	if err := j.disk.msync(s.data[:end]); err != nil {
		return fmt.Errorf("sync %s: %w", s.path, err)
	}
	s.setMark(end)
	return nil
}

// refreshMark brings the last mark to the disk when the log has come to rest.
func (j *Journal) refreshMark() {
	f := &j.sync
	now := time.Now()
	if f.marked || j.opt.lazy() || now.Sub(f.markedAt) < markEvery {
		return
	}
	if err := j.disk.msync(f.seg.data[:headBytes]); err != nil {
		j.fail(stateFailed, fmt.Errorf("sync %s: %w", f.seg.path, err))
		return
	}
	f.marked, f.markedAt = true, now
}

// retire unmaps ended segments that have no appender left.
func (j *Journal) retire() {
	f := &j.sync
	kept := f.retiring[:0]
	for i, s := range f.retiring {
		if s == j.current.Load() || !s.empty() {
			kept = append(kept, f.retiring[i:]...) // in order: what is idle is a prefix
			break
		}
		if err := s.unmap(); err != nil {
			slog.Warn("a full segment of the journal could not be let go", "file", s.path, "error", err)
		}
		j.mu.Lock()
		j.mu.idle = s.serial
		j.mu.Unlock()
		wake(j.demandSweep)
	}
	clear(f.retiring[len(kept):])
	f.retiring = kept
}

// WaitSynced returns when all up to the position is on disk: nil, ErrBroken,
// ErrClosed or the context's error. Waiters share syncs: one begins as soon as
// somebody waits, and takes all that was appended while the last one ran.
// With SyncNever it waits for the readers' view only.
func (j *Journal) WaitSynced(ctx context.Context, pos Position) error {
	for {
		changed := j.changes()
		if j.synced.Load() >= uint64(pos) {
			return nil
		}
		if err := j.broken(); err != nil {
			return err
		}
		for {
			wanted := j.wanted.Load()
			if wanted >= uint64(pos) || j.wanted.CompareAndSwap(wanted, uint64(pos)) {
				break
			}
		}
		wake(j.demandSync)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-j.stop:
			return j.waitClosed(pos)
		}
	}
}

// waitClosed waits for Close's own sync.
func (j *Journal) waitClosed(pos Position) error {
	<-j.drained
	if j.synced.Load() >= uint64(pos) {
		return nil
	}
	if err := j.broken(); err != nil {
		return err
	}
	return ErrClosed
}

// BeforeAnswer waits as the configuration asks before a client is answered:
// for the disk with SyncAlways, else not at all.
func (j *Journal) BeforeAnswer(ctx context.Context, pos Position) error {
	if j.opt.Sync != SyncAlways {
		return nil
	}
	return j.WaitSynced(ctx, pos)
}
