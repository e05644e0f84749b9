package journal

import (
	"fmt"
	"time"
	"unicode/utf8"

	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of one record. Beyond them Append answers ErrTooLarge, except for
// Outcome.Error, which is cut.
const (
	textBytesMax   = 4 << 10
	errorBytesMax  = 512
	bucketsMax     = 16
	recordBytesMax = 64 << 10
)

// codec goes over the fields of a record to write or read them. One list of
// fields serves both, so they cannot differ.
//
// Integers are zigzag varints in their shortest form, texts a length and bytes,
// booleans 0 or 1. There is exactly one encoding of a record.
type codec struct {
	reads   bool
	version uint8  // of the record
	pos     int    // bytes read or written so far
	out     []byte // where to write
	over    bool   // what was to be written is above a bound
	in      *input
	err     error // the first fault; nothing is read after it
}

// input is what is read: texts of the record are parts of it. It stands behind
// a pointer of its own so that the compiler sees that out does not leave with
// them, and what is written can lie on the caller's stack.
type input struct{ text string }

// fields switches by type instead of calling through the interface: so the
// record does not escape, and appending one on the caller's stack allocates nothing.
func (c *codec) fields(r Record) {
	switch r := r.(type) {
	case *Reserved:
		r.fields(c)
	case *Progress:
		r.fields(c)
	case *Committed:
		r.fields(c)
	case *Released:
		r.fields(c)
	case *Unknown:
		r.fields(c)
	case *Checkpoint:
		r.fields(c)
	case *Head:
		r.fields(c)
	default:
		panic("BUG: journal: a record of no known kind")
	}
}

func kindOf(r Record) kind {
	switch r.(type) {
	case *Reserved:
		return kindReserved
	case *Progress:
		return kindProgress
	case *Committed:
		return kindCommitted
	case *Released:
		return kindReleased
	case *Unknown:
		return kindUnknown
	case *Checkpoint:
		return kindCheckpoint
	case *Head:
		return kindHead
	}
	panic("BUG: journal: a record of no known kind")
}

// encode writes a record's encoding to the begin of out. ErrTooLarge: it is
// above a bound, or longer than out.
func encode(out []byte, r Record) (length int, err error) {
	c := codec{version: versionNow, out: out}
	c.byte(byte(kindOf(r)))
	c.byte(versionNow)
	c.fields(r)
	if c.over {
		return 0, ErrTooLarge
	}
	return c.pos, nil
}

// decode reads one record. ErrNewer: of a kind or version this program does
// not know. ErrRecord: not an encoding of a record.
func decode(data []byte) (Record, error) {
	if len(data) < 2 {
		return nil, fmt.Errorf("%w: %d bytes", ErrRecord, len(data))
	}
	c := codec{reads: true, version: data[1], pos: 2, in: &input{string(data)}}
	if c.version == 0 {
		return nil, fmt.Errorf("%w: version 0", ErrRecord)
	}
	if c.version > versionNow {
		return nil, fmt.Errorf("%w: record version %d, newest known is %d", ErrNewer, c.version, versionNow)
	}
	var r Record
	switch kind(data[0]) {
	case kindReserved:
		r = new(Reserved)
	case kindProgress:
		r = new(Progress)
	case kindCommitted:
		r = new(Committed)
	case kindReleased:
		r = new(Released)
	case kindUnknown:
		r = new(Unknown)
	case kindCheckpoint:
		r = new(Checkpoint)
	case kindHead:
		r = new(Head)
	default:
		return nil, fmt.Errorf("%w: record kind %d", ErrNewer, data[0])
	}
	c.fields(r)
	if c.err != nil {
		return nil, c.err
	}
	if c.pos != len(data) {
		return nil, fmt.Errorf("%w: %d bytes behind the last field", ErrRecord, len(data)-c.pos)
	}
	return r, nil
}

func (c *codec) bad(reason string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s at byte %d", ErrRecord, reason, c.pos)
	}
}

func (c *codec) write(u uint64) {
	for u >= 0x80 && c.pos < len(c.out) {
		c.out[c.pos] = byte(u) | 0x80
		c.pos++
		u >>= 7
	}
	if c.pos >= len(c.out) {
		c.over = true
		return
	}
	c.out[c.pos] = byte(u)
	c.pos++
}

func (c *codec) readUvarint() (u uint64) {
	if c.err != nil {
		return 0
	}
	for shift := uint(0); ; shift += 7 {
		if c.pos >= len(c.in.text) {
			c.bad("the record ends in a number")
			return 0
		}
		b := c.in.text[c.pos]
		c.pos++
		switch {
		case shift == 63 && b > 1:
			c.bad("a number of more than 64 bits")
			return 0
		case b == 0 && shift > 0:
			c.bad("a number longer than it needs to be")
			return 0
		}
		u |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return u
		}
	}
}

