package tokens

import (
	_ "embed"
	"fmt"
	"sync"
)

// The vocabularies that OpenAI published with tiktoken, in the form that build reads.
var (
	//go:embed vocab/o200k.bin
	o200kFile string
	//go:embed vocab/cl100k.bin
	cl100kFile string
)

// Vocabulary counts the tokens of texts. All of its methods may be called concurrently.
type Vocabulary struct {
	name string
	end  pieceEnd       // nil for bytes
	load func() *tables // on first use
}

var vocabularies = []*Vocabulary{
	{name: "bytes"},
	{name: "o200k", end: o200kEnd, load: sync.OnceValue(func() *tables { return build(o200kFile) })},
	{name: "cl100k", end: cl100kEnd, load: sync.OnceValue(func() *tables { return build(cl100kFile) })},
}

// Named is the vocabulary of that name: o200k, cl100k or bytes. It loads nothing yet.
func Named(name string) (*Vocabulary, error) {
	for _, v := range vocabularies {
		if v.name == name {
			return v, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownVocabulary, name)
}

// Name is the name that Named takes.
func (v *Vocabulary) Name() string { return v.name }

// Bound is an upper bound of the tokens of a text of so many bytes, without a look at it. A text that is
// not UTF-8 may have more, once it is repaired.
func (v *Vocabulary) Bound(textBytes int64) int64 {
	if v.load == nil {
		return (textBytes*halfNewDigit + 1) / 2
	}
	return textBytes
}

// Load makes the vocabulary ready, which the first count does otherwise: see the package comment for
// time and memory.
func (v *Vocabulary) Load() {
	if v.load != nil {
		v.load()
		classesOnce()
	}
}
