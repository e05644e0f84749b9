package tokens

// The two vocabularies split a text into pieces before they merge bytes, each by its rule; no merge crosses a
// piece's end. OpenAI publishes the rules as regular expressions that backtrack; here they are scanners.
// Where a comment speaks of giving back, it is that backtracking.

// pieceEnd finds the end of the piece that begins at i < len(text). The text is valid UTF-8.
type pieceEnd func(c *classes, text []byte, i int) int

// cl100kEnd, the first that fits: a contraction's ending; letters, led by at most one character that is
// no letter, number or newline; up to three numbers; symbols, led by at most one space, with newlines
// behind them; white space.
func cl100kEnd(c *classes, text []byte, i int) int {
	if text[i] == '\'' {
		if end := contraction(text, i); end > i {
			return end
		}
	}
	first, next := c.at(text, i)
	if first&letters != 0 {
		return c.run(text, next, letters)
	}
	if first&(number|newline) == 0 {
		if end := c.run(text, next, letters); end > next {
			return end
		}
	}
	return c.noWord(text, i, first, next, newlines)
}

// o200kEnd is as cl100kEnd, but a word is heads and then tails, at least one of them: capitals only
// begin a word. Marks and letters without case are both. A contraction's ending belongs to its word.
func o200kEnd(c *classes, text []byte, i int) int {
	first, next := c.at(text, i)
	if first&(number|newline|letters) == 0 {
		tailed, end := c.caseWord(text, next)
		switch {
		case first&mark != 0 && !tailed:
			return contraction(text, next) // the mark is a word, rather than led by itself
		case end > next:
			return contraction(text, end)
		}
	} else if first&letters != 0 {
		_, end := c.caseWord(text, i)
		return contraction(text, end)
	}
	return c.noWord(text, i, first, next, newlinesAndSlashes)
}

// caseWord is the end of the word of o200k at i, or i; tailed says that it ends in a tail.
func (c *classes) caseWord(text []byte, i int) (tailed bool, end int) {
	lastTail := 0 // the end of the last character among the heads that is a tail as well
	for end = i; ; {
		cl, next := c.at(text, end)
		if cl&heads == 0 {
			if cl&lower != 0 {
				return true, c.run(text, next, tails)
			}
			break
		}
		end = next
		if cl&tails != 0 {
			lastTail = end
		}
	}
	if lastTail != 0 {
		return true, lastTail // heads behind it are given back, as a word needs a tail
	}
	return false, end
}

func newlines(b byte) bool           { return b == '\r' || b == '\n' }
func newlinesAndSlashes(b byte) bool { return b == '\r' || b == '\n' || b == '/' }

// noWord is the rest of both rules: numbers, symbols with what may follow them, white space.
func (c *classes) noWord(text []byte, i int, first class, next int, follows func(byte) bool) int {
	if first&number != 0 {
		for range 2 {
			cl, n := c.at(text, next)
			if cl&number == 0 {
				break
			}
			next = n
		}
		return next
	}
	symbols := next
	if text[i] == ' ' {
		symbols = c.symbols(text, next)
	}
	if first&space == 0 || symbols > next {
		end := c.symbols(text, symbols)
		for end < len(text) && follows(text[end]) {
			end++
		}
		return end
	}
	return c.spaceEnd(text, i)
}

// symbols is the end of the characters that are no letter, number or white space.
func (c *classes) symbols(text []byte, i int) int {
	for i < len(text) {
		cl, next := c.at(text, i)
		if cl&(letters|number|space) != 0 {
			break
		}
		i = next
	}
	return i
}

// run is the end of the characters of the given classes.
func (c *classes) run(text []byte, i int, of class) int {
	for i < len(text) {
		cl, next := c.at(text, i)
		if cl&of == 0 {
			break
		}
		i = next
	}
	return i
}

// spaceEnd ends white space behind its last newline; else all of it at the text's end; else before its
// last character, which leads what follows, unless it has only that one.
func (c *classes) spaceEnd(text []byte, i int) int {
	lastNewline, last, end := 0, i, i
	for end < len(text) {
		cl, next := c.at(text, end)
		if cl&space == 0 {
			break
		}
		last, end = end, next
		if cl&newline != 0 {
			lastNewline = end
		}
	}
	switch {
	case lastNewline != 0:
		return lastNewline
	case end == len(text) || last == i:
		return end
	}
	return last
}

// contraction is the end of 's, 't, 're, 've, 'm, 'll or 'd at i, in either case, or i.
func contraction(text []byte, i int) int {
	if i+1 >= len(text) || text[i] != '\'' {
		return i
	}
	a, b := text[i+1]|0x20, byte(0)
	if i+2 < len(text) {
		b = text[i+2] | 0x20
	}
	switch {
	case text[i+1] >= 0x80:
		return i
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return i + 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return i + 3
	}
	return i
}