func (c *codec) int(p *int64) {
	if !c.reads {
		c.write(uint64(*p)<<1 ^ uint64(*p>>63))
		return
	}
	u := c.readUvarint()
	*p = int64(u>>1) ^ -int64(u&1)
}

func (c *codec) duration(p *time.Duration) { c.int((*int64)(p)) }

func (c *codec) byte(b byte) byte {
	if !c.reads {
		c.write(uint64(b)) // all are below 0x80
		return b
	}
	if c.err != nil || c.pos >= len(c.in.text) {
		c.bad("the record ends before a byte")
		return 0
	}
	b = c.in.text[c.pos]
	c.pos++
	return b
}

func (c *codec) bool(p *bool) {
	var b byte
	if *p {
		b = 1
	}
	b = c.byte(b)
	if c.reads {
		if b > 1 {
			c.bad("a boolean that is neither 0 nor 1")
		}
		*p = b == 1
	}
}

func (c *codec) text(p *string) {
	if !c.reads {
		c.write(uint64(len(*p)))
		if len(*p) > textBytesMax || len(*p) > len(c.out)-c.pos {
			c.over = true
			return
		}
		c.pos += copy(c.out[c.pos:], *p)
		return
	}
	n := c.readUvarint()
	if n > textBytesMax || n > uint64(len(c.in.text)-c.pos) {
		c.bad("a text that is too long")
	}
	if c.err != nil {
		return
	}
	*p = c.in.text[c.pos : c.pos+int(n)]
	c.pos += int(n)
}

// textCut writes at most errorBytesMax of a text, cut between two characters.
func (c *codec) textCut(p *string) {
	if c.reads || len(*p) <= errorBytesMax {
		c.text(p)
		return
	}
	n := errorBytesMax
	for n > errorBytesMax-utf8.UTFMax && !utf8.RuneStart((*p)[n]) {
		n--
	}
	cut := (*p)[:n]
	c.text(&cut)
}

func (c *codec) usage(u *quota.Usage) {
	c.int(&u.Input)
	c.int(&u.CachedInput)
	c.int(&u.CacheWrite)
	c.int(&u.Output)
	c.int(&u.Reasoning)
}

// count writes or reads the length of a list.
func (c *codec) count(n, most int) int {
	if !c.reads {
		if n > most {
			c.over = true
		}
		c.write(uint64(n))
		return n
	}
	u := c.readUvarint()
	if u > uint64(most) {
		c.bad("a list that is too long")
	}
	if c.err != nil {
		return 0
	}
	return int(u)
}

// An account's first byte: scope, period, and whether its id stands there
// because it is not the principal's.
const (
	accountScope    = 0x03
	accountPeriod   = 0x0c
	accountExplicit = 0x10
)

func (c *codec) chain(p *quota.Chain, who quota.Principal) {
	n := c.count(len(*p), quota.ChainMax)
	if c.reads && n > 0 {
		*p = make(quota.Chain, n)
	}
	for i := range n {
		c.account(&(*p)[i], who)
	}
}

func (c *codec) account(a *quota.Account, who quota.Principal) {
	head := byte(a.Scope) | byte(a.Period)<<2
	if a.ID != who.ID(a.Scope) {
		head |= accountExplicit
	}
	head = c.byte(head)
	if c.reads {
		a.Scope, a.Period = quota.Scope(head&accountScope), quota.Period(head&accountPeriod>>2)
		if a.Scope > quota.Key || a.Period > quota.Day || head > accountExplicit|accountPeriod|accountScope {
			c.bad("an account of no known scope or period")
		}
		a.ID = who.ID(a.Scope)
	}
	if head&accountExplicit != 0 {
		c.text(&a.ID)
		if c.reads && a.ID == who.ID(a.Scope) {
			c.bad("an account's id that was to be left out")
		}
	}
	if a.Period != quota.Ever {
		c.text(&a.Window.Name)
		c.int(&a.Window.Start)
		c.int(&a.Window.End)
	}
}

func (c *codec) buckets(p *[]lua.BucketArg) {
	n := c.count(len(*p), bucketsMax)
	if c.reads && n > 0 {
		*p = make([]lua.BucketArg, n)
	}
	for i := range n {
		b := &(*p)[i]
		scope := c.byte(byte(b.Scope))
		if c.reads {
			b.Scope = quota.Scope(scope)
			if b.Scope > quota.Key {
				c.bad("a bucket of no known scope")
			}
		}
		c.text(&b.ID)
		c.text((*string)(&b.Unit))
		c.int(&b.Limit.Rate)
		c.int(&b.Limit.Burst)
		c.int(&b.Need)
	}
}
