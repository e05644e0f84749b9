package quota

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a bare machine has no tz database of its own
)

// zoneNameMax bounds a zone's name in bytes; longer ones are refused. The
// longest in the tz database has 32.
const zoneNameMax = 64

// Window is one day or month of a tenant's zone as instants: [Start, End) in
// milliseconds since 1970. The zero Window is that of `ever`.
type Window struct {
	Name  string // "d20261130", "m202611", "" for ever: part of the account's Redis key
	Start int64  // ms, inclusive
	End   int64  // ms, exclusive
}

// Contains says whether the instant lies in the window; `ever` contains all.
func (w Window) Contains(nowMillis int64) bool {
	return w.Name == "" || (nowMillis >= w.Start && nowMillis < w.End)
}

// LoadZone resolves a tenant's zone by its tz database name; "" is UTC. It
// reads the machine's tz database, or the one in the binary where there is none:
// call it when a document is decoded, not per request.
//
// "Local" and the names that a machine's own files give to its local time are
// refused, since they mean another zone on each node; so are "right/…", whose
// seconds are not Unix seconds.
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	switch {
	case len(name) > zoneNameMax:
		return nil, fmt.Errorf("%w: name is longer than %d bytes", ErrZone, zoneNameMax)
	case name == "Local", name == "localtime", name == "posixrules",
		strings.HasPrefix(name, "right/"), strings.HasPrefix(name, "posix/"):
		return nil, fmt.Errorf("%w: %q", ErrZone, name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %q", ErrZone, name)
	}
	return loc, nil
}

// WindowAt gives the period's window that contains the instant, in the zone.
// Windows begin at the first instant of their calendar day or month (see
// firstInstant), and each ends where the next begins: they tile time, and the
// returned one always contains nowMillis.
//
// So where a clock goes back over midnight (00:01 → 23:01), the second 23:01 …
// 00:00 belongs to the day that had begun already: a day, once over, never
// comes back. A day that a zone skipped has no window.
//
// It allocates the name; callers keep the window while Contains holds.
func WindowAt(p Period, nowMillis int64, zone *time.Location) Window {
	y, m, d := time.UnixMilli(nowMillis).In(zone).Date()
	switch p {
	case Month:
		start, end := firstInstant(y, m, 1, zone), firstInstant(y, m+1, 1, zone)
		for end <= nowMillis {
			m++
			start, end = end, firstInstant(y, m+1, 1, zone)
		}
		first := time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		return Window{Name: first.Format("m200601"), Start: start, End: end}
	case Day:
		start, end := firstInstant(y, m, d, zone), firstInstant(y, m, d+1, zone)
		for end <= nowMillis {
			d++
			start, end = end, firstInstant(y, m, d+1, zone)
		}
		first := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
		return Window{Name: first.Format("d20060102"), Start: start, End: end}
	default:
		return Window{}
	}
}

// offsetMaxSeconds is more than any zone was ever away from UTC.
const offsetMaxSeconds = 26 * 60 * 60

// firstInstant is the first instant, in ms since 1970, at which the zone's
// clock shows the given calendar day or a later one. m and d may overflow, as
// in time.Date. Where midnight does not exist it is the end of the gap; where
// midnight occurs twice it is the first of the two; for a day that the zone
// skipped it is that of the next day.
//
// A local time is t + offset(t), and the offset is constant between two
// transitions; so it walks the few stretches around the day and takes the first
// t with t + offset ≥ midnight.
func firstInstant(y int, m time.Month, d int, zone *time.Location) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() // as if the zone were UTC
	at := midnight - offsetMaxSeconds
	for {
		t := time.Unix(at, 0).In(zone)
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		first := max(at, midnight-int64(offset))
		if end.IsZero() {
			return first * 1000
		}
		if !end.After(t) {
			// On the last UTC day of a leap year ZoneBounds (Go 1.26) gives that
			// day's own start as the end. The offset holds until the year is over.
			end = t.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		}
		if first < end.Unix() {
			return first * 1000
		}
		at = end.Unix()
	}
}
