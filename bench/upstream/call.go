package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	requestBytesMax = 64 << 20 // a longer body is answered 413
	deepLevels      = 100_000  // nesting of the field that body=deep adds
)

// call is one request of a client, from its first byte to its Entry.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	b     Behaviour
	e     Entry
	age   int64
	start time.Time
	out   *writer
	req   *request // nil on routes without a JSON body
}

func (s *Server) serveCall(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, w: w, r: r, b: s.base, start: time.Now()}
	c.e = Entry{
		Time: c.start.UTC(), Method: r.Method, Path: r.URL.Path,
		RequestID: r.Header.Get("X-Request-Id"), IdempotencyKey: r.Header.Get("Idempotency-Key"),
		APIKeySHA256: hashOf(r.Header.Get("X-Api-Key")),
	}
	c.e.AuthorizationSHA256 = hashOf(bearer(r.Header))
	c.e.Seq, c.age = s.log.begin()
	c.e.OwnID = fmt.Sprintf("req_fake_%d", c.e.Seq)
	err := errPanic // unless serve returns
	defer func() { c.finish(err) }()
	err = c.serve()
}

// finish writes the entry. It runs on every path, also while a panic unwinds.
func (c *call) finish(err error) {
	since := time.Since(c.start).Milliseconds()
	c.e.Ms = since
	c.e.Whole = err == nil && c.e.Status != 0
	if errors.Is(err, errGone) {
		c.e.Gone, c.e.GoneMs = true, since
	}
	if c.out != nil {
		c.e.BodySHA256 = c.out.sumHex()
	}
	c.s.log.end(c.e, c.age)
	if err != nil && !errors.Is(err, errCut) && !errors.Is(err, errPanic) {
		panic(http.ErrAbortHandler) // else net/http would end a broken answer as if it were whole
	}
}

func hashOf(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func bearer(h http.Header) string {
	v := h.Get("Authorization")
	if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "bearer") {
		return token
	}
	return v
}

func (c *call) serve() error {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, requestBytesMax))
	c.e.RequestBytes = int64(len(body))
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		return errGone
	}
	settings, problem := c.prepare(body)
	if problem == nil {
		problem = c.behave(settings)
	}
	if problem != nil {
		c.b = c.s.base // what was asked for may be half applied
	}
	if c.out, err = newWriter(c); err != nil {
		return err
	}
	c.w.Header().Set("X-Request-Id", c.e.OwnID)
	if conn, ok := c.r.Context().Value(connKey{}).(*connState); ok {
		conn.idleClose.Store(int64(c.b.IdleClose))
	}
	c.e.Forbidden = c.b.Forbid != "" && c.carries(c.b.Forbid, body)
	if err := c.before(); err != nil {
		return err
	}
	switch {
	case tooLarge != nil:
		return c.fail(http.StatusRequestEntityTooLarge, "the request body is too large")
	case problem != nil:
		return c.fail(http.StatusBadRequest, problem.Error())
	}
	return c.answer()
}

// prepare reads what the request says.
func (c *call) prepare(body []byte) (Settings, error) {
	settings, err := requestSettings(c.r.Header, c.r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	if c.r.Method != http.MethodPost || !strings.HasPrefix(c.r.URL.Path, "/v1/") {
		return settings, nil
	}
	if c.req, err = parseRequest(body); err != nil {
		return settings, err
	}
	c.e.Model, c.e.Stream = c.req.model, c.req.stream
	switch c.e.Path {
	case "/v1/chat/completions":
		c.req.bestOf = 1
		err = c.req.readMessages()
	case "/v1/completions":
		err = c.req.readInput("prompt")
	case "/v1/embeddings":
		c.req.n, c.req.bestOf = 1, 1
		err = c.req.readInput("input")
	}
	return settings, err
}

// behave settles the behaviour: server-wide, then rules, then the request's own.
func (c *call) behave(settings Settings) error {
	if err := c.s.rules.apply(&c.b, c.e.Model, c.e.Path); err != nil {
		return err
	}
	return settings.apply(&c.b)
}

func (c *call) carries(text string, body []byte) bool {
	for name, values := range c.r.Header {
		if !strings.HasPrefix(name, headerPrefix) && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, text) }) {
			return true
		}
	}
	return strings.Contains(c.r.URL.Path, text) || bytes.Contains(body, []byte(text)) ||
		!strings.Contains(c.r.URL.RawQuery, queryPrefix) && strings.Contains(c.r.URL.RawQuery, text)
}

// before is what happens ahead of the first byte.
func (c *call) before() error {
	if err := c.out.sleep(c.b.Delay); err != nil {
		return err
	}
	if c.out.hang.before {
		if err := c.out.silent(); err != nil {
			return err
		}
	}
	if c.out.cutAt.before {
		return c.out.cut()
	}
	return c.out.setEncoding()
}

