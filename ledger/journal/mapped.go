package journal

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stripes spread the count of appenders over cache lines.
const stripes = 8

// segment is a file that is open for appending: mapped, its blocks allocated.
type segment struct {
	head
	path string
	file *os.File
	data []byte        // the mapping
	tail atomic.Uint32 // a hint: no free space lies before it
	next atomic.Pointer[segment]

	// inside counts appenders in the mapping, so that it is not unmapped under one.
	inside [stripes]struct {
		n atomic.Int64
		_ [120]byte
	}
}

func (s *segment) word(offset uint32) *uint64 {
	return (*uint64)(unsafe.Pointer(&s.data[offset]))
}

// enter counts the caller in, by a stripe that its stack's address picks. The
// caller checks afterwards that the segment is still the current one.
func (s *segment) enter() (stripe uintptr) {
	var here byte
	stripe = uintptr(unsafe.Pointer(&here)) >> 11 % stripes
	s.inside[stripe].n.Add(1)
	return stripe
}

func (s *segment) leave(stripe uintptr) { s.inside[stripe].n.Add(-1) }

// empty says that nobody is inside. Asked after another segment became the
// current one, it stays so: whoever enters later sees that and leaves untouched.
func (s *segment) empty() bool {
	for i := range s.inside {
		if s.inside[i].n.Load() != 0 {
			return false
		}
	}
	return true
}

// claim takes space for a record by writing its word. False: it does not fit,
// or the segment has ended.
func (s *segment) claim(length int) (offset uint32, ok bool) {
	size := slotBytes(length)
	at := s.tail.Load()
	for {
		// One word stays free for the end.
		if uint64(at)+uint64(size)+wordBytes > uint64(len(s.data)) {
			return 0, false
		}
		p := s.word(at)
		found := atomic.LoadUint64(p)
		if found == 0 {
			if atomic.CompareAndSwapUint64(p, 0, bareWord(s.key, at, stateReserved, length)) {
				s.tail.CompareAndSwap(at, at+size)
				return at, true
			}
			found = atomic.LoadUint64(p)
		}
		if stateOf(found) == stateEnd {
			return 0, false
		}
		at = s.pass(at, found)
	}
}

// pass steps over another appender's record and moves the hint for it.
func (s *segment) pass(at uint32, word uint64) uint32 {
	next := at + slotBytes(lengthOf(word))
	s.tail.CompareAndSwap(at, next)
	return max(next, s.tail.Load())
}

// fill copies an encoded record to where it was claimed, and publishes it.
func (s *segment) fill(offset uint32, encoded []byte) {
	begin := offset + wordBytes
	copy(s.data[begin:], encoded)
	word := publishedWord(s.key, offset, len(encoded), s.data[begin:begin+uint32(padded(len(encoded)))])
	atomic.StoreUint64(s.word(offset), word)
}

// seal ends the segment: no record is claimed in it any more.
func (s *segment) seal() {
	at := s.tail.Load()
	for {
		p := s.word(at)
		found := atomic.LoadUint64(p)
		if found == 0 {
			if atomic.CompareAndSwapUint64(p, 0, bareWord(s.key, at, stateEnd, 0)) {
				return
			}
			found = atomic.LoadUint64(p)
		}
		if stateOf(found) == stateEnd {
			return
		}
		at = s.pass(at, found)
	}
}

// setMark notes in the head that the segment is synced up to the offset. The
// note reaches the disk with the next sync; it is true from the start.
func (s *segment) setMark(offset uint32) {
	atomic.StoreUint64(s.word(markOffset), markWord(s.key, offset))
}

// unmap ends the segment's life in memory. Nobody is inside.
func (s *segment) unmap() error {
	err := unix.Munmap(s.data)
	s.data = nil
	if e := s.file.Close(); err == nil {
		err = e
	}
	return err
}
