package admin

import (
	"fmt"
	"net/http"
	"strings"

	"tollgate/ledger"
	"tollgate/quota"
)

// adjustView is how an adjustment went.
type adjustView struct {
	State   ledger.AdjustState `json:"state"` // applied | pending
	Scope   string             `json:"scope"`
	ID      string             `json:"id"`
	Number  int64              `json:"number"` // of the account's adjustments
	Delta   int64              `json:"delta"`
	Total   *int64             `json:"total,omitempty"` // credits, after it
	Prepaid *int64             `json:"prepaid,omitempty"`
	Spent   *int64             `json:"spent,omitempty"`
	OpID    string             `json:"op_id"`
	Message string             `json:"message,omitempty"`
}

const messagePending = "Redis does not answer now. The adjustment is recorded and is carried out as soon as it does; a cut below what is used then is refused. Repeat the request with the same op_id to see how it went."

func adjust(s *Server, r *http.Request) (reply, error) {
	tenant, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	var body struct {
		opBody
		Scope string `json:"scope"`
		Delta *int64 `json:"delta"`
	}
	op, err := change(r, "adjust", &body)
	if err != nil {
		return reply{}, err
	}
	scope, id, err := parseScope(tenant, body.Scope)
	if err != nil {
		return reply{}, err
	}
	if body.Delta == nil {
		return reply{}, invalid("delta", "delta is missing: give the credits to add, or to cut with a minus sign.")
	}
	a, repeat, err := s.opt.Adjuster.Adjust(r.Context(), op, tenant, scope, id, *body.Delta)
	if err != nil {
		return reply{}, explain(err, scopeName(tenant, scope, id))
	}
	view := adjustView{State: a.State, Scope: scope.String(), ID: id, Number: a.Num, Delta: a.Delta, OpID: op.ID}
	if answer := a.Answer(); answer != nil {
		view.Total, view.Prepaid, view.Spent = &answer.Total, &answer.Prepaid, &answer.Spent
	}
	switch a.State {
	case ledger.AdjustApplied:
		return reply{status: http.StatusOK, body: view, repeat: repeat}, nil
	case ledger.AdjustPending:
		view.Message = messagePending
		return reply{status: http.StatusAccepted, body: view, repeat: repeat}, nil
	}
	return reply{}, s.refusedAdjust(r, &a)
}

// parseScope reads "org", "app:a_x" or "key:k_y".
func parseScope(tenant, text string) (quota.Scope, string, error) {
	kind, id, _ := strings.Cut(text, ":")
	switch {
	case text == "":
		return 0, "", invalid("scope", "scope is missing: org, app:a_… or key:k_….")
	case text == quota.Org.String():
		return quota.Org, tenant, nil
	case kind == quota.App.String() && quota.CheckID("a_", id) == nil:
		return quota.App, id, nil
	case kind == quota.Key.String() && quota.CheckID("k_", id) == nil:
		return quota.Key, id, nil
	}
	return 0, "", invalid("scope", "scope: must be org, app:a_… or key:k_…, not %q.", clip(text))
}

func scopeName(tenant string, scope quota.Scope, id string) string {
	if scope == quota.Org {
		return "tenant " + tenant
	}
	return scope.String() + " " + id + " of tenant " + tenant
}

// refusedNumbers are why an adjustment was refused, in credits.
type refusedNumbers struct {
	State   ledger.AdjustState `json:"state"`
	Number  int64              `json:"number"`
	Total   *int64             `json:"total"` // null: unlimited
	Prepaid int64              `json:"prepaid"`
	Spent   int64              `json:"spent"`
}

// refusedAdjust words a refusal, with the numbers of when it was decided, or
// else, for what needed no question to Redis, of now.
func (s *Server) refusedAdjust(r *http.Request, a *ledger.Adjustment) error {
	answer := a.Answer()
	if answer == nil {
		answer = &ledger.AdjustAnswer{Total: a.Before}
		if state, err := s.accountNow(r.Context(), a.Tenant, quota.Account{Scope: a.Scope, ID: a.ID}); err == nil {
			answer = &ledger.AdjustAnswer{Total: state.Total, Prepaid: state.Prepaid, Spent: state.Spent}
		}
	}
	e := &Error{
		Status: http.StatusConflict, Param: "delta",
		Numbers: refusedNumbers{State: a.State, Number: a.Num, Total: orNull(answer.Total), Prepaid: answer.Prepaid, Spent: answer.Spent},
	}
	name := scopeName(a.Tenant, a.Scope, a.ID)
	switch a.Reason {
	case ledger.RefusedUnlimited:
		e.Code = codeUnlimited
		e.Message = fmt.Sprintf("The total of %s is unlimited; there is nothing to add to or to cut.", name)
	case ledger.RefusedTooLarge:
		e.Code = codeTooLarge
		e.Message = fmt.Sprintf("The total of %s would exceed the largest amount, %d (with its overage limit and adjustments that are pending).", name, quota.CreditsMax)
	default:
		e.Code = codeBelowUsage
		e.Message = fmt.Sprintf("The total of %s, %d, cannot be cut by %d: %d are spent and %d are held or leased. It can be cut by at most %d now.",
			name, answer.Total, -a.Delta, answer.Spent, answer.Prepaid, max(0, answer.Total-answer.Spent-answer.Prepaid))
	}
	return e
}
