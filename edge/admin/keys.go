package admin

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tollgate/edge/identity"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of the overlap of a rotation.
const (
	overlapDefault = 24 * time.Hour
	overlapMax     = 90 * 24 * time.Hour
)

// keyView is a key as the API shows it; see tenantView. No models means every model.
type keyView struct {
	ledger.Key
	Total *int64 `json:"total"`
	changed
}

func viewKey(k *ledger.Key) keyView { return keyView{Key: *k, Total: orNull(k.Total)} }

// issued is the one answer that holds a secret.
type issued struct {
	KeyID  string `json:"key_id"`
	Secret string `json:"secret,omitempty"` // absent in the answer to a repeat
	Note   string `json:"note,omitempty"`
	// OldSecretsExpireAt is when those from before the rotation stop working; absent in the answer to a repeat.
	OldSecretsExpireAt *time.Time `json:"old_secrets_expire_at,omitempty"`
	keyView
}

const noteRepeat = "This op_id was done before; the secret was shown then and is not kept. If it is lost, rotate the key."

func createKey(s *Server, r *http.Request) (reply, error) {
	tenant, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		ID     string       `json:"id"`
		App    string       `json:"app"`
		Name   string       `json:"name"`
		Total  *int64       `json:"total"` // absent or null: unlimited
		Day    *int64       `json:"day"`
		Month  *int64       `json:"month"`
		Limits quota.Limits `json:"limits"`
		Models []string     `json:"models"` // absent, null or empty: every model
	}
	op, err := change(r, "key.create", &body)
	if err != nil {
		return reply{}, err
	}
	switch {
	case body.App == "":
		return reply{}, invalid("app", "app is missing: give the id of the app that the key belongs to.")
	case quota.CheckID("a_", body.App) != nil:
		return reply{}, invalid("app", "app: %q is not the id of an app: a_ followed by 1 to 62 of A-Z a-z 0-9 _ -.", clip(body.App))
	}
	credits, err := total(body.Total)
	if err != nil {
		return reply{}, err
	}
	secret := identity.NewSecret()
	made, repeat, err := s.opt.DB.CreateKey(r.Context(), op, ledger.Key{
		ID: body.ID, Tenant: tenant, App: body.App, Name: body.Name, Models: body.Models, Total: credits,
		Budget: quota.Budget{Day: body.Day, Month: body.Month, Limits: body.Limits},
	}, identity.HexHash(secret))
	if errors.Is(err, ledger.ErrNotFound) {
		if _, missing := s.opt.DB.GetTenant(r.Context(), tenant); missing == nil {
			return reply{}, &Error{Status: http.StatusNotFound, Code: codeNotFound, Param: "app", Message: "There is no app " + body.App + " of tenant " + tenant + ". Create it first."}
		}
	}
	if err != nil {
		return reply{}, err
	}
	return s.issue(r, http.StatusCreated, op, &made, secret, repeat, nil)
}

// issue publishes, and answers with the secret unless it is a repeat.
func (s *Server) issue(r *http.Request, status int, op ledger.Op, k *ledger.Key, secret string, repeat bool, oldExpire *time.Time) (reply, error) {
	out := issued{KeyID: k.ID, Secret: secret, OldSecretsExpireAt: oldExpire, keyView: viewKey(k)}
	if repeat {
		out.Secret, out.OldSecretsExpireAt, out.Note = "", nil, noteRepeat
	}
	published := s.publish(r.Context(), k.Tenant)
	out.changed = changed{OpID: op.ID, Published: &published}
	return reply{status: status, body: out, repeat: repeat}, nil
}

func (s *Server) changedKey(r *http.Request, op ledger.Op, k *ledger.Key, repeat bool) (reply, error) {
	published := s.publish(r.Context(), k.Tenant)
	view := viewKey(k)
	view.changed = changed{OpID: op.ID, Published: &published}
	return reply{status: http.StatusOK, body: view, repeat: repeat}, nil
}

