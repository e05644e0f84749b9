package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// The words of Options.Sync; the same numbers as in the configuration.
const (
	SyncAlways time.Duration = 0  // before every answer
	SyncNever  time.Duration = -1 // left to the operating system
)

// Bounds of Options, and what is kept ready.
const (
	syncMost        = time.Minute
	segmentBytesMin = 128 << 10
	segmentBytesMax = 256 << 20
	// segmentBytesAuto is the default. Larger is rotated less often; smaller is given back sooner, and costs
	// less to make at start. The whole bound is at least segmentsMin segments.
	segmentBytesAuto = 16 << 20
	segmentsMin      = 6
	maxBytesDefault  = 4 << 30

	// sparesWanted is how many segments stand ready behind the one in use. Calls are admitted while there are
	// sparesAdmit; the ends of running ones may use all but sparesCarry, which is kept for Options.Carry, without
	// which nothing could be deleted.
	sparesWanted = 3
	sparesAdmit  = 2
	sparesCarry  = 1
)

// Options of a journal.
type Options struct {
	// Dir is the node's data directory. The journal locks it, and lives in a folder of it.
	Dir string
	// Node and Region are noted in each segment and come back with each record. At most 64 bytes.
	Node, Region string
	// Sync is the time between two syncs: 1 ms … 1 min, SyncAlways or SyncNever. It bounds what a loss of power
	// costs. Shorter costs disk writes. With SyncNever a record counts as synced once it is appended.
	Sync time.Duration
	// MaxBytes bounds all segments together, those ready for use included. Default 4 GiB. Too low refuses calls in
	// a short outage of SQL, too high fills the disk.
	MaxBytes int64
	// SegmentBytes is the size of one segment, 128 KiB … 256 MiB. Default 16 MiB, less if MaxBytes is small.
	SegmentBytes int64
	// Visit sees every record that is still there, oldest first, before Open returns; an error ends Open. Nil: none.
	Visit func(Entry) error
	// Carry is called before segments that both readers have passed are deleted, and emits what must outlive them:
	// a Head for each tab whose totals are not confirmed, the Reserved and last Progress of each call that runs.
	// What has ended must be marked as such before its end is appended, and must not be emitted after that mark:
	// then no call can look open whose end is gone. An error puts the deletion off. Nil: nothing needs carrying.
	Carry func(emit func(Record) error) error

	disk *disk // tests only
}

// Epoch is one life of a node: no two are equal, and a later one of the same
// directory has a later start.
type Epoch struct {
	StartMillis int64 // ms since 1970
	Random      uint64
}

func (e Epoch) String() string { return fmt.Sprintf("%d-%016x", e.StartMillis, e.Random) }

// Origin says who wrote a record.
type Origin struct {
	Epoch  Epoch
	Node   string
	Region string
}

// Journal is one node's log. Safe for concurrent use.
type Journal struct {
	opt    Options
	dir    string
	disk   disk
	lock   *os.File
	origin Origin

	current atomic.Pointer[segment] // nil: closed
	state   atomic.Uint32           // bits below
	ready   atomic.Int32            // spares behind current
	cause   atomic.Pointer[error]   // why it is broken

	synced   atomic.Uint64 // Position up to which readers may read
	wanted   atomic.Uint64 // Position that somebody waits for
	records  atomic.Int64  // synced records, those found at Open included
	sync     frontier      // the sync loop's own
	last     *segment      // the newest spare; the spare loop's own
	shortage bool          // a shortage was logged; the spare loop's own
	fill     fill          // the sweep loop's own

	demandSync, demandSpare, demandSweep chan struct{} // capacity 1: a wake-up, never a wait

	readers [2]*Reader
	stop    chan struct{} // closed: the loops end
	drained chan struct{} // closed: the last sync is done
	loops   sync.WaitGroup
	closed  sync.Once
	closing error

	mu struct {
		sync.Mutex
		changed chan struct{} // closed and replaced when synced or state changes
		files   []file        // oldest first, spares last
		carried uint64        // segments up to this serial need no more carrying
		idle    uint64        // segments up to this serial have no appender left
	}
}

