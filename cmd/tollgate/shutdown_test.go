package main_test

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// At SIGTERM or SIGINT a running stream goes on to its end, new calls are refused, and the node ends in order.
func TestStopLetsAStreamEnd(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.node()
			secret := n.tenant("t_stop", 1000)
			s := n.chatStream(secret, "fake-p10-c20", "x-fake-hang", "5")
			s.events(5)
			n.signal(sig)
			eventually(t, "the node says that it drains", func() bool {
				a := n.do("GET", n.admin+"/readyz", "", "")
				return a.status == 503 && strings.Contains(string(a.body), "draining")
			})
			eventually(t, "new calls are refused", func() bool { return refused(t, n.consume(secret, 1)) })
			require.True(t, n.running())
			require.EqualValues(t, 1, r.account("t_stop").Inflight)

			r.upstream("POST", "/release")
			require.NoError(t, s.rest())
			require.True(t, s.whole(), s.text.String())
			require.Zero(t, n.code())
			spent := r.account("t_stop")
			require.GreaterOrEqual(t, spent.Spent, int64(30)) // and what was consumed before the node drained
			require.Equal(t, account{Spent: spent.Spent}, spent)
		})
	}
}

// refused says whether a call met a node that takes no more: either it says so, or nobody listens there.
func refused(t *testing.T, a reply) bool {
	if a.err != nil {
		return true
	}
	if a.status == 200 {
		return false
	}
	require.Equal(t, 503, a.status, "%v", a)
	require.Equal(t, "draining", a.code())
	require.NotEmpty(t, a.header.Get("Retry-After"))
	return true
}

// While shutdown.delay lasts balancers see 503 at /readyz, and calls are still served.
func TestStopWithDelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node(settings{shutdown: "{delay: 1s, grace: 5s}"})
	secret := n.tenant("t_delay", 1000)
	n.signal(syscall.SIGTERM)
	eventually(t, "/readyz is 503", func() bool { return n.do("GET", n.url+"/readyz", "", "").status == 503 })
	require.Equal(t, 200, n.consume(secret, 1).status)
	require.Equal(t, 200, n.do("GET", n.url+"/healthz", "", "").status)
	require.Zero(t, n.code())
	require.Equal(t, account{Spent: 1}, r.account("t_delay"))
}

// What still runs when the grace is over is cut and charged as delivered.
func TestStopCutsAtTheEndOfTheGrace(t *testing.T) {
	for name, grace := range map[string]string{"none": "0s", "short": "200ms"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.node(settings{shutdown: "{grace: " + grace + "}"})
			secret := n.tenant("t_cut", 10_000)
			var streams []*stream
			for range 4 {
				s := n.chatStream(secret, "fake-p10-c20", "x-fake-hang", "5", "x-fake-chunks", "20")
				s.events(5)
				streams = append(streams, s)
			}
			// One that hangs before its first byte: nothing was delivered, nothing is charged.
			silent := make(chan reply, 1)
			go func() { silent <- n.post("/v1/chat/completions", secret, hello, "x-fake-hang", "before") }()
			eventually(t, "all five hang", func() bool { return r.upstream("GET", "/totals").Silent == 5 })
			// A hold of the decision API stays: whoever made it may settle it on another node.
			require.Equal(t, 200, n.post("/v1/quota/reserve", secret, `{"request_id":"kept","cost":7}`).status)

			n.signal(syscall.SIGTERM)
			require.Zero(t, n.code())
			for _, s := range streams {
				require.Error(t, s.rest())
				require.False(t, s.whole())
			}
			if a := <-silent; a.err == nil {
				require.Equal(t, "draining", a.code(), "%v", a)
			}
			got := r.account("t_cut")
			require.Equal(t, account{Spent: got.Spent, Prepaid: 7, Inflight: 1}, got)
			// Of each stream: the prompt by estimate, and the four or five tokens of text that came.
			require.Greater(t, got.Spent, int64(4*4))
			require.Less(t, got.Spent, int64(4*30))
			require.Zero(t, got.Spent%4)
			require.Contains(t, n.out.String(), "running calls were cut")

			next := r.node()
			require.Equal(t, 200, next.post("/v1/quota/settle", secret, `{"request_id":"kept","actual":7}`).status)
			require.Equal(t, account{Spent: got.Spent + 7}, r.account("t_cut"))
		})
	}
}

// Clients that do nothing cannot keep a node from ending in order.
func TestStopWithIdleClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node(settings{shutdown: "{grace: 500ms}"})
	n.tenant("t_idle", 10)
	dial := func(send string) *bufio.Reader {
		c, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		_, err = c.Write([]byte(send))
		require.NoError(t, err)
		return bufio.NewReader(c)
	}
	dial("")                                                                         // never asked
	dial("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")                        // stopped within the head
	dial("POST /v1/quota/consume HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{") // stopped within the body
	kept := dial("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")                         // was answered, and keeps its connection
	res, err := http.ReadResponse(kept, nil)
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode)
	n.signal(syscall.SIGTERM)
	require.Zero(t, n.code(), n.out.String())
}

// A client that stops reading its stream cannot either: the stream is cut with the rest.
func TestStopWithAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node(settings{shutdown: "{grace: 200ms}"})
	secret := n.tenant("t_stuck", 1_000_000)
	s := n.chatStream(secret, "fake-p10-c100", "x-fake-chunks", "100", "x-fake-pad-bytes", "1000000")
	s.events(1)
	n.signal(syscall.SIGTERM)
	require.Zero(t, n.code(), n.out.String())
	require.Equal(t, account{Spent: r.account("t_stuck").Spent}, r.account("t_stuck"))
}

// A second signal does not wait for the grace.
func TestStopAtOnceBySecondSignal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node(settings{shutdown: "{delay: 30s, grace: 10m}", total: "30m", holdTTL: "40m"})
	secret := n.tenant("t_twice", 1000)
	s := n.chatStream(secret, "fake-p10-c20", "x-fake-hang", "5")
	s.events(5)
	n.signal(syscall.SIGINT)
	n.printed("the node drains")
	n.signal(syscall.SIGINT)
	require.Zero(t, n.code(), n.out.String())
	require.Error(t, s.rest())
	got := r.account("t_twice")
	require.Positive(t, got.Spent)
	require.Equal(t, account{Spent: got.Spent}, got)
}
