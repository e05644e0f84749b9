package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"tollgate/ledger"
	"tollgate/lua"
)

// The codes of errors: what a program decides by. Messages are for people and may change.
const (
	codeInvalid      = "invalid_request"
	codeUnauthorized = "unauthorized"
	codeForbidden    = "forbidden"
	codeNotFound     = "not_found"
	codeMethod       = "method_not_allowed"
	codeExists       = "already_exists"
	codeOpConflict   = "op_id_conflict"
	codeRevoked      = "key_revoked"
	codeBelowUsage   = "below_usage"
	codeUnlimited    = "unlimited"
	codeTooLarge     = "total_too_large"
	codeBodySize     = "request_too_large"
	codeTooMany      = "too_many"
	codeStore        = "store_unavailable"
	codeLedger       = "ledger_unavailable"
	codeInternal     = "internal"
)

// Error is what is answered instead of a result.
type Error struct {
	Status  int
	Code    string
	Message string // one or two plain sentences: what is wrong, what would be right
	Param   string // path of the field at fault; "": none
	Numbers any    // marshalled beside the error; nil: nothing
	Retry   int    // seconds, for Retry-After; 0: no such header
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

func invalid(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Code: codeInvalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) *Error {
	return &Error{Status: http.StatusNotFound, Code: codeNotFound, Message: fmt.Sprintf(format, args...)}
}

// explain turns what went wrong below into an answer. what names the thing that
// the path speaks of, for ErrNotFound.
func explain(err error, what string) *Error {
	var own *Error
	var field *ledger.InvalidError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &field):
		return fromField(field)
	case errors.Is(err, ledger.ErrNotFound):
		return notFound("There is no %s.", what)
	case errors.Is(err, ledger.ErrExists):
		return &Error{Status: http.StatusConflict, Code: codeExists, Param: "id", Message: "This id is taken. Nothing was changed; choose another id, or change what is there."}
	case errors.Is(err, ledger.ErrOpConflict):
		return &Error{Status: http.StatusConflict, Code: codeOpConflict, Param: "op_id", Message: "This op_id was used for another request. Nothing was changed; use a new op_id for each request, and the same one only to repeat it."}
	case errors.Is(err, ledger.ErrRevoked):
		return &Error{Status: http.StatusConflict, Code: codeRevoked, Message: "This key was revoked, which is final. Create another key."}
	case errors.Is(err, ledger.ErrTooMany):
		return &Error{
			Status: http.StatusTooManyRequests, Code: codeTooMany, Retry: 5,
			Message: "Nothing was changed: " + strings.TrimPrefix(err.Error(), ledger.ErrTooMany.Error()+": ") + ". Let the older ones end first.",
		}
	case errors.Is(err, lua.ErrNotSent), errors.Is(err, lua.ErrUnknown), errors.Is(err, lua.ErrRefused):
		return &Error{Status: http.StatusServiceUnavailable, Code: codeStore, Retry: 1, Message: "The tenant's Redis does not answer now. Try again in a moment."}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{Status: http.StatusServiceUnavailable, Code: codeLedger, Retry: 1, Message: "The ledger did not answer in time. Try again in a moment, with the same op_id."}
	}
	slog.Error("an administration request failed", "error", err)
	return &Error{Status: http.StatusInternalServerError, Code: codeInternal, Message: "The node could not do this; its log says why. Repeat it with the same op_id when that is put right."}
}

// fromField words a refused field: "total: must not be negative".
func fromField(err *ledger.InvalidError) *Error {
	reason := err.Err.Error()
	for _, prefix := range []string{"quota: limit out of bounds: ", "quota: malformed id: ", "quota: "} {
		reason = strings.TrimPrefix(reason, prefix)
	}
	param := err.Field
	// A fault within the policy already says which of its fields it is about.
	if path, rest, ok := strings.Cut(reason, ": "); ok && strings.HasPrefix(path, param+".") {
		param, reason = path, rest
	}
	leaf := param[strings.LastIndexByte(param, '.')+1:]
	return invalid(param, "%s: %s.", param, strings.TrimPrefix(strings.TrimSuffix(reason, "."), leaf+" "))
}
