package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	logRecords = 6 // in smallLog
	logSynced  = 3 // of them
)

// smallLog is the one segment of a journal that was killed: six records, the
// first three synced, a hole after the fourth. ends are the offsets behind each.
func smallLog(t testing.TB) (dir string, data []byte, key uint64, ends []uint32, mark uint32) {
	live := t.TempDir()
	opt := small(live)
	opt.Sync = time.Minute // only on demand
	j, _ := openTest(t, opt)
	for i := range logRecords {
		if i == 4 {
			s := j.current.Load()
			_, ok := s.claim(40)
			require.True(t, ok)
		}
		pos, err := j.Append(&Progress{Tenant: "t", RequestID: fmt.Sprint(i), Cost: int64(i)})
		require.NoError(t, err)
		ends = append(ends, pos.Offset())
		if i == logSynced-1 {
			require.NoError(t, j.WaitSynced(t.Context(), pos))
		}
	}
	dir = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, dirName), 0o700))
	data, err := os.ReadFile(segments(t, live)[0])
	require.NoError(t, err)
	h, mark, err := decodeHead(data)
	require.NoError(t, err)
	require.Equal(t, ends[logSynced-1], mark)
	return dir, data[:ends[logRecords-1]+64], h.key, ends, mark
}

// writeLog puts the files of a directory back to one segment.
func writeLog(t testing.TB, dir string, data []byte) string {
	for _, name := range readerNames {
		_ = os.Remove(filepath.Join(dir, dirName, name+cursorSuffix))
	}
	path := filepath.Join(dir, dirName, segmentName(1))
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// recovered gives the costs of the progress records that a recovery finds.
func recovered(dir string) (got []int, found Recovered, err error) {
	found, err = recoverDir(dir, func(e Entry) error {
		p := e.Record.(*Progress)
		if p.Tenant != "t" || p.RequestID != fmt.Sprint(p.Cost) {
			return fmt.Errorf("garbage: %v", p)
		}
		got = append(got, int(p.Cost))
		return nil
	})
	return got, found, err
}

func TestSmallLogIsWhole(t *testing.T) {
	dir, data, _, _, _ := smallLog(t)
	writeLog(t, dir, data)
	got, found, err := recovered(dir)
	require.NoError(t, err)
	require.Equal(t, upTo(logRecords), got)
	require.Nil(t, found.Torn)
	require.Equal(t, 1, found.Holes)
	// A second recovery of what the first has left finds the same.
	got, found, err = recovered(dir)
	require.NoError(t, err)
	require.Equal(t, upTo(logRecords), got)
	require.False(t, found.Killed)
}

// F37: bits of each byte of a log flipped. In what was synced it is refused with its
// place; behind, the log ends at the last record before it, and says so.
func TestBitFlips(t *testing.T) {
	dir, good, _, ends, mark := smallLog(t)
	hole := ends[3] // to ends[3]+48: a word and 40 bytes that nobody sums
	for at := range good {
		for _, bit := range []int{at % 8, (at + 3) % 8} {
			data := bytes.Clone(good)
			data[at] ^= 1 << bit
			path := writeLog(t, dir, data)
			got, found, err := recovered(dir)
			what := fmt.Sprintf("bit %d of byte %d", bit, at)
			if at < int(mark) {
				require.ErrorIs(t, err, ErrCorrupt, what)
				var where *CorruptError
				require.ErrorAs(t, err, &where, what)
				require.Equal(t, path, where.File, what)
				if at >= headBytes {
					require.LessOrEqual(t, where.Offset, int64(at), what)
					require.Greater(t, where.Offset+int64(ends[0]-headBytes), int64(at), what)
				}
				continue
			}
			require.NoError(t, err, what)
			want := 0
			for want < logRecords && at >= int(ends[want]) {
				want++
			}
			if at >= int(hole)+wordBytes && at < int(hole)+48 {
				require.Equal(t, upTo(logRecords), got, what)
				continue
			}
			require.Equal(t, upTo(want), append([]int{}, got...), what)
			require.NotNil(t, found.Torn, what)
			require.LessOrEqual(t, found.Torn.Offset, int64(at), what)
		}
	}
}

// A file cut at any length: in what was synced it is refused, behind it the tail is cut off.
func TestTruncated(t *testing.T) {
	dir, good, _, ends, mark := smallLog(t)
	for length := range good {
		writeLog(t, dir, good[:length])
		got, _, err := recovered(dir)
		what := fmt.Sprintf("%d bytes", length)
		if length < int(mark) {
			require.ErrorIs(t, err, ErrCorrupt, what)
			continue
		}
		require.NoError(t, err, what)
		want := 0
		for want < logRecords && length >= int(ends[want]) {
			want++
		}
		require.Equal(t, upTo(want), append([]int{}, got...), what)
	}
}

// A loss of power leaves any of the unsynced pages unwritten: what lies behind the first such place does not count.
func TestTornTail(t *testing.T) {
	dir, good, _, ends, _ := smallLog(t)
	data := bytes.Clone(good)
	clear(data[ends[3]:ends[4]]) // the hole and the fifth record
	path := writeLog(t, dir, data)
	got, found, err := recovered(dir)
	require.NoError(t, err)
	require.Equal(t, upTo(4), got)
	require.Equal(t, &Tear{File: path, Offset: int64(ends[3]), Bytes: int64(ends[5] - ends[3]), Reason: "a page before it was not written"}, roundTear(found.Torn))
	// Nothing of the cut tail comes back, whatever is appended afterwards.
	opt := small(dir)
	j, _, err := Open(opt)
	require.NoError(t, err)
	_, err = j.Append(&Progress{Tenant: "t", RequestID: "4", Cost: 4})
	require.NoError(t, err)
	require.NoError(t, j.Close())
	got, found, err = recovered(dir)
	require.NoError(t, err)
	require.Equal(t, upTo(5), got)
	require.Nil(t, found.Torn)
}

// roundTear rounds a tear's end up to the word: the last bytes of a record may be zero.
func roundTear(tear *Tear) *Tear {
	if tear != nil {
		tear.Bytes = int64(padded(int(tear.Bytes)))
	}
	return tear
}

// closedLog is a journal of several segments that was closed; both readers have read and committed a part.
func closedLog(t *testing.T, records int) (dir string, list []string) {
	dir = t.TempDir()
	opt := small(dir)
	opt.MaxBytes = 16 << 20
	j, _ := openTest(t, opt)
	syncAll(t, j, appendMany(t, j, 0, records))
	for _, r := range j.readers {
		require.NoError(t, r.Commit(readAll(t, r, records/2)[records/2-1].After))
	}
	require.NoError(t, j.Close())
	list = segments(t, dir)
	require.Greater(t, len(list), 2)
	return dir, list
}

func TestDamagedDirectories(t *testing.T) {
	corrupt := func(t *testing.T, dir, file string) {
		t.Helper()
		_, _, err := Open(small(dir))
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, filepath.Base(file))
	}
	t.Run("a segment is missing", func(t *testing.T) {
		dir, list := closedLog(t, 2000)
		require.NoError(t, os.Remove(list[len(list)-2]))
		corrupt(t, dir, list[len(list)-2])
	})
	t.Run("the segment of a cursor is missing", func(t *testing.T) {
		dir, list := closedLog(t, 2000)
		for len(list) > 1 {
			require.NoError(t, os.Remove(list[0]))
			list = list[1:]
		}
		corrupt(t, dir, "0")
	})
	t.Run("all segments are missing", func(t *testing.T) {
		dir, list := closedLog(t, 2000)
		for _, path := range list {
			require.NoError(t, os.Remove(path))
		}
		corrupt(t, dir, segmentSuffix)
	})
	t.Run("the newest segments are missing", func(t *testing.T) {
		// What is behind the cursors cannot be known from the outside; what is before them can.
		dir, list := closedLog(t, 2000)
		j, _ := openTest(t, small(dir))
		for _, r := range j.readers {
			list := readAll(t, r, int(r.Lag()))
			require.NoError(t, r.Commit(list[len(list)-1].After))
		}
		require.NoError(t, j.Close())
		_ = os.Remove(list[len(list)-1])
		_, _, err := Open(small(dir))
		require.ErrorIs(t, err, ErrCorrupt)
	})
	t.Run("a segment under another's name", func(t *testing.T) {
		dir, list := closedLog(t, 2000)
		data, err := os.ReadFile(list[1])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(list[2], data, 0o600))
		corrupt(t, dir, list[2])
	})
	t.Run("the end of a segment is cut off", func(t *testing.T) {
		dir, list := closedLog(t, 2000)
		info, err := os.Stat(list[1])
		require.NoError(t, err)
		require.NoError(t, os.Truncate(list[1], info.Size()/2))
		corrupt(t, dir, list[1])
	})
	t.Run("both slots of a cursor", func(t *testing.T) {
		dir, _ := closedLog(t, 2000)
		path := filepath.Join(dir, dirName, "events"+cursorSuffix)
		require.NoError(t, os.WriteFile(path, []byte("not a cursor"), 0o600))
		corrupt(t, dir, path)
	})
	t.Run("a cursor into a record", func(t *testing.T) {
		dir, list := closedLog(t, 2000)
		path := filepath.Join(dir, dirName, "events"+cursorSuffix)
		serial, ok := parseSegmentName(filepath.Base(list[1]))
		require.True(t, ok)
		require.NoError(t, os.Remove(path))
		require.NoError(t, realDisk().makeCursor(filepath.Dir(path), path, positionAt(serial, headBytes+8)))
		corrupt(t, dir, path)
	})
}

