package journal

import (
	"errors"
	"fmt"
)

var (
	// ErrFull: no room that is already allocated is left for this kind of record (size bound or full disk).
	// Refuse the call with 503; the end of a running one is tried again when a reader has caught up.
	ErrFull = errors.New("journal: full")
	// ErrBroken: a sync failed, or the disk took back a page. Refuse all calls with 503 and restart the node.
	ErrBroken = errors.New("journal: broken")
	// ErrClosed: the journal was closed. Nothing was appended or read.
	ErrClosed = errors.New("journal: closed")
	// ErrLocked: another process has the data directory. Give each node its own.
	ErrLocked = errors.New("journal: data directory is in use by another node")
	// ErrCorrupt: something in the synced part is not as it was written; wrapped in a CorruptError.
	ErrCorrupt = errors.New("journal: corrupt")
	// ErrNewer: a segment or record is of a version or kind this program does not know. Run the newer program.
	ErrNewer = errors.New("journal: written by a newer version of this program")
	// ErrTooLarge: a record is above its bounds. Refuse the call; bounds are far above what a valid one needs.
	ErrTooLarge = errors.New("journal: record too large")
	// ErrRecord: a record's bytes do not decode.
	ErrRecord = errors.New("journal: malformed record")
	// ErrCursor: a commit is before the last one, or beyond what was read.
	ErrCursor = errors.New("journal: cursor out of range")
	// ErrOptions: an option is outside its bounds.
	ErrOptions = errors.New("journal: invalid options")
)

// CorruptError says where the journal is not as it was written. It is ErrCorrupt.
type CorruptError struct {
	File   string // path
	Offset int64  // bytes from the file's begin; of the first bad record
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal: corrupt: %s at offset %d: %s", e.File, e.Offset, e.Reason)
}

// Unwrap gives ErrCorrupt.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }
