package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The layout of a segment; docs/journal.md tells it in full.
const (
	segmentMagic   = "TGJOURNL"
	segmentVersion = 1
	headBytes      = 512 // before the first record
	headSummed     = 252 // the part under the head's own checksum, which follows
	markOffset     = 256 // the word that says up to where the segment is synced
	wordBytes      = 8
	nameBytesMax   = 64 // of node and region in a segment's head
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// head is what a segment says about itself.
type head struct {
	bytes  uint32 // of the file when it was made
	serial uint64 // number in the file's name
	key    uint64 // random; in every checksum, so that nothing of an older file passes
	lazy   bool   // written with Sync never: its mark is no promise
	origin Origin
}

func (h head) encode() []byte {
	b := make([]byte, headBytes)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], segmentVersion)
	binary.LittleEndian.PutUint32(b[12:], h.bytes)
	binary.LittleEndian.PutUint64(b[16:], h.serial)
	binary.LittleEndian.PutUint64(b[24:], uint64(h.origin.Epoch.StartMillis))
	binary.LittleEndian.PutUint64(b[32:], h.origin.Epoch.Random)
	binary.LittleEndian.PutUint64(b[40:], h.key)
	if h.lazy {
		b[48] = 1
	}
	b[52], b[53] = byte(len(h.origin.Node)), byte(len(h.origin.Region))
	copy(b[56:], h.origin.Node)
	copy(b[56+nameBytesMax:], h.origin.Region)
	binary.LittleEndian.PutUint32(b[headSummed:], crc32.Checksum(b[:headSummed], castagnoli))
	binary.NativeEndian.PutUint64(b[markOffset:], markWord(h.key, headBytes))
	return b
}

