package dialect

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/valyala/fastjson"
)

// SetOutput returns body with the member field of its top level set to tokens: the value is replaced
// where the member is, else the member is put first. All other bytes are as they were; body itself
// is not changed.
func SetOutput(body []byte, field string, tokens int64) ([]byte, error) {
	at, err := findMember(body, field)
	if err != nil {
		return nil, err
	}
	return at.set(body, field, strconv.AppendInt(nil, tokens, 10)), nil
}

// Clamp returns body with the output bounded to tokens: in each of the fields that the client used
// and that is above, else in the dialect's own. Without anything to change it returns body itself.
func (r *Request) Clamp(body []byte, tokens int64) ([]byte, error) {
	if !r.HasOutput {
		return SetOutput(body, FieldMaxCompletionTokens, tokens)
	}
	var err error
	if r.MaxTokens > tokens {
		if body, err = SetOutput(body, FieldMaxTokens, tokens); err != nil {
			return nil, err
		}
	}
	if r.MaxCompletionTokens > tokens {
		body, err = SetOutput(body, FieldMaxCompletionTokens, tokens)
	}
	return body, err
}

// AskUsage returns body with stream_options.include_usage true, and true, if the client did not set
// it; the answer's extra chunk then has to be stripped. If it did, to whichever value, the body
// comes back as it is. Other members of stream_options stay.
func AskUsage(body []byte) ([]byte, bool, error) {
	at, err := findMember(body, "stream_options")
	if err != nil {
		return nil, false, err
	}
	if !at.found || isNull(body[at.from:at.to]) {
		return at.set(body, "stream_options", []byte(`{"include_usage":true}`)), true, nil
	}
	options := body[at.from:at.to]
	inner, err := findMember(options, "include_usage")
	if err != nil {
		return nil, false, err
	}
	if inner.found && !isNull(options[inner.from:inner.to]) {
		return body, false, nil
	}
	return splice(body, at.from, at.to, inner.set(options, "include_usage", []byte("true"))), true, nil
}

func isNull(b []byte) bool { return string(b) == "null" }

// place is where a member's value is, or would be put.
type place struct {
	found    bool
	from, to int  // the value, if found
	insert   int  // just behind the opening brace
	empty    bool // the object has no members
}

func (at place) set(body []byte, name string, value []byte) []byte {
	if at.found {
		return splice(body, at.from, at.to, value)
	}
	member := append(strconv.AppendQuote(nil, name), ':')
	member = append(member, value...)
	if !at.empty {
		member = append(member, ',')
	}
	return splice(body, at.insert, at.insert, member)
}

func splice(b []byte, from, to int, mid []byte) []byte {
	return slices.Concat(b[:from], mid, b[to:])
}

// findMember finds a member of the object that body is, however its name is escaped. body must be
// valid JSON; of what is not, it makes ErrNotObject or finds nothing sensible, but does not panic.
func findMember(body []byte, name string) (place, error) {
	i := skipSpace(body, 0)
	if i >= len(body) || body[i] != '{' {
		return place{}, ErrNotObject
	}
	at := place{insert: i + 1}
	i = skipSpace(body, i+1)
	at.empty = i < len(body) && body[i] == '}'
	for i < len(body) && body[i] == '"' {
		key := i
		i = skipString(body, i)
		matches := sameName(body[key:i], name)
		i = skipSpace(body, i)
		if i >= len(body) || body[i] != ':' {
			return place{}, ErrNotObject
		}
		from := skipSpace(body, i+1)
		i = skipValue(body, from)
		if matches {
			at.found, at.from, at.to = true, from, i
			return at, nil
		}
		i = skipSpace(body, i)
		if i >= len(body) || body[i] != ',' {
			break
		}
		i = skipSpace(body, i+1)
	}
	if i >= len(body) || body[i] != '}' {
		return place{}, ErrNotObject
	}
	return at, nil
}

// sameName compares a JSON string, quotes included, with a name.
func sameName(quoted []byte, name string) bool {
	if len(quoted) < 2 {
		return false
	}
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner) == name
	}
	if len(inner) > 6*len(name) { // longer than with every letter as \uXXXX
		return false
	}
	v, err := fastjson.ParseBytes(quoted)
	return err == nil && string(v.GetStringBytes()) == name
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index behind the string that begins at i.
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the index behind the value that begins at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
			i++
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
			i++
			continue
		default:
			i++
			continue
		}
		if depth == 0 {
			return i
		}
	}
	return len(b)
}
