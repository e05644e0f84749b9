package dialect

import (
	"bytes"
	"fmt"

	"github.com/valyala/fastjson"

	"tollgate/edge/tokens"
	"tollgate/quota"
)

// Names of the fields that bound the output of a chat completion.
const (
	FieldMaxTokens           = "max_tokens"            // deprecated by OpenAI, and refused by its reasoning models
	FieldMaxCompletionTokens = "max_completion_tokens" // the dialect's own: used where the client set none
)

const (
	// ChoicesMax bounds n; larger is refused.
	ChoicesMax int64 = 128
	// modelBytesMax bounds a model's name; longer is refused.
	modelBytesMax = 256
	// valuesMax bounds the JSON values of a body, since each costs the parser some 90 bytes; more are refused.
	valuesMax = 1 << 20
	// foldBytesMax is how much longer than ASCII a name in other letters of the same fold can be (U+212A for k).
	foldBytesMax = 3
)

// Request is what a chat completion asks for, as far as it sizes a hold.
type Request struct {
	Model  string
	Stream bool
	// Output is the client's bound on generated tokens per choice: the larger of max_tokens and
	// max_completion_tokens. HasOutput is false, and Output 0, if it set neither.
	Output    int64
	HasOutput bool
	// MaxTokens and MaxCompletionTokens are the two as they came, 0 if absent.
	MaxTokens, MaxCompletionTokens int64
	N                              int64 // choices, 1 … ChoicesMax
	// SetUsage: the client itself set stream_options.include_usage, to UsageAsked.
	SetUsage, UsageAsked bool
	Prompt               PromptSize
}

// ParseChat reads the body of a chat completion. The error is a *FieldError. The result keeps nothing
// of body. vocabulary names what the model's prompts are counted with; nil, or where it answers nil,
// they are weighed by their bytes.
func ParseChat(body []byte, vocabulary func(model string) *tokens.Vocabulary) (Request, error) {
	p := parsers.Get()
	r, err := parseChat(p, body, vocabulary)
	if len(body) <= parserBodyBytesKept {
		parsers.Put(p)
	}
	return r, err
}

var parsers fastjson.ParserPool

// parserBodyBytesKept bounds the bodies whose parser, with its copy of them, is kept for later ones.
const parserBodyBytesKept = 1 << 20

// sizing are the members of the body that size a hold or are edited: each may occur once, and only
// in this spelling. An upstream may take the last of two, or ignore case.
var sizing = [...]string{
	fieldModel:         "model",
	fieldStream:        "stream",
	fieldOptions:       "stream_options",
	fieldMaxTokens:     FieldMaxTokens,
	fieldMaxCompletion: FieldMaxCompletionTokens,
	fieldN:             "n",
	fieldMessages:      "messages",
	fieldTools:         "tools",
	fieldFunctions:     "functions",
	fieldFormat:        "response_format",
	fieldPrediction:    "prediction",
	fieldBestOf:        "best_of",
}

const (
	fieldModel = iota
	fieldStream
	fieldOptions
	fieldMaxTokens
	fieldMaxCompletion
	fieldN
	fieldMessages
	fieldTools
	fieldFunctions
	fieldFormat
	fieldPrediction
	fieldBestOf
	fields
)

func parseChat(p *fastjson.Parser, body []byte, vocabulary func(model string) *tokens.Vocabulary) (r Request, err error) {
	if tooManyValues(body) {
		return r, &FieldError{Msg: fmt.Sprintf("the body has more than %d JSON values", valuesMax)}
	}
	v, err := p.ParseBytes(body)
	if err != nil {
		// The parser's text quotes the body.
		return r, &FieldError{Msg: fmt.Sprintf("the body is not valid JSON, or nested deeper than %d levels", fastjson.MaxDepth)}
	}
	o, err := v.Object()
	if err != nil {
		return r, &FieldError{Msg: "the body must be a JSON object"}
	}
	var f [fields]*fastjson.Value
	o.Visit(func(key []byte, v *fastjson.Value) {
		if err == nil {
			err = collect(&f, key, v)
		}
	})
	if err != nil {
		return r, err
	}
	if f[fieldBestOf] != nil {
		return r, &FieldError{Param: "best_of", Msg: "best_of is not a field of chat completions"}
	}
	if r.Model, err = modelName(f[fieldModel]); err != nil {
		return r, err
	}
	if r.Stream, _, err = boolean("stream", f[fieldStream]); err != nil {
		return r, err
	}
	if r.MaxTokens, err = count(FieldMaxTokens, f[fieldMaxTokens], quota.TokensMax); err != nil {
		return r, err
	}
	if r.MaxCompletionTokens, err = count(FieldMaxCompletionTokens, f[fieldMaxCompletion], quota.TokensMax); err != nil {
		return r, err
	}
	r.Output = max(r.MaxTokens, r.MaxCompletionTokens)
	r.HasOutput = r.Output > 0
	if r.N, err = count("n", f[fieldN], ChoicesMax); err != nil {
		return r, err
	}
	r.N = max(r.N, 1)
	if r.UsageAsked, r.SetUsage, err = usageOption(f[fieldOptions]); err != nil {
		return r, err
	}
	r.Prompt = measurePrompt(o, r.Model, vocabularyOf(vocabulary, r.Model))
	return r, nil
}

