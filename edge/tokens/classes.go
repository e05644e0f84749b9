package tokens

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is what the splitting rules ask of a character. What has no bit is a symbol.
type class uint8

const (
	lower   class = 1 << iota // Ll
	upper                     // Lu, Lt
	letter                    // Lm, Lo: letters without case
	mark                      // M
	number                    // N
	space                     // white space
	newline                   // \r and \n, which are white space as well

	letters = lower | upper | letter
	heads   = upper | letter | mark // may stand in the first part of a word, see o200kEnd
	tails   = lower | letter | mark // and in its second part
)

// classes are the classes of all code points, in pages of 256 that are shared where equal.
type classes struct {
	ascii [utf8.RuneSelf]class
	page  [unicode.MaxRune>>8 + 1]uint16
	pages [][256]class
}

var classesOnce = sync.OnceValue(buildClasses)

func buildClasses() *classes {
	flat := make([]class, unicode.MaxRune+1)
	for c, sets := range map[class][]*unicode.RangeTable{
		lower: {unicode.Ll}, upper: {unicode.Lu, unicode.Lt}, letter: {unicode.Lm, unicode.Lo},
		mark: {unicode.M}, number: {unicode.N}, space: {unicode.White_Space},
	} {
		for _, set := range sets {
			for _, r := range set.R16 {
				for p := int(r.Lo); p <= int(r.Hi); p += int(r.Stride) {
					flat[p] |= c
				}
			}
			for _, r := range set.R32 {
				for p := int(r.Lo); p <= int(r.Hi); p += int(r.Stride) {
					flat[p] |= c
				}
			}
		}
	}
	flat['\r'] |= newline
	flat['\n'] |= newline

	c := &classes{}
	copy(c.ascii[:], flat)
	known := map[[256]class]uint16{}
	for i := range c.page {
		page := [256]class(flat[i<<8:])
		n, ok := known[page]
		if !ok {
			n = uint16(len(c.pages))
			known[page] = n
			c.pages = append(c.pages, page)
		}
		c.page[i] = n
	}
	return c
}

// at is the class of the character at text[i] and where the next one begins; the text is valid UTF-8.
// At the text's end it is a symbol of no bytes.
func (c *classes) at(text []byte, i int) (class, int) {
	if i >= len(text) {
		return 0, i
	}
	if b := text[i]; b < utf8.RuneSelf {
		return c.ascii[b], i + 1
	}
	return c.wide(text, i)
}

func (c *classes) wide(text []byte, i int) (class, int) {
	r, n := utf8.DecodeRune(text[i:])
	return c.pages[c.page[r>>8]][r&0xff], i + n
}
