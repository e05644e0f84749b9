package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Recovered is what Open found.
type Recovered struct {
	Segments  int
	Records   int
	Holes     int      // space of appends that had not returned when the process died; nothing was lost with them
	Killed    bool     // the last run did not end by Close
	LastEpoch Epoch    // the newest one there; zero: none
	Torn      *Tear    // nil: none
	Dropped   []string // files of unsynced segments behind a tear; only a loss of power leaves some
	// Restarted are readers whose cursor was gone or lay in what a loss of power took with SyncNever: they read all again.
	Restarted []string
}

// Tear is an unsynced tail that was cut off.
type Tear struct {
	File   string
	Offset int64 // of the cut, in bytes
	Bytes  int64 // from the cut to the last byte that is not zero
	Reason string
}

// candidate is a segment that recovery looks at.
type candidate struct {
	head
	path   string
	mark   uint32
	synced uint32 // evidence that all before it was synced
	whole  bool   // evidence that all of it was
	scanned
}

// recovery is the state of one pass over a directory.
type recovery struct {
	j       *Journal
	found   *Recovered
	list    []*candidate // oldest first
	cursors [2]struct {
		*cursorFile
		records int64 // before it
		placed  bool  // it points between two records
	}
	buffer []byte
}

// recover checks the directory, cuts a torn tail, ends all segments, opens the
// cursors, and says which serial the next segment has.
func (j *Journal) recover(found *Recovered) (next uint64, err error) {
	r := recovery{j: j, found: found}
	serials, err := r.tidy()
	if err != nil {
		return 0, err
	}
	if err := r.openCursors(serials); err != nil {
		return 0, err
	}
	if serials, err = r.contiguous(serials); err != nil {
		return 0, err
	}
	if err := r.readHeads(serials); err != nil {
		return 0, err
	}
	r.weigh()
	if err := r.scanAll(); err != nil {
		return 0, err
	}
	if next, err = r.settle(serials); err != nil {
		return 0, err
	}
	return next, r.placeCursors(next)
}

// tidy removes what was never finished and lists the segments.
func (r *recovery) tidy() (serials []uint64, err error) {
	entries, err := os.ReadDir(r.j.dir)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), newSuffix) {
			if err := os.Remove(filepath.Join(r.j.dir, e.Name())); err != nil {
				return nil, fmt.Errorf("journal: %w", err)
			}
		}
		if serial, ok := parseSegmentName(e.Name()); ok {
			serials = append(serials, serial)
		}
	}
	slices.Sort(serials)
	return serials, nil
}

func (r *recovery) openCursors(serials []uint64) error {
	start := positionAt(1, headBytes)
	if len(serials) > 0 {
		start = positionAt(serials[0], headBytes)
	}
	for i, name := range readerNames {
		c, had, err := openCursor(r.j.disk, r.j.dir, name, start)
		if err != nil {
			return fmt.Errorf("journal: cursor %s: %w", name, err)
		}
		r.cursors[i].cursorFile = c
		reader := &Reader{name: name, j: r.j}
		reader.cursor.cursorFile = c
		r.j.readers[i] = reader
		if !had && len(serials) > 0 {
			r.found.Restarted = append(r.found.Restarted, name)
		}
	}
	return nil
}

// contiguous insists that every segment which a cursor may still need is there.
// A gap below that is a deletion which a loss of power undid in part.
func (r *recovery) contiguous(serials []uint64) ([]uint64, error) {
	low := Position(1<<64 - 1)
	for _, c := range r.cursors {
		low = min(low, c.slot.pos, c.older)
	}
	for i := len(serials) - 1; i > 0; i-- {
		if serials[i]-serials[i-1] == 1 {
			continue
		}
		if serials[i] > low.Segment() {
			return nil, r.missing(serials[i] - 1)
		}
		for _, serial := range serials[:i] {
			if err := os.Remove(r.path(serial)); err != nil {
				return nil, fmt.Errorf("journal: %w", err)
			}
		}
		serials = serials[i:]
		break
	}
	switch {
	case len(serials) > 0 && serials[0] > low.Segment():
		return nil, r.missing(serials[0] - 1)
	case len(serials) == 0:
		// Legal only when the one segment there was had no record yet.
		for _, c := range r.cursors {
			if c.slot.pos.Offset() != headBytes || c.slot.pos.Segment() != r.cursors[0].slot.pos.Segment() {
				return nil, r.missing(low.Segment())
			}
		}
	}
	return serials, nil
}

