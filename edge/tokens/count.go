package tokens

import "unicode/utf8"

const (
	// StepsMax is the work that one prompt may cost: about 15 ms of one core, measured; see the benchmarks.
	// Ordinary text of one megabyte takes less. What is left of a text when the steps are used up counts
	// at its bound of a token per byte.
	StepsMax = 1 << 20

	stepsPerToken = 2 // of a merge
	// repairedBytesMax bounds the copy of a text that is not UTF-8. A longer one counts at its bound.
	repairedBytesMax = 1 << 20
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

// Exact says whether the sum is the true one; else parts of it are at their bound.
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
	for at := 0; at < len(text); {
		if c.steps <= 0 {
			c.bound(len(text) - at)
			return
		}
		end := c.v.end(c.c, text, at)
		c.steps -= 1 + (end-at)>>4
		switch {
		case end-at == 1 || c.t.find(text, at, end) != none:
			c.tokens++
		default:
			n, ok := c.t.merge(text, at, end, &c.steps)
			if ok {
				c.tokens += int64(n)
			} else {
				c.bound(end - at)
			}
		}
		if c.Passed() {
			return
		}
		at = end
	}
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
