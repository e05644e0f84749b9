package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Knob is one setting of a Behaviour, bound to it. It has the methods of
// pflag.Value, so a command can register it as a flag.
type Knob struct {
	Name, Help string
	field      reflect.Value
	about      *knobType
}

type knobType struct {
	index      int
	name, help string
	oneof      []string
	min, max   int64 // max 0: no bounds
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	knobTypes    = readKnobTypes()
	knobByName   = func() map[string]*knobType {
		m := make(map[string]*knobType, len(knobTypes))
		for i := range knobTypes {
			m[knobTypes[i].name] = &knobTypes[i]
		}
		return m
	}()
)

func readKnobTypes() []knobType {
	t := reflect.TypeFor[Behaviour]()
	all := make([]knobType, 0, t.NumField())
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		k := knobType{index: i, name: tag.Get("knob"), help: tag.Get("help")}
		if k.name == "" || k.help == "" {
			panic("BUG: upstream.Behaviour." + t.Field(i).Name + " has no knob or help tag")
		}
		if s := tag.Get("oneof"); s != "" {
			k.oneof = strings.Split(s, ",")
			k.help += " (" + strings.Join(k.oneof, ", ") + ")"
		}
		k.min, k.max = boundTag(tag, "min"), boundTag(tag, "max")
		all = append(all, k)
	}
	return all
}

func boundTag(tag reflect.StructTag, name string) int64 {
	s, ok := tag.Lookup(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic("BUG: upstream.Behaviour has a bad tag " + name + ":" + s)
	}
	return n
}

// Knobs returns all knobs of b, in the order of its fields. Setting one changes b.
func Knobs(b *Behaviour) []Knob {
	v := reflect.ValueOf(b).Elem()
	all := make([]Knob, len(knobTypes))
	for i := range knobTypes {
		k := &knobTypes[i]
		all[i] = Knob{Name: k.name, Help: k.help, field: v.Field(k.index), about: k}
	}
	return all
}

// String is the present value as text; empty for the zero value of a text.
func (k Knob) String() string {
	if !k.field.IsValid() { // pflag asks a zero Knob for its text
		return ""
	}
	return fmt.Sprint(k.field.Interface())
}

// Type is the word for the value in help texts.
func (k Knob) Type() string {
	switch {
	case k.field.Type() == durationType:
		return "duration"
	case k.field.Kind() == reflect.Int64:
		return "int"
	default:
		return k.field.Kind().String()
	}
}

// Set parses text into the field. Errors wrap ErrKnob.
func (k Knob) Set(text string) error {
	switch kind := k.field.Kind(); {
	case k.field.Type() == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%w: %s %q: want a duration such as 150ms", ErrKnob, k.Name, text)
		}
		k.field.SetInt(int64(d))
	case kind == reflect.Int || kind == reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %s %q: want an integer", ErrKnob, k.Name, text)
		}
		k.field.SetInt(n)
	case kind == reflect.Bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%w: %s %q: want true or false", ErrKnob, k.Name, text)
		}
		k.field.SetBool(v)
	default:
		k.field.SetString(text)
	}
	return k.validate()
}

func (k Knob) validate() error {
	switch kind := k.field.Kind(); {
	case k.field.Type() == durationType:
		if d := time.Duration(k.field.Int()); d < 0 || d > delayMax {
			return fmt.Errorf("%w: %s %v: want 0 to %v", ErrKnob, k.Name, d, delayMax)
		}
	case kind == reflect.Int || kind == reflect.Int64:
		if n := k.field.Int(); k.about.max > 0 && (n < k.about.min || n > k.about.max) {
			return fmt.Errorf("%w: %s %d: want %d to %d", ErrKnob, k.Name, n, k.about.min, k.about.max)
		}
	case kind == reflect.String && k.about.oneof != nil:
		if s := k.field.String(); s != "" && !slices.Contains(k.about.oneof, s) {
			return fmt.Errorf("%w: %s %q: want one of %s", ErrKnob, k.Name, s, strings.Join(k.about.oneof, ", "))
		}
	}
	return nil
}

// delayMax is the longest wait a knob takes; longer is an error. Use hang to wait for ever.
const delayMax = time.Hour

func validateKnobs(b *Behaviour) error {
	for _, k := range Knobs(b) {
		if err := k.validate(); err != nil {
			return err
		}
	}
	return nil
}

// Settings changes some knobs of a Behaviour: name → value as text. In JSON the
// values may also be numbers and booleans.
type Settings map[string]string

// UnmarshalJSON takes an object of strings, numbers and booleans.
func (s *Settings) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*s = make(Settings, len(raw))
	for name, value := range raw {
		var text string
		switch value = bytes.TrimSpace(value); value[0] {
		case '"':
			if err := json.Unmarshal(value, &text); err != nil {
				return err
			}
		case '{', '[', 'n':
			return fmt.Errorf("%w: %s: want a string, a number or a boolean", ErrKnob, name)
		default:
			text = string(value)
		}
		(*s)[name] = text
	}
	return nil
}

// apply sets the knobs on b and validates the result.
func (s Settings) apply(b *Behaviour) error {
	if len(s) == 0 {
		return nil
	}
	v := reflect.ValueOf(b).Elem()
	for name, text := range s {
		k, ok := knobByName[name]
		if !ok {
			return fmt.Errorf("%w: there is no knob %q", ErrKnob, name)
		}
		if err := (Knob{Name: name, field: v.Field(k.index), about: k}).Set(text); err != nil {
			return err
		}
	}
	return b.Validate()
}

const (
	headerPrefix = "X-Fake-" // as net/http spells it
	queryPrefix  = "fake-"
)

// requestSettings collects what the request asks for itself; nil if nothing. The header wins over the query.
func requestSettings(h http.Header, rawQuery string) (Settings, error) {
	var s Settings
	if strings.Contains(rawQuery, queryPrefix) {
		query, err := url.ParseQuery(rawQuery)
		if err != nil {
			return nil, fmt.Errorf("%w: query: %w", ErrKnob, err)
		}
		for name, values := range query {
			if knob, ok := strings.CutPrefix(name, queryPrefix); ok {
				if s == nil {
					s = Settings{}
				}
				s[knob] = values[len(values)-1]
			}
		}
	}
	for name, values := range h {
		if knob, ok := strings.CutPrefix(name, headerPrefix); ok {
			if s == nil {
				s = Settings{}
			}
			s[strings.ToLower(knob)] = values[len(values)-1]
		}
	}
	return s, nil
}
