package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
)

const (
	choicesMax = 128 // larger n and best_of, and longer prompt lists, are answered 400
	inputsMax  = 2048
	bytesPer   = 4 // bytes of text that make one token
)

// request is what the fake reads from a body. Names are taken as they are
// written (JSON's own case), and of a repeated name the last counts.
type request struct {
	model        string
	stream       bool
	includeUsage bool
	n, bestOf    int64
	max          int64 // larger of max_tokens and max_completion_tokens; 0 = none
	inputTokens  int64 // sum over messages, prompts or inputs
	inputCount   int   // prompts of a legacy completion, inputs of embeddings
	dimensions   int64
	base64       bool
	fields       map[string]json.RawMessage
}

// TextTokens is what the fake counts for a text: one token for each 4 bytes begun.
func TextTokens(textBytes int) int64 {
	return (int64(textBytes) + bytesPer - 1) / bytesPer
}

func parseRequest(body []byte) (*request, error) {
	r := &request{n: 1, bestOf: 1}
	if err := json.Unmarshal(body, &r.fields); err != nil {
		return nil, fmt.Errorf("%w: the body is not a JSON object: %v", errRequest, err)
	}
	var maxTokens, maxCompletion int64
	var options struct{ include bool }
	for _, f := range []struct {
		name string
		to   any
	}{
		{"model", &r.model},
		{"stream", &r.stream},
		{"n", &r.n},
		{"best_of", &r.bestOf},
		{"max_tokens", &maxTokens},
		{"max_completion_tokens", &maxCompletion},
		{"dimensions", &r.dimensions},
	} {
		if err := r.read(f.name, f.to); err != nil {
			return nil, err
		}
	}
	if raw, ok := r.fields["stream_options"]; ok {
		var o map[string]json.RawMessage
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, fmt.Errorf("%w: stream_options: %v", errRequest, err)
		}
		if raw, ok := o["include_usage"]; ok {
			if err := json.Unmarshal(raw, &options.include); err != nil {
				return nil, fmt.Errorf("%w: stream_options.include_usage: %v", errRequest, err)
			}
		}
	}
	r.includeUsage = options.include
	r.max = max(maxTokens, maxCompletion)
	var format string
	if err := r.read("encoding_format", &format); err != nil {
		return nil, err
	}
	r.base64 = format == "base64"
	return r, r.check(maxTokens, maxCompletion)
}

// read decodes one field if it is there and not null.
func (r *request) read(name string, to any) error {
	raw, ok := r.fields[name]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("%w: %s: %v", errRequest, name, err)
	}
	return nil
}

func (r *request) check(maxTokens, maxCompletion int64) error {
	switch {
	case r.n < 1 || r.n > choicesMax:
		return fmt.Errorf("%w: n must be 1 to %d", errRequest, choicesMax)
	case r.bestOf < 1 || r.bestOf > choicesMax:
		return fmt.Errorf("%w: best_of must be 1 to %d", errRequest, choicesMax)
	case maxTokens < 0 || maxCompletion < 0:
		return fmt.Errorf("%w: max_tokens must not be negative", errRequest)
	case r.dimensions < 0 || r.dimensions > 4096:
		return fmt.Errorf("%w: dimensions must be 1 to 4096", errRequest)
	}
	return nil
}

// readMessages counts the prompt of a chat: the bytes of each content (a string,
// or the text of its parts), and of tools as they are written, together ÷ 4,
// rounded up once.
func (r *request) readMessages() error {
	var messages []struct {
		Content json.RawMessage `json:"content"`
	}
	if err := r.read("messages", &messages); err != nil {
		return err
	}
	if len(messages) == 0 {
		return fmt.Errorf("%w: messages must be a list that is not empty", errRequest)
	}
	textBytes := len(r.fields["tools"])
	for _, m := range messages {
		textBytes += contentBytes(m.Content)
	}
	r.inputTokens, r.inputCount = TextTokens(textBytes), 1
	return nil
}

func contentBytes(raw json.RawMessage) int {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return len(text)
	}
	var parts []struct {
		Text string `json:"text"`
	}
	total := 0
	if json.Unmarshal(raw, &parts) == nil {
		for _, p := range parts {
			total += len(p.Text)
		}
	}
	return total
}

// readInput counts prompt or input: a string, strings, token ids or lists of
// token ids. A text counts as TextTokens, an id as one.
func (r *request) readInput(name string) error {
	raw := bytes.TrimSpace(r.fields[name])
	bad := fmt.Errorf("%w: %s must be a string, or a list of strings or token ids, with at most %d members", errRequest, name, inputsMax)
	var text string
	if json.Unmarshal(raw, &text) == nil && len(raw) > 0 && raw[0] == '"' {
		r.inputTokens, r.inputCount = TextTokens(len(text)), 1
		return nil
	}
	var ids []int64
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		r.inputTokens, r.inputCount = int64(len(ids)), 1
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 || len(list) > inputsMax {
		return bad
	}
	for _, member := range list {
		if json.Unmarshal(member, &text) == nil {
			r.inputTokens += TextTokens(len(text))
			continue
		}
		if json.Unmarshal(member, &ids) != nil {
			return bad
		}
		r.inputTokens += int64(len(ids))
	}
	r.inputCount = len(list)
	return nil
}

var modelNumber = regexp.MustCompile(`-([pc])([0-9]{1,7})(?:-|$)`)

// modelTokens reads -p<N> and -c<N> in a model's name ("fake-p100-c20"); -1 where there is none.
func modelTokens(model string) (prompt, completion int64) {
	prompt, completion = -1, -1
	for rest := model; ; {
		at := modelNumber.FindStringSubmatchIndex(rest)
		if at == nil {
			return prompt, completion
		}
		n, _ := strconv.ParseInt(rest[at[4]:at[5]], 10, 64)
		if rest[at[2]] == 'p' {
			prompt = n
		} else {
			completion = n
		}
		rest = rest[at[5]:]
	}
}
