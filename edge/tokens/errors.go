package tokens

import "errors"

// ErrUnknownVocabulary: name one of o200k, cl100k, bytes.
var ErrUnknownVocabulary = errors.New("tokens: unknown vocabulary")
