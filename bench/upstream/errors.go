package upstream

import "errors"

var (
	// ErrKnob: a knob is unknown or its value does not fit. The message names both; Help lists all knobs.
	ErrKnob = errors.New("upstream: bad knob")
	// ErrRules: there are rulesMax rules already. Clear them with ClearRules.
	ErrRules = errors.New("upstream: too many rules")
	// ErrStarted: Start was called twice. Make a new Server.
	ErrStarted = errors.New("upstream: already started")

	errRequest = errors.New("upstream: bad request") // answered 400 with the text after the prefix
	errGone    = errors.New("upstream: client gone")
	errCut     = errors.New("upstream: cut by its behaviour")
	errPanic   = errors.New("upstream: panic while answering")
	errClosing = errors.New("upstream: server closing")
)
