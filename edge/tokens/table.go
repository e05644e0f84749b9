package tokens

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// none is no token, and no node.
const none = ^uint32(0)

// tables are a vocabulary made ready for counting. They never change once built.
//
// A token is its rank. The nodes of the trie are numbered so that a node below size is the token of
// that rank, and any other is a mere prefix of tokens.
type tables struct {
	source   string // the tokens' bytes are read from here
	size     uint32 // number of tokens
	bytesMax int    // length of the longest token

	slots     []slot // every token by its bytes; open addressing, at most half full
	slotShift uint8  // 64 - log2(len(slots))

	edges     []edge // the trie below its second level; open addressing, at most half full
	edgeShift uint8
	pairs     []uint32 // the node of two bytes, by first<<8 | second
	singles   [256]uint32

	lens        []uint8
	left, right []uint32 // the merge that makes a token; both are the token itself where none does
	shorter     []uint32 // the longest token that is a proper prefix
}

// slot is a token in the hash table. Up to eight bytes the key is the token; beyond, it is a hash and
// the bytes decide.
type slot struct {
	key uint64
	id  uint32
	at  uint32 // length << lenShift | offset in source; 0 is a free slot
}

// edge is node<<40 | byte<<32 | next node.
type edge uint64

const (
	lenShift   = 24
	offsetMask = 1<<lenShift - 1
	freeEdge   = ^edge(0)

	// A vocabulary file begins with two 32-bit counts: its tokens, and the edges of its trie.
	headBytes = 8
)

// stored is one token of a vocabulary file: a byte for its length, one for the length of the left half
// of the merge that makes it (0 where none does), and its bytes.
type stored struct {
	id            uint32
	from, cut, to int // cut == from: no merge makes it
}

func (s stored) merged() bool { return s.cut != s.from }

func storedTokens(file string) iter.Seq[stored] {
	return func(yield func(stored) bool) {
		id := uint32(0)
		for i := headBytes; i < len(file); id++ {
			from := i + 2
			s := stored{id: id, from: from, cut: from + int(file[i+1]), to: from + int(file[i])}
			if !yield(s) {
				return
			}
			i = s.to
		}
	}
}

func build(file string) *tables {
	blob := []byte(file)
	size := binary.LittleEndian.Uint32(blob)
	t := &tables{
		source: file, size: size,
		lens: make([]uint8, size), left: make([]uint32, size), right: make([]uint32, size), shorter: make([]uint32, size),
		pairs: make([]uint32, 1<<16),
	}
	t.slots, t.slotShift = table[slot](2 * int(size))
	t.edges, t.edgeShift = table[edge](2 * int(binary.LittleEndian.Uint32(blob[4:])))
	for i := range t.edges {
		t.edges[i] = freeEdge
	}
	for i := range t.pairs {
		t.pairs[i] = none
	}
	for s := range storedTokens(file) {
		t.bytesMax = max(t.bytesMax, s.to-s.from)
		t.lens[s.id] = uint8(s.to - s.from)
		t.insert(blob, s)
		if s.to-s.from == 1 {
			t.singles[blob[s.from]] = s.id
		}
	}
	for s := range storedTokens(file) {
		t.left[s.id], t.right[s.id] = s.id, s.id
		if s.merged() {
			t.left[s.id], t.right[s.id] = t.find(blob, s.from, s.cut), t.find(blob, s.cut, s.to)
		}
	}
	next := size // the number of the next mere prefix
	for s := range storedTokens(file) {
		if s.merged() {
			next = t.plant(blob, s, next)
		}
	}
	for s := range storedTokens(file) {
		t.shorter[s.id] = none
		if s.to-s.from > 1 {
			t.shorter[s.id] = t.longest(blob, s.from, s.to-1)
		}
	}
	return t
}

// table has a power of two of entries, at least n, and the shift that makes an index of a 64-bit hash.
func table[T any](n int) (entries []T, shift uint8) {
	log := bits.Len(uint(n - 1))
	return make([]T, 1<<log), uint8(64 - log)
}

