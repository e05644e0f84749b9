package identity

import (
	"hash/maphash"
	"sync/atomic"
)

// feedStripes is how many counters of changes a Feed has; keys share them by
// hash. Lower makes a change of one document re-read more of the others (at
// 1,000 changes/s each document every 65 s); higher costs 8 bytes each.
const feedStripes = 1 << 16

// Feed takes one store's word on which documents changed. Its Invalidate goes
// into lua.Options.OnInvalidate, the Feed itself beside the store into Options.
// Counting a change needs no lock, no queue and no memory, so none can be lost
// to a bound.
type Feed struct {
	seed    maphash.Seed
	all     atomic.Uint64              // how often everything may have changed
	changed [feedStripes]atomic.Uint64 // how often a key of the stripe changed
}

// NewFeed returns a Feed for one store.
func NewFeed() *Feed { return &Feed{seed: maphash.MakeSeed()} }

// Invalidate notes that the documents under these Redis keys changed; nil: that
// any document may have. It never blocks.
func (f *Feed) Invalidate(keys []string) {
	if keys == nil {
		f.all.Add(1)
		invalidatedAll.Inc()
		return
	}
	for _, key := range keys {
		f.stripe(key).Add(1)
	}
	invalidated.Add(len(keys))
}

func (f *Feed) stripe(key string) *atomic.Uint64 {
	return &f.changed[maphash.String(f.seed, key)%feedStripes]
}

// mark notes what the Feed has heard about a key. Taken before the key is read.
func (f *Feed) mark(key string) mark {
	m := mark{all: &f.all, changed: f.stripe(key)}
	m.sawAll, m.sawChanged = m.all.Load(), m.changed.Load()
	return m
}

// mark is a point in what a Feed has told about one key.
type mark struct {
	all, changed       *atomic.Uint64
	sawAll, sawChanged uint64
}

// current says whether nothing has been heard since.
func (m *mark) current() bool {
	return m.changed.Load() == m.sawChanged && m.all.Load() == m.sawAll
}

// Epoch of a key: another value says that the document under it may have
// changed. The reverse does not hold: keys share counters.
func (f *Feed) Epoch(key string) uint64 { return f.all.Load() + f.stripe(key).Load() }
