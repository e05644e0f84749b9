package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// change is one step of damage to a file, as a fuzzer draws it: six bytes of
// place, kind and value.
const changeBytes = 6

// apply damages data as the changes say and gives the first byte that differs
// from what was, or len(data).
func apply(good, changes []byte) (data []byte, first int) {
	data = bytes.Clone(good)
	for len(changes) >= changeBytes && len(data) > 0 {
		at := int(binary.LittleEndian.Uint32(changes)) % len(data)
		switch kind, value := changes[4], changes[5]; kind % 4 {
		case 0:
			data[at] ^= value
		case 1:
			data = data[:at]
		case 2:
			clear(data[at:min(len(data), at+int(value))])
		case 3:
			copy(data[at:], data[max(0, at-8*int(value)):at]) // an older part once more
		}
		changes = changes[changeBytes:]
	}
	for first < len(data) && first < len(good) && data[first] == good[first] {
		first++
	}
	if first == len(good) {
		return data, len(good)
	}
	return data, first
}

// The scan of a damaged segment gives a prefix of what was appended: no record
// before the damage is missing, none is made up.
func FuzzSegment(f *testing.F) {
	_, good, key, ends, _ := smallLog(f)
	f.Add([]byte{})
	for i := range good {
		if i%37 == 0 {
			f.Add([]byte{byte(i), byte(i >> 8), 0, 0, byte(i), 1})
		}
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		data, first := apply(good, changes)
		_, _, _ = decodeHead(data)
		n := 0
		_, err := scan(data, key, func(payload []byte, start, end uint32) error {
			r, err := decode(payload)
			if err != nil {
				return err
			}
			if p, ok := r.(*Progress); !ok || p.RequestID != fmt.Sprint(n) || end != ends[n] {
				return fmt.Errorf("record %d is %v, ends at %d", n, r, end)
			}
			n++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, end := range ends {
			if i >= n && int(end) <= first {
				t.Fatalf("record %d lies before byte %d, where the damage begins, and was not found", i, first)
			}
		}
	})
}

// A damaged cursor gives one of its two places, or an error.
func FuzzCursor(f *testing.F) {
	good := make([]byte, cursorFileBytes)
	a, b := cursorSlot{8, positionAt(3, 600)}, cursorSlot{9, positionAt(3, 900)}
	copy(good, a.encode())
	copy(good[cursorSlotApart:], b.encode())
	f.Add([]byte{})
	for i := range byte(cursorSlotBytes) {
		f.Add([]byte{i, 0, 0, 0, 0, 1})
		f.Add([]byte{i, cursorSlotApart >> 8, 0, 0, 2, 9})
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		data, _ := apply(good, changes)
		newest, older, err := decodeCursor(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if newest != a && newest != b || older != a.pos && older != b.pos || older > newest.pos {
			t.Fatalf("%v, older %v", newest, older)
		}
	})
}

// Recovery of a damaged directory: a prefix of what was appended, with all that
// lies before the damage; and an error if a synced record is not in it.
func FuzzRecovery(f *testing.F) {
	live := f.TempDir()
	opt := small(live)
	opt.MaxBytes = 4 << 20
	j, _ := openTest(f, opt)
	const records = 900 // two segments
	ends := appendMany(f, j, 0, records)
	syncAll(f, j, ends[:800])
	for _, r := range j.readers {
		require.NoError(f, r.Commit(readAll(f, r, 300)[299].After))
	}
	from := copyLocked(f, j)
	names, err := filepath.Glob(filepath.Join(from, dirName, "*"))
	require.NoError(f, err)
	good := map[string][]byte{}
	for i, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(f, err)
		data = bytes.TrimRight(data, "\x00")
		if filepath.Ext(name) == segmentSuffix {
			data = append(data, make([]byte, 64)...)
		}
		good[name], names[i] = data, name
	}
	for i := range byte(len(names)) {
		for _, kind := range []byte{0, 1, 2, 3} {
			f.Add(i, []byte{0, 2, 0, 0, kind, 1})
			f.Add(i, []byte{9, 200, 1, 0, kind, 77})
			f.Add(i, []byte{9, 20, 0, 0, kind, 77, 9, 1, 0, 0, kind, 5})
		}
	}
	f.Fuzz(func(t *testing.T, which byte, changes []byte) {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, dirName), 0o700))
		victim := names[int(which)%len(names)]
		damaged := Position(1<<64 - 1)
		for _, name := range names {
			data, first := good[name], len(good[name])
			if name == victim {
				data, first = apply(data, changes)
			}
			if serial, ok := parseSegmentName(filepath.Base(name)); ok && first < len(good[name]) {
				damaged = positionAt(serial, uint32(first))
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, dirName, filepath.Base(name)), data, 0o600))
		}
		n := 0
		_, err := recoverDir(dir, func(e Entry) error {
			c, ok := e.Record.(*Committed)
			if !ok || int(c.SpentTotal) != n || e.After.Position != ends[n] {
				return fmt.Errorf("record %d is %v at %v", n, e.Record, e.Start)
			}
			n++
			return nil
		})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		for i, end := range ends {
			if i < n {
				continue
			}
			if end <= damaged {
				t.Fatalf("record %d ends at %v, before the damage at %v, and was not found", i, end, damaged)
			}
			if i < 300 {
				t.Fatalf("record %d was committed by the readers, is gone, and nothing says so", i)
			}
		}
	})
}
