package tokens

import "sync"

const (
	// shortPiece is how long a piece may be to be merged on the stack.
	shortPiece = 256
	// longPiece bounds the memory of a merge to 5 bytes for each byte of a piece. A longer one is not
	// merged, but taken at its bound.
	longPiece = 1 << 20
)

// scratch is where a piece is merged.
type scratch struct {
	made []uint32 // the tokens so far
	dead []uint64 // a bit for each offset at which no token may end
}

var longScratch = sync.Pool{New: func() any { return new(scratch) }}

// merge counts the tokens that byte-pair merges make of the piece text[from:to], which is no token
// itself. It gives up, with ok false, when its steps are used up.
//
// Merging in the order of ranks has one property that spares doing it: tokens are the result for their
// bytes exactly if each two neighbours are the result for theirs, and the beginning of a result is the
// result for the beginning. So tokens are taken from the left, the longest first, shorter ones where a
// neighbour does not allow it, and one is taken back where none is left. An offset that was taken back
// is dead: no result ends there. That makes each offset cost a bounded number of steps.
func (t *tables) merge(text []byte, from, to int, steps *int) (tokens int, ok bool) {
	n := to - from
	if n <= shortPiece {
		var made [shortPiece]uint32
		var dead [shortPiece/64 + 1]uint64
		return t.mergeInto(made[:], dead[:], text, from, to, steps)
	}
	if n > longPiece || n > *steps {
		return 0, false
	}
	s := longScratch.Get().(*scratch)
	defer longScratch.Put(s)
	if len(s.made) < n {
		s.made, s.dead = make([]uint32, n), make([]uint64, n/64+1)
	}
	clear(s.dead[:n/64+1])
	return t.mergeInto(s.made, s.dead, text, from, to, steps)
}

func (t *tables) mergeInto(made []uint32, dead []uint64, text []byte, from, to int, steps *int) (tokens int, ok bool) {
	at, left := from, *steps
	next := t.longest(text, at, to)
	for at < to {
		left -= stepsPerToken
		if left < 0 {
			*steps = 0
			return 0, false
		}
		last := none
		if tokens > 0 {
			last = made[tokens-1]
		}
		for next != none {
			end := at + t.tokens[next].len()
			if dead[(end-from)>>6]>>((end-from)&63)&1 == 0 && (last == none || t.neighbours(text, at, last, next, &left)) {
				break
			}
			next = t.tokens[next].shorter
			left--
		}
		if next != none {
			made[tokens] = next
			tokens++
			at += t.tokens[next].len()
			if at < to {
				next = t.longest(text, at, to)
			}
			continue
		}
		if tokens == 0 {
			panic("BUG: tokens: single bytes do not make a piece")
		}
		dead[(at-from)>>6] |= 1 << ((at - from) & 63)
		tokens--
		at -= t.tokens[last].len()
		next = last
	}
	*steps = left
	return tokens, true
}

// neighbours says whether merging leaves a and b, which meet at an offset of the text, side by side. It
// takes both apart, the later merge first, and looks whether what met at the offset at some time
// would have merged before the merges that made a and b what they are.
func (t *tables) neighbours(text []byte, at int, a, b uint32, steps *int) bool {
	before := none // only a merge of a lower rank came before
	for {
		*steps--
		if both := t.find(text, at-t.tokens[a].len(), at+t.tokens[b].len()); both < before {
			return false
		}
		// Of equal ranks the left one merges first: when b's merge is undone, a's of the same rank stays.
		if a > b {
			before = a
			if a = t.tokens[a].right; a == before {
				before = b + 1
				if b = t.tokens[b].left; b+1 == before {
					return true
				}
			}
		} else {
			before = b + 1
			if b = t.tokens[b].left; b+1 == before {
				before = a
				if a = t.tokens[a].right; a == before {
					return true
				}
			}
		}
	}
}
