package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// zoneNames are zones with unusual habits, and those where most people live.
var zoneNames = []string{
	"", "UTC", "Etc/GMT+12", "Etc/GMT-14", "Asia/Tokyo", "Asia/Shanghai", "Asia/Kolkata", "Asia/Kathmandu",
	"Asia/Tehran", "Asia/Gaza", "Asia/Beirut", "Asia/Amman", "Asia/Damascus", "Asia/Pyongyang", "Asia/Ulaanbaatar",
	"Asia/Riyadh", "Europe/London", "Europe/Berlin", "Europe/Moscow", "Europe/Volgograd", "Europe/Istanbul",
	"Africa/Cairo", "Africa/Casablanca", "Africa/Juba", "Africa/Monrovia", "America/New_York", "America/Los_Angeles",
	"America/Sao_Paulo", "America/Asuncion", "America/Santiago", "America/Havana", "America/St_Johns",
	"America/Caracas", "America/Scoresbysund", "America/Nuuk", "America/Toronto", "Atlantic/Azores",
	"Pacific/Apia", "Pacific/Fakaofo", "Pacific/Kwajalein", "Pacific/Kiritimati", "Pacific/Chatham",
	"Australia/Lord_Howe", "Australia/Sydney", "Antarctica/Troll", "Antarctica/Casey",
}

func zoneOf(t require.TestingT, name string) *time.Location {
	loc, err := LoadZone(name)
	require.NoError(t, err)
	return loc
}

func instant(t *testing.T, rfc3339 string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, rfc3339)
	require.NoError(t, err)
	return at.UnixMilli()
}

func TestWindowAt(t *testing.T) {
	for _, tc := range []struct {
		what       string
		zone       string
		period     Period
		now        string
		name       string
		start, end string // UTC
	}{
		{"a month ends at local midnight, to the second", "Asia/Tokyo", Month, "2026-11-30T14:59:59.999Z", "m202611", "2026-10-31T15:00:00Z", "2026-11-30T15:00:00Z"},
		{"and the next begins there", "Asia/Tokyo", Month, "2026-11-30T15:00:00Z", "m202612", "2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z"},
		{"a month is a calendar month", "Europe/Berlin", Month, "2026-01-31T12:00:00Z", "m202601", "2025-12-31T23:00:00Z", "2026-01-31T23:00:00Z"},
		{"February of a leap year", "UTC", Month, "2028-02-29T23:59:59Z", "m202802", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"December runs into the next year", "UTC", Month, "2026-12-31T23:59:59Z", "m202612", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"a day of 23 hours", "Europe/Berlin", Day, "2026-03-29T12:00:00Z", "d20260329", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"a day of 25 hours", "Europe/Berlin", Day, "2026-10-25T12:00:00Z", "d20261025", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"midnight does not exist: the day begins at 01:00", "America/Sao_Paulo", Day, "2018-11-04T03:00:00Z", "d20181104", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"the day before ends at the gap", "America/Sao_Paulo", Day, "2018-11-04T02:59:59Z", "d20181103", "2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z"},
		{"the gap is at a month's first midnight", "America/Asuncion", Month, "2017-10-01T04:00:00Z", "m201710", "2017-10-01T04:00:00Z", "2017-11-01T03:00:00Z"},
		{"01:00 goes back to 00:00: the first midnight counts", "America/Havana", Day, "2026-11-01T05:30:00Z", "d20261101", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"00:00 goes back to 23:00: the day before has 25 hours", "America/Sao_Paulo", Day, "2018-02-18T02:30:00Z", "d20180217", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		{"00:01 goes back to 23:01: a day that began stays begun", "America/St_Johns", Day, "2010-11-07T02:45:00Z", "d20101107", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		{"a skipped day has no window: before it", "Pacific/Apia", Day, "2011-12-30T09:59:59Z", "d20111229", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"a skipped day has no window: after it", "Pacific/Apia", Day, "2011-12-30T10:00:00Z", "d20111231", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"the month of a skipped day", "Pacific/Apia", Month, "2011-12-30T10:00:00Z", "m201112", "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"a half-hour shift", "Australia/Lord_Howe", Day, "2026-04-04T20:00:00Z", "d20260405", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"},
		{"the last day of a leap year, far ahead", "Europe/Berlin", Day, "2040-12-31T12:00:00Z", "d20401231", "2040-12-30T23:00:00Z", "2040-12-31T23:00:00Z"},
		{"the month after a leap year, far ahead", "America/Santiago", Month, "2045-01-01T02:59:59Z", "m204412", "2044-12-01T03:00:00Z", "2045-01-01T03:00:00Z"},
		{"ever has no window", "UTC", Ever, "2026-04-04T20:00:00Z", "", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			got := WindowAt(tc.period, instant(t, tc.now), zoneOf(t, tc.zone))
			require.Equal(t, Window{Name: tc.name, Start: instant(t, tc.start), End: instant(t, tc.end)}, got)
		})
	}
}

// A tenant that moves to another zone keeps its account where the name stays
// the same; only the bounds move.
func TestWindowAtZoneChange(t *testing.T) {
	now := instant(t, "2026-11-30T12:00:00Z")
	berlin, tokyo := WindowAt(Day, now, zoneOf(t, "Europe/Berlin")), WindowAt(Day, now, zoneOf(t, "Asia/Tokyo"))
	require.Equal(t, berlin.Name, tokyo.Name)
	require.Equal(t, berlin.End-8*60*60*1000, tokyo.End)
}

// Every window of 41 years in every zone, one after the other: no hole, no
// overlap, no window twice, and each begins and ends with the calendar.
func TestWindowsTileTime(t *testing.T) {
	from := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	till := time.Date(2041, 2, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, name := range zoneNames {
		zone := zoneOf(t, name)
		for _, p := range []Period{Day, Month} {
			w := WindowAt(p, from, zone)
			for w.Start < till {
				if w.Start >= w.End {
					t.Fatalf("%s %s: empty window %+v", name, p, w)
				}
				for _, at := range []int64{w.Start, w.Start + 1, w.Start + (w.End-w.Start)/2, w.End - 1} {
					if got := WindowAt(p, at, zone); got != w {
						t.Fatalf("%s %s at %d: %+v, want %+v", name, p, at, got, w)
					}
				}
				next := WindowAt(p, w.End, zone)
				if next.Start != w.End || next.Name <= w.Name {
					t.Fatalf("%s %s: %+v is followed by %+v", name, p, w, next)
				}
				w = next
			}
		}
	}
}

// Any instant against a naive second version that walks the clock minute by minute.
func TestWindowAtRandomInstants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := zoneOf(t, rapid.SampledFrom(zoneNames).Draw(t, "zone"))
		p := rapid.SampledFrom([]Period{Day, Month}).Draw(t, "period")
		from := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
		till := time.Date(2045, 2, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
		now := rapid.Int64Range(from, till).Draw(t, "now")
		w := WindowAt(p, now, zone)
		require.True(t, w.Contains(now), "%+v", w)
		layout := map[Period]string{Day: "d20060102", Month: "m200601"}[p]
		require.Equal(t, time.UnixMilli(w.Start).In(zone).Format(layout), w.Name)
		require.False(t, w.Contains(w.Start-1))
		require.False(t, w.Contains(w.End))
		require.Equal(t, naiveFirst(w.Start, zone), w.Start)
		require.Equal(t, naiveFirst(w.End, zone), w.End)
	})
}