type keyPage struct {
	Keys []keyView `json:"keys"`
	Next string    `json:"next,omitempty"`
}

func listKeys(s *Server, r *http.Request) (reply, error) {
	tenant, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	after, limit, err := page(r)
	if err != nil {
		return reply{}, err
	}
	list, err := s.opt.DB.ListKeys(r.Context(), tenant, after, limit)
	if err != nil {
		return reply{}, err
	}
	out := keyPage{Keys: make([]keyView, len(list)), Next: next(list, limit, func(k *ledger.Key) string { return k.ID })}
	for i := range list {
		out.Keys[i] = viewKey(&list[i])
	}
	return reply{status: http.StatusOK, body: out}, nil
}

// keyPath takes both ids from the path.
func keyPath(r *http.Request) (tenant, key string, err error) {
	if tenant, err = tenantOf(r); err == nil {
		key, err = keyOf(r)
	}
	return tenant, key, err
}

func getKey(s *Server, r *http.Request) (reply, error) {
	tenant, key, err := keyPath(r)
	if err == nil {
		err = onlyParams(r.URL.Query())
	}
	if err != nil {
		return reply{}, err
	}
	k, err := s.opt.DB.GetKey(r.Context(), tenant, key)
	return reply{status: http.StatusOK, body: viewKey(&k)}, err
}

func patchKey(s *Server, r *http.Request) (reply, error) {
	tenant, key, err := keyPath(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		ledger.KeyPatch
	}
	op, err := change(r, "key.set", &body)
	if err != nil {
		return reply{}, err
	}
	now, repeat, err := s.opt.DB.PatchKey(r.Context(), op, tenant, key, body.KeyPatch)
	if err != nil {
		return reply{}, err
	}
	return s.changedKey(r, op, &now, repeat)
}

// setKey makes the handlers of suspend, resume and DELETE.
func setKey(status lua.Status) handler {
	what := map[lua.Status]string{lua.Active: "key.resume", lua.Suspended: "key.suspend", lua.Revoked: "key.revoke"}[status]
	return func(s *Server, r *http.Request) (reply, error) {
		tenant, key, err := keyPath(r)
		if err != nil {
			return reply{}, err
		}
		var body opBody
		op, err := change(r, what, &body)
		if err != nil {
			return reply{}, err
		}
		now, repeat, err := s.opt.DB.SetKeyStatus(r.Context(), op, tenant, key, status)
		if err != nil {
			return reply{}, err
		}
		return s.changedKey(r, op, &now, repeat)
	}
}

func rotateKey(s *Server, r *http.Request) (reply, error) {
	tenant, key, err := keyPath(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		Overlap *string `json:"overlap"`
	}
	op, err := change(r, "key.rotate", &body)
	if err != nil {
		return reply{}, err
	}
	overlap := overlapDefault
	if body.Overlap != nil {
		if overlap, err = parseOverlap(*body.Overlap); err != nil {
			return reply{}, err
		}
	}
	oldExpire := time.Now().Add(overlap).UTC().Truncate(time.Millisecond)
	secret := identity.NewSecret()
	now, repeat, err := s.opt.DB.RotateKey(r.Context(), op, tenant, key, identity.HexHash(secret), oldExpire.UnixMilli())
	if err != nil {
		return reply{}, err
	}
	return s.issue(r, http.StatusOK, op, &now, secret, repeat, &oldExpire)
}

// parseOverlap reads 0s … 90d: what time.ParseDuration reads, and whole days.
func parseOverlap(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int64
		if n, err = strconv.ParseInt(days, 10, 16); err == nil {
			d = time.Duration(n) * 24 * time.Hour
		}
	}
	if err != nil || d < 0 || d > overlapMax {
		return 0, invalid("overlap", "overlap: must be how long the old secrets go on working, from 0s to 90d, as in 30m, 24h or 7d.")
	}
	return d, nil
}
