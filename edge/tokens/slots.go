package tokens

import "runtime"

// Slots bounds how many long counts run at once, so that they leave cores to the calls that need none.
type Slots struct{ free chan struct{} }

// QuickBytes is how much text may be counted without a slot: at most about a tenth of a millisecond for
// ordinary text, a third for the hardest.
const QuickBytes = 4 << 10

// NewSlots has n slots; 0 stands for half of the cores, at least one.
func NewSlots(n int) Slots {
	if n == 0 {
		n = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return Slots{free: make(chan struct{}, n)}
}

// Try takes a slot, if one is free. Who has none takes Vocabulary.Bound, or waits on Wait.
func (s Slots) Try() bool {
	select {
	case s.free <- struct{}{}:
		return true
	default:
		return false
	}
}

// Wait is where a send takes a slot, for a select with the caller's own deadline.
func (s Slots) Wait() chan<- struct{} { return s.free }

// Release gives a slot back.
func (s Slots) Release() {
	select {
	case <-s.free:
	default:
		panic("BUG: tokens: released a slot that nobody has")
	}
}
