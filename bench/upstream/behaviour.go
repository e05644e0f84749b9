package upstream

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Behaviour says how a call is answered. The zero value answers like a healthy
// server. Each field is a knob: `knob` is its name in flags, headers (x-fake-
// in front), query fields (fake- in front) and JSON; `help` is its meaning;
// `oneof` lists the values it takes; `min` (else 0)
// and `max` bound its number.
type Behaviour struct {
	Delay      time.Duration `knob:"delay" help:"wait before the first byte of the answer"`
	DelayChunk time.Duration `knob:"delay-chunk" help:"wait before each further event of a stream"`
	DelayPiece time.Duration `knob:"delay-piece" help:"wait between the pieces made by split"`
	Hang       string        `knob:"hang" help:"fall silent until released or left: 'before' the first byte, or after this many events of a stream; 0 = after the headers"`

	Seed             int64  `knob:"seed" help:"decides the words of the answer"`
	PromptTokens     int64  `knob:"prompt-tokens" min:"-1" max:"1000000000" help:"prompt tokens; 0 = -p<N> in the model's name, else counted (4 bytes a token); -1 = none"`
	CompletionTokens int64  `knob:"completion-tokens" min:"-1" max:"1048576" help:"tokens of each choice; 0 = -c<N> in the model's name, else 16; -1 = none"`
	CachedTokens     int64  `knob:"cached-tokens" max:"1000000000" help:"cached tokens, told inside the prompt tokens"`
	ReasoningTokens  int64  `knob:"reasoning-tokens" max:"1048576" help:"tokens of each choice that are reasoning: inside the completion tokens, not in the text"`
	ThinkingTokens   int64  `knob:"thinking-tokens" max:"1000000000" help:"tokens told only in total_tokens, outside prompt and completion"`
	IgnoreMax        bool   `knob:"ignore-max" help:"do not stop at max_tokens: the answer costs more than the request allowed"`
	Text             string `knob:"text" oneof:"ascii,utf8" help:"words of the answer: 4 bytes a token, plain or of multi-byte characters"`

	Usage     string `knob:"usage" oneof:"asked,always,absent,null,zero,finish,twice,cumulative,after-done,null-choices,no-choices" help:"where usage is told; all but asked tell it whether include_usage asked for it or not"`
	UsageForm string `knob:"usage-form" oneof:"int,float,negative,huge,text" help:"how the numbers of usage are written"`

	Chunks    int    `knob:"chunks" max:"100000" help:"events with text per choice of a stream; 0 = one a token, at most 16"`
	Join      int    `knob:"join" max:"100000" help:"send this many events in one write"`
	Split     int    `knob:"split" max:"1048576" help:"write each event, or the JSON, in pieces of this many bytes, flushed one by one"`
	SSE       string `knob:"sse" help:"forms of the stream, joined by '+': crlf, cr, nospace, comments, ids, multiline, nodone, bom"`
	Framing   string `knob:"framing" oneof:"auto,chunked,close" help:"end of body: auto = Content-Length for JSON and chunks for streams; close = end of connection"`
	Encoding  string `knob:"encoding" oneof:"identity,gzip,deflate" help:"Content-Encoding, flushed per event, whatever the client accepts"`
	PadBytes  int    `knob:"pad-bytes" max:"16777216" help:"pad each text event, or the JSON, with a field of this many bytes"`
	CookieLen int    `knob:"cookie-bytes" max:"1048576" help:"send a Set-Cookie header of this many bytes"`
	Header    string `knob:"header" help:"more answer headers, 'name: value' joined by '|'"`

	Cut       string        `knob:"cut" help:"close the connection: 'before' any byte, after the 'headers', after this many events, after 'bytes:<N>' of the body, or at the 'end' instead of the last chunk"`
	Reset     bool          `knob:"reset" help:"close by TCP reset; alone: before any byte"`
	Body      string        `knob:"body" oneof:"normal,malformed,utf8,deep,empty,html,error,json" help:"what a 200 carries; error = an error object as only event or JSON; json = JSON although a stream was asked"`
	Status    int           `knob:"status" max:"599" help:"answer this status; 400 and above with an error body in OpenAI's shape"`
	ErrorCode string        `knob:"error-code" help:"error code of the error body instead of the usual one of the status"`
	ErrUsage  bool          `knob:"error-usage" help:"error bodies report usage too"`
	IdleClose time.Duration `knob:"idle-close" help:"close the connection when idle this long after this answer"`
	ConnClose bool          `knob:"conn-close" help:"answer with Connection: close"`

	RejectField string `knob:"reject-field" help:"answer 400 when the request's JSON has this top-level field"`
	RequireKey  string `knob:"require-key" help:"answer 401 unless this bearer key came with the request"`
	Forbid      string `knob:"forbid" help:"mark the log entry when this text appears in the request's headers, query or body"`
}

