package edge

import (
	"strconv"
	"time"

	"tollgate/edge/answer"
	"tollgate/quota"
)

// setDecisionHeaders tells the client what it has left, as of its reserve.
func (s *Server) setDecisionHeaders(r *request, d *quota.Decision) {
	h := &r.ctx.Response.Header
	set := func(name string, n int64) { h.Set(name, strconv.FormatInt(n, 10)) }

	requests := tightestBucket(r, d, quota.UnitRPS, quota.UnitRPM)
	tokens := tightestBucket(r, d, quota.UnitTPM)
	account := tightestAccount(r, d)
	switch {
	case requests != nil:
		set("x-ratelimit-limit", requests.Limit.Burst)
		set("x-ratelimit-remaining", max(0, requests.Remaining))
		set("x-ratelimit-reset", ceilSeconds(untilFull(requests)))
	case account >= 0:
		a := d.States[account]
		set("x-ratelimit-limit", a.Total)
		set("x-ratelimit-remaining", max(0, a.Remaining()))
		if w := d.Chain[account].Window; w.Name != "" {
			set("x-ratelimit-reset", ceilSeconds(time.Duration(w.End-d.NowMillis)*time.Millisecond))
		}
	}
	for _, b := range []*quota.BucketState{requests, tokens} {
		if b != nil {
			r.setVendorHeaders(b, d.NowMillis)
		}
	}
	if d.Overage {
		h.Set("x-quota-overage", "true")
	}
	if s.cfg.DebugHeaders {
		h.Set("x-quota-mode", "direct")
	}
	s.setWarning(r, d)
}

// setVendorHeaders tells a bucket in the names of the client's convention.
func (r *request) setVendorHeaders(b *quota.BucketState, nowMillis int64) {
	h := &r.ctx.Response.Header
	what := "requests"
	if b.Unit == quota.UnitTPM {
		what = "tokens"
	}
	limit := strconv.FormatInt(b.Limit.Burst, 10)
	remaining := strconv.FormatInt(max(0, b.Remaining), 10)
	if r.shape == answer.Anthropic {
		prefix := "anthropic-ratelimit-" + what
		h.Set(prefix+"-limit", limit)
		h.Set(prefix+"-remaining", remaining)
		h.Set(prefix+"-reset", time.UnixMilli(nowMillis).Add(untilFull(b)).UTC().Format(time.RFC3339))
		return
	}
	h.Set("x-ratelimit-limit-"+what, limit)
	h.Set("x-ratelimit-remaining-"+what, remaining)
	h.Set("x-ratelimit-reset-"+what, (time.Duration(ceilSeconds(untilFull(b))) * time.Second).String())
}

// setWarning warns when the tightest limit, as a share of its total, falls below the policy's threshold.
func (s *Server) setWarning(r *request, d *quota.Decision) {
	least, at := int64(-1), -1
	for i, a := range d.States {
		if !a.Limited() || a.Total == 0 || !visible(r, d.Chain[i].Scope) {
			continue
		}
		left := max(0, a.Remaining())
		if left >= r.pol.WarnBelow.Of(a.Total) {
			continue
		}
		if share := percentOf(left, a.Total); at < 0 || share < least {
			least, at = share, i
		}
	}
	if at < 0 {
		return
	}
	name := d.Chain[at].Scope.String()
	if p := d.Chain[at].Period; p != quota.Ever {
		name += "/" + p.String()
	}
	r.ctx.Response.Header.Set("X-Quota-Warning", strconv.FormatInt(least, 10)+"%")
	r.ctx.Response.Header.Set("X-Quota-Warning-Scope", name)
}

// percentOf is part/whole in whole percent, rounded down, without overflow.
func percentOf(part, whole int64) int64 {
	if whole > quota.CreditsMax/100 {
		return part / (whole / 100)
	}
	return part * 100 / whole
}

// visible says whether the key's holder may see a scope's numbers.
func visible(r *request, scope quota.Scope) bool { return r.pol.Show != "key" || scope == quota.Key }

// tightestBucket is the visible bucket of the given units with the least share left.
func tightestBucket(r *request, d *quota.Decision, units ...quota.Unit) *quota.BucketState {
	var best *quota.BucketState
	for i := range d.Buckets {
		b := &d.Buckets[i]
		if !visible(r, b.Scope) || (b.Unit != units[0] && b.Unit != units[len(units)-1]) {
			continue
		}
		if best == nil || share(b) < share(best) {
			best = b
		}
	}
	return best
}

func share(b *quota.BucketState) float64 {
	return float64(b.Remaining) / float64(max(b.Limit.Burst, 1))
}

// tightestAccount is the index of the visible limited account with the least remaining, -1 without one.
func tightestAccount(r *request, d *quota.Decision) int {
	best := -1
	for i, a := range d.States {
		if a.Limited() && visible(r, d.Chain[i].Scope) && (best < 0 || a.Remaining() < d.States[best].Remaining()) {
			best = i
		}
	}
	return best
}

// untilFull is how long a bucket takes to fill up; an hour stands for never.
func untilFull(b *quota.BucketState) time.Duration {
	missing := b.Limit.Burst - b.Remaining
	if missing <= 0 {
		return 0
	}
	if b.Limit.Rate == 0 {
		return time.Hour
	}
	period := time.Minute
	if b.Unit == quota.UnitRPS {
		period = time.Second
	}
	return time.Duration(float64(missing) / float64(b.Limit.Rate) * float64(period))
}

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
