package upstream

import "errors"

// What Do and Read return, wrapped with details that name the upstream but never
// a credential or a body. Test with errors.Is.
var (
	// ErrUnreachable: no connection, or none that took a single byte. Not sent; answer 502.
	ErrUnreachable = errors.New("upstream: unreachable")
	// ErrBusy: ConnsMax connections are open and all in use. Not sent; answer 503.
	ErrBusy = errors.New("upstream: all connections in use")
	// ErrClosed: the Upstream was closed. Not sent; the node is shutting down.
	ErrClosed = errors.New("upstream: closed")
	// ErrRequest: method, target or a header cannot be put on a wire. Not sent; answer 400.
	ErrRequest = errors.New("upstream: request cannot be forwarded")
	// ErrRequestBody: the client's body stream failed or had another length than announced. Ask Sent.
	ErrRequestBody = errors.New("upstream: request body could not be read")
	// ErrNoAnswer: the connection broke after the request was sent, wholly or partly, and before an
	// answer. Whether the upstream worked is unknown; answer 502 and mark the event uncertain.
	ErrNoAnswer = errors.New("upstream: closed the connection without an answer")
	// ErrProtocol: what came back is not HTTP/1.x, or its head is larger than HeadBytesMax.
	ErrProtocol = errors.New("upstream: malformed answer")
	// ErrTimeoutFirstByte: the request was sent and no complete head came in time; answer 504.
	ErrTimeoutFirstByte = errors.New("upstream: no answer within the first-byte timeout")
	// ErrTimeoutIdle: nothing moved for the idle timeout; charge what was delivered.
	ErrTimeoutIdle = errors.New("upstream: idle timeout")
	// ErrTimeoutTotal: the call took longer than the total timeout; charge what was delivered.
	ErrTimeoutTotal = errors.New("upstream: total timeout")
	// ErrCanceled: Cancel or Close was called, since the client left or the node stops.
	ErrCanceled = errors.New("upstream: canceled")
	// ErrCut: the answer ended before its end; charge what was delivered.
	ErrCut = errors.New("upstream: answer cut off")

	// ErrOptions: Options do not describe an upstream. Fix the configuration.
	ErrOptions = errors.New("upstream: bad options")
)
