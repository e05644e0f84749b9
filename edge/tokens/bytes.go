package tokens

// Halves of a token that a byte weighs where the tokenizer is not known.
const (
	halfInWord   = 1 // a space, and a lower-case letter that goes on a word
	halfElse     = 2 // any other byte: no byte-level tokenizer makes more than a token of one
	halfNewDigit = 3 // a digit behind a space, which joins neither the space nor a word
)

// guess is what a text has in tokens for a tokenizer that is not known: at least one for every two
// bytes, at most one and a half for each byte. Words of common languages average above two bytes per
// token in every tokenizer in use; digits, punctuation, single letters and the scripts that a tokenizer
// was not trained on come to about one. It is below the true count only for text that is neither,
// such as random lower-case letters (0.9).
func guess(text []byte) int64 {
	halves := int64(0)
	last := byte(' ')
	for _, b := range text {
		switch {
		case b == ' ', 'a' <= b && b <= 'z' && goesOn(last):
			halves += halfInWord
		case '0' <= b && b <= '9' && last == ' ':
			halves += halfNewDigit
		default:
			halves += halfElse
		}
		last = b
	}
	return (halves + 1) / 2
}

// goesOn says whether a lower-case letter behind last is within a word, or begins one together with its space.
func goesOn(last byte) bool {
	return 'a' <= last && last <= 'z' || 'A' <= last && last <= 'Z' || last == ' ' || last >= 0x80
}
