// Package edge is the data plane: it identifies the key of a request, admits
// it against the tenant's quota, forwards it to its upstream and settles what
// it cost; and it serves the decision API to gateways that forward themselves.
//
// The invariant it keeps: a hold that a request got ends exactly once, on every
// way out (answer, error, client gone, upstream cut, timeout, panic, shutdown),
// and nothing that fasthttp lends outlives the handler. No key and no prompt
// reaches a log, a metric or an error.
//
// cmd/tollgate wires it. Below it lie configuration, identity, admission,
// dialects, upstreams, refusals and the admin API.
package edge