// naiveFirst looks for the first minute within two days around an instant whose
// local calendar day is that of the instant or later.
func naiveFirst(atMillis int64, zone *time.Location) int64 {
	day := func(ms int64) int { y, m, d := time.UnixMilli(ms).In(zone).Date(); return y*10000 + int(m)*100 + d }
	const minute = 60 * 1000
	for ms := atMillis - 24*60*minute; ; ms += minute {
		if day(ms) >= day(atMillis) {
			return ms
		}
	}
}

func TestLoadZone(t *testing.T) {
	for _, name := range []string{"Local", "localtime", "posixrules", "right/UTC", "posix/UTC", "Mars/Base", "../etc/passwd", "/etc/localtime", string(make([]byte, 65))} {
		_, err := LoadZone(name)
		require.ErrorIs(t, err, ErrZone, "%q", name)
	}
	for _, name := range zoneNames {
		_, err := LoadZone(name)
		require.NoError(t, err, name)
	}
}

func TestWindowContains(t *testing.T) {
	require.True(t, Window{}.Contains(0))
	require.True(t, Window{}.Contains(-1))
	require.False(t, Window{Name: "d19700101", Start: 0, End: 1000}.Contains(1000))
}

// A window is found for any instant that an int64 can name in years 1 … 9999.
func FuzzWindowAt(f *testing.F) {
	f.Add(int64(0), uint8(0))
	f.Fuzz(func(t *testing.T, now int64, zone uint8) {
		if now < -62135596800000 || now > 253402300799000 {
			t.Skip()
		}
		loc := zoneOf(t, zoneNames[int(zone)%len(zoneNames)])
		for _, p := range []Period{Day, Month} {
			require.True(t, WindowAt(p, now, loc).Contains(now))
		}
	})
}
