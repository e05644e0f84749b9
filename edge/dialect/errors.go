package dialect

import "errors"

// ErrNotObject: the body to edit is not a JSON object. Cannot happen after ParseChat accepted it.
var ErrNotObject = errors.New("dialect: body is not a JSON object")

// FieldError refuses a request: 400 with Param as "param". Msg names the field and its limit
// and never quotes the body.
type FieldError struct {
	Param string // name of the field; empty: the body itself
	Msg   string
}

func (e *FieldError) Error() string { return "dialect: " + e.Msg }
