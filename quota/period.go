package quota

import (
	"fmt"
	"time"
)

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

// LoadZone resolves a tenant's zone by its tz database name; "" is UTC.
// "Local" is refused: it would mean another zone on each node.
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if name == "Local" {
		return nil, fmt.Errorf("%w: %q", ErrZone, name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %q", ErrZone, name)
	}
	return loc, nil
}

// WindowAt gives the period's window that contains the instant, in the zone.
// The bounds are the first instants of the calendar day or month: where
// midnight does not exist (DST), the first instant after the gap; where it
// occurs twice, the first of the two.
func WindowAt(p Period, nowMillis int64, zone *time.Location) Window {
	t := time.UnixMilli(nowMillis).In(zone)
	y, m, d := t.Date()
	switch p {
	case Month:
		return Window{
			Name:  fmt.Sprintf("m%04d%02d", y, m),
			Start: firstInstant(y, m, 1, zone),
			End:   firstInstant(y, m+1, 1, zone),
		}
	case Day:
		return Window{
			Name:  fmt.Sprintf("d%04d%02d%02d", y, m, d),
			Start: firstInstant(y, m, d, zone),
			End:   firstInstant(y, m, d+1, zone),
		}
	default:
		return Window{}
	}
}
