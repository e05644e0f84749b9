package dialect

import (
	"bytes"

	"tollgate/quota"
)

// Kind is how an answer's body is to be read.
type Kind uint8

// The kinds.
const (
	Unknown Kind = iota // decided by the first byte: a document begins with '{', all else is a stream
	JSON                // one document
	Stream              // server-sent events, each with a document
)

// KindOf reads a Content-Type.
func KindOf(contentType []byte) Kind {
	if i := bytes.IndexByte(contentType, ';'); i >= 0 {
		contentType = contentType[:i]
	}
	contentType = bytes.ToLower(bytes.TrimSpace(contentType))
	switch {
	case string(contentType) == "text/event-stream":
		return Stream
	case bytes.HasSuffix(contentType, []byte("json")):
		return JSON
	}
	return Unknown
}

// Meter reads the bytes of an answer as they pass and knows what it used. The answer must not be
// compressed: requests ask for identity, and of an answer with a Content-Encoding nothing can be
// known here.
//
// It frames events by bytes: reads may end anywhere, lines end with LF, CR or both, and are as long
// as they like. It keeps the last usage object (8 KiB at most; a longer one counts as none) and,
// while stripping, the begin of one event (64 KiB at most; a longer one passes). Once its buffers
// have grown it allocates nothing. One goroutine uses a Meter.
type Meter struct {
	kind    Kind
	scan    scanner
	sum     found // of the events before the current one
	done    bool
	errored bool // an error came before any text

	// State of the stream.
	line     linePart
	field    [8]byte // name of the line's field, as far as it was read
	fieldLen int
	afterCR  bool
	mark     [6]byte // first bytes of the event's data
	dataLen  int     // bytes of data in the event, up to len(mark)
	lines    int     // data lines in the event
	inEvent  bool    // a line other than a comment has begun

	held   []byte // of the current event, while stripping
	free   bool   // the current event is known not to be the extra chunk
	dropLF bool   // the line feed that may follow ends a stripped event
}

// linePart is where in a line of a stream the next byte stands.
type linePart uint8

const (
	lineBegin linePart = iota
	lineField          // in the name before the colon
	lineSpace          // behind data's colon: one space may follow
	lineData
	lineOther // comments and fields that do not matter
)

// NewMeter returns a meter for one answer.
func NewMeter(kind Kind) *Meter { return &Meter{kind: kind} }

// Reset makes the meter as new, for another answer; it keeps its buffers.
func (m *Meter) Reset(kind Kind) {
	m.scan.reset()
	m.scan.usage = m.scan.usage[:0]
	*m = Meter{kind: kind, scan: m.scan, held: m.held[:0]}
}

// Write reads the next bytes of the answer. It takes all of them and never fails.
func (m *Meter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k, eventEnd := m.step(p)
		if eventEnd {
			m.nextEvent()
		}
		p = p[k:]
	}
	return n, nil
}

// step reads p up to the end of a line at most, and reports whether that ended an event.
func (m *Meter) step(p []byte) (n int, eventEnd bool) {
	if m.kind == Unknown {
		n = skipSpace(p, 0)
		if n == len(p) {
			return n, false
		}
		m.kind = Stream
		if p[n] == '{' {
			m.kind = JSON
		}
		return n, false
	}
	if m.kind == JSON {
		m.scan.feed(p)
		return len(p), false
	}
	if m.afterCR {
		m.afterCR = false
		if p[0] == '\n' {
			return 1, false
		}
	}
	end := indexEither(p, '\n', '\r')
	if end < 0 {
		m.inLine(p)
		return len(p), false
	}
	m.inLine(p[:end])
	eventEnd = m.endLine()
	m.afterCR = p[end] == '\r'
	return end + 1, eventEnd
}

// indexEither returns the index of the first a or b, or -1. It looks at a block at a time, so that a
// far a does not cost a scan for each of many near b.
func indexEither(p []byte, a, b byte) int {
	const blockBytes = 256
	for from := 0; from < len(p); from += blockBytes {
		block := p[from:min(from+blockBytes, len(p))]
		at := bytes.IndexByte(block, a)
		if at >= 0 {
			block = block[:at]
		}
		if other := bytes.IndexByte(block, b); other >= 0 {
			at = other
		}
		if at >= 0 {
			return from + at
		}
	}
	return -1
}