// file is one segment on disk.
type file struct {
	serial uint64
	bytes  int64
}

// Bits of Journal.state.
const (
	stateFull   = 1 << iota // fewer spares than sparesAdmit
	stateFailed             // a sync failed: admissions are refused, ends are still taken
	stateFault              // a store into a mapping faulted: nothing is taken
)

// Open takes the data directory, checks all that is there, and begins a new
// segment and epoch. It fails rather than skip a record: ErrLocked, ErrNewer,
// ErrCorrupt (a *CorruptError says where), or an error of the disk. A torn tail
// is cut off and reported in Recovered. Close it.
func Open(opt Options) (*Journal, Recovered, error) {
	if err := opt.complete(); err != nil {
		return nil, Recovered{}, err
	}
	j := &Journal{
		opt: opt, dir: filepath.Join(opt.Dir, dirName), disk: realDisk(),
		demandSync: make(chan struct{}, 1), demandSpare: make(chan struct{}, 1), demandSweep: make(chan struct{}, 1),
		stop: make(chan struct{}), drained: make(chan struct{}),
	}
	if opt.disk != nil {
		j.disk = *opt.disk
	}
	j.mu.changed = make(chan struct{})
	found, err := j.open()
	if err != nil {
		j.abandon()
		return nil, found, err
	}
	j.loops.Go(j.syncLoop)
	j.loops.Go(j.spareLoop)
	j.loops.Go(j.sweepLoop)
	return j, found, nil
}

func (o *Options) complete() error {
	if o.MaxBytes == 0 {
		o.MaxBytes = maxBytesDefault
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = min(segmentBytesAuto, max(segmentBytesMin, o.MaxBytes/16)) &^ 4095
	}
	switch {
	case o.Dir == "":
		return fmt.Errorf("%w: Dir is empty", ErrOptions)
	case len(o.Node) > nameBytesMax || len(o.Region) > nameBytesMax:
		return fmt.Errorf("%w: Node and Region have at most %d bytes", ErrOptions, nameBytesMax)
	case o.Sync != SyncAlways && o.Sync != SyncNever && (o.Sync < time.Millisecond || o.Sync > syncMost):
		return fmt.Errorf("%w: Sync is %v, want 1ms … %v, SyncAlways or SyncNever", ErrOptions, o.Sync, syncMost)
	case o.SegmentBytes < segmentBytesMin || o.SegmentBytes > segmentBytesMax || o.SegmentBytes%4096 != 0:
		return fmt.Errorf("%w: SegmentBytes is %d, want %d … %d in whole pages", ErrOptions, o.SegmentBytes, segmentBytesMin, segmentBytesMax)
	case o.MaxBytes < segmentsMin*o.SegmentBytes:
		return fmt.Errorf("%w: MaxBytes is %d, want at least %d segments of %d", ErrOptions, o.MaxBytes, segmentsMin, o.SegmentBytes)
	}
	return nil
}

func (j *Journal) open() (found Recovered, err error) {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return found, fmt.Errorf("journal: %w", err)
	}
	if j.lock, err = lockDir(j.opt.Dir); err != nil {
		return found, err
	}
	next, err := j.recover(&found)
	if err != nil {
		return found, err
	}
	j.origin = Origin{Epoch: newEpoch(time.Now(), found.LastEpoch), Node: j.opt.Node, Region: j.opt.Region}
	s, err := j.newSegment(next)
	if err != nil {
		return found, fmt.Errorf("journal: cannot begin a segment: %w", err)
	}
	j.last = s
	j.sync = frontier{seg: s, offset: headBytes}
	j.current.Store(s)
	j.synced.Store(uint64(positionAt(s.serial, headBytes)))
	j.prepare()
	j.gauge(time.Now())
	return found, nil
}

