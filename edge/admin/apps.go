package admin

import (
	"net/http"

	"tollgate/ledger"
	"tollgate/quota"
)

// appView is an app as the API shows it; see tenantView.
type appView struct {
	ledger.App
	Total *int64 `json:"total"`
	changed
}

func viewApp(a *ledger.App) appView { return appView{App: *a, Total: orNull(a.Total)} }

func createApp(s *Server, r *http.Request) (reply, error) {
	tenant, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		ID     string       `json:"id"`
		Name   string       `json:"name"`
		Total  *int64       `json:"total"` // absent or null: unlimited
		Day    *int64       `json:"day"`
		Month  *int64       `json:"month"`
		Limits quota.Limits `json:"limits"`
	}
	op, err := change(r, "app.create", &body)
	if err != nil {
		return reply{}, err
	}
	credits, err := total(body.Total)
	if err != nil {
		return reply{}, err
	}
	made, repeat, err := s.opt.DB.CreateApp(r.Context(), op, ledger.App{
		ID: body.ID, Tenant: tenant, Name: body.Name, Total: credits,
		Budget: quota.Budget{Day: body.Day, Month: body.Month, Limits: body.Limits},
	})
	if err != nil {
		return reply{}, err
	}
	return s.changedApp(r, http.StatusCreated, op, &made, repeat)
}

func (s *Server) changedApp(r *http.Request, status int, op ledger.Op, a *ledger.App, repeat bool) (reply, error) {
	published := s.publish(r.Context(), a.Tenant)
	view := viewApp(a)
	view.changed = changed{OpID: op.ID, Published: &published}
	return reply{status: status, body: view, repeat: repeat}, nil
}

type appPage struct {
	Apps []appView `json:"apps"`
	Next string    `json:"next,omitempty"`
}

func listApps(s *Server, r *http.Request) (reply, error) {
	tenant, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	after, limit, err := page(r)
	if err != nil {
		return reply{}, err
	}
	list, err := s.opt.DB.ListApps(r.Context(), tenant, after, limit)
	if err != nil {
		return reply{}, err
	}
	out := appPage{Apps: make([]appView, len(list)), Next: next(list, limit, func(a *ledger.App) string { return a.ID })}
	for i := range list {
		out.Apps[i] = viewApp(&list[i])
	}
	return reply{status: http.StatusOK, body: out}, nil
}

// appPath takes both ids from the path.
func appPath(r *http.Request) (tenant, app string, err error) {
	if tenant, err = tenantOf(r); err == nil {
		app, err = appOf(r)
	}
	return tenant, app, err
}

func getApp(s *Server, r *http.Request) (reply, error) {
	tenant, app, err := appPath(r)
	if err == nil {
		err = onlyParams(r.URL.Query())
	}
	if err != nil {
		return reply{}, err
	}
	a, err := s.opt.DB.GetApp(r.Context(), tenant, app)
	return reply{status: http.StatusOK, body: viewApp(&a)}, err
}

func patchApp(s *Server, r *http.Request) (reply, error) {
	tenant, app, err := appPath(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		ledger.AppPatch
	}
	op, err := change(r, "app.set", &body)
	if err != nil {
		return reply{}, err
	}
	now, repeat, err := s.opt.DB.PatchApp(r.Context(), op, tenant, app, body.AppPatch)
	if err != nil {
		return reply{}, err
	}
	return s.changedApp(r, http.StatusOK, op, &now, repeat)
}
