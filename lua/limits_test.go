package lua

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/quota"
)

func TestWindowsAround(t *testing.T) {
	at := func(clock string) int64 {
		when, err := time.Parse(time.DateTime, clock)
		require.NoError(t, err)
		return when.UnixMilli()
	}
	for clock, want := range map[string]struct{ day, month []string }{
		"2026-11-30 12:00:00": {[]string{"d20261130"}, []string{"m202611"}},
		"2026-11-30 23:59:54": {[]string{"d20261130"}, []string{"m202611"}},
		"2026-11-30 23:59:56": {[]string{"d20261130", "d20261201"}, []string{"m202611", "m202612"}},
		"2026-12-01 00:00:04": {[]string{"d20261130", "d20261201"}, []string{"m202611", "m202612"}},
		"2026-12-01 00:00:06": {[]string{"d20261201"}, []string{"m202612"}},
	} {
		names := func(p quota.Period) (list []string) {
			for _, w := range windowsAround(p, at(clock), time.UTC) {
				list = append(list, w.Name)
			}
			return list
		}
		assert.Equal(t, want.day, names(quota.Day), clock)
		assert.Equal(t, want.month, names(quota.Month), clock)
	}
}
