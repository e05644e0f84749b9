package dialect

import "io"

// holdBytesMax bounds what is held of an event that is not known yet; a longer one passes.
const holdBytesMax = 64 << 10

// Strip reads p like Write and appends to dst what the client is to see of it: all but the extra
// chunk that include_usage brings (a usage, and choices empty, null or absent), with its blank line.
// It is for answers to requests that AskUsage changed; a client that asked itself sees every byte.
//
// An event is held only while it is incomplete and may still be the extra chunk, which is until its
// first choice appears. A client can do nothing with such a begin: it acts at the blank line. What
// came as a whole passes as a whole, within the same call; comments pass at once.
func (m *Meter) Strip(dst, p []byte) []byte {
	for len(p) > 0 {
		ofDropped := m.dropLF && m.afterCR && p[0] == '\n'
		m.dropLF = false
		n, eventEnd := m.step(p)
		if !ofDropped {
			dst = m.pass(dst, p[:n], eventEnd)
		}
		if eventEnd {
			m.nextEvent()
		}
		p = p[n:]
	}
	return dst
}

// Flush appends to dst what Strip still holds, at the end of an answer that was cut within an event.
func (m *Meter) Flush(dst []byte) []byte {
	if len(m.held) > 0 && !m.isExtra() {
		dst = append(dst, m.held...)
	}
	m.held = m.held[:0]
	return dst
}

func (m *Meter) pass(dst, p []byte, eventEnd bool) []byte {
	if m.kind != Stream || m.free || !m.inEvent {
		return append(dst, p...)
	}
	switch {
	case eventEnd && m.isExtra():
		m.held = m.held[:0]
		m.dropLF = m.afterCR
		return dst
	case eventEnd, m.isOrdinary(), len(m.held)+len(p) > holdBytesMax:
		dst = append(append(dst, m.held...), p...)
		m.held = m.held[:0]
		m.free = true
		return dst
	}
	m.held = append(m.held, p...)
	return dst
}

// isExtra: the event, as far as it came, is the extra chunk.
func (m *Meter) isExtra() bool {
	f := &m.scan.found
	return f.usage && !f.choices && !f.failed && m.scan.state == atEnd
}

// isOrdinary: the event cannot become the extra chunk any more.
func (m *Meter) isOrdinary() bool {
	f := &m.scan.found
	return f.choices || f.failed || m.scan.broken || m.dataLen > 0 && m.mark[0] != '{' && m.mark[0] != ' '
}

// Tap is the body of an answer on its way to the client: a Reader that shows all bytes to a Meter.
// It returns what one Read of the source gave, and waits for more only when all of that was stripped.
type Tap struct {
	src   io.Reader
	meter *Meter
	strip bool
	out   []byte // stripped, and not delivered yet from at on
	at    int
	err   error
}

// NewTap returns a Tap of src. strip: see Meter.Strip.
func NewTap(src io.Reader, meter *Meter, strip bool) *Tap {
	return &Tap{src: src, meter: meter, strip: strip}
}

// Read implements io.Reader. Errors of the source come as they are, behind all bytes before them.
func (t *Tap) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !t.strip {
		n, err := t.src.Read(p)
		_, _ = t.meter.Write(p[:n])
		return n, err
	}
	for t.at == len(t.out) {
		if t.err != nil {
			return 0, t.err
		}
		n, err := t.src.Read(p)
		t.out, t.at, t.err = t.meter.Strip(t.out[:0], p[:n]), 0, err
		if err != nil {
			t.out = t.meter.Flush(t.out)
		}
		if n == 0 && err == nil {
			return 0, nil
		}
	}
	n := copy(p, t.out[t.at:])
	t.at += n
	return n, nil
}
