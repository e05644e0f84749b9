package admin

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// pingTimeout bounds what readyz waits for each part.
const pingTimeout = 500 * time.Millisecond

func healthz(_ *Server, _ *http.Request) (reply, error) {
	return reply{status: http.StatusOK, body: map[string]string{"status": "ok"}}, nil
}

// readiness is what /readyz tells: whether any tenant can be served, and how the parts are.
type readiness struct {
	Ready  bool              `json:"ready"`
	Reason string            `json:"reason,omitempty"` // why not
	Ledger string            `json:"ledger"`           // ok | unavailable
	Stores map[string]string `json:"stores"`           // by name: ok | unavailable
}

func readyz(s *Server, r *http.Request) (reply, error) {
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	out := readiness{Ready: true, Stores: make(map[string]string, len(s.opt.Stores))}
	word := func(err error) string {
		if err != nil {
			return "unavailable"
		}
		return "ok"
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	for name, store := range s.opt.Stores {
		wait.Go(func() {
			state := word(store.Ping(ctx))
			mu.Lock()
			defer mu.Unlock()
			out.Stores[name] = state
		})
	}
	out.Ledger = word(s.opt.DB.Ping(ctx))
	wait.Wait()
	if s.opt.Ready != nil {
		if err := s.opt.Ready(); err != nil {
			out.Ready, out.Reason = false, err.Error()
			return reply{status: http.StatusServiceUnavailable, body: out}, nil
		}
	}
	return reply{status: http.StatusOK, body: out}, nil
}
