package upstream

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"
)

const (
	completionDefault = 16      // tokens of a choice when nothing else says how many
	answerTokensMax   = 1 << 20 // tokens of all choices together; a longer answer is cut short, with finish_reason length
	chunksDefault     = 16      // most text events per choice when the chunks knob is 0
	createdAt         = 1_700_000_000
)

// Usage is what a call cost. Reasoning is inside Completion, Cached inside
// Prompt; Total is their sum and any thinking tokens.
type Usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

// plan is an answer before it is written: a function of request and behaviour alone.
type plan struct {
	b       *Behaviour
	id      string // without the prefix of its API
	model   string
	usage   Usage
	cached  int64
	reason  int64 // reasoning tokens of all choices
	thought int64

	choices int   // told to the client
	perText int64 // tokens of text of each choice
	perAll  int64 // with reasoning
	hidden  int64 // tokens of best_of candidates that are not told
	chunks  int
	finish  string
}

func makePlan(r *request, b *Behaviour) *plan {
	namePrompt, nameCompletion := modelTokens(r.model)
	p := &plan{b: b, model: r.model, finish: "stop", thought: b.ThinkingTokens}

	prompt := pick(b.PromptTokens, namePrompt, r.inputTokens)
	p.cached = min(b.CachedTokens, prompt)

	inputs := int64(max(r.inputCount, 1))
	p.choices = int(r.n * inputs)
	made := max(r.n, r.bestOf) * inputs // candidates generated, told or not
	p.perAll = pick(b.CompletionTokens, nameCompletion, completionDefault)
	limit := answerTokensMax / made
	if r.max > 0 && !b.IgnoreMax {
		limit = min(limit, r.max)
	}
	if p.perAll > limit {
		p.perAll, p.finish = limit, "length"
	}
	reasoning := min(b.ReasoningTokens, p.perAll)
	p.perText = p.perAll - reasoning
	p.reason = reasoning * made
	p.hidden = p.perAll * (made - int64(p.choices))
	p.chunks = b.Chunks
	if p.chunks == 0 {
		p.chunks = int(min(p.perText, chunksDefault))
	}
	p.setUsage(prompt, p.perAll*made)

	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, b.Seed)
	h.Write([]byte(r.model))
	for _, name := range []string{"messages", "prompt", "input"} {
		h.Write(r.fields[name])
	}
	p.id = fmt.Sprintf("fake%016x", h.Sum64())
	return p
}

func (p *plan) setUsage(prompt, completion int64) {
	p.usage = Usage{Prompt: prompt, Completion: completion, Total: prompt + completion + p.thought}
}

// pick is the first of: the knob (-1 means none), the model's name (-1 means silent), what is left.
func pick(knob, name, rest int64) int64 {
	switch {
	case knob > 0:
		return knob
	case knob < 0:
		return 0
	case name >= 0:
		return name
	}
	return rest
}

// chunkTokens is how many tokens of text event i (from 0) of a choice carries.
func (p *plan) chunkTokens(i int) int64 {
	n := int64(p.chunks)
	return p.perText*int64(i+1)/n - p.perText*int64(i)/n
}

// words writes the text of tokens [from, from+n) of a choice: 4 bytes each, the same for the same seed.
func (p *plan) words(choice int, from, n int64) string {
	var sb strings.Builder
	sb.Grow(int(n) * bytesPer)
	for i := from; i < from+n; i++ {
		z := mix(uint64(p.b.Seed) ^ uint64(choice)<<40 ^ uint64(i)<<1)
		if p.b.Text != "utf8" {
			sb.WriteByte(byte('a' + z%26))
			sb.WriteByte(byte('a' + z>>8%26))
			sb.WriteByte(byte('a' + z>>16%26))
			sb.WriteByte(' ')
			continue
		}
		switch z % 3 {
		case 0:
			sb.WriteRune(rune(0x1F600 + z>>8%64)) // 4 bytes
		case 1:
			sb.WriteRune(rune(0x4E00 + z>>8%4096)) // 3 bytes
			sb.WriteByte(' ')
		default:
			sb.WriteRune(rune(0xE0 + z>>8%16)) // 2 bytes
			sb.WriteRune(rune(0x3B1 + z>>16%16))
		}
	}
	return sb.String()
}

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
