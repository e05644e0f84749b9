package edge

// Places of a call, for tests that let it panic there.
const (
	PlaceHeld  = placeHeld
	PlaceReady = placeReady
	PlaceRead  = placeRead
	PlaceEnd   = placeEnd
)

// OnReach makes f hear of every place that a call comes to. Before Serve, or while no call runs.
func (s *Server) OnReach(f func(p place)) { s.reached = f }
