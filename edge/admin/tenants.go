package admin

import (
	"encoding/json"
	"net/http"

	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

// tenantView is a tenant as the API shows it: total null is unlimited, an
// absent day, month or limit is one that is not set.
type tenantView struct {
	ledger.Tenant
	Total *int64 `json:"total"`
	changed
}

func viewTenant(t *ledger.Tenant) tenantView { return tenantView{Tenant: *t, Total: orNull(t.Total)} }

type createTenantBody struct {
	opBody
	ID           string               `json:"id"`
	Name         string               `json:"name"`
	Total        ledger.Field[*int64] `json:"total"` // required; null: unlimited
	OverageLimit int64                `json:"overage_limit"`
	Day          *int64               `json:"day"`
	Month        *int64               `json:"month"`
	Timezone     string               `json:"timezone"`
	Policy       json.RawMessage      `json:"policy"`
	Limits       quota.Limits         `json:"limits"`
	Store        string               `json:"store"`
}

func createTenant(s *Server, r *http.Request) (reply, error) {
	var body createTenantBody
	op, err := change(r, "tenant.create", &body)
	if err != nil {
		return reply{}, err
	}
	if !body.Total.Set {
		return reply{}, invalid("total", "total is missing: give the credits that the tenant may spend, or null for unlimited.")
	}
	credits, err := total(body.Total.Value)
	if err != nil {
		return reply{}, err
	}
	made, repeat, err := s.opt.DB.CreateTenant(r.Context(), op, ledger.Tenant{
		ID: body.ID, Name: body.Name, Store: body.Store, Timezone: body.Timezone, Total: credits, OverageLimit: body.OverageLimit,
		Policy: body.Policy, Budget: quota.Budget{Day: body.Day, Month: body.Month, Limits: body.Limits},
	})
	if err != nil {
		return reply{}, err
	}
	return s.changedTenant(r, http.StatusCreated, op, &made, repeat)
}

// changedTenant publishes, and answers with the tenant.
func (s *Server) changedTenant(r *http.Request, status int, op ledger.Op, t *ledger.Tenant, repeat bool) (reply, error) {
	published := s.publish(r.Context(), t.ID)
	view := viewTenant(t)
	view.changed = changed{OpID: op.ID, Published: &published}
	return reply{status: status, body: view, repeat: repeat}, nil
}

type tenantPage struct {
	Tenants []tenantView `json:"tenants"`
	Next    string       `json:"next,omitempty"` // for ?after=; absent at the end
}

func listTenants(s *Server, r *http.Request) (reply, error) {
	after, limit, err := page(r)
	if err != nil {
		return reply{}, err
	}
	list, err := s.opt.DB.ListTenants(r.Context(), after, limit)
	if err != nil {
		return reply{}, err
	}
	out := tenantPage{Tenants: make([]tenantView, len(list)), Next: next(list, limit, func(t *ledger.Tenant) string { return t.ID })}
	for i := range list {
		out.Tenants[i] = viewTenant(&list[i])
	}
	return reply{status: http.StatusOK, body: out}, nil
}

func getTenant(s *Server, r *http.Request) (reply, error) {
	id, err := tenantOf(r)
	if err == nil {
		err = onlyParams(r.URL.Query())
	}
	if err != nil {
		return reply{}, err
	}
	t, err := s.opt.DB.GetTenant(r.Context(), id)
	return reply{status: http.StatusOK, body: viewTenant(&t)}, err
}

func patchTenant(s *Server, r *http.Request) (reply, error) {
	id, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		ledger.TenantPatch
	}
	op, err := change(r, "tenant.set", &body)
	if err != nil {
		return reply{}, err
	}
	now, repeat, err := s.opt.DB.PatchTenant(r.Context(), op, id, body.TenantPatch)
	if err != nil {
		return reply{}, err
	}
	return s.changedTenant(r, http.StatusOK, op, &now, repeat)
}

// setTenant makes the handlers of suspend and resume.
func setTenant(status lua.Status) handler {
	what := map[lua.Status]string{lua.Active: "tenant.resume", lua.Suspended: "tenant.suspend"}[status]
	return func(s *Server, r *http.Request) (reply, error) {
		id, err := tenantOf(r)
		if err != nil {
			return reply{}, err
		}
		var body opBody
		op, err := change(r, what, &body)
		if err != nil {
			return reply{}, err
		}
		now, repeat, err := s.opt.DB.SetTenantStatus(r.Context(), op, id, status)
		if err != nil {
			return reply{}, err
		}
		return s.changedTenant(r, http.StatusOK, op, &now, repeat)
	}
}
