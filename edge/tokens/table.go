package tokens

import (
	"encoding/binary"
	"math/bits"
)

// none is no token, and no node.
const none = ^uint32(0)

// tables are a vocabulary made ready for counting. They never change once built. They are laid out to
// be small, and so that what a text of one script needs lies together: nearly all of the time of a
// count is spent waiting for memory.
type tables struct {
	trie
	bytesMax int    // length of the longest token
	blob     []byte // the tokens, in the order of their bytes
	tokens   []token

	// The tokens by their bytes; open addressing, at most half full: tag<<idBits | token, 0 is free.
	slots     []uint32
	slotShift uint8 // 64 - log2(len(slots))
}

// token is what is known of a token; its index is its rank.
type token struct {
	left, right uint32 // the merge that makes it; both are the token itself if it is a single byte
	shorter     uint32 // the longest token that is a proper prefix of it
	place       uint32 // length << placeBits | offset in blob
}

const (
	idBits    = 18 // ranks are below 1<<idBits - 1
	placeBits = 24

	// A vocabulary file begins with two 32-bit counts: its tokens, and the nodes of its trie.
	headBytes = 8
	// Each of its tokens begins with the bytes it shares with the one before, those of its own, those of
	// the left half of the merge that makes it, and three for its rank.
	entryBytes = 6
)

func (t *token) len() int { return int(t.place >> placeBits) }

// build reads a vocabulary file: the tokens in the order of their bytes, each without what it shares
// with the one before. That is the trie, walked depth first.
func build(file string) *tables {
	var head [headBytes]byte
	copy(head[:], file)
	size, nodes := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	t := &tables{tokens: make([]token, size), blob: make([]byte, 0, len(file))}
	log := bits.Len(uint(2*size - 1))
	t.slots, t.slotShift = make([]uint32, 1<<log), uint8(64-log)

	walk := newWalk(int(nodes))
	var bytes []byte // of the token before, then of this one
	for i := headBytes; i < len(file); {
		shared, own, left := int(file[i]), int(file[i+1]), int(file[i+2])
		rank := uint32(file[i+3]) | uint32(file[i+4])<<8 | uint32(file[i+5])<<16
		i += entryBytes
		bytes = append(bytes[:shared], file[i:i+own]...)
		i += own

		tk := token{left: rank, right: rank, shorter: walk.above(shared)}
		if left != 0 {
			tk.left = walk.at(left)
		}
		tk.place = uint32(len(bytes))<<placeBits | uint32(len(t.blob))
		t.tokens[rank] = tk
		t.blob = append(t.blob, bytes...)
		t.bytesMax = max(t.bytesMax, len(bytes))
		walk.add(shared, bytes, rank)
	}
	t.trie = walk.trie()
	for rank := range t.tokens {
		t.insert(uint32(rank))
	}
	for rank := range t.tokens {
		if tk := &t.tokens[rank]; tk.left != uint32(rank) {
			from := int(tk.place & (1<<placeBits - 1))
			tk.right = t.find(t.blob, from+t.tokens[tk.left].len(), from+tk.len())
		}
	}
	return t
}

func (t *tables) insert(rank uint32) {
	tk := t.tokens[rank]
	i, tag := t.slot(keyOf(t.blob, int(tk.place&(1<<placeBits-1)), tk.len()), tk.len())
	for t.slots[i] != 0 {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = tag | (rank + 1)
}

// find is the token with the bytes text[from:to], or none.
func (t *tables) find(text []byte, from, to int) uint32 {
	if to-from > t.bytesMax {
		return none
	}
	return t.findKey(keyOf(text, from, to-from), text[from:to])
}

// findKey is find for a text of which key is the key.
func (t *tables) findKey(key uint64, text []byte) uint32 {
	i, tag := t.slot(key, len(text))
	for {
		s := t.slots[i&uint64(len(t.slots)-1)]
		if s == 0 {
			return none
		}
		if rank := s&(1<<idBits-1) - 1; s&^(1<<idBits-1) == tag && t.is(rank, key, text) {
			return rank
		}
		i++
	}
}

// is says whether the token has these bytes, of which key is the key.
func (t *tables) is(rank uint32, key uint64, text []byte) bool {
	tk := &t.tokens[rank]
	at := int(tk.place & (1<<placeBits - 1))
	switch {
	case tk.len() != len(text):
		return false
	case len(text) <= 8:
		return keyOf(t.blob, at, len(text)) == key
	}
	return string(t.blob[at:at+len(text)]) == string(text)
}

const multiplier = 0x9e3779b97f4a7c15

// slot is where to look for a key, and the tag that is there.
func (t *tables) slot(key uint64, n int) (i uint64, tag uint32) {
	key = (key ^ uint64(n)) * multiplier
	key = (key ^ key>>32) * multiplier
	return key >> t.slotShift, uint32(key) &^ (1<<idBits - 1)
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
