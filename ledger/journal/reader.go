package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// readerNames are the two readers; a segment goes when both have passed it.
var readerNames = [2]string{"settlement", "events"}

const (
	batchMost      = 10_000 // records in one batch
	readBytes      = 256 << 10
	batchBytesMost = 4 << 20 // of encoded records in one batch
)

// Cursor is a place between two records, as one reader counts them.
type Cursor struct {
	Position Position
	records  int64
}

// Entry is one record and where it stands.
type Entry struct {
	Record Record
	Origin Origin   // who wrote it
	Start  Position // names the record: no two have the same
	After  Cursor   // commit it when this and all earlier ones are done with
}

// Reader is one of the two readers of a journal. It gives only what is synced,
// so that neither Redis nor SQL ever knows more than the disk. Its place
// survives; what was read and not committed is read again after a restart.
type Reader struct {
	name string
	j    *Journal

	committed atomic.Uint64 // Position
	done      atomic.Int64  // records before it

	reading struct {
		sync.Mutex
		next   Cursor
		file   *os.File // of next's segment; nil: not open
		head   head
		buffer []byte
		err    error // final
	}
	cursor struct {
		sync.Mutex
		*cursorFile
	}
	older atomic.Uint64 // Position of the cursor's other slot
}

// Next gives the records after the last one it gave, at most `most` (and at
// most 10 000); it waits for the first. ErrClosed, the context's error, or
// ErrCorrupt, which stays: it stops there rather than skip anything. What a
// caller could not use it must keep: Next does not go back.
func (r *Reader) Next(ctx context.Context, most int) ([]Entry, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	for {
		changed := r.j.changes()
		if r.reading.err != nil {
			return nil, r.reading.err
		}
		select {
		case <-r.j.stop:
			return nil, ErrClosed
		default:
		}
		batch, err := r.read(min(max(most, 1), batchMost), Position(r.j.synced.Load()))
		if err != nil {
			r.reading.err = err
		}
		if len(batch) > 0 {
			return batch, nil // an error comes with the next call
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.j.stop:
			return nil, ErrClosed
		}
	}
}

// read gives records up to a position.
func (r *Reader) read(most int, limit Position) (batch []Entry, err error) {
	bytes := 0
	for r.reading.next.Position < limit && len(batch) < most && bytes < batchBytesMost {
		data, err := r.load(limit)
		if err != nil {
			return batch, err
		}
		for whole := len(data); len(batch) < most; {
			here := r.reading.next.Position
			at := slotAt(data, r.reading.head.key, here.Offset())
			if at.state == stateBad && len(data) < whole {
				break // perhaps only cut by the buffer: look again from there
			}
			entry, err := r.take(at, here)
			if err != nil {
				return batch, err
			}
			if entry.Record != nil {
				batch = append(batch, entry)
			}
			bytes += int(at.bytes)
			if r.reading.next.Position >= limit || at.state == stateEnd {
				break
			}
			data = data[at.bytes:]
			if len(data) == 0 {
				break
			}
		}
	}
	return batch, nil
}

// take goes over one slot.
func (r *Reader) take(at slot, here Position) (e Entry, err error) {
	next := &r.reading.next
	switch at.state {
	case stateEnd:
		next.Position = positionAt(here.Segment()+1, headBytes)
		return e, r.leaveFile()
	case stateReserved:
		next.Position += Position(at.bytes)
		return e, nil
	case statePublished:
		record, err := decode(at.payload)
		if err != nil {
			return e, &CorruptError{File: r.path(here.Segment()), Offset: int64(here.Offset()), Reason: err.Error()}
		}
		next.Position += Position(at.bytes)
		next.records++
		return Entry{Record: record, Origin: r.reading.head.origin, Start: here, After: *next}, nil
	case stateNothing:
		return e, &CorruptError{File: r.path(here.Segment()), Offset: int64(here.Offset()), Reason: "nothing where a synced record was"}
	default:
		return e, &CorruptError{File: r.path(here.Segment()), Offset: int64(here.Offset()), Reason: at.reason}
	}
}

func (r *Reader) path(serial uint64) string { return filepath.Join(r.j.dir, segmentName(serial)) }

// load reads the segment from the next record on. In the segment that is
// still written it stops at the limit.
func (r *Reader) load(limit Position) ([]byte, error) {
	rd := &r.reading
	pos := rd.next.Position
	if rd.file == nil {
		if err := r.enterFile(pos.Segment()); err != nil {
			return nil, err
		}
	}
	size := readBytes
	if pos.Segment() == limit.Segment() {
		size = min(size, int(limit.Offset()-pos.Offset()))
	}
	if rd.buffer == nil {
		rd.buffer = make([]byte, readBytes)
	}
	n, err := rd.file.ReadAt(rd.buffer[:size], int64(pos.Offset()))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return rd.buffer[:n], nil
}

func (r *Reader) enterFile(serial uint64) error {
	file, err := os.Open(r.path(serial))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	b := make([]byte, headBytes)
	if _, err = io.ReadFull(file, b); err == nil {
		r.reading.head, _, err = decodeHead(b)
	}
	if err != nil {
		_ = file.Close()
		return &CorruptError{File: r.path(serial), Reason: err.Error()}
	}
	r.reading.file = file
	return nil
}

func (r *Reader) leaveFile() error {
	file := r.reading.file
	r.reading.file = nil
	if file == nil {
		return nil
	}
	return file.Close()
}

// Commit makes it durable that all before the cursor is done with. Segments
// that both readers have passed are deleted. After an error the last good
// commit counts; it may be tried again. ErrCursor: before the last commit, or
// not read yet.
func (r *Reader) Commit(c Cursor) error {
	r.cursor.Lock()
	defer r.cursor.Unlock()
	if r.j.current.Load() == nil {
		return ErrClosed
	}
	if c.Position < r.cursor.slot.pos || uint64(c.Position) > r.j.synced.Load() {
		return fmt.Errorf("%w: %v, committed %v, synced %v", ErrCursor, c.Position, r.cursor.slot.pos, Position(r.j.synced.Load()))
	}
	if c.Position == r.cursor.slot.pos {
		return nil
	}
	if err := r.cursor.store(c.Position); err != nil {
		return fmt.Errorf("journal: cursor %s: %w", r.name, err)
	}
	r.committed.Store(uint64(c.Position))
	r.done.Store(c.records)
	r.older.Store(uint64(r.cursor.older))
	wake(r.j.demandSweep)
	return nil
}

// Lag is how many synced records the reader has not committed.
func (r *Reader) Lag() int64 { return r.j.records.Load() - r.done.Load() }

// passed is the serial of the oldest segment that either slot of the cursor
// still needs: a torn slot must not leave the reader in a file that is gone.
func (r *Reader) passed() uint64 {
	return min(Position(r.committed.Load()), Position(r.older.Load())).Segment()
}

func (r *Reader) close() {
	r.reading.Lock()
	_ = r.leaveFile()
	r.reading.Unlock()
	r.cursor.Lock()
	defer r.cursor.Unlock()
	if r.cursor.cursorFile != nil && r.cursor.file != nil {
		_ = r.cursor.file.Close()
	}
}