func vocabularyOf(choose func(model string) *tokens.Vocabulary, model string) *tokens.Vocabulary {
	if choose == nil {
		return nil
	}
	return choose(model)
}

// collect notes a member of the body.
func collect(f *[fields]*fastjson.Value, key []byte, v *fastjson.Value) error {
	for i, name := range sizing {
		switch {
		case string(key) == name:
			if f[i] != nil {
				return &FieldError{Param: name, Msg: name + " occurs more than once"}
			}
			f[i] = v
		case len(key) <= foldBytesMax*len(name) && bytes.EqualFold(key, []byte(name)):
			return &FieldError{Param: name, Msg: name + " must be written in lower case"}
		}
	}
	return nil
}

// tooManyValues counts what begins a value: first roughly, with commas of texts, and only where that
// is too much, outside of strings.
func tooManyValues(body []byte) bool {
	if bytes.Count(body, []byte(","))+bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) < valuesMax {
		return false
	}
	n := 0
	for i := 0; i < len(body); {
		switch body[i] {
		case '"':
			i = skipString(body, i)
			continue
		case ',', '[', '{':
			n++
		}
		i++
	}
	return n >= valuesMax
}

func absent(v *fastjson.Value) bool { return v == nil || v.Type() == fastjson.TypeNull }

func modelName(v *fastjson.Value) (string, error) {
	if absent(v) {
		return "", &FieldError{Param: "model", Msg: "model is required"}
	}
	b, err := v.StringBytes()
	switch {
	case err != nil:
		return "", &FieldError{Param: "model", Msg: "model must be a string"}
	case len(b) == 0 || len(b) > modelBytesMax:
		return "", &FieldError{Param: "model", Msg: fmt.Sprintf("model must be 1 to %d bytes long", modelBytesMax)}
	}
	return string(b), nil
}

// count reads a whole number from 1 to most; absent is 0. Zero is refused, because some upstreams
// take it for "no bound".
func count(name string, v *fastjson.Value, most int64) (int64, error) {
	if absent(v) {
		return 0, nil
	}
	n, err := v.Int64()
	if err != nil || n < 1 || n > most {
		return 0, &FieldError{Param: name, Msg: fmt.Sprintf("%s must be a whole number from 1 to %d", name, most)}
	}
	return n, nil
}

func boolean(name string, v *fastjson.Value) (value, present bool, err error) {
	if absent(v) {
		return false, false, nil
	}
	value, err = v.Bool()
	if err != nil {
		return false, false, &FieldError{Param: name, Msg: name + " must be true or false"}
	}
	return value, true, nil
}

func usageOption(v *fastjson.Value) (asked, present bool, err error) {
	const name = "stream_options.include_usage"
	if absent(v) {
		return false, false, nil
	}
	o, err := v.Object()
	if err != nil {
		return false, false, &FieldError{Param: "stream_options", Msg: "stream_options must be an object"}
	}
	var option *fastjson.Value
	o.Visit(func(key []byte, v *fastjson.Value) {
		switch {
		case string(key) == "include_usage" && option == nil:
			option = v
		case bytes.EqualFold(key, []byte("include_usage")):
			err = &FieldError{Param: name, Msg: name + " occurs more than once, or not in lower case"}
		}
	})
	if err != nil {
		return false, false, err
	}
	return boolean(name, option)
}
