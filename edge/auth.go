package edge

import (
	"context"
	"strconv"

	"github.com/valyala/fasthttp"

	"tollgate/edge/admission"
	"tollgate/quota"
)

// authPath answers reverse proxies that ask before they forward: nginx
// auth_request, Envoy ext_authz, Traefik forwardAuth. It is a consume whose
// cost stands in the URL, which the proxy's operator writes; nothing that a
// client sends sets a price.
const authPath = "/v1/quota/auth"

// deniesAs403 says whether refusals of this request are to be 403 with the true
// status in x-quota-status: nginx turns any other into 500.
func deniesAs403(ctx *fasthttp.RequestCtx, lower string) bool {
	return lower == authPath && string(ctx.QueryArgs().Peek("deny")) == "403"
}

// quotaAuth serves it. Behind the path, Envoy puts the client's own path and query: those are
// ignored, and the cost is 1.
func (s *Server) quotaAuth(r *request, exact bool) error {
	need := admission.Request{TTL: r.pol.HoldTTL, Consume: true, Fresh: true, OwnID: true, Amount: 1}
	for key, value := range r.ctx.QueryArgs().All() {
		if !exact {
			break
		}
		switch string(key) {
		case "cost":
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil || n < 1 || n > quota.CreditsMax {
				return invalid("cost", "it must be a whole number from 1 to "+strconv.FormatInt(quota.CreditsMax, 10))
			}
			need.Amount = n
		case "deny":
			if string(value) != "403" {
				return invalid("deny", "it can only be 403")
			}
		default:
			return invalid("the URL", "its query takes cost and deny only")
		}
	}
	need.Tokens = min(need.Amount, quota.RateMax)
	s.fill(r, &need)
	need.ID = callerHoldID(r.who.Principal.Key, r.id)
	d, _, err := s.opt.Admission.Reserve(context.Background(), &need)
	if err != nil {
		return admissionRefusal(err)
	}
	s.setDecisionHeaders(r, &d)
	if !d.Admitted() {
		return s.refusalOf(r, &d)
	}
	r.ctx.SetStatusCode(fasthttp.StatusOK)
	return nil
}
