package lua

import (
	"sync/atomic"
	"time"
)

// Bounds of a decision's budget when it follows the store (limits.decision: auto).
const (
	budgetLow  = 50 * time.Millisecond
	budgetHigh = time.Second
)

// roundTrip estimates the 99th percentile of round trips without keeping
// samples: one above the estimate raises it, one below lowers it 99 times less,
// so it settles where one sample in a hundred lies above. Zero value: no sample yet.
type roundTrip struct{ nanos atomic.Int64 }

func (r *roundTrip) saw(took time.Duration) {
	old := r.nanos.Load()
	r.nanos.Store(nextP99(old, int64(took))) // a lost update of another call costs one sample
}

// nextP99 is the estimate after one sample, in nanoseconds.
func nextP99(old, sample int64) int64 {
	if old == 0 {
		return sample
	}
	step := max(old/4, 1000) // a slow first call is forgotten within some hundred others
	if sample > old {
		return min(old+step, sample)
	}
	return max(old-step/99, 0)
}

// Budget is how long a decision on this store may take:
// max(50 ms, 4 × p99 of its round trips), at most 1 s.
func (s *Store) Budget() time.Duration {
	return min(max(budgetLow, 4*time.Duration(s.rtt.nanos.Load())), budgetHigh)
}
