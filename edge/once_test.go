package edge_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
)

func TestIdempotencyKeyOnTwoNodes(t *testing.T) {
	r := newRig(t)
	a, b := r.node(), r.node()
	secret := r.tenant("t_once", 10_000)

	// The first call lives: the same key is refused everywhere, another key passes.
	r.fake.Behave(fake.Rule{Times: 1, Set: fake.Settings{"hang": "before"}})
	var first reply
	var wait sync.WaitGroup
	wait.Go(func() { first = a.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 1") })
	_, err := r.fake.Wait(t.Context(), func(s fake.Totals) bool { return s.Silent >= 1 })
	require.NoError(t, err)
	for _, n := range []*node{a, b} {
		again := n.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 1")
		require.Equal(t, 409, again.status)
		require.Equal(t, "idempotency_in_flight", again.code(t))
		require.Equal(t, "1", again.header.Get("Retry-After"))
	}
	require.Equal(t, 200, b.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 2").status)
	r.fake.Release()
	wait.Wait()
	require.Equal(t, 200, first.status)
	require.EqualValues(t, 92, a.settled("t_once").Spent)

	// It was charged: never again, also on a node that starts later.
	for _, n := range []*node{a, b, r.node()} {
		again := n.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 1")
		require.Equal(t, 409, again.status)
		require.Equal(t, "idempotency_replayed", again.code(t))
		require.Equal(t, "false", again.header.Get("x-should-retry"))
	}
	require.EqualValues(t, 2, r.fake.Totals().Calls)

	// A failed call frees its key, so does a refused one.
	r.fake.Behave(fake.Rule{Times: 1, Set: fake.Settings{"status": "500"}})
	require.Equal(t, 500, a.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 3").status)
	a.settled("t_once")
	require.Equal(t, 200, b.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 3").status)
	big := `{"model":"fake","messages":[],"max_tokens":1000000}`
	require.Equal(t, 429, a.post("/v1/chat/completions", secret, big, "Idempotency-Key", "k 4").status)
	require.Equal(t, 200, b.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "k 4").status)
	require.EqualValues(t, 184, a.settled("t_once").Spent)

	// Malformed ones are refused.
	require.Equal(t, 400, a.post("/v1/chat/completions", secret, chatBody, "Idempotency-Key", "é").status)
}
