package dialect

import (
	"github.com/valyala/fastjson"

	"tollgate/edge/tokens"
	"tollgate/quota"
)

// PromptSize is what a request sends to the model.
type PromptSize struct {
	TextBytes int64 // UTF-8 bytes of text, escapes resolved
	Messages  int64
	Media     int64 // images, sounds, files
	// Counted says that the model's own vocabulary counted the text; else it was weighed by its bytes.
	Counted bool
	tokens  int64
}

// mediaTokensEach stands for one sound, video or file, whose size in tokens the bytes do not tell. A
// long one takes more: it is an allowance, not a bound.
const mediaTokensEach = 2500

// PromptTokensMax is an upper bound of the prompt's tokens: with a known vocabulary the true count of
// its texts, else meant never to be below it for ordinary text (see package tokens). What it is above
// comes back at the settle.
func PromptTokensMax(r Request) int64 { return r.Prompt.tokens }

// sizer measures a prompt.
type sizer struct {
	size    PromptSize
	model   string
	counter tokens.Counter
	names   int
	other   int64 // tokens of what is no text
}

// weighed counts where no vocabulary is known.
var weighed = func() *tokens.Vocabulary {
	v, err := tokens.Named("bytes")
	if err != nil {
		panic("BUG: dialect: " + err.Error())
	}
	return v
}()

// measurePrompt adds up all members of a body that may become prompt.
func measurePrompt(body *fastjson.Object, model string, vocabulary *tokens.Vocabulary) PromptSize {
	s := sizer{model: model}
	if s.size.Counted = vocabulary != nil; vocabulary == nil {
		vocabulary = weighed
	}
	s.counter = vocabulary.Counter(quota.TokensMax, tokens.StepsMax)
	body.Visit(func(key []byte, v *fastjson.Value) { s.member(key, v) })
	s.size.tokens = s.counter.Tokens() + s.other + tokens.ChatOverhead(int(s.size.Messages), s.names)
	return s.size
}

// member measures one member of the body. What is not known to stay out of the prompt counts.
func (s *sizer) member(name []byte, v *fastjson.Value) {
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
		s.size.Messages += int64(len(messages))
		for _, m := range messages {
			if m.Exists("name") {
				s.names++
			}
			s.values(m)
		}
		return
	case "tools", "functions":
		if v.Type() == fastjson.TypeArray {
			s.size.TextBytes += int64(len(v.MarshalTo(nil)))
			s.counter.AddTools(v)
			return
		}
	}
	s.document(v)
}

// values measures the strings of a message; its keys are the format's, not the prompt's.
func (s *sizer) values(v *fastjson.Value) {
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
			case "image_url":
				s.image(v)
			case "video_url", "input_audio", "file":
				s.size.Media++
				s.other += mediaTokensEach
			default:
				s.values(v)
			}
		})
	}
}

// image measures one image by the model's rule; where its size cannot be seen, as the largest.
func (s *sizer) image(v *fastjson.Value) {
	s.size.Media++
	url := v.GetStringBytes("url")
	if v.Type() == fastjson.TypeString {
		url = v.GetStringBytes()
	}
	width, height := tokens.DataImageSize(url)
	s.other += tokens.ImageTokens(s.model, width, height, tokens.DetailNamed(string(v.GetStringBytes("detail"))))
}

// document measures what is given to the model as it stands, such as a schema: keys, values, and a
// token for the punctuation of each member.
func (s *sizer) document(v *fastjson.Value) {
	switch v.Type() {
	case fastjson.TypeString:
		s.text(v.GetStringBytes())
	case fastjson.TypeArray:
		for _, item := range v.GetArray() {
			s.other++
			s.document(item)
		}
	case fastjson.TypeObject:
		v.GetObject().Visit(func(key []byte, v *fastjson.Value) {
			s.other++
			s.text(key)
			s.document(v)
		})
	case fastjson.TypeNumber:
		var digits [32]byte
		s.text(v.MarshalTo(digits[:0]))
	default: // true, false, null
		s.other++
	}
}

func (s *sizer) text(b []byte) {
	s.size.TextBytes += int64(len(b))
	s.counter.Add(b)
}
