package dialect

const (
	// usageBytesMax bounds the usage object that is kept of one event. A longer one counts as none.
	usageBytesMax = 8 << 10
	// depthMax bounds the nesting that is followed. What an event nests deeper is not read any further.
	depthMax = 512
	keyMax   = 20 // the longest key of interest; longer ones are none
)

// scanner reads one JSON document, in pieces of any size, and notes what an answer's document tells:
// usage, choices, delivered text, finish, error. It keeps the usage object and nothing else, and
// does not validate: a document that is no JSON is left alone from the point where that shows.
type scanner struct {
	state    scanState
	escape   uint8 // within a string: 0 none, 1 behind a backslash, 2…5 hex digits of \u to come, plus 1
	broken   bool
	counting bool // the string is delivered text
	finishes bool // the string is a finish reason

	section section
	leaf    leaf
	depth   int
	objects [depthMax/64 + 1]uint64 // bit d: the container at depth d is an object
	key     [keyMax]byte
	keyLen  int
	unit    uint16 // value of a \u escape

	capturing bool
	capture   []byte // usage object being read
	usage     []byte // the last one that is whole; outlives reset

	found found
}

// found is what one document told.
type found struct {
	usage     bool // a whole usage object, which is in scanner.usage
	choices   bool // choices is there, and no empty array
	finished  bool
	failed    bool // an error member that is not null
	textBytes int64
	textRunes int64
	texts     int64 // strings of delivered text that were not empty
}

type scanState uint8

const (
	wantValue      scanState = iota
	wantFirstValue           // or the end of the array
	wantFirstKey             // or the end of the object
	wantKey
	wantColon
	wantNext // comma or end
	inKey
	inString
	inScalar
	atEnd
)

// section is the member of the top level that is being read.
type section uint8

const (
	sectionOther section = iota
	sectionUsage
	sectionChoices
	sectionError
)

// leaf is what the last key within choices names.
type leaf uint8

const (
	leafOther leaf = iota
	leafText
	leafFinish
)

// reset makes the scanner ready for another document.
func (s *scanner) reset() { *s = scanner{capture: s.capture[:0], usage: s.usage} }

func (s *scanner) inObject() bool { return s.objects[s.depth/64]&(1<<(s.depth%64)) != 0 }

// feed reads the next piece of the document.
func (s *scanner) feed(p []byte) {
	captured := 0 // p[:captured] has been kept, or need not be
	for i := 0; i < len(p) && !s.broken; {
		c := p[i]
		switch s.state {
		case inString, inKey:
			i = s.inside(p, i)
			continue
		case inScalar:
			if !isScalar(c) {
				s.state = wantNext
				continue
			}
			i = skipScalar(p, i)
			continue
		}
		if c == ' ' || c == '\n' || c == '\t' || c == '\r' {
			i++
			continue
		}
		switch s.state {
		case wantFirstValue, wantValue:
			if c == ']' && s.state == wantFirstValue {
				s.close(false)
				break
			}
			if s.beginValue(c) {
				captured = i
			}
		case wantFirstKey, wantKey:
			switch {
			case c == '"':
				s.state, s.keyLen = inKey, 0
			case c == '}' && s.state == wantFirstKey:
				s.close(true)
			default:
				s.broken = true
			}
		case wantColon:
			s.broken = c != ':'
			s.state = wantValue
		case wantNext:
			switch {
			case c == ',':
				s.state = wantValue
				if s.inObject() {
					s.state = wantKey
				}
			case c == '}' || c == ']':
				s.close(c == '}')
			default:
				s.broken = true
			}
		case atEnd:
			s.broken = true
		}
		i++
		if s.capturing && s.depth == 1 && s.state == wantNext { // the usage object is whole
			s.keep(p[captured:i])
			if s.capturing {
				s.capture, s.usage = s.usage[:0], s.capture
				s.found.usage, s.capturing = true, false
			}
		}
	}
	if s.capturing {
		s.keep(p[captured:])
	}
}

// keep appends to the usage object, or gives it up.
func (s *scanner) keep(p []byte) {
	if len(s.capture)+len(p) > usageBytesMax {
		s.capturing = false
		return
	}
	s.capture = append(s.capture, p...)
}

// beginValue reads the first byte of a value and reports whether a usage object begins with it.
func (s *scanner) beginValue(c byte) (usage bool) {
	switch {
	case s.depth == 1 && s.inObject():
		switch s.section {
		case sectionUsage:
			if usage = c == '{'; usage { // not null
				s.capturing, s.capture = true, s.capture[:0]
			}
		case sectionError:
			s.found.failed = s.found.failed || c != 'n'
		case sectionChoices:
			if c != '[' && c != 'n' {
				s.found.choices = true
			}
		}
	case s.depth == 2 && s.section == sectionChoices:
		s.found.choices = true
	}
	switch {
	case c == '{':
		s.open(true)
	case c == '[':
		s.open(false)
	case c == '"':
		s.state, s.counting, s.finishes = inString, false, false
		if s.section == sectionChoices && s.inObject() {
			s.counting = s.leaf == leafText
			s.finishes = s.leaf == leafFinish
		}
		if s.counting {
			s.found.texts++ // taken back if it stays empty
		}
		s.keyLen = 0
	case isScalar(c):
		s.state = inScalar
	default:
		s.broken = true
	}
	return usage
}

