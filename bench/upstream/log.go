package upstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"
)

// logEntriesMax is how many entries the log keeps when Options do not say; the oldest go first, counted as dropped.
const logEntriesMax = 65536

// Entry is what one call was and what became of it. Times in ms are since the
// call began; token counts are of all choices together.
type Entry struct {
	Seq  int64     `json:"seq"` // order in which calls began, from 1
	Time time.Time `json:"time"`

	Method string `json:"method"`
	Path   string `json:"path"`
	Model  string `json:"model,omitempty"`
	Stream bool   `json:"stream"`
	// Hex SHA-256 of the bearer token and of x-api-key; empty where there was none.
	AuthorizationSHA256 string `json:"authorization_sha256,omitempty"`
	APIKeySHA256        string `json:"api_key_sha256,omitempty"`
	// Forbidden: the text of the forbid knob was in the request.
	Forbidden      bool   `json:"forbidden,omitempty"`
	RequestID      string `json:"x_request_id,omitempty"` // as received
	OwnID          string `json:"own_request_id"`         // as answered in x-request-id
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	RequestBytes   int64  `json:"request_bytes"`

	Status int `json:"status"` // 0: no answer was begun
	// What the whole answer costs, and what of it was told in usage that was written.
	Usage
	Reported *Usage `json:"reported,omitempty"`

	Events        int    `json:"events"`         // events, or JSON bodies, written to their end
	WrittenTokens int64  `json:"written_tokens"` // completion tokens in them
	BodyBytes     int64  `json:"body_bytes"`     // body bytes written, after Content-Encoding
	BodySHA256    string `json:"body_sha256"`    // of those bytes
	Whole         bool   `json:"whole"`          // every byte was written without an error
	Cut           bool   `json:"cut,omitempty"`  // ended by its behaviour
	Gone          bool   `json:"client_gone,omitempty"`
	GoneMs        int64  `json:"client_gone_ms,omitempty"`
	Ms            int64  `json:"duration_ms"`
}

// Totals sums the calls since the start or the last reset. Control calls do not count.
type Totals struct {
	Begun    int64 `json:"begun"`
	Ended    int64 `json:"ended"`
	InFlight int64 `json:"in_flight"`
	Silent   int64 `json:"silent"` // of those in flight, kept by the hang knob: what Release lets go on
	// Calls are whole answers of status 2xx; the three sums below are theirs.
	Calls int64 `json:"calls"`
	Usage
	Reported      Usage `json:"reported"`       // usage told, over all calls
	WrittenTokens int64 `json:"written_tokens"` // completion tokens written, over all calls
	Errors        int64 `json:"errors"`         // answers of status 400 and above
	Cut           int64 `json:"cut"`
	Gone          int64 `json:"client_gone"`
	Forbidden     int64 `json:"forbidden"`
	LogDropped    int64 `json:"log_dropped"`
	FileErrors    int64 `json:"log_file_errors"`
}

func (u *Usage) add(o Usage) {
	u.Prompt += o.Prompt
	u.Completion += o.Completion
	u.Total += o.Total
}

// callLog keeps the entries and the totals.
type callLog struct {
	entriesMax int
	mu         struct {
		sync.Mutex
		seq     int64
		age     int64 // number of resets: calls begun before one are not counted after it
		totals  Totals
		ring    []Entry
		next    int           // where the ring, once full, is written
		changed chan struct{} // closed at the next change; nil while nobody waits
		file    *os.File
	}
}

// begin counts a call and names it. age goes back into end.
func (l *callLog) begin() (seq, age int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.seq++
	l.mu.totals.Begun++
	l.mu.totals.InFlight++
	l.notifyLocked()
	return l.mu.seq, l.mu.age
}

// silent counts a call of that age in (+1) or out (-1) of those that hang.
func (l *callLog) silent(age, by int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age == l.mu.age {
		l.mu.totals.Silent += by
		l.notifyLocked()
	}
}

func (l *callLog) end(e Entry, age int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age != l.mu.age {
		return
	}
	t := &l.mu.totals
	t.InFlight--
	t.Ended++
	if e.Whole && e.Status >= 200 && e.Status < 300 {
		t.Calls++
		t.Usage.add(e.Usage)
	}
	if e.Reported != nil {
		t.Reported.add(*e.Reported)
	}
	t.WrittenTokens += e.WrittenTokens
	count(&t.Errors, e.Status >= 400)
	count(&t.Cut, e.Cut)
	count(&t.Gone, e.Gone)
	count(&t.Forbidden, e.Forbidden)
	if len(l.mu.ring) < l.entriesMax {
		l.mu.ring = append(l.mu.ring, e)
	} else {
		l.mu.ring[l.mu.next] = e
		l.mu.next = (l.mu.next + 1) % l.entriesMax
		t.LogDropped++
	}
	l.writeLocked(e)
	l.notifyLocked()
}

func count(n *int64, yes bool) {
	if yes {
		*n++
	}
}

// writeLocked appends to the file with one write, so that a kill loses at most the entry it interrupts.
func (l *callLog) writeLocked(e Entry) {
	if l.mu.file == nil {
		return
	}
	if _, err := l.mu.file.Write(append(mustJSON(e), '\n')); err != nil {
		if l.mu.totals.FileErrors == 0 {
			slog.Error("fake upstream: log file", "error", err)
		}
		l.mu.totals.FileErrors++
	}
}

func (l *callLog) notifyLocked() {
	if l.mu.changed != nil {
		close(l.mu.changed)
		l.mu.changed = nil
	}
}

// entries returns a copy, by the order in which calls ended, of those with Seq above since.
func (l *callLog) entries(since int64) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Entry, 0, len(l.mu.ring))
	for i := range l.mu.ring {
		if e := l.mu.ring[(l.mu.next+i)%len(l.mu.ring)]; e.Seq > since {
			out = append(out, e)
		}
	}
	return out
}

func (l *callLog) totals() Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.totals
}

func (l *callLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.age++
	l.mu.seq = 0
	l.mu.totals = Totals{}
	l.mu.ring, l.mu.next = nil, 0
	l.notifyLocked()
}

// wait returns the first totals for which enough is true.
func (l *callLog) wait(ctx context.Context, enough func(Totals) bool) (Totals, error) {
	for {
		l.mu.Lock()
		t := l.mu.totals
		if l.mu.changed == nil {
			l.mu.changed = make(chan struct{})
		}
		changed := l.mu.changed
		l.mu.Unlock()
		if enough(t) {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t, ctx.Err()
		}
	}
}

// openFile starts appending entries to the file at path.
func (l *callLog) openFile(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.file = f
	return nil
}

func (l *callLog) closeFile() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.file == nil {
		return nil
	}
	err := l.mu.file.Close()
	l.mu.file = nil
	return err
}

// writeLines writes entries as JSON lines.
func writeLines(enc *json.Encoder, entries []Entry) error {
	for i := range entries {
		if err := enc.Encode(&entries[i]); err != nil {
			return err
		}
	}
	return nil
}
