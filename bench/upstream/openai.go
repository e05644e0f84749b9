package upstream

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"math"
)

// piece is one event of a stream, or a whole JSON answer.
type piece struct {
	data     []byte
	text     bool   // carries words of the answer (what pad-bytes pads and body faults break)
	tokens   int64  // completion tokens that it delivers
	reported *Usage // usage that a reader finds in it
}

// shape is how one API tells a plan.
type shape struct {
	prefix, object, chunkObject string
	// whole builds one choice of a JSON answer, delta one of a stream event.
	whole func(index int, text, finish string) any
	delta func(index int, text string, first bool, finish *string) any
}

type chatMessage struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatChoice struct {
	Index        int          `json:"index"`
	Message      *chatMessage `json:"message,omitempty"`
	Delta        *chatMessage `json:"delta,omitempty"`
	Logprobs     any          `json:"logprobs"`
	FinishReason *string      `json:"finish_reason"`
}

type textChoice struct {
	Text         string  `json:"text"`
	Index        int     `json:"index"`
	Logprobs     any     `json:"logprobs"`
	FinishReason *string `json:"finish_reason"`
}

var chatShape = shape{
	prefix: "chatcmpl-", object: "chat.completion", chunkObject: "chat.completion.chunk",
	whole: func(index int, text, finish string) any {
		return chatChoice{Index: index, Message: &chatMessage{Role: "assistant", Content: &text}, FinishReason: &finish}
	},
	delta: func(index int, text string, first bool, finish *string) any {
		m := &chatMessage{Content: &text}
		if first {
			m.Role = "assistant"
		}
		if finish != nil {
			m = &chatMessage{}
		}
		return chatChoice{Index: index, Delta: m, FinishReason: finish}
	},
}

var textShape = shape{
	prefix: "cmpl-", object: "text_completion", chunkObject: "text_completion",
	whole: func(index int, text, finish string) any {
		return textChoice{Index: index, Text: text, FinishReason: &finish}
	},
	delta: func(index int, text string, _ bool, finish *string) any {
		return textChoice{Index: index, Text: text, FinishReason: finish}
	},
}

type completion struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Fingerprint string          `json:"system_fingerprint"`
	Choices     json.RawMessage `json:"choices,omitempty"`
	Usage       json.RawMessage `json:"usage,omitempty"`
}

var null = json.RawMessage("null")

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("BUG: upstream: " + err.Error())
	}
	return data
}

func (p *plan) completion(s *shape, object string, choices any, usage json.RawMessage) []byte {
	c := completion{ID: s.prefix + p.id, Object: object, Created: createdAt, Model: p.model, Fingerprint: "fp_fake", Usage: usage}
	if choices != nil {
		c.Choices = mustJSON(choices)
	}
	return mustJSON(c)
}

// json is the answer to a call without a stream.
func (p *plan) json(s *shape) piece {
	choices := make([]any, p.choices)
	for i := range choices {
		choices[i] = s.whole(i, p.words(i, 0, p.perText), p.finish)
	}
	out := piece{text: true, tokens: p.usage.Completion}
	var usage json.RawMessage
	switch p.b.Usage {
	case "absent":
	case "null":
		usage = null
	default:
		usage, out.reported = p.report(p.usage)
	}
	out.data = p.completion(s, s.object, choices, usage)
	return out
}

// stream yields the events of an answer, without their framing.
func (p *plan) stream(s *shape, asked bool, done bool) iter.Seq[piece] {
	return func(yield func(piece) bool) {
		mode := p.b.Usage
		explicit := mode != "" && mode != "asked"
		tells := asked || explicit // the extra chunk, and null before it
		var before json.RawMessage
		if tells && mode != "absent" {
			before = null
		}
		told := p.hidden // completion tokens behind the events so far
		event := func(choice any, tokens int64) piece {
			told += tokens
			e := piece{text: true, tokens: tokens}
			usage := before
			if mode == "cumulative" {
				usage, e.reported = p.report(Usage{Prompt: p.usage.Prompt, Completion: told, Total: p.usage.Prompt + told + p.thought})
			}
			e.data = p.completion(s, s.chunkObject, []any{choice}, usage)
			return e
		}
		for i := range p.choices {
			tokens := p.perAll - p.perText // reasoning is done when the first event comes
			if i == 0 {
				tokens += p.hidden
				told -= p.hidden
			}
			if !yield(event(s.delta(i, "", true, nil), tokens)) {
				return
			}
		}
		at := int64(0)
		for chunk := range p.chunks {
			n := p.chunkTokens(chunk)
			for i := range p.choices {
				if !yield(event(s.delta(i, p.words(i, at, n), false, nil), n)) {
					return
				}
			}
			at += n
		}
		for i := range p.choices {
			e := event(s.delta(i, "", false, &p.finish), 0)
			if i == p.choices-1 && (mode == "finish" || mode == "twice") {
				var usage json.RawMessage
				usage, e.reported = p.report(p.usage)
				e.data = p.completion(s, s.chunkObject, []any{s.delta(i, "", false, &p.finish)}, usage)
			}
			if !yield(e) {
				return
			}
		}
		extra, ok := p.extra(s, tells)
		end := piece{data: []byte("[DONE]")}
		if ok && mode != "after-done" && !yield(extra) || done && !yield(end) {
			return
		}
		if ok && mode == "after-done" {
			yield(extra)
		}
	}
}

// extra is the chunk that only tells usage.
func (p *plan) extra(s *shape, tells bool) (piece, bool) {
	if !tells || p.b.Usage == "absent" || p.b.Usage == "finish" {
		return piece{}, false
	}
	var e piece
	var usage json.RawMessage
	if p.b.Usage == "null" {
		usage = null
	} else {
		usage, e.reported = p.report(p.usage)
	}
	var choices any = []any{}
	switch p.b.Usage {
	case "null-choices":
		choices = null
	case "no-choices":
		choices = nil
	}
	e.data = p.completion(s, s.chunkObject, choices, usage)
	return e, true
}

// report writes usage in the form asked for, and says what a right reader takes from it (nil: nothing usable).
func (p *plan) report(u Usage) (json.RawMessage, *Usage) {
	cached, reasoning := p.cached, p.reason
	if p.b.Usage == "zero" {
		u, cached, reasoning = Usage{}, 0, 0
	}
	told := &u
	num := func(n int64) string { return fmt.Sprint(n) }
	switch p.b.UsageForm {
	case "float":
		num = func(n int64) string { return fmt.Sprintf("%d.0", n) }
	case "negative":
		num, told = func(n int64) string { return fmt.Sprint(-n) }, nil
	case "huge":
		num, told = func(n int64) string { return fmt.Sprintf("%de30", n+1) }, nil
	case "text":
		num, told = func(n int64) string { return fmt.Sprintf("%q", fmt.Sprint(n)) }, nil
	}
	if p.embedding() {
		return fmt.Appendf(nil, `{"prompt_tokens":%s,"total_tokens":%s}`, num(u.Prompt), num(u.Total)), told
	}
	return fmt.Appendf(nil, `{"prompt_tokens":%s,"completion_tokens":%s,"total_tokens":%s,`+
		`"prompt_tokens_details":{"cached_tokens":%s,"audio_tokens":0},`+
		`"completion_tokens_details":{"reasoning_tokens":%s,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`,
		num(u.Prompt), num(u.Completion), num(u.Total), num(cached), num(reasoning)), told
}

func (p *plan) embedding() bool { return p.choices == 0 }

// embeddings is the answer to /v1/embeddings: one vector per input, no completion tokens.
func (p *plan) embeddings(r *request) piece {
	p.choices, p.finish = 0, ""
	p.thought = 0
	p.setUsage(p.usage.Prompt, 0)
	dimensions := int(r.dimensions)
	if dimensions == 0 {
		dimensions = 8
	}
	type row struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	rows := make([]row, r.inputCount)
	for i := range rows {
		vector := make([]float32, dimensions)
		packed := make([]byte, 0, 4*dimensions)
		for d := range vector {
			vector[d] = float32(mix(uint64(p.b.Seed)^uint64(i)<<20^uint64(d))%2001)/1000 - 1
			packed = binary.LittleEndian.AppendUint32(packed, math.Float32bits(vector[d]))
		}
		rows[i] = row{Object: "embedding", Index: i, Embedding: vector}
		if r.base64 {
			rows[i].Embedding = base64.StdEncoding.EncodeToString(packed)
		}
	}
	out := piece{text: true}
	answer := struct {
		Object string          `json:"object"`
		Data   []row           `json:"data"`
		Model  string          `json:"model"`
		Usage  json.RawMessage `json:"usage,omitempty"`
	}{Object: "list", Data: rows, Model: p.model}
	switch p.b.Usage {
	case "absent":
	case "null":
		answer.Usage = null
	default:
		answer.Usage, out.reported = p.report(p.usage)
	}
	out.data = mustJSON(answer)
	return out
}

func modelList(models []string) []byte {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := make([]model, len(models))
	for i, id := range models {
		list[i] = model{ID: id, Object: "model", Created: createdAt, OwnedBy: "fake"}
	}
	return mustJSON(map[string]any{"object": "list", "data": list})
}

// errorKind is OpenAI's type and code for a status.
func errorKind(status int) (kind, code string) {
	switch status {
	case 401:
		return "invalid_request_error", "invalid_api_key"
	case 403:
		return "invalid_request_error", "unsupported_country_region_territory"
	case 404:
		return "invalid_request_error", "model_not_found"
	case 429:
		return "requests", "rate_limit_exceeded"
	case 503, 529:
		return "server_error", "overloaded"
	}
	if status >= 500 {
		return "server_error", "server_error"
	}
	return "invalid_request_error", "invalid_request"
}

// errorBody is an error as OpenAI writes it; usage may be nil.
func errorBody(status int, code, message string, usage json.RawMessage) []byte {
	kind, usual := errorKind(status)
	if code == "" {
		code = usual
	}
	if code == "insufficient_quota" {
		kind = code
	}
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	return mustJSON(struct {
		Error inner           `json:"error"`
		Usage json.RawMessage `json:"usage,omitempty"`
	}{inner{Message: message, Type: kind, Code: code}, usage})
}
