package edge

// Places of a call, for tests that let it panic there.
const (
	PlaceHeld  = placeHeld
	PlaceReady = placeReady
	PlaceRead  = placeRead
	PlaceEnd   = placeEnd
)

// Hook makes a function that hears of places.
func Hook(f func(at any)) func(place) { return func(p place) { f(p) } }

// OnReach makes f hear of every place that a call comes to. Call it while no call runs.
func (s *Server) OnReach(f func(p place)) { s.reached = f }
