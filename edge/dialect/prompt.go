package dialect

import (
	"github.com/valyala/fastjson"

	"tollgate/edge/tokens"
	"tollgate/quota"
)

// PromptSize measures what a request sends to the model, without a tokenizer.
type PromptSize struct {
	TextBytes int64 // UTF-8 bytes of text, escapes resolved
	Messages  int64
	Media     int64 // images, sounds, files
	// halves is the weight, in half tokens, of what no vocabulary counts; see halfTokens.
	halves int64
	// counted are the tokens that a vocabulary counted; Counted says that one did.
	counted int64
	Counted bool
	counter *tokens.Counter // while measuring
}

const (
	// messageTokens is what a chat format adds to every message, and replyTokens what it adds for the reply.
	messageTokens = 4
	replyTokens   = 3
	// mediaTokensEach stands for one image, sound or file, whose size in tokens the bytes do not tell.
	// Images of the current models take up to about 2500; a long sound or file takes more.
	mediaTokensEach = 2500
)

// halfTokens weighs a byte of text, given the one before it: half a token for a space and for a
// lower-case letter that goes on a word, one for any other, and one and a half for a digit behind a
// space, which joins no word.
//
// A byte-level BPE never makes more tokens than bytes. It makes about one per byte of digits,
// punctuation, single letters and rare scripts, which are weighed so; words average above two bytes
// per token in all common languages. Measured against cl100k and o200k: English prose and source
// code 2.1 times the true count, hashes 1.3, single letters, digits and brackets 1.0 to 2.0.
// Random lower-case letters come out at 0.9.
func halfTokens(last, c byte) int64 {
	switch {
	case c == ' ', 'a' <= c && c <= 'z' && goesOn(last):
		return 1
	case '0' <= c && c <= '9' && last == ' ':
		return 3
	}
	return 2
}

// goesOn reports whether a letter behind last is within a word, or begins one together with its space.
func goesOn(last byte) bool {
	return 'a' <= last && last <= 'z' || 'A' <= last && last <= 'Z' || last == ' ' || last >= 0x80
}

// PromptTokensMax is an upper bound of the prompt's tokens, meant never to be below the true count
// for ordinary text; what it is above comes back at the settle. For English it is about twice the
// true count. Media are an allowance, not a bound: the upstream's usage is charged in full.
func PromptTokensMax(r Request) int64 {
	p := r.Prompt
	return p.counted + (p.halves+1)/2 + p.Messages*messageTokens + replyTokens + p.Media*mediaTokensEach
}

// measure adds up all members of a body that may become prompt.
func (s *PromptSize) measure(body *fastjson.Object, vocabulary *tokens.Vocabulary) {
	if vocabulary != nil {
		counter := vocabulary.Counter(quota.TokensMax, tokens.StepsMax)
		s.counter, s.Counted = &counter, true
	}
	body.Visit(func(key []byte, v *fastjson.Value) { s.member(key, v) })
	if s.counter != nil {
		s.counted, s.counter = s.counter.Tokens(), nil
	}
}

// member measures one member of the body. What is not known to stay out of the prompt counts.
func (s *PromptSize) member(name []byte, v *fastjson.Value) {
	switch string(name) {
	case "model", "stream", "stream_options", FieldMaxTokens, FieldMaxCompletionTokens, "n",
		"temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
		"seed", "logit_bias", "logprobs", "top_logprobs", "parallel_tool_calls", "reasoning_effort", "verbosity",
		"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
		"prompt_cache_retention", "modalities", "audio", "stop":
		return
	case "messages":
		messages, err := v.Array()
		if err != nil {
			break
		}
		s.Messages += int64(len(messages))
		for _, m := range messages {
			s.values(m)
		}
		return
	}
	s.document(v)
}

// values measures the strings of a message; its keys are the format's, not the prompt's.
func (s *PromptSize) values(v *fastjson.Value) {
	switch v.Type() {
	case fastjson.TypeString:
		s.text(v.GetStringBytes())
	case fastjson.TypeArray:
		for _, item := range v.GetArray() {
			s.values(item)
		}
	case fastjson.TypeObject:
		v.GetObject().Visit(func(key []byte, v *fastjson.Value) {
			switch string(key) {
			case "image_url", "video_url", "input_audio", "file":
				s.Media++
			default:
				s.values(v)
			}
		})
	}
}

// document measures what is given to the model as it stands, such as the schema of a tool: keys,
// values, and a token for the punctuation of each member.
func (s *PromptSize) document(v *fastjson.Value) {
	const tokenHalves = 2
	switch v.Type() {
	case fastjson.TypeString:
		s.text(v.GetStringBytes())
	case fastjson.TypeArray:
		for _, item := range v.GetArray() {
			s.halves += tokenHalves
			s.document(item)
		}
	case fastjson.TypeObject:
		v.GetObject().Visit(func(key []byte, v *fastjson.Value) {
			s.halves += tokenHalves
			s.text(key)
			s.document(v)
		})
	case fastjson.TypeNumber:
		var digits [32]byte
		n := int64(len(v.MarshalTo(digits[:0])))
		s.TextBytes += n
		s.halves += n * tokenHalves
	default: // true, false, null
		s.halves += tokenHalves
	}
}

func (s *PromptSize) text(b []byte) {
	s.TextBytes += int64(len(b))
	if s.counter != nil {
		s.counter.Add(b)
		return
	}
	last := byte(' ')
	for _, c := range b {
		s.halves += halfTokens(last, c)
		last = c
	}
}
