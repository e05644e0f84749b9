package identity

import "errors"

// Lookup's errors, and the one that a Source gives.
var (
	// ErrUnknownKey: no such key was issued, or it is malformed. Answer 401.
	ErrUnknownKey = errors.New("identity: unknown key")
	// ErrDisabledKey: the key is suspended or revoked, or its secret was replaced and has expired. Answer 403.
	ErrDisabledKey = errors.New("identity: key is disabled")
	// ErrSuspendedTenant: the key works, its tenant does not. Answer 403.
	ErrSuspendedTenant = errors.New("identity: tenant is suspended")
	// ErrUnavailable: Redis or SQL did not answer, or too many reads of SQL are asked for. Nobody can know now; answer 503.
	ErrUnavailable = errors.New("identity: cannot look up the key now")
	// ErrNotFound: what a Source answers when SQL has no such secret, or lacks one of a principal's documents.
	ErrNotFound = errors.New("identity: not in the ledger")
)
