package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	controlBytesMax = 1 << 20          // a longer control body is answered 400
	waitMax         = 10 * time.Minute // longest timeout of /_fake/wait
	waitDefault     = 10 * time.Second
)

// routes: everything below /_fake/ is control, the rest are calls.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /_fake/behave", s.postBehave)
	mux.HandleFunc("GET /_fake/behave", s.getBehave)
	mux.HandleFunc("DELETE /_fake/behave", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearRules()
		reply(w, http.StatusOK, map[string]int{"rules": 0})
	})
	mux.HandleFunc("GET /_fake/log", s.getLog)
	mux.HandleFunc("GET /_fake/totals", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, s.Totals())
	})
	mux.HandleFunc("GET /_fake/wait", s.getWait)
	mux.HandleFunc("POST /_fake/release", func(w http.ResponseWriter, _ *http.Request) {
		s.Release()
		reply(w, http.StatusOK, s.Totals())
	})
	mux.HandleFunc("POST /_fake/reset", func(w http.ResponseWriter, _ *http.Request) {
		s.Reset()
		reply(w, http.StatusOK, s.Totals())
	})
	mux.HandleFunc("/_fake/", func(w http.ResponseWriter, r *http.Request) {
		controlError(w, http.StatusNotFound, fmt.Errorf("no control %s %s", r.Method, r.URL.Path))
	})
	// Calls do not go through the mux: it would redirect // and .. where a test wants to see what arrived.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const prefix = "/_fake/"
		if len(r.URL.Path) >= len(prefix) && r.URL.Path[:len(prefix)] == prefix {
			mux.ServeHTTP(w, r)
			return
		}
		s.serveCall(w, r)
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(mustJSON(v), '\n')) // a client that left does not need it
}

func controlError(w http.ResponseWriter, status int, err error) {
	reply(w, status, map[string]string{"error": err.Error()})
}

func (s *Server) postBehave(w http.ResponseWriter, r *http.Request) {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, controlBytesMax))
	decoder.DisallowUnknownFields()
	var rule Rule
	if err := decoder.Decode(&rule); err != nil {
		controlError(w, http.StatusBadRequest, err)
		return
	}
	if decoder.More() {
		controlError(w, http.StatusBadRequest, errors.New("more than one JSON value"))
		return
	}
	if err := s.Behave(rule); err != nil {
		controlError(w, http.StatusBadRequest, err)
		return
	}
	reply(w, http.StatusOK, map[string]int{"rules": len(s.Rules())})
}

// getBehave tells the server-wide knobs that are set, the rules, and what each knob means.
func (s *Server) getBehave(w http.ResponseWriter, _ *http.Request) {
	base, help, zero := s.base, map[string]string{}, Behaviour{}
	set, unset := map[string]string{}, Knobs(&zero)
	for i, k := range Knobs(&base) {
		help[k.Name] = k.Type() + ": " + k.Help
		if v := k.String(); v != unset[i].String() {
			set[k.Name] = v
		}
	}
	reply(w, http.StatusOK, map[string]any{"set": set, "rules": s.Rules(), "knobs": help})
}

func (s *Server) getLog(w http.ResponseWriter, r *http.Request) {
	since, err := numberField(r, "since", 0)
	if err != nil {
		controlError(w, http.StatusBadRequest, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = writeLines(json.NewEncoder(w), s.log.entries(since)) // a client that left does not need the rest
}

// getWait answers the totals as soon as at least ?begun= calls have begun, ?ended= have ended, ?silent= hang
// and, with ?idle=true, none is running; 504 with the totals when ?timeout= (10s) is over before.
func (s *Server) getWait(w http.ResponseWriter, r *http.Request) {
	begun, err1 := numberField(r, "begun", 0)
	ended, err2 := numberField(r, "ended", 0)
	silent, err5 := numberField(r, "silent", 0)
	timeout := waitDefault
	var err3, err4 error
	if v := r.FormValue("timeout"); v != "" {
		if timeout, err3 = time.ParseDuration(v); err3 == nil && (timeout < 0 || timeout > waitMax) {
			err3 = fmt.Errorf("timeout: want 0s to %v", waitMax)
		}
	}
	idle := false
	if v := r.FormValue("idle"); v != "" {
		idle, err4 = strconv.ParseBool(v)
	}
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		controlError(w, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	t, err := s.Wait(ctx, func(t Totals) bool {
		return t.Begun >= begun && t.Ended >= ended && t.Silent >= silent && (!idle || t.InFlight == 0)
	})
	if err != nil {
		reply(w, http.StatusGatewayTimeout, t)
		return
	}
	reply(w, http.StatusOK, t)
}

func numberField(r *http.Request, name string, otherwise int64) (int64, error) {
	v := r.FormValue(name)
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}
