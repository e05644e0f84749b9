package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	Path    string // of the field, as in upstreams.openai.url; "" is the file as a whole
	Problem string // what is wrong and what would be right
	Line    int    // in the file; 0: not from a file
}

// Error is "path: problem (line n)".
func (f Fault) Error() string {
	s := f.Problem
	if f.Path != "" {
		s = f.Path + ": " + s
	}
	if f.Line > 0 {
		s += fmt.Sprintf(" (line %d)", f.Line)
	}
	return s
}

// Faults is all that is wrong, by line; what is not in the file comes first.
type Faults []Fault

// Error has one fault per line.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// err keeps an empty list from becoming a non-nil error.
func (fs Faults) err() error {
	if len(fs) == 0 {
		return nil
	}
	return fs
}

func (fs *Faults) add(path string, line int, format string, args ...any) {
	*fs = append(*fs, Fault{Path: path, Problem: fmt.Sprintf(format, args...), Line: line})
}

var durationType = reflect.TypeFor[time.Duration]()

// decoder fills Go values from a tree and goes on after a fault, so that one look shows them all.
type decoder struct {
	faults Faults
	set    map[string]int // path → line of all that the tree sets; nil: not wanted
}

func (d *decoder) into(path string, n *node, target any) {
	d.value(path, n, reflect.ValueOf(target).Elem(), "")
}

// value leaves v as it is where the tree has a null.
func (d *decoder) value(path string, n *node, v reflect.Value, tag reflect.StructTag) {
	if n.kind == null {
		return
	}
	if d.set != nil {
		d.set[path] = n.line
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	text, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	switch {
	case isText || v.Type() == durationType:
		d.scalar(path, n, v, tag, text)
	case v.Kind() == reflect.Struct:
		d.object(path, n, v)
	case v.Kind() == reflect.Map:
		d.table(path, n, v)
	case v.Kind() == reflect.Slice:
		d.list(path, n, v)
	default:
		d.scalar(path, n, v, tag, nil)
	}
}

func (d *decoder) object(path string, n *node, v reflect.Value) {
	if short, ok := v.Interface().(interface{ shortField() string }); ok && n.kind == scalar {
		n = &node{kind: mapping, keys: []string{short.shortField()}, values: []*node{n}, line: n.line}
	}
	if n.kind != mapping {
		d.faults.add(path, n.line, "must be a list of fields with values")
		return
	}
	for i, key := range n.keys {
		index, ok := fieldOf(v.Type(), key)
		if !ok {
			d.faults.add(join(path, key), n.values[i].line, "unknown field, did you mean %q?", nearest(key, fieldNames(v.Type())))
			continue
		}
		d.value(join(path, key), n.values[i], v.Field(index), v.Type().Field(index).Tag)
	}
}

// table reads a map with text keys; its elements begin with their defaults.
func (d *decoder) table(path string, n *node, v reflect.Value) {
	if n.kind != mapping {
		d.faults.add(path, n.line, "must be names with values")
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.keys)))
	for i, key := range n.keys {
		element := reflect.New(v.Type().Elem())
		if e, ok := element.Interface().(interface{ setDefaults() }); ok {
			e.setDefaults()
		}
		d.value(join(path, key), n.values[i], element.Elem(), "")
		v.SetMapIndex(reflect.ValueOf(key), element.Elem())
	}
}

func (d *decoder) list(path string, n *node, v reflect.Value) {
	if n.kind != list {
		d.faults.add(path, n.line, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.values), len(n.values)))
	for i, child := range n.values {
		d.value(fmt.Sprintf("%s[%d]", path, i), child, v.Index(i), "")
	}
}

func (d *decoder) scalar(path string, n *node, v reflect.Value, tag reflect.StructTag, text encoding.TextUnmarshaler) {
	if n.kind != scalar {
		d.faults.add(path, n.line, "must be one value")
		return
	}
	for word, value := range wordsOf(tag) {
		if n.text == word {
			if v.CanInt() {
				v.SetInt(value)
			} else {
				v.SetFloat(float64(value))
			}
			return
		}
	}
	var err error
	switch {
	case text != nil:
		err = text.UnmarshalText([]byte(n.text))
	case v.Type() == durationType:
		var t time.Duration
		if t, err = parseDuration(n.text); err == nil {
			v.SetInt(int64(t))
		}
	case v.Kind() == reflect.String:
		v.SetString(n.text)
	case v.Kind() == reflect.Bool:
		if n.text != "true" && n.text != "false" {
			err = fmt.Errorf("%q is neither true nor false", n.text)
		}
		v.SetBool(n.text == "true")
	case v.CanInt():
		var i int64
		if i, err = strconv.ParseInt(n.text, 10, 64); err != nil {
			err = fmt.Errorf("%q is not a whole number", n.text)
		}
		v.SetInt(i)
	case v.CanFloat():
		var f float64
		if f, err = strconv.ParseFloat(n.text, 64); err != nil || f != f || f-f != 0 {
			f, err = 0, fmt.Errorf("%q is not a number", n.text)
		}
		v.SetFloat(f)
	default:
		panic("BUG: config: no way to read a " + v.Type().String())
	}
	for word, value := range wordsOf(tag) {
		if err == nil && equals(v, value) {
			err = fmt.Errorf("%q must be written as %s", n.text, word)
		}
	}
	if err != nil {
		if words := tag.Get("words"); words != "" {
			err = fmt.Errorf("%w (words with a meaning: %s)", err, strings.Join(wordNames(tag), ", "))
		}
		d.faults.add(path, n.line, "%v", err)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// fieldName is what a field is called in the file; "" for those that do not come from it.
func fieldName(f reflect.StructField) string {
	if !f.IsExported() {
		return ""
	}
	switch name := f.Tag.Get("yaml"); name {
	case "-":
		return ""
	case "":
		return snake(f.Name)
	default:
		return name
	}
}

func fieldOf(t reflect.Type, key string) (int, bool) {
	for i := range t.NumField() {
		if name := fieldName(t.Field(i)); name != "" && name == key {
			return i, true
		}
	}
	return 0, false
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for field := range t.Fields() {
		if name := fieldName(field); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// snake turns CachedInput into cached_input: the names of structs that other packages own.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// wordsOf reads a words tag, "auto=0|never=-1".
func wordsOf(tag reflect.StructTag) map[string]int64 {
	words := map[string]int64{}
	for _, name := range wordNames(tag) {
		words[name] = 0
	}
	for pair := range strings.SplitSeq(tag.Get("words"), "|") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			words[name], _ = strconv.ParseInt(value, 10, 64) // a constant of this package
		}
	}
	return words
}

func wordNames(tag reflect.StructTag) []string {
	var names []string
	for pair := range strings.SplitSeq(tag.Get("words"), "|") {
		if name, _, ok := strings.Cut(pair, "="); ok {
			names = append(names, name)
		}
	}
	return names
}

// nearest is the known name with the fewest edits to reach it.
func nearest(name string, known []string) string {
	best, least := "", 1<<30
	for _, k := range known {
		if n := distance(name, k); n < least {
			best, least = k, n
		}
	}
	return best
}

// distance is Levenshtein's: insertions, deletions and replacements of one byte. Only the first 64 bytes count.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
