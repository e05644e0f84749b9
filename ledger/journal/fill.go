package journal

import (
	"math"
	"time"
)

// The forecast of tollgate_journal_seconds_left.
const (
	secondsLeftMost = 1e9 // "it does not fill"; Prometheus and alert rules like it better than +Inf
	fillHorizon     = 30 * time.Second
)

// fill estimates when the journal is full, from how fast what the slower reader
// has not passed grows: while readers keep up it does not.
type fill struct {
	at      time.Time
	backlog int64   // bytes
	rate    float64 // bytes/s, averaged over fillHorizon
}

// next takes a measurement and gives the seconds until left is used up.
func (f *fill) next(now time.Time, backlog, left int64) float64 {
	if seconds := now.Sub(f.at).Seconds(); !f.at.IsZero() && seconds > 0 {
		weight := 1 - math.Exp(-seconds/fillHorizon.Seconds())
		f.rate += weight * (float64(backlog-f.backlog)/seconds - f.rate)
	}
	f.at, f.backlog = now, backlog
	if f.rate <= 0 {
		return secondsLeftMost
	}
	return min(float64(left)/f.rate, secondsLeftMost)
}
