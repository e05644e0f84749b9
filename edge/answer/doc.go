// Package answer is the refusal table: the one place that knows which status,
// codes, headers and body every refusal has, in the shape of OpenAI and of
// Anthropic, so that a client of either understands it.
//
// The invariant it keeps: one cause has one status and one code, a message
// names the limit and what to do, and none of it quotes a key, a prompt or
// another tenant's numbers.
//
// Only edge calls it.
package answer
