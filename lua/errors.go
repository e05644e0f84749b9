package lua

import "errors"

var (
	// ErrNotSent: refused before anything reached Redis (breaker open, too many calls in flight, connection refused). Nothing happened.
	ErrNotSent = errors.New("lua: not sent to redis")
	// ErrUnknown: no answer in time. The script may have run or may still run; void it, or repeat it with the same id.
	ErrUnknown = errors.New("lua: no answer from redis, outcome unknown")
	// ErrRefused: Redis answered that it cannot run the script now (loading, read-only, out of memory, busy, cluster down). Nothing was written.
	ErrRefused = errors.New("lua: redis refused the call")
	// ErrReply: an answer that this version does not understand. Upgrade, or look for a foreign writer.
	ErrReply = errors.New("lua: malformed reply")
	// ErrURL: not a redis://, rediss://, redis+cluster:// or redis+sentinel:// URL. Correct the configuration.
	ErrURL = errors.New("lua: malformed store url")
	// ErrForeign: the store belongs to another ledger. Point the node at its own Redis.
	ErrForeign = errors.New("lua: the store belongs to another ledger")
)
