package identity

import "github.com/VictoriaMetrics/metrics"

// Lookups answered from memory as known are not counted: a counter that all
// cores share would cost more than the lookup.
var (
	entriesKept = metrics.NewGauge(`tollgate_identity_entries`, nil)

	malformed  = metrics.NewCounter(`tollgate_identity_malformed_total`)        // wrong length, alphabet or checksum
	remembered = metrics.NewCounter(`tollgate_identity_unknown_answered_total`) // unknown, and known to be unknown

	readsRedis   = metrics.NewCounter(`tollgate_identity_reads_total{from="redis"}`)
	readsSecrets = metrics.NewCounter(`tollgate_identity_reads_total{from="sql_secret"}`)
	readsDocs    = metrics.NewCounter(`tollgate_identity_reads_total{from="sql_documents"}`)

	// Reads of SQL that were not made: out of tokens or out of time.
	refusedSecrets = metrics.NewCounter(`tollgate_identity_reads_refused_total{from="sql_secret"}`)
	refusedDocs    = metrics.NewCounter(`tollgate_identity_reads_refused_total{from="sql_documents"}`)

	busy         = metrics.NewCounter(`tollgate_identity_busy_total`)         // at flightsMax
	unremembered = metrics.NewCounter(`tollgate_identity_unremembered_total`) // at unknownMax
	evictedIdle  = metrics.NewCounter(`tollgate_identity_evicted_total{use="idle"}`)
	evictedUsed  = metrics.NewCounter(`tollgate_identity_evicted_total{use="recent"}`)

	invalidated    = metrics.NewCounter(`tollgate_identity_invalidated_total{what="document"}`)
	invalidatedAll = metrics.NewCounter(`tollgate_identity_invalidated_total{what="all"}`)

	unpublished = metrics.NewCounter(`tollgate_identity_unpublished_total`) // read from SQL, not written to Redis
)
