package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// Position is a place in the log: the serial of a segment and an offset in it.
// Positions grow with the log.
type Position uint64

func positionAt(serial uint64, offset uint32) Position { return Position(serial<<32 | uint64(offset)) }

// Segment is the serial of the position's segment.
func (p Position) Segment() uint64 { return uint64(p >> 32) }

// Offset is the position's offset in its segment, in bytes.
func (p Position) Offset() uint32 { return uint32(p) }

func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Segment(), p.Offset()) }

// A cursor file has two slots, in different sectors, written in turn. A slot
// that is torn by a loss of power leaves the other one, which is older: what is
// then read again was read before, and is absorbed as a repeat.
const (
	cursorMagic     = 0x31435254 // "TRC1"
	cursorSlotBytes = 24
	cursorSlotApart = 4096
	cursorFileBytes = cursorSlotApart + cursorSlotBytes
)

type cursorSlot struct {
	turn uint64 // the higher is the newer; even ones stand in the first slot
	pos  Position
}

func (s cursorSlot) encode() []byte {
	b := make([]byte, cursorSlotBytes)
	binary.LittleEndian.PutUint32(b, cursorMagic)
	binary.LittleEndian.PutUint64(b[8:], s.turn)
	binary.LittleEndian.PutUint64(b[16:], uint64(s.pos))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

func decodeCursorSlot(b []byte) (s cursorSlot, ok bool) {
	if len(b) < cursorSlotBytes || binary.LittleEndian.Uint32(b) != cursorMagic ||
		binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[8:cursorSlotBytes], castagnoli) {
		return s, false
	}
	return cursorSlot{binary.LittleEndian.Uint64(b[8:]), Position(binary.LittleEndian.Uint64(b[16:]))}, true
}

// decodeCursor gives the newer slot of a cursor file, and the position of the older.
func decodeCursor(b []byte) (newest cursorSlot, older Position, err error) {
	var slots []cursorSlot
	for _, begin := range [...]int{0, cursorSlotApart} {
		if s, ok := decodeCursorSlot(b[min(begin, len(b)):]); ok {
			slots = append(slots, s)
		}
	}
	switch {
	case len(slots) == 0:
		return newest, 0, fmt.Errorf("%w: no slot of the cursor is good", ErrCorrupt)
	case len(slots) == 1:
		return slots[0], slots[0].pos, nil
	case slots[0].turn > slots[1].turn:
		return slots[0], slots[1].pos, nil
	default:
		return slots[1], slots[0].pos, nil
	}
}

// cursorFile is a reader's place on disk.
type cursorFile struct {
	path  string
	file  *os.File
	fsync func(*os.File) error
	slot  cursorSlot // the newest on disk
	older Position   // the other slot's
}

// openCursor opens or makes a reader's cursor. found is false when there was none.
func openCursor(d disk, dir, name string, start Position) (c *cursorFile, found bool, err error) {
	path := filepath.Join(dir, name+cursorSuffix)
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := d.makeCursor(dir, path, start); err != nil {
			return nil, false, err
		}
		c = &cursorFile{path: path, slot: cursorSlot{1, start}, older: start}
	case err != nil:
		return nil, false, err
	default:
		c, found = &cursorFile{path: path}, true
		if c.slot, c.older, err = decodeCursor(data); err != nil {
			return nil, true, &CorruptError{File: path, Reason: "no slot of the cursor is good"}
		}
	}
	c.fsync = d.fsync
	c.file, err = os.OpenFile(path, os.O_RDWR, 0)
	return c, found, err
}

// makeCursor makes a cursor file with both slots, under its name only when it is whole.
func (d disk) makeCursor(dir, path string, start Position) error {
	b := make([]byte, cursorFileBytes)
	copy(b, cursorSlot{0, start}.encode())
	copy(b[cursorSlotApart:], cursorSlot{1, start}.encode())
	f, err := os.OpenFile(path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = d.fsync(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	return d.syncDir(dir)
}

// store makes a position durable in the older slot. After an error the newer
// one is still what counts.
func (c *cursorFile) store(pos Position) error {
	next := cursorSlot{c.slot.turn + 1, pos}
	where := int64(0)
	if next.turn%2 == 1 {
		where = cursorSlotApart
	}
	if _, err := c.file.WriteAt(next.encode(), where); err != nil {
		return err
	}
	if err := c.fsync(c.file); err != nil {
		return err
	}
	c.slot, c.older = next, c.slot.pos
	return nil
}