// inLine reads a piece of a line that does not end in it.
func (m *Meter) inLine(p []byte) {
	for len(p) > 0 {
		switch m.line {
		case lineBegin:
			m.fieldLen = 0
			m.line = lineField
			if p[0] == ':' {
				m.line = lineOther
			} else {
				m.inEvent = true
			}
		case lineField:
			if p[0] == ':' {
				m.line = lineOther
				if m.isData() {
					m.line = lineSpace
					m.beginData()
				}
			} else if m.fieldLen < len(m.field) {
				m.field[m.fieldLen] = p[0]
				m.fieldLen++
			} else {
				m.line = lineOther
			}
			p = p[1:]
		case lineSpace:
			m.line = lineData
			if p[0] == ' ' {
				p = p[1:]
			}
		case lineData:
			m.data(p)
			return
		case lineOther:
			return
		}
	}
}

// isData also knows the data field behind a byte order mark, which may begin a stream.
func (m *Meter) isData() bool {
	name := string(m.field[:m.fieldLen])
	return name == "data" || name == "\ufeffdata"
}

var lineFeed = []byte{'\n'}

func (m *Meter) beginData() {
	m.lines++
	if m.lines > 1 { // the lines of one event are joined by line feeds
		m.data(lineFeed)
	}
}

func (m *Meter) data(p []byte) {
	m.dataLen += copy(m.mark[m.dataLen:], p)
	m.scan.feed(p)
}

// endLine ends a line, and reports whether it was the blank one that ends an event.
func (m *Meter) endLine() bool {
	if m.line != lineBegin {
		m.line = lineBegin
		return false
	}
	if m.string("[DONE]") {
		m.done = true
	}
	f := &m.scan.found
	if f.failed && m.sum.textBytes+f.textBytes == 0 {
		m.errored = true
	}
	m.sum.finished = m.sum.finished || f.finished
	m.sum.failed = m.sum.failed || f.failed
	m.sum.textBytes += f.textBytes
	m.sum.textRunes += f.textRunes
	m.sum.texts += f.texts
	return true
}

func (m *Meter) string(s string) bool { return string(m.mark[:m.dataLen]) == s }

// nextEvent forgets the event that endLine ended.
func (m *Meter) nextEvent() {
	m.scan.reset()
	m.dataLen, m.lines, m.inEvent, m.free = 0, 0, false, false
}

// Usage returns the last usage that the upstream reported, which may be all zeros. Not ok: it
// reported none, or one with numbers that cannot be.
func (m *Meter) Usage() (quota.Usage, bool) { return parseUsage(m.scan.usage) }

// Delivered is the text that passed, of all choices: content, reasoning, refusals, calls of tools.
type Delivered struct {
	Bytes  int64 // UTF-8, escapes resolved
	Runes  int64
	Pieces int64 // strings of it that were not empty: in a stream about one per token
}

// Delivered tells what passed so far, an unfinished event included.
func (m *Meter) Delivered() Delivered {
	f := &m.scan.found
	return Delivered{
		Bytes:  m.sum.textBytes + f.textBytes,
		Runes:  m.sum.textRunes + f.textRunes,
		Pieces: m.sum.texts + f.texts,
	}
}

// Tokens estimates the delivered tokens for a charge without usage: a token per piece of a stream, as
// most upstreams send them, or per four bytes, whichever is more.
func (d Delivered) Tokens() int64 { return max(d.Pieces, (d.Bytes+3)/4) }

// Ended reports whether the answer said that it was over: a finish reason, or [DONE].
func (m *Meter) Ended() bool { return m.done || m.sum.finished || m.scan.found.finished }

// Done reports whether [DONE] was seen.
func (m *Meter) Done() bool { return m.done || m.string("[DONE]") }

// Failed reports whether the answer is an error: one came before any text, whatever the status was.
func (m *Meter) Failed() bool {
	f := &m.scan.found
	return m.errored || f.failed && m.sum.textBytes+f.textBytes == 0
}

// ErrorSeen reports whether an error came at all, also in the middle of an answer.
func (m *Meter) ErrorSeen() bool { return m.sum.failed || m.scan.found.failed }