// decodeHead reads a head and its mark. The reason is for a CorruptError.
func decodeHead(b []byte) (h head, mark uint32, err error) {
	if len(b) < headBytes {
		return h, 0, fmt.Errorf("%w: %d bytes are shorter than a head", ErrCorrupt, len(b))
	}
	if string(b[:8]) != segmentMagic {
		return h, 0, fmt.Errorf("%w: not a segment", ErrCorrupt)
	}
	if crc32.Checksum(b[:headSummed], castagnoli) != binary.LittleEndian.Uint32(b[headSummed:]) {
		return h, 0, fmt.Errorf("%w: checksum of the head", ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != segmentVersion {
		return h, 0, fmt.Errorf("%w: segment version %d, known is %d", ErrNewer, v, segmentVersion)
	}
	h = head{
		bytes: binary.LittleEndian.Uint32(b[12:]), serial: binary.LittleEndian.Uint64(b[16:]),
		key: binary.LittleEndian.Uint64(b[40:]), lazy: b[48] == 1,
		origin: Origin{Epoch: Epoch{int64(binary.LittleEndian.Uint64(b[24:])), binary.LittleEndian.Uint64(b[32:])}},
	}
	node, region := int(b[52]), int(b[53])
	if node > nameBytesMax || region > nameBytesMax {
		return h, 0, fmt.Errorf("%w: names in the head", ErrCorrupt)
	}
	h.origin.Node, h.origin.Region = string(b[56:56+node]), string(b[56+nameBytesMax:56+nameBytesMax+region])
	word := binary.NativeEndian.Uint64(b[markOffset:])
	if mark = uint32(word); word != markWord(h.key, mark) || mark < headBytes || mark%wordBytes != 0 {
		return h, 0, fmt.Errorf("%w: mark of what is synced", ErrCorrupt)
	}
	for _, x := range b[markOffset+wordBytes : headBytes] {
		if x != 0 {
			return h, 0, fmt.Errorf("%w: head is not zero behind its fields", ErrCorrupt)
		}
	}
	return h, mark, nil
}

// A word begins each record: length in bits 0 … 23, state in 24 … 31, checksum
// in 32 … 63. Zero: nothing was written here.
const (
	stateReserved  = 'R' // taken by an appender that has not come back
	statePublished = 'P' // complete
	stateEnd       = 'E' // the segment goes no further
	stateMark      = 'M' // only in the checksum of marks
	lengthMask     = 1<<24 - 1
)

// wordSum binds a word to its place: the segment's key, the offset, state and length.
func wordSum(key uint64, offset, low uint32) uint32 {
	x := key ^ (uint64(offset)<<32 | uint64(low))
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return uint32(x ^ x>>33)
}

func lowWord(state byte, length int) uint32 { return uint32(state)<<24 | uint32(length) }

func bareWord(key uint64, offset uint32, state byte, length int) uint64 {
	low := lowWord(state, length)
	return uint64(wordSum(key, offset, low))<<32 | uint64(low)
}

// publishedWord sums the padded payload as well.
func publishedWord(key uint64, offset uint32, length int, padded []byte) uint64 {
	low := lowWord(statePublished, length)
	return uint64(crc32.Update(wordSum(key, offset, low), castagnoli, padded))<<32 | uint64(low)
}

func markWord(key uint64, mark uint32) uint64 {
	return uint64(wordSum(key, mark, lowWord(stateMark, 0)))<<32 | uint64(mark)
}

func stateOf(word uint64) byte { return byte(word >> 24) }
func lengthOf(word uint64) int { return int(word & lengthMask) }

// padded is a length rounded up to whole words.
func padded(length int) int { return (length + wordBytes - 1) &^ (wordBytes - 1) }

// slotBytes is what a record of the length takes in a segment.
func slotBytes(length int) uint32 { return uint32(wordBytes + padded(length)) }

// slot is what stands at one offset.
type slot struct {
	state   byte   // stateReserved, statePublished, stateEnd, or one of the two below
	payload []byte // of a published one
	bytes   uint32 // to the next one
	reason  string // of stateBad
}

const (
	stateNothing = 0   // a zero word
	stateBad     = '!' // no word, or one whose checksum is wrong
)

// slotAt reads what stands at the begin of data, which is at the offset in its
// segment. Pure: recovery, readers and fuzzers share it.
func slotAt(data []byte, key uint64, offset uint32) slot {
	if len(data) < wordBytes {
		return slot{state: stateBad, reason: "file ends before a word"}
	}
	word := binary.NativeEndian.Uint64(data)
	length := lengthOf(word)
	size := slotBytes(length)
	switch state := stateOf(word); {
	case word == 0:
		return slot{state: stateNothing}
	case state == stateEnd && length == 0 && word == bareWord(key, offset, state, 0):
		return slot{state: state, bytes: wordBytes}
	case state != stateReserved && state != statePublished:
		return slot{state: stateBad, reason: "not a record"}
	case length < 2 || length > recordBytesMax:
		return slot{state: stateBad, reason: "length out of bounds"}
	case uint64(size) > uint64(len(data)):
		return slot{state: stateBad, reason: "file ends within a record"}
	case state == stateReserved:
		if word != bareWord(key, offset, state, length) {
			return slot{state: stateBad, reason: "checksum of a hole"}
		}
		return slot{state: state, bytes: size}
	default:
		if word != publishedWord(key, offset, length, data[wordBytes:size]) {
			return slot{state: stateBad, reason: "checksum"}
		}
		return slot{state: state, payload: data[wordBytes : wordBytes+length], bytes: size}
	}
}

// scanned is what a scan of one segment found.
type scanned struct {
	end     uint32 // offset behind the last good record
	sealed  bool   // an end word stands there
	records int
	holes   int
	reason  string // "" unless a bad word stopped the scan
}

// scan walks a whole segment and gives each record, with the offset behind it.
// It stops at the first thing that is neither a record nor a hole.
func scan(data []byte, key uint64, each func(payload []byte, start, end uint32) error) (s scanned, err error) {
	s.end = headBytes
	for {
		at := slotAt(data[min(int(s.end), len(data)):], key, s.end)
		switch at.state {
		case stateNothing:
			return s, nil
		case stateBad:
			s.reason = at.reason
			return s, nil
		case stateEnd:
			s.sealed = true
			return s, nil
		case stateReserved:
			s.holes++
		case statePublished:
			if err := each(at.payload, s.end, s.end+at.bytes); err != nil {
				return s, err
			}
			s.records++
		}
		s.end += at.bytes
	}
}