// Validate checks every knob, and names the first that does not fit.
func (b *Behaviour) Validate() error {
	if err := validateKnobs(b); err != nil {
		return err
	}
	if b.Status != 0 && b.Status < 200 {
		return fmt.Errorf("%w: status %d: want 200 to 599, or 0", ErrKnob, b.Status)
	}
	if _, err := parseCut(b.Cut); err != nil {
		return err
	}
	if _, err := parseHang(b.Hang); err != nil {
		return err
	}
	if _, err := parseSSE(b.SSE); err != nil {
		return err
	}
	_, err := parseHeader(b.Header)
	return err
}

// point is a place in an answer. A field of -1 is "not there".
type point struct {
	before, headers, end bool
	events               int
	bodyBytes            int64
}

func parseCut(s string) (point, error) {
	p := point{events: -1, bodyBytes: -1}
	switch {
	case s == "":
	case s == "before":
		p.before = true
	case s == "headers":
		p.headers = true
	case s == "end":
		p.end = true
	case strings.HasPrefix(s, "bytes:"):
		n, err := strconv.ParseUint(s[len("bytes:"):], 10, 40)
		if err != nil {
			return p, fmt.Errorf("%w: cut %q: want bytes:<N>", ErrKnob, s)
		}
		p.bodyBytes = int64(n)
	default:
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return p, fmt.Errorf("%w: cut %q: want before, headers, end, bytes:<N> or a number of events", ErrKnob, s)
		}
		p.events = int(n)
		p.headers = n == 0
	}
	return p, nil
}

func parseHang(s string) (point, error) {
	p := point{events: -1, bodyBytes: -1}
	switch s {
	case "":
	case "before":
		p.before = true
	default:
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return p, fmt.Errorf("%w: hang %q: want before or a number of events", ErrKnob, s)
		}
		p.events = int(n)
	}
	return p, nil
}

// sseForm is how the events of a stream are framed.
type sseForm struct {
	eol                                            string
	noSpace, comments, ids, multiline, noDone, bom bool
}

func parseSSE(s string) (sseForm, error) {
	f := sseForm{eol: "\n"}
	if s == "" {
		return f, nil
	}
	for word := range strings.SplitSeq(s, "+") {
		switch word {
		case "crlf":
			f.eol = "\r\n"
		case "cr":
			f.eol = "\r"
		case "nospace":
			f.noSpace = true
		case "comments":
			f.comments = true
		case "ids":
			f.ids = true
		case "multiline":
			f.multiline = true
		case "nodone":
			f.noDone = true
		case "bom":
			f.bom = true
		default:
			return f, fmt.Errorf("%w: sse %q: no form %q", ErrKnob, s, word)
		}
	}
	return f, nil
}

func parseHeader(s string) ([][2]string, error) {
	if s == "" {
		return nil, nil
	}
	var pairs [][2]string
	for line := range strings.SplitSeq(s, "|") {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(line, "\r\n") {
			return nil, fmt.Errorf("%w: header %q: want name: value", ErrKnob, line)
		}
		pairs = append(pairs, [2]string{name, strings.TrimSpace(value)})
	}
	return pairs, nil
}