func (c *call) fail(status int, message string) error {
	var usage json.RawMessage
	p := piece{}
	if c.b.ErrUsage && c.req != nil {
		plan := makePlan(c.req, &c.b)
		usage, p.reported = plan.report(plan.usage)
		c.e.Usage = plan.usage
	}
	p.data = errorBody(status, c.b.ErrorCode, message, usage)
	return c.out.body(status, "application/json", p)
}

func (c *call) answer() error {
	switch {
	case c.b.RequireKey != "" && bearer(c.r.Header) != c.b.RequireKey:
		return c.fail(http.StatusUnauthorized, "Incorrect API key provided.")
	case c.b.Status >= 400:
		return c.fail(c.b.Status, fmt.Sprintf("fake upstream: asked to answer %d", c.b.Status))
	}
	if c.req != nil && c.b.RejectField != "" {
		if _, there := c.req.fields[c.b.RejectField]; there {
			return c.fail(http.StatusBadRequest, "Unrecognized request argument supplied: "+c.b.RejectField)
		}
	}
	switch path := c.e.Path; {
	case path == "/v1/models" && c.req == nil:
		return c.out.body(c.status(), "application/json", piece{data: modelList(c.s.models)})
	case path == "/v1/chat/completions" && c.req != nil:
		return c.complete(&chatShape)
	case path == "/v1/completions" && c.req != nil:
		return c.complete(&textShape)
	case path == "/v1/embeddings" && c.req != nil:
		plan := makePlan(c.req, &c.b)
		answer := plan.embeddings(c.req)
		c.e.Usage = plan.usage
		return c.whole(answer)
	case strings.HasPrefix(path, "/v1/"):
		return c.fail(http.StatusNotFound, fmt.Sprintf("no route %s %s", c.e.Method, path))
	}
	return c.whole(piece{data: mustJSON(map[string]any{
		"object": "fake.echo", "method": c.e.Method, "path": c.e.Path, "request_bytes": c.e.RequestBytes,
	})})
}

func (c *call) status() int {
	if c.b.Status != 0 {
		return c.b.Status
	}
	return http.StatusOK
}

func (c *call) complete(s *shape) error {
	plan := makePlan(c.req, &c.b)
	c.e.Usage = plan.usage
	if !c.req.stream || c.b.Body == "json" || bodiless(c.status()) {
		return c.whole(plan.json(s))
	}
	switch c.b.Body {
	case "empty", "html":
		return c.whole(piece{tokens: plan.usage.Completion})
	case "error":
		data := errorBody(http.StatusInternalServerError, c.b.ErrorCode, "fake upstream: asked for an error in a stream", nil)
		return c.out.stream(c.status(), func(yield func(piece) bool) { yield(piece{data: data}) })
	}
	events := plan.stream(s, c.req.includeUsage, !c.out.form.noDone)
	return c.out.stream(c.status(), c.spoilt(events))
}

// spoilt is events with the faults of the body and pad-bytes knobs.
func (c *call) spoilt(events iter.Seq[piece]) iter.Seq[piece] {
	if c.b.PadBytes == 0 && (c.b.Body == "" || c.b.Body == "normal") {
		return events
	}
	return func(yield func(piece) bool) {
		for p := range events {
			if !yield(c.spoil(p)) {
				return
			}
		}
	}
}

// whole answers with one body, with the faults of the body knob.
func (c *call) whole(p piece) error {
	contentType := "application/json"
	switch c.b.Body {
	case "empty":
		p = piece{tokens: p.tokens}
	case "html":
		contentType = "text/html"
		p = piece{data: []byte("<html><body>Not what you asked for.</body></html>\n"), tokens: p.tokens}
	case "error":
		p = piece{data: errorBody(http.StatusInternalServerError, c.b.ErrorCode, "fake upstream: asked for an error", nil)}
	default:
		p = c.spoil(p)
	}
	return c.out.body(c.status(), contentType, p)
}

func (c *call) spoil(p piece) piece {
	if !p.text || len(p.data) < 2 {
		return p
	}
	field := func(name string, open, fill, end string, n int) {
		extra := `{"` + name + `":` + open + strings.Repeat(fill, n) + end + ","
		p.data = append([]byte(extra), p.data[1:]...)
	}
	if c.b.PadBytes > 0 {
		field("pad", `"`, "x", `"`, c.b.PadBytes)
	}
	switch c.b.Body {
	case "malformed":
		p.data, p.reported = p.data[:len(p.data)/2], nil
	case "utf8":
		field("broken", `"`, "\xff\xc3\x28", `"`, 3)
	case "deep":
		field("deep", strings.Repeat("[", deepLevels), "]", "", deepLevels)
	}
	return p
}
