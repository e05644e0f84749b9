package edge

import (
	"github.com/VictoriaMetrics/metrics"

	"tollgate/lua"
	"tollgate/quota"
)

var (
	panics         = metrics.NewCounter(`tollgate_panics_total`)
	clientGone     = metrics.NewCounter(`tollgate_client_gone_total`)
	amountRejected = metrics.GetOrCreateCounter(`tollgate_amount_rejected_total`)
	unpriced       = metrics.NewCounter(`tollgate_unpriced_total`)
	neverMatched   = metrics.NewGauge(`tollgate_never_matched`, nil) // model patterns that no request matched since the start
	addedSeconds   = metrics.NewPrometheusHistogramExt(`tollgate_upstream_added_seconds`, lua.DurationBuckets)
)

func refusals(code string) *metrics.Counter {
	return metrics.GetOrCreateCounter(`tollgate_refusals_total{code="` + code + `"}`)
}

func usageSource(s quota.Source) *metrics.Counter {
	return metrics.GetOrCreateCounter(`tollgate_usage_source_total{source="` + string(s) + `"}`)
}
