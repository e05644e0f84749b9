package identity

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFeed(t *testing.T) {
	f := NewFeed()
	a, b := f.mark("a"), f.mark("b")
	require.True(t, a.current())
	f.Invalidate([]string{})
	require.True(t, a.current())
	f.Invalidate([]string{"a", "c"})
	require.False(t, a.current())
	require.True(t, b.current())
	again := f.mark("a")
	require.True(t, again.current())
	f.Invalidate(nil)
	require.False(t, again.current())
	require.False(t, b.current())
}

// Two changes at once, of which one is of everything: a mark never looks
// current again.
func TestFeedCountsAllChanges(t *testing.T) {
	f := NewFeed()
	m := f.mark("a")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				if i%2 == 0 {
					f.Invalidate([]string{"a"})
				} else {
					f.Invalidate(nil)
				}
				require.False(t, m.current())
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 4000, f.all.Load())
	require.EqualValues(t, 4000, f.stripe("a").Load())
}