func (s *scanner) open(object bool) {
	s.depth++
	if s.depth >= depthMax {
		s.broken = true
		return
	}
	bit := uint64(1) << (s.depth % 64)
	if object {
		s.objects[s.depth/64] |= bit
		s.state = wantFirstKey
	} else {
		s.objects[s.depth/64] &^= bit
		s.state = wantFirstValue
	}
}

func (s *scanner) close(object bool) {
	if s.depth == 0 || s.inObject() != object {
		s.broken = true
		return
	}
	s.depth--
	s.state = wantNext
	if s.depth == 0 {
		s.state = atEnd
	}
}

// inside reads on within a string and returns the index behind what it read.
func (s *scanner) inside(p []byte, i int) int {
	if s.escape > 0 {
		s.escaped(p[i])
		return i + 1
	}
	run := p[i:]
	if end := indexEither(run, '"', '\\'); end >= 0 {
		run = run[:end]
	}
	s.took(run)
	i += len(run)
	if i == len(p) {
		return i
	}
	if p[i] == '\\' {
		s.escape = 1
	} else {
		s.endString()
	}
	return i + 1
}

// took notes plain bytes of a string.
func (s *scanner) took(run []byte) {
	if s.state == inKey {
		n := copy(s.key[min(s.keyLen, keyMax):], run)
		s.keyLen += n
		if n < len(run) {
			s.keyLen = keyMax + 1
		}
		return
	}
	if len(run) > 0 {
		s.keyLen = 1 // not empty
	}
	if s.counting {
		s.found.textBytes += int64(len(run))
		for _, b := range run {
			if b&0xc0 != 0x80 { // not the continuation of a character
				s.found.textRunes++
			}
		}
	}
}

// escaped reads one byte of an escape sequence.
func (s *scanner) escaped(c byte) {
	if s.escape == 1 {
		if c == 'u' {
			s.escape, s.unit = 5, 0
			return
		}
		s.escape = 0
		s.tookEscape(1, 1)
		return
	}
	s.unit = s.unit<<4 | uint16(hexDigit(c))
	s.escape--
	if s.escape > 1 {
		return
	}
	s.escape = 0
	switch u := s.unit; {
	case u < 0x80:
		s.tookEscape(1, 1)
	case u < 0x800:
		s.tookEscape(2, 1)
	case 0xd800 <= u && u < 0xdc00: // the first half of a pair; the second one counts for both
		s.tookEscape(0, 0)
	case 0xdc00 <= u && u < 0xe000:
		s.tookEscape(4, 1)
	default:
		s.tookEscape(3, 1)
	}
}

func (s *scanner) tookEscape(bytes, runes int64) {
	if s.state == inKey {
		s.keyLen = keyMax + 1 // no key of interest is ever escaped by a real upstream
		return
	}
	s.keyLen = 1
	if s.counting {
		s.found.textBytes += bytes
		s.found.textRunes += runes
	}
}

func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 0
}

func (s *scanner) endString() {
	if s.state == inString {
		if s.counting && s.keyLen == 0 {
			s.found.texts--
		}
		s.found.finished = s.found.finished || s.finishes && s.keyLen > 0
		s.state = wantNext
		if s.depth == 0 {
			s.state = atEnd
		}
		return
	}
	s.state = wantColon
	var key []byte
	if s.keyLen <= keyMax {
		key = s.key[:s.keyLen]
	}
	if s.depth == 1 {
		s.section = sectionOf(key)
		s.leaf = leafOther
		return
	}
	if s.section == sectionChoices {
		s.leaf = leafOf(key, s.depth)
	}
}

func sectionOf(key []byte) section {
	switch string(key) {
	case "usage":
		return sectionUsage
	case "choices":
		return sectionChoices
	case "error":
		return sectionError
	}
	return sectionOther
}

// choiceDepth is the depth of the members of a choice: document, array, choice.
const choiceDepth = 3

// leafOf knows the keys of delivered text: content, also as parts, reasoning, refusals, calls of
// tools, and legacy completions.
func leafOf(key []byte, depth int) leaf {
	switch string(key) {
	case "content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "arguments", "name", "transcript":
		return leafText
	case "finish_reason":
		if depth == choiceDepth {
			return leafFinish
		}
	}
	return leafOther
}

// isScalar reports whether c can stand in a number, true, false or null.
func isScalar(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '-' || c == '+' || c == '.'
}

func skipScalar(p []byte, i int) int {
	for i < len(p) && isScalar(p[i]) {
		i++
	}
	return i
}
