package admission

import "errors"

var (
	// ErrUnavailable: Redis or SQL did not answer in time; nothing is charged. Answer 503 quota_unavailable.
	ErrUnavailable = errors.New("admission: cannot decide now")
	// ErrConflict: the id is known with other content. Answer 409 request_id_conflict.
	ErrConflict = errors.New("admission: request id was used with other content")
	// ErrInFlight: a call with the same Idempotency-Key lives. Answer 409 idempotency_in_flight.
	ErrInFlight = errors.New("admission: a call with this idempotency key is in flight")
	// ErrReplayed: a call with the same Idempotency-Key was charged. Answer 409 idempotency_replayed.
	ErrReplayed = errors.New("admission: a call with this idempotency key was charged")
	// ErrTooLarge: a sum would pass the largest amount. Answer 400.
	ErrTooLarge = errors.New("admission: amount too large")
	// ErrBusy: too many ends wait for Redis. Answer 503 node_busy.
	ErrBusy = errors.New("admission: too many unsettled requests")
)
