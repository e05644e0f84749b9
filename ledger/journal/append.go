package journal

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"
)

// scratchBytes is what a record may take without an allocation, several times
// what one usually takes. Larger costs each append the clearing of more stack.
const scratchBytes = 1 << 10

// class says which part of the ready segments an append may use.
type class uint8

const (
	admits  class = iota // a new call: refused early
	ends                 // what follows from an admitted one
	carries              // what lets old segments be deleted
)

// Append records r and gives the position behind it. When it returns, the
// record survives the death of the process; see WaitSynced for a loss of power.
// It takes a copy: r and its texts may be reused at once.
//
// It neither waits nor allocates (below 1 KiB), nor enters the kernel but for
// page faults, and one wake-up by whoever fills a segment. Records appended one after the other
// are read in that order.
//
// A *Reserved is refused with ErrFull as soon as fewer than two segments are
// ready; other kinds only when all that was kept for them is used up, and with
// ErrBroken only when nothing can be written at all. A panic in it would leave
// a hole that stops readers, so it breaks the journal.
func (j *Journal) Append(r Record) (Position, error) {
	as := ends
	if _, ok := r.(*Reserved); ok {
		as = admits
	}
	return j.append(r, as)
}

// AppendSync is Append and WaitSynced.
func (j *Journal) AppendSync(ctx context.Context, r Record) (Position, error) {
	pos, err := j.Append(r)
	if err != nil {
		return pos, err
	}
	return pos, j.WaitSynced(ctx, pos)
}

func (j *Journal) append(r Record, as class) (Position, error) {
	if state := j.state.Load(); state != 0 {
		switch {
		case state&stateFault != 0, state&stateFailed != 0 && as == admits:
			return 0, j.broken()
		case as == admits:
			return 0, ErrFull
		}
	}
	var scratch [scratchBytes]byte
	encoded := scratch[:]
	length, err := encode(encoded, r)
	if err != nil {
		encoded = make([]byte, recordBytesMax)
		length, err = encode(encoded, r)
	}
	encoded = encoded[:length]
	if err != nil {
		return 0, err
	}
	for {
		s := j.current.Load()
		if s == nil {
			return 0, ErrClosed
		}
		pos, err := j.appendTo(s, encoded, as)
		if pos != 0 || err != nil {
			return pos, err
		}
	}
}

// appendTo appends to one segment. Neither position nor error: it is, or has
// just become, an old one.
func (j *Journal) appendTo(s *segment, encoded []byte, as class) (pos Position, err error) {
	fatal := debug.SetPanicOnFault(true)
	stripe := s.enter()
	done := false
	defer func() {
		var fault error
		if !done {
			cause := recover()
			if fault = asFault(s.data, cause); fault == nil {
				j.fail(stateFault, fmt.Errorf("panic in an append: %v", cause))
				defer panic(cause)
			} else {
				j.fail(stateFault, fmt.Errorf("%s: %w", s.path, fault))
				pos, err = 0, j.broken()
			}
		}
		s.leave(stripe)
		debug.SetPanicOnFault(fatal)
	}()
	if j.current.Load() == s {
		if offset, ok := s.claim(len(encoded)); ok {
			s.fill(offset, encoded)
			pos = positionAt(s.serial, offset+slotBytes(len(encoded)))
		} else {
			err = j.rotate(s, as)
		}
	}
	done = true
	return pos, err
}

// asFault says whether a panic is an access to a mapping that met no memory:
// the disk had no block for a page, or somebody cut the file. Nil for any other.
func asFault(mapped []byte, cause any) error {
	fault, ok := cause.(interface {
		runtime.Error
		Addr() uintptr
	})
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(mapped)))
	if !ok || fault.Addr() < begin || fault.Addr() >= begin+uintptr(len(mapped)) {
		return nil
	}
	return fmt.Errorf("the disk took back a page that was allocated (%w)", fault)
}

// rotate ends a segment in which a record does not fit, and makes the next one
// the current. The caller is inside s.
func (j *Journal) rotate(s *segment, as class) error {
	next := s.next.Load()
	if next == nil || as != carries && j.ready.Load() <= sparesCarry && j.current.Load() == s {
		return ErrFull
	}
	s.seal()
	if j.current.CompareAndSwap(s, next) {
		if j.ready.Add(-1) < sparesAdmit {
			j.state.Or(stateFull)
		}
		wake(j.demandSpare)
	}
	return nil
}