func (r *recovery) path(serial uint64) string { return filepath.Join(r.j.dir, segmentName(serial)) }

func (r *recovery) missing(serial uint64) error {
	return &CorruptError{File: r.path(serial), Reason: "segment is missing"}
}

func (r *recovery) readHeads(serials []uint64) error {
	for _, serial := range serials {
		c := &candidate{path: r.path(serial)}
		data, err := r.read(c.path, headBytes)
		if err != nil {
			return err
		}
		if c.head, c.mark, err = decodeHead(data); err != nil {
			if errors.Is(err, ErrCorrupt) {
				return &CorruptError{File: c.path, Reason: err.Error()}
			}
			return fmt.Errorf("%s: %w", c.path, err)
		}
		if c.serial != serial {
			return &CorruptError{File: c.path, Reason: fmt.Sprintf("the file is segment %d under another name", c.serial)}
		}
		r.list = append(r.list, c)
		r.found.LastEpoch = c.origin.Epoch
	}
	return nil
}

// weigh gathers the evidence of what was synced: the segment's own mark; a
// cursor, since readers get only what is synced; anything synced in a later
// segment; a later epoch, which begins after all earlier segments were synced.
// Of a segment written with SyncNever only its own mark counts.
func (r *recovery) weigh() {
	later := false
	for i := len(r.list) - 1; i >= 0; i-- {
		c := r.list[i]
		c.synced = c.mark
		if i+1 < len(r.list) && r.list[i+1].origin.Epoch != c.origin.Epoch {
			later = true
		}
		for _, cursor := range r.cursors {
			switch pos := cursor.slot.pos; {
			case pos.Segment() == c.serial && !c.lazy:
				c.synced = max(c.synced, pos.Offset())
			case pos.Segment() > c.serial:
				later = true
			}
		}
		c.whole = later && !c.lazy
		later = later || c.mark > headBytes
	}
}

// read reads a file, or its first bytes, into the shared buffer.
func (r *recovery) read(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	size := min(info.Size(), most)
	if int64(cap(r.buffer)) < size {
		r.buffer = make([]byte, size)
	}
	data := r.buffer[:size]
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("journal: read %s: %w", path, err)
	}
	return data, nil
}

// scanAll walks all segments, oldest first, and ends each. Behind one that
// does not end by itself nothing counts.
func (r *recovery) scanAll() error {
	for i, c := range r.list {
		data, err := r.read(c.path, segmentBytesMax)
		if err != nil {
			return err
		}
		if c.scanned, err = scan(data, c.key, func(payload []byte, start, end uint32) error { return r.visit(c, payload, start, end) }); err != nil {
			return err
		}
		if err := c.damage(); err != nil {
			return err
		}
		r.found.Holes += c.holes
		r.found.Segments++
		if !c.sealed {
			r.found.Killed = true
			if err := r.cut(c, data, r.list[i+1:]); err != nil {
				return err
			}
		}
		if err := r.finish(c, data); err != nil {
			return fmt.Errorf("journal: recover %s: %w", c.path, err)
		}
		if !c.sealed {
			r.list = r.list[:i+1]
			return nil
		}
	}
	return nil
}

// damage is an error if something is not good that was synced.
func (c *candidate) damage() error {
	reason := c.reason
	switch {
	case c.sealed && c.synced <= c.end+wordBytes, !c.sealed && !c.whole && c.synced <= c.end:
		return nil
	case c.sealed:
		reason = "the segment ends before what was synced"
	case reason == "":
		reason = "nothing where a synced record was"
	}
	return &CorruptError{File: c.path, Offset: int64(c.end), Reason: reason}
}

func (r *recovery) visit(c *candidate, payload []byte, start, end uint32) error {
	record, err := decode(payload)
	if errors.Is(err, ErrNewer) {
		return fmt.Errorf("%s at offset %d: %w", c.path, start, err)
	}
	if err != nil {
		return &CorruptError{File: c.path, Offset: int64(start), Reason: err.Error()}
	}
	r.found.Records++
	after := Cursor{positionAt(c.serial, end), int64(r.found.Records)}
	for i := range r.cursors {
		cursor := &r.cursors[i]
		if after.Position <= cursor.slot.pos {
			cursor.records = after.records
		}
		cursor.placed = cursor.placed || after.Position == cursor.slot.pos
	}
	if r.j.opt.Visit == nil {
		return nil
	}
	return r.j.opt.Visit(Entry{Record: record, Origin: c.origin, Start: positionAt(c.serial, start), After: after})
}

