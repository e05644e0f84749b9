package journal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAppendReadReopen(t *testing.T) {
	dir := t.TempDir()
	j, found := openTest(t, small(dir))
	require.Equal(t, Recovered{}, found)
	const n = 3000 // several segments
	ends := appendMany(t, j, 0, n)
	syncAll(t, j, ends)
	got := readAll(t, j.Reader("events"), n)
	require.Equal(t, upTo(n), numbers(t, got))
	require.Equal(t, Origin{j.Epoch(), "n1", "eu"}, got[0].Origin)
	require.EqualValues(t, n, j.Reader("events").Lag())
	require.NoError(t, j.Reader("events").Commit(got[n-101].After))
	require.EqualValues(t, 100, j.Reader("events").Lag())
	require.NoError(t, j.Close())

	list, found := visited(t, small(dir))
	require.Equal(t, upTo(n), numbers(t, list))
	require.False(t, found.Killed)
	require.Equal(t, j.Epoch(), found.LastEpoch)

	j2, _ := openTest(t, small(dir))
	require.Greater(t, j2.Epoch().StartMillis, j.Epoch().StartMillis)
	require.EqualValues(t, 100, j2.Reader("events").Lag())
	require.EqualValues(t, n, j2.Reader("settlement").Lag())
	require.Equal(t, upTo(n)[n-100:], numbers(t, readAll(t, j2.Reader("events"), 100)))
	require.Equal(t, upTo(n), numbers(t, readAll(t, j2.Reader("settlement"), n)))
}
