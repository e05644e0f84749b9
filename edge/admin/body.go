package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tollgate/ledger"
)

// decodeBody fills target, a pointer to a struct, from a request's body, and
// gives the body. An empty one is {}. Names must match exactly; unknown and
// repeated ones are refused, also deep inside; null gives the zero value.
func decodeBody(r *http.Request, target any) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &Error{Status: http.StatusRequestEntityTooLarge, Code: codeBodySize, Message: fmt.Sprintf("The body is longer than %d bytes.", tooLarge.Limit)}
	case err != nil:
		return nil, invalid("", "The body could not be read to its end.")
	}
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	if err := wellFormed(body); err != nil {
		return nil, err
	}
	if err := decodeObject("", body, reflect.ValueOf(target).Elem()); err != nil {
		return nil, err
	}
	return body, nil
}

// wellFormed wants one JSON object in UTF-8 without repeated names.
func wellFormed(body []byte) error {
	if !utf8.Valid(body) {
		return invalid("", "The body is not UTF-8.")
	}
	var any json.RawMessage
	if err := json.Unmarshal(body, &any); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return invalid("", "The body is not JSON: %s at byte %d.", syntax.Error(), syntax.Offset)
		}
		return invalid("", "The body is not JSON.")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	return noRepeats(dec, "")
}

// noRepeats reads one value, which is known to be JSON.
func noRepeats(dec *json.Decoder, path string) error {
	token, err := dec.Token()
	if err != nil {
		return invalid(path, "The body is not JSON.")
	}
	switch token {
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			if err := noRepeats(dec, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			name, _ := dec.Token()
			member := join(path, name.(string))
			if seen[member] {
				return invalid(member, "%s is given twice.", member)
			}
			seen[member] = true
			if err := noRepeats(dec, member); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, _ = dec.Token() // the closing bracket
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// hints are for names that are known somewhere else.
var hints = map[string]string{
	"total":  "the total is changed by POST …/adjust, as a difference",
	"status": "the status is changed by suspend, resume, and DELETE of a key",
	"store":  "a tenant stays in the store it was created in",
	"app":    "a key stays with its app",
	"id":     "ids never change",
}

func decodeObject(path string, raw json.RawMessage, v reflect.Value) error {
	members, err := split(raw)
	if err != nil {
		if path == "" {
			return invalid("", "The body must be a JSON object.")
		}
		return invalid(path, "%s: must be an object.", path)
	}
	fields := map[string]reflect.Value{}
	collectFields(v, fields)
	for _, m := range members {
		at := join(path, m.name)
		field, known := fields[m.name]
		if !known {
			names := make([]string, 0, len(fields))
			for name := range fields {
				names = append(names, name)
			}
			slices.Sort(names)
			if hint := hints[m.name]; hint != "" && path == "" {
				return invalid(at, "%s is not taken here: %s.", at, hint)
			}
			return invalid(at, "Unknown field %s; did you mean %s? Known here: %s.", at, nearest(m.name, names), strings.Join(names, ", "))
		}
		if err := decodeValue(at, m.value, field); err != nil {
			return err
		}
	}
	return nil
}

type member struct {
	name  string
	value json.RawMessage
}

func split(raw json.RawMessage) (list []member, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var m member
		m.name, _ = name.(string)
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// collectFields finds a struct's fields by their JSON names, embedded structs' included.
func collectFields(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			collectFields(v.Field(i), into)
		case field.IsExported() && name != "" && name != "-":
			into[name] = v.Field(i)
		}
	}
}

// isField says whether the type is a ledger.Field: Set, and a Value of any type.
func isField(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[ledger.BudgetPatch]().PkgPath() && strings.HasPrefix(t.Name(), "Field[")
}

func decodeValue(path string, raw json.RawMessage, v reflect.Value) error {
	if isField(v.Type()) {
		v.FieldByName("Set").SetBool(true)
		return decodeValue(path, raw, v.FieldByName("Value"))
	}
	if string(raw) == "null" {
		v.SetZero()
		return nil
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(path, raw, v.Elem())
	}
	if text, ok := v.Addr().Interface().(*json.RawMessage); ok {
		if raw[0] != '{' {
			return invalid(path, "%s: must be an object.", path)
		}
		*text = bytes.Clone(raw)
		return nil
	}
	if own, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		if err := own.UnmarshalJSON(raw); err != nil {
			return fromField(&ledger.InvalidError{Field: path, Err: err})
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return decodeObject(path, raw, v)
	case reflect.String:
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return invalid(path, "%s: must be a text in quotes.", path)
		}
		v.SetString(text)
	case reflect.Int64:
		n, err := strconv.ParseInt(string(raw), 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return invalid(path, "%s: exceeds the largest amount, 9007199254740991.", path)
		case err != nil:
			return invalid(path, "%s: must be a whole number, written in digits.", path)
		}
		v.SetInt(n)
	case reflect.Slice:
		var list []string
		if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
			return invalid(path, "%s: must be a list of texts.", path)
		}
		v.Set(reflect.ValueOf(list))
	default:
		panic("BUG: admin: no way to decode a " + v.Type().String())
	}
	return nil
}

// nearest is the known name with the fewest edits to reach it; one that only
// goes on, or ends earlier, counts as one edit away.
func nearest(name string, known []string) string {
	best, least := "", 1<<30
	name = strings.ToLower(name[:min(len(name), 64)])
	for _, k := range known {
		n := distance(name, k)
		if n > 1 && len(name) > 2 && (strings.HasPrefix(k, name) || strings.HasPrefix(name, k)) {
			n = 1
		}
		if n < least {
			best, least = k, n
		}
	}
	return best
}

// distance is Levenshtein's: insertions, deletions and replacements of one byte.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
