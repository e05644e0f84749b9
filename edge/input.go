package edge

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fastjson"

	"tollgate/edge/answer"
	"tollgate/quota"
)

// Bounds of the decision API's bodies.
const (
	decisionBodyMax = 16 << 10
	requestIDMax    = 128
)

// object is a JSON object of the decision API: known fields, each at most once.
type object struct {
	fields map[string]*fastjson.Value
	arena  fastjson.Arena
}

// invalid refuses a field of the request. The message never quotes its value.
func invalid(field, why string) *answer.Refusal {
	return &answer.Refusal{Code: answer.InvalidRequest, Message: "Invalid " + field + ": " + why + ".", Param: field}
}

// readObject parses a body and refuses what two parsers could read differently.
func readObject(body []byte, known ...string) (*object, error) {
	if len(body) > decisionBodyMax {
		return nil, answer.New(answer.RequestTooLarge, "The body of a decision call is at most %d bytes.", decisionBodyMax)
	}
	v, err := fastjson.ParseBytes(body) // its error quotes the body: not passed on
	if err != nil || v.Type() != fastjson.TypeObject {
		return nil, answer.New(answer.InvalidRequest, "The body must be one JSON object.")
	}
	o := &object{fields: map[string]*fastjson.Value{}}
	members, _ := v.Object()
	var fault error
	members.Visit(func(key []byte, v *fastjson.Value) {
		name := string(key)
		switch {
		case fault != nil:
		case !slices.Contains(known, name):
			fault = &answer.Refusal{Code: answer.InvalidRequest, Message: "The body has an unknown field. Known are: " + strings.Join(known, ", ") + "."}
		case o.fields[name] != nil:
			fault = invalid(name, "it stands twice in the body")
		default:
			o.fields[name] = v
		}
	})
	return o, fault
}

// has says whether a field is there; null is absent.
func (o *object) has(name string) bool {
	v := o.fields[name]
	return v != nil && v.Type() != fastjson.TypeNull
}

func (o *object) setText(name, value string) { o.fields[name] = o.arena.NewString(value) }

// amount reads credits from least to quota.CreditsMax.
func (o *object) amount(name string, least int64) (int64, error) {
	n, err := o.number(name, least, quota.CreditsMax)
	if err != nil && o.fields[name] != nil && o.fields[name].Type() == fastjson.TypeNumber {
		if f, ferr := o.fields[name].Float64(); ferr == nil && f > float64(quota.CreditsMax) {
			amountRejected.Inc()
		}
	}
	return n, err
}

// number reads a whole number within bounds; no fraction, exponent or string.
func (o *object) number(name string, least, most int64) (int64, error) {
	bounds := "it must be a whole number from " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10)
	if !o.has(name) {
		return 0, invalid(name, "it is missing; "+bounds)
	}
	n, err := o.fields[name].Int64()
	if err != nil || o.fields[name].Type() != fastjson.TypeNumber || n < least || n > most {
		return 0, invalid(name, bounds)
	}
	return n, nil
}

// text reads a string of least to most bytes.
func (o *object) text(name string, least, most int) (string, error) {
	bounds := "it must be a string of " + strconv.Itoa(least) + " to " + strconv.Itoa(most) + " bytes"
	if !o.has(name) {
		return "", invalid(name, "it is missing; "+bounds)
	}
	b, err := o.fields[name].StringBytes()
	if err != nil || len(b) < least || len(b) > most {
		return "", invalid(name, bounds)
	}
	return string(b), nil
}

// requestID reads the caller's id: 1–128 of [A-Za-z0-9._:-].
func (o *object) requestID() (string, error) {
	id, err := o.text("request_id", 1, requestIDMax)
	if err == nil && !validLabel([]byte(id)) {
		err = invalid("request_id", "it may consist of letters, digits and . _ : - only")
	}
	return id, err
}

func (o *object) clientID() string {
	id, _ := o.text("request_id", 1, requestIDMax)
	return id
}

// usage reads token counts as OpenAI or Anthropic name them.
func (o *object) usage() (quota.Usage, error) {
	var u quota.Usage
	v := o.fields["usage"]
	if v.Type() != fastjson.TypeObject {
		return u, invalid("usage", "it must be an object of token counts")
	}
	count := func(path ...string) (int64, error) {
		x := v.Get(path...)
		if x == nil || x.Type() == fastjson.TypeNull {
			return 0, nil
		}
		f, err := x.Float64()
		if err != nil || x.Type() != fastjson.TypeNumber || f < 0 || f > float64(quota.TokensMax) || f != math.Trunc(f) {
			return 0, invalid("usage."+strings.Join(path, "."), "it must be a whole number from 0 to "+strconv.FormatInt(quota.TokensMax, 10))
		}
		return int64(f), nil
	}
	if err := eachOnce(v); err != nil {
		return u, err
	}
	var errs [8]error
	var prompt, completion, total int64
	if v.Exists("input_tokens") || v.Exists("output_tokens") {
		u.Input, errs[0] = count("input_tokens")
		u.CachedInput, errs[1] = count("cache_read_input_tokens")
		u.CacheWrite, errs[2] = count("cache_creation_input_tokens")
		u.Output, errs[3] = count("output_tokens")
	} else {
		prompt, errs[4] = count("prompt_tokens")
		completion, errs[5] = count("completion_tokens")
		total, errs[6] = count("total_tokens")
		u.CachedInput, errs[7] = count("prompt_tokens_details", "cached_tokens")
		u.CachedInput = min(u.CachedInput, prompt)
		u.Input = prompt - u.CachedInput
		u.Output = max(completion, total-prompt)
	}
	for _, err := range errs {
		if err != nil {
			return u, err
		}
	}
	if !anyCount(v) { // absent is not zero
		return u, invalid("usage", "it has no token counts; known are prompt_tokens, completion_tokens and total_tokens, or input_tokens and output_tokens")
	}
	return u, nil
}

// eachOnce refuses a usage object in which a count stands twice: two parsers could charge it differently.
func eachOnce(v *fastjson.Value) (err error) {
	seen := map[string]bool{}
	o, _ := v.Object()
	o.Visit(func(key []byte, _ *fastjson.Value) {
		if seen[string(key)] {
			err = invalid("usage", "a field stands twice in it")
		}
		seen[string(key)] = true
	})
	return err
}

func anyCount(v *fastjson.Value) bool {
	for _, name := range [...]string{"prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"} {
		if x := v.Get(name); x != nil && x.Type() != fastjson.TypeNull {
			return true
		}
	}
	return false
}
