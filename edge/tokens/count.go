package tokens

import (
	"math"
	"unicode/utf8"
)

const (
	// StepsMax is the work that one prompt may cost: measured as 7 to 20 ms of one core, the latter for
	// random characters. A megabyte of ordinary text takes about half of it in English, and in other
	// languages as far as its words come back. What is left of a text when the steps are used up counts
	// at its bound of a token per byte.
	StepsMax = 1 << 19

	stepsPerPiece = 1
	stepsPerToken = 3 // of a merge
	// repairedBytesMax bounds the copy of a text that is not UTF-8. A longer one counts at its bound.
	repairedBytesMax = 256 << 10
)

// Counter adds up the tokens of several texts, each of which the model reads on its own. It is a plain
// value, for one goroutine, and allocates nothing for texts whose words are short.
type Counter struct {
	v       *Vocabulary
	t       *tables  // nil for bytes
	c       *classes // nil for bytes
	tokens  int64
	limit   int64
	steps   int
	bounded bool
}

// Counter begins a count that stops once it has passed limit tokens, and that takes at most the given steps.
func (v *Vocabulary) Counter(limit int64, steps int) Counter {
	c := Counter{v: v, limit: limit, steps: steps}
	if v.load != nil {
		c.t, c.c = v.load(), classesOnce()
	}
	return c
}

// Tokens is the sum so far. It is never below the true one, except that it stays where it passed the limit.
func (c *Counter) Tokens() int64 { return c.tokens }

// Passed says whether the sum has passed the limit; what is added then is not looked at.
func (c *Counter) Passed() bool { return c.tokens > c.limit }

// Exact says whether the sum is the true one, unless it passed the limit; else parts of it are a bound or a guess.
func (c *Counter) Exact() bool { return !c.bounded }

// Add counts a text. Bytes that are not UTF-8 count as U+FFFD, which is what a model is shown instead.
func (c *Counter) Add(text []byte) {
	switch {
	case c.Passed():
	case c.t == nil:
		c.bounded = true
		c.tokens += guess(text)
	case utf8.Valid(text):
		c.count(text)
	case len(text) > repairedBytesMax:
		c.bound(3 * len(text)) // the length of U+FFFD
	default:
		c.count(repaired(text))
	}
}

func (c *Counter) count(text []byte) {
	var before memo
	for at := 0; at < len(text) && !c.Passed(); {
		if c.steps <= 0 {
			c.bound(len(text) - at)
			return
		}
		end := c.v.end(c.c, text, at)
		c.steps -= stepsPerPiece + (end-at)>>3
		if n, ok := c.piece(text, at, end, &before); ok {
			c.tokens += int64(n)
		} else {
			c.bound(end - at)
		}
		at = end
	}
}

// piece counts one piece. It is not ok where the steps do not suffice.
func (c *Counter) piece(text []byte, at, end int, before *memo) (tokens int, ok bool) {
	n := end - at
	if n == 1 {
		return 1, true
	}
	if n > memoPieceMax {
		return c.t.merge(text, at, end, &c.steps)
	}
	key := keyOf(text, at, n)
	if n <= c.t.bytesMax && c.t.findKey(key, text[at:end]) != none {
		return 1, true
	}
	s := &before[key*multiplier>>(64-memoBits)]
	if int(s.len) == n && string(text[s.at:int(s.at)+n]) == string(text[at:end]) {
		return int(s.tokens), true
	}
	tokens, ok = c.t.merge(text, at, end, &c.steps)
	if ok && at <= math.MaxUint32 {
		*s = seen{at: uint32(at), len: uint16(n), tokens: uint16(tokens)}
	}
	return tokens, ok
}

// memo remembers pieces of a text that had to be merged, by their keys: words come back.
type memo [1 << memoBits]seen

const (
	memoBits     = 10
	memoPieceMax = 1 << 10 // bytes; no token is longer, and longer pieces hardly come back
)

// seen is the last piece with its place in the memo; no length is none.
type seen struct {
	at          uint32
	len, tokens uint16
}

// bound adds what n bytes have at most: every byte is a token, and merges only make fewer.
func (c *Counter) bound(n int) {
	c.bounded = true
	c.tokens += int64(n)
}

func repaired(text []byte) []byte {
	valid := make([]byte, 0, len(text)+len(text)/8+utf8.UTFMax)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		valid = utf8.AppendRune(valid, r)
		i += n
	}
	return valid
}
