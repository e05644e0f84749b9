// Package upstream carries one admitted request to one configured upstream and
// its answer back, as bytes, without ever holding the answer back.
//
// The invariants it keeps:
//
//   - At most one upstream sees a request. Nothing is repeated once a byte of it
//     may have left this machine; Call.Sent tells whether one may have.
//   - A connection is used again only if the last answer on it was read to its
//     very end, it is young enough, and the kernel says that the peer has neither
//     closed it nor said anything since.
//   - Every wait has an end: connect (with the TLS handshake), first byte, idle,
//     total. Call.Cancel ends any of them at once, from any goroutine.
//   - The tenant's credentials never reach the upstream, and hop-by-hop headers
//     pass in neither direction.
//
// Heads are written here and parsed by fasthttp; the pool, the framing of bodies
// and the deadlines are the package's own, because fasthttp's client can be
// cancelled neither while it dials nor before the first byte, finds out about a
// stale connection only by failing, and waits for a chunk's line end before it
// lets go of the chunk.
//
// Only package edge uses it. Watch is for edge's own connections: it tells when
// a client has left.
package upstream
