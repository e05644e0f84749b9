package ledger

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound: the tenant, app, key or secret does not exist. Answer 404.
	ErrNotFound = errors.New("ledger: not found")
	// ErrExists: the id (or the hash of the secret) is taken. Answer 409; nothing was changed.
	ErrExists = errors.New("ledger: already exists")
	// ErrOpConflict: the operation id was used for something else. Answer 409; use a fresh op_id.
	ErrOpConflict = errors.New("ledger: op_id was used with other content")
	// ErrInvalid: input outside its bounds; wrapped in an InvalidError that names the field. Answer 400.
	ErrInvalid = errors.New("ledger: invalid")
	// ErrRevoked: a revoked key stays revoked. Issue another key.
	ErrRevoked = errors.New("ledger: key is revoked")
	// ErrTooMany: a named maximum (pending adjustments, live secrets) is reached. Let the older ones end first.
	ErrTooMany = errors.New("ledger: too many")
	// ErrClaimed: another node is bringing this account's adjustments to Redis. Try again.
	ErrClaimed = errors.New("ledger: another node works on the account's adjustments")
	// ErrNewerSchema: the database was migrated by a newer version of this program. Run that one.
	ErrNewerSchema = errors.New("ledger: database schema is newer than this program")
	// ErrURL: the ledger's URL is of no known form. Use sqlite://PATH.
	ErrURL = errors.New("ledger: want a URL of the form sqlite://path/to/ledger.db")
)

// InvalidError says which field of a request was refused. It is ErrInvalid.
type InvalidError struct {
	Field string // path in the request's JSON, as in "limits.rpm"
	Err   error  // why
}

func (e *InvalidError) Error() string { return fmt.Sprintf("ledger: invalid %s: %v", e.Field, e.Err) }

// Unwrap gives the reason and ErrInvalid.
func (e *InvalidError) Unwrap() []error { return []error{ErrInvalid, e.Err} }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Err: fmt.Errorf(format, args...)}
}

// check wraps a reason found elsewhere; nil stays nil.
func check(field string, err error) error {
	if err == nil {
		return nil
	}
	return &InvalidError{Field: field, Err: err}
}