func (t *tables) insert(blob []byte, s stored) {
	n := s.to - s.from
	key := keyOf(blob, s.from, n)
	i := hash(key, n) >> t.slotShift
	for t.slots[i].at != 0 {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = slot{key: key, id: s.id, at: uint32(n)<<lenShift | uint32(s.from)}
}

// find is the token with the bytes text[from:to], or none.
func (t *tables) find(text []byte, from, to int) uint32 {
	n := to - from
	if n > t.bytesMax {
		return none
	}
	key := keyOf(text, from, n)
	i := hash(key, n) >> t.slotShift
	for {
		s := &t.slots[i&uint64(len(t.slots)-1)]
		if s.at == 0 {
			return none
		}
		if s.key == key && int(s.at>>lenShift) == n {
			at := int(s.at & offsetMask)
			if n <= 8 || t.source[at:at+n] == string(text[from:to]) {
				return s.id
			}
		}
		i++
	}
}

const multiplier = 0x9e3779b97f4a7c15

func hash(key uint64, n int) uint64 {
	key = (key ^ uint64(n)) * multiplier
	return (key ^ key>>32) * multiplier
}

// keyOf is the n bytes themselves up to eight, else a mix of all of them.
func keyOf(text []byte, from, n int) uint64 {
	if n <= 8 {
		return word(text, from) & (^uint64(0) >> (64 - 8*uint(n)))
	}
	var key uint64
	end := from + n
	for i := from; i+8 < end; i += 8 {
		key = (key ^ binary.LittleEndian.Uint64(text[i:])) * multiplier
		key ^= key >> 32
	}
	key = (key ^ binary.LittleEndian.Uint64(text[end-8:])) * multiplier
	return key ^ key>>29
}

// word is the eight bytes from i on; those beyond the text's end are 0.
func word(text []byte, i int) uint64 {
	n := len(text)
	if i+8 <= n {
		return binary.LittleEndian.Uint64(text[i:])
	}
	if n >= 8 {
		return binary.LittleEndian.Uint64(text[n-8:]) >> (8 * uint(i+8-n))
	}
	var b [8]byte
	copy(b[:], text[i:])
	return binary.LittleEndian.Uint64(b[:])
}

// plant puts a token's path into the trie. A prefix that is a token made by a merge is numbered as it.
func (t *tables) plant(blob []byte, s stored, next uint32) uint32 {
	number := func(to int) uint32 {
		if id := t.find(blob, s.from, to); id != none && t.left[id] != id {
			return id
		}
		next++
		return next - 1
	}
	pair := int(blob[s.from])<<8 | int(blob[s.from+1])
	if t.pairs[pair] == none {
		t.pairs[pair] = number(s.from + 2)
	}
	node := t.pairs[pair]
	for i := s.from + 2; i < s.to; i++ {
		e := t.edge(node, blob[i])
		if *e == freeEdge {
			*e = edge(node)<<40 | edge(blob[i])<<32 | edge(number(i+1))
		}
		node = uint32(*e)
	}
	return next
}

// edge is the entry of the edge from node by b: a free one if there is none.
func (t *tables) edge(node uint32, b byte) *edge {
	key := uint64(node)<<8 | uint64(b)
	i := key * multiplier >> t.edgeShift
	for {
		e := &t.edges[i&uint64(len(t.edges)-1)]
		if *e == freeEdge || uint64(*e>>32) == key {
			return e
		}
		i++
	}
}

// longest is the longest token, made by merges or a single byte, that text[from:to] begins with.
func (t *tables) longest(text []byte, from, to int) uint32 {
	best := t.singles[text[from]]
	if to-from == 1 {
		return best
	}
	node := t.pairs[int(text[from])<<8|int(text[from+1])]
	for i := from + 2; node != none; i++ {
		if node < t.size {
			best = node
		}
		if i == to {
			break
		}
		// A free edge leads to none: its lower half is all ones.
		node = uint32(*t.edge(node, text[i]))
	}
	return best
}
