package admin

import (
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"github.com/VictoriaMetrics/metrics"

	"tollgate/lua"
)

const base = "/admin/v1"

// endpoints are the API proper: path → method → handler.
var endpoints = map[string]map[string]handler{
	"/tenants":                            {"GET": listTenants, "POST": createTenant},
	"/tenants/{tenant}":                   {"GET": getTenant, "PATCH": patchTenant},
	"/tenants/{tenant}/suspend":           {"POST": setTenant(lua.Suspended)},
	"/tenants/{tenant}/resume":            {"POST": setTenant(lua.Active)},
	"/tenants/{tenant}/adjust":            {"POST": adjust},
	"/tenants/{tenant}/usage":             {"GET": usage},
	"/tenants/{tenant}/apps":              {"GET": listApps, "POST": createApp},
	"/tenants/{tenant}/apps/{app}":        {"GET": getApp, "PATCH": patchApp},
	"/tenants/{tenant}/keys":              {"GET": listKeys, "POST": createKey},
	"/tenants/{tenant}/keys/{key}":        {"GET": getKey, "PATCH": patchKey, "DELETE": setKey(lua.Revoked)},
	"/tenants/{tenant}/keys/{key}/rotate": {"POST": rotateKey},
	"/tenants/{tenant}/keys/{key}/suspend": {
		"POST": setKey(lua.Suspended),
	},
	"/tenants/{tenant}/keys/{key}/resume": {"POST": setKey(lua.Active)},
}

func (s *Server) routes(mux *http.ServeMux) {
	for path, methods := range endpoints {
		s.register(mux, base+path, methods)
	}
	s.register(mux, "/healthz", map[string]handler{"GET": healthz})
	s.register(mux, "/readyz", map[string]handler{"GET": readyz})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		metrics.WritePrometheus(w, true)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, notFound("There is no %s here. The API's paths begin with %s/tenants.", r.URL.Path, base))
	})
}

// register adds a path's methods, and an answer for all others.
func (s *Server) register(mux *http.ServeMux, path string, methods map[string]handler) {
	var allowed []string
	for method, h := range methods {
		mux.HandleFunc(method+" "+path, s.serve(h))
		allowed = append(allowed, method)
	}
	slices.Sort(allowed)
	allow := strings.Join(allowed, ", ")
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		fail(w, &Error{Status: http.StatusMethodNotAllowed, Code: codeMethod, Message: r.Method + " does nothing here; use " + strings.Join(allowed, " or ") + "."})
	})
}