// newEpoch is later than the last one even if the clock went back.
func newEpoch(now time.Time, last Epoch) Epoch {
	return Epoch{StartMillis: max(now.UnixMilli(), last.StartMillis+1), Random: random64()}
}

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// newSegment makes the segment of the serial and lists its file.
func (j *Journal) newSegment(serial uint64) (*segment, error) {
	s, err := j.disk.makeSegment(j.dir, head{
		bytes: uint32(j.opt.SegmentBytes), serial: serial, key: random64(), lazy: j.opt.Sync == SyncNever, origin: j.origin,
	})
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	j.mu.files = append(j.mu.files, file{serial, int64(s.bytes)})
	j.mu.Unlock()
	return s, nil
}

// Epoch is this life of the node. It was durable before Open returned.
func (j *Journal) Epoch() Epoch { return j.origin.Epoch }

// Reader gives one of the two named readers, "settlement" and "events".
func (j *Journal) Reader(name string) *Reader {
	for _, r := range j.readers {
		if r.name == name {
			return r
		}
	}
	panic("BUG: journal: no reader " + name)
}

// Err is nil while calls may be admitted, else ErrFull, ErrBroken (with its
// cause) or ErrClosed. It costs one load; ask it before each admission.
func (j *Journal) Err() error {
	state := j.state.Load()
	switch {
	case j.current.Load() == nil:
		return ErrClosed
	case state == 0:
		return nil
	case state&(stateFailed|stateFault) != 0:
		return j.broken()
	default:
		return ErrFull
	}
}

// broken is nil, or ErrBroken with its cause.
func (j *Journal) broken() error {
	if cause := j.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// fail breaks the journal for good.
func (j *Journal) fail(bit uint32, cause error) {
	err := fmt.Errorf("%w: %w", ErrBroken, cause)
	if j.cause.CompareAndSwap(nil, &err) {
		slog.Error("the journal is broken: calls are refused until the node is restarted", "directory", j.dir, "error", cause)
	}
	j.state.Or(bit)
	j.broadcast()
}

// broadcast wakes all who wait for synced or state to change.
func (j *Journal) broadcast() {
	j.mu.Lock()
	close(j.mu.changed)
	j.mu.changed = make(chan struct{})
	j.mu.Unlock()
}

func (j *Journal) changes() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.changed
}

// wake makes a loop look again; never blocks.
func wake(demand chan struct{}) {
	select {
	case demand <- struct{}{}:
	default:
	}
}

// Close syncs what was appended, ends the segment, and gives the directory
// back. Appends that began earlier are in; later ones get ErrClosed.
func (j *Journal) Close() error {
	j.closed.Do(func() {
		j.current.Store(nil)
		close(j.stop)
		j.loops.Wait()
		j.closing = j.finish()
		j.broadcast()
	})
	return j.closing
}

// finish brings the files into the form of a clean end. The loops have ended.
func (j *Journal) finish() error {
	var errs []error
	last := j.sync.seg
	defer j.guard(&last)()
	if err := j.broken(); err != nil {
		errs = append(errs, err) // the files stay as they are: recovery writes them again
	} else {
		last.seal()
		end := last.tail.Load() + wordBytes
		if err := j.disk.msync(last.data[:end]); err != nil {
			errs = append(errs, err)
		} else {
			last.setMark(end)
			errs = append(errs, last.file.Truncate(int64(end)), j.disk.fsync(last.file))
		}
	}
	for s := last.next.Load(); s != nil; s = s.next.Load() {
		if j.sync.used(s) {
			continue
		}
		errs = append(errs, os.Remove(s.path))
	}
	j.abandon()
	return errors.Join(errs...)
}

// abandon lets go of mappings, files and the lock.
func (j *Journal) abandon() {
	for _, s := range j.sync.retiring {
		_ = s.unmap()
	}
	for s := j.sync.seg; s != nil; s = s.next.Load() {
		_ = s.unmap()
	}
	for _, r := range j.readers {
		if r != nil {
			r.close()
		}
	}
	if j.lock != nil {
		_ = j.lock.Close()
	}
}