// One torn slot of a cursor costs a repeat, never a gap.
func TestTornCursor(t *testing.T) {
	dir, _ := closedLog(t, 2000)
	path := filepath.Join(dir, dirName, "events"+cursorSuffix)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	newest, older, err := decodeCursor(good)
	require.NoError(t, err)
	require.Less(t, older, newest.pos)
	for i := range good {
		if i >= cursorSlotBytes && i < cursorSlotApart {
			continue
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		got, _, err := decodeCursor(bad)
		require.NoError(t, err)
		require.Contains(t, []Position{newest.pos, older}, got.pos)
	}
	torn := bytes.Clone(good)
	clear(torn[int(newest.turn%2)*cursorSlotApart:][:16])
	require.NoError(t, os.WriteFile(path, torn, 0o600))
	j, _ := openTest(t, small(dir))
	require.EqualValues(t, 2000, j.Reader("events").Lag())
	require.EqualValues(t, 1000, j.Reader("settlement").Lag())
}

func TestLostCursorReadsAllAgain(t *testing.T) {
	dir, _ := closedLog(t, 2000)
	require.NoError(t, os.Remove(filepath.Join(dir, dirName, "events"+cursorSuffix)))
	opt := small(dir)
	j, found := openTest(t, opt)
	require.Equal(t, []string{"events"}, found.Restarted)
	require.EqualValues(t, found.Records, j.Reader("events").Lag())
}

// F40: what a newer version wrote is refused and named, not skipped.
func TestNewerVersions(t *testing.T) {
	dir, good, key, ends, _ := smallLog(t)
	publish := func(data []byte, change func(payload []byte)) {
		begin := ends[0] // the second record
		length := lengthOf(binary.NativeEndian.Uint64(data[begin:]))
		change(data[begin+wordBytes:])
		sum := publishedWord(key, begin, length, data[begin+wordBytes:begin+slotBytes(length)])
		binary.NativeEndian.PutUint64(data[begin:], sum)
	}
	for name, change := range map[string]func([]byte){
		"record kind 200":  func(p []byte) { p[0] = 200 },
		"record version 2": func(p []byte) { p[1] = versionNow + 1 },
	} {
		data := bytes.Clone(good)
		publish(data, change)
		path := writeLog(t, dir, data)
		_, _, err := recovered(dir)
		require.ErrorIs(t, err, ErrNewer)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, fmt.Sprintf("%s at offset %d", path, ends[0]))
	}
	data := bytes.Clone(good)
	h, _, err := decodeHead(data)
	require.NoError(t, err)
	copy(data, h.encode())
	data[8] = segmentVersion + 1
	binary.LittleEndian.PutUint32(data[headSummed:], crc32.Checksum(data[:headSummed], castagnoli))
	writeLog(t, dir, data)
	_, _, err = recovered(dir)
	require.ErrorIs(t, err, ErrNewer)
}