// cut reports what lies behind the last good record of the last segment that counts.
func (r *recovery) cut(c *candidate, data []byte, behind []*candidate) error {
	last := len(data)
	for last > int(c.end) && data[last-1] == 0 {
		last--
	}
	if last > int(c.end) {
		reason := c.reason
		if reason == "" {
			reason = "a page before it was not written"
		}
		r.found.Torn = &Tear{File: c.path, Offset: int64(c.end), Bytes: int64(last) - int64(c.end), Reason: reason}
	}
	for _, b := range behind {
		var first [wordBytes]byte
		if err := readAt(b.path, first[:], headBytes); err != nil {
			return err
		}
		if first != [wordBytes]byte{} {
			r.found.Dropped = append(r.found.Dropped, b.path)
		}
	}
	// The youngest first: a crash in between must not leave a gap.
	for _, b := range slices.Backward(behind) {
		if err := os.Remove(b.path); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
	}
	return nil
}

func readAt(path string, b []byte, offset int64) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.ReadAt(b, offset); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// finish makes a segment whole and synced, with an end behind its last record.
// What lies beyond the mark is written again first: if writing it failed
// before, the kernel takes its pages for clean and a sync alone would not
// bring them to the disk.
func (r *recovery) finish(c *candidate, data []byte) error {
	end := c.end + wordBytes
	if c.sealed && c.mark == end && len(data) == int(end) {
		return nil
	}
	f, err := os.OpenFile(c.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	from := min(c.mark, c.end)
	if _, err := f.WriteAt(data[from:c.end], int64(from)); err != nil {
		return err
	}
	word := make([]byte, wordBytes)
	binary.NativeEndian.PutUint64(word, bareWord(c.key, c.end, stateEnd, 0))
	if _, err := f.WriteAt(word, int64(c.end)); err != nil {
		return err
	}
	if err := r.j.disk.fsync(f); err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(word, markWord(c.key, end))
	if _, err := f.WriteAt(word, markOffset); err != nil {
		return err
	}
	if err := f.Truncate(int64(end)); err != nil {
		return err
	}
	return r.j.disk.fsync(f)
}

// settle drops a last segment that holds nothing, lists the others, and gives
// the serial that comes next.
func (r *recovery) settle(serials []uint64) (next uint64, err error) {
	next = r.cursors[0].slot.pos.Segment()
	if len(serials) > 0 {
		next = serials[0]
	}
	for i, c := range r.list {
		if i == len(r.list)-1 && c.end == headBytes {
			if err := os.Remove(c.path); err != nil {
				return 0, fmt.Errorf("journal: %w", err)
			}
			break
		}
		next = c.serial + 1
		r.j.mu.files = append(r.j.mu.files, file{c.serial, int64(c.end + wordBytes)})
	}
	r.j.mu.idle = next - 1
	r.j.records.Store(int64(r.found.Records))
	return next, r.j.disk.syncDir(r.j.dir)
}

// placeCursors starts the readers. A cursor points behind a record, or to the
// begin of a segment.
func (r *recovery) placeCursors(next uint64) error {
	for i, reader := range r.j.readers {
		c := &r.cursors[i]
		pos := c.slot.pos
		switch {
		case c.placed:
		case pos.Offset() == headBytes && pos.Segment() <= next:
		case len(r.list) > 0 && r.list[len(r.list)-1].lazy && pos >= positionAt(next-1, r.list[len(r.list)-1].end):
			// SyncNever, and the power went: what it had read is gone.
			pos, c.records = positionAt(next, headBytes), int64(r.found.Records)
			if err := c.store(pos); err != nil {
				return fmt.Errorf("journal: cursor %s: %w", reader.name, err)
			}
			r.found.Restarted = append(r.found.Restarted, reader.name)
		default:
			return &CorruptError{File: c.path, Reason: fmt.Sprintf("the cursor points to %v, where no record ends", pos)}
		}
		reader.reading.next = Cursor{pos, c.records}
		reader.committed.Store(uint64(pos))
		reader.older.Store(uint64(c.older))
		reader.done.Store(c.records)
	}
	return nil
}
