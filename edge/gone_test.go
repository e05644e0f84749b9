package edge_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	fake "tollgate/bench/upstream"
	"tollgate/edge"
)

// within is a context for waits that must not take long.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// open sends a streaming call and returns its answer unread; the caller closes it.
func (n *node) open(ctx context.Context, t *testing.T, secret, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+secret)
	res, err := n.client.Do(req)
	require.NoError(t, err)
	return res
}

// A client that leaves before the first byte pays nothing, and the upstream's
// call is closed within a second; JSON and stream alike.
func TestClientGoneBeforeTheFirstByte(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1000)
	for _, stream := range []bool{false, true} {
		r.fake.Reset()
		require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"hang": "before"}}))
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := n.try(ctx, secret, chat("fake-p12-c34", stream))
			done <- err
		}()
		_, err := r.fake.Wait(within(t, 5*time.Second), func(s fake.Totals) bool { return s.Silent == 1 })
		require.NoError(t, err)
		left := metric("tollgate_client_gone_total")
		leave()
		require.Error(t, <-done)
		_, err = r.fake.Wait(within(t, time.Second), func(s fake.Totals) bool { return s.Gone == 1 })
		require.NoError(t, err, "the upstream's call goes on for a client that left")
		require.Zero(t, n.books(t, "t_1"))
		require.Equal(t, left+1, metric("tollgate_client_gone_total"))
	}
}

// A client that leaves in the middle pays what was delivered: more than
// nothing, not more than the hold. Also while the upstream is silent.
func TestClientGoneInAStream(t *testing.T) {
	r := newRig(t)
	n := r.node()
	for i, set := range []fake.Settings{{"hang": "10"}, {"delay-chunk": "20ms"}} {
		tenant := fmt.Sprintf("t_%d", i)
		secret := r.tenant(tenant, 1000)
		r.fake.Reset()
		require.NoError(t, r.fake.Behave(fake.Rule{Set: set}))
		res := n.open(t.Context(), t, secret, chat("fake-p12-c64", true, `"n":1`))
		lines := bufio.NewScanner(res.Body)
		for events := 0; events < 8 && lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "data:") {
				events++
			}
		}
		if set["hang"] != "" {
			_, err := r.fake.Wait(within(t, 5*time.Second), func(s fake.Totals) bool { return s.Silent == 1 })
			require.NoError(t, err)
		}
		require.NoError(t, res.Body.Close())
		_, err := r.fake.Wait(within(t, time.Second), func(s fake.Totals) bool { return s.Ended == 1 })
		require.NoError(t, err, "the upstream's call goes on for a client that left")
		e := r.fake.Log()[0]
		spent := n.books(t, tenant)
		require.Greater(t, spent, int64(promptTokens+8), "at least what the client has seen")
		require.LessOrEqual(t, spent, promptTokens+e.WrittenTokens)
	}
}

// A client that leaves while its JSON passes pays for the content that came by until then.
func TestClientGoneOnJSON(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 1_000_000)
	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"pad-bytes": "16000000"}}))
	res := n.open(t.Context(), t, secret, chat("fake-p12-c34", false))
	require.Equal(t, 200, res.StatusCode)
	_, err := io.CopyN(io.Discard, res.Body, 100_000)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	_, err = r.fake.Wait(within(t, 2*time.Second), func(s fake.Totals) bool { return s.Ended == 1 })
	require.NoError(t, err)
	// Nothing but padding passed before it left: no content, no usage.
	require.Zero(t, n.books(t, "t_1"))
}

// A panic ends the hold like any other fault: before the answer nothing is
// charged, within it what was delivered. The node goes on.
func TestPanics(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 10_000)
	var reads atomic.Int32
	spent := int64(0)
	for _, c := range []struct {
		name   string
		hook   func(at any)
		status int
		stream bool
		check  func(t *testing.T, charged int64)
	}{
		{"with a hold", panicAt(edge.PlaceHeld), 500, true, nil},
		{"with an answer", panicAt(edge.PlaceReady), 500, true, nil},
		{"at the first read", panicAt(edge.PlaceRead), 200, true, nil},
		{"at the first read of JSON", panicAt(edge.PlaceRead), 0, false, nil},
		{"in the stream", func(at any) {
			if at == edge.PlaceRead && reads.Add(1) == 6 {
				panic("made for a test")
			}
		}, 200, true, func(t *testing.T, charged int64) {
			require.Greater(t, charged, int64(promptTokens))
			require.Less(t, charged, int64(wholeTokens))
		}},
		{"at the charge", panicAt(edge.PlaceEnd), 200, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := metric("tollgate_panics_total")
			r.fake.Reset()
			require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"delay-chunk": "5ms"}}))
			n.server.OnReach(edge.Hook(c.hook))
			a, err := n.try(t.Context(), secret, chat("fake-p12-c34", c.stream))
			require.Equal(t, c.status, a.status, "%v %s", err, a.body)
			if c.status == 500 {
				require.Equal(t, "internal_error", a.code(t))
				require.NotEmpty(t, a.header.Get("X-Request-Id"))
			}
			now := n.books(t, "t_1")
			n.server.OnReach(nil)
			if c.check != nil {
				c.check(t, now-spent)
			} else {
				require.Equal(t, spent, now)
			}
			require.Greater(t, metric("tollgate_panics_total"), before)
			_, err = r.fake.Wait(within(t, time.Second), func(s fake.Totals) bool { return s.InFlight == 0 })
			require.NoError(t, err, "the upstream's call was left open")
			a, err = n.try(t.Context(), secret, chat("fake-p12-c34", true))
			require.NoError(t, err)
			require.Equal(t, 200, a.status)
			spent = n.books(t, "t_1")
			require.Equal(t, now+wholeTokens, spent)
		})
	}
}

func panicAt(place any) func(any) {
	return func(at any) {
		if at == place {
			panic("made for a test")
		}
	}
}

// Shutdown waits for a running stream; when the grace is over the stream is cut
// and charged as delivered. New calls are refused meanwhile.
func TestShutdownWithARunningStream(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name string
		set  fake.Settings
		ends bool // within the grace
	}{
		{"ends in time", fake.Settings{"delay-chunk": "20ms"}, true},
		{"is cut", fake.Settings{"hang": "6"}, false},
		{"is cut before its first byte", fake.Settings{"hang": "before"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tenant := "t_" + strings.ReplaceAll(c.name, " ", "_")
			n := r.node()
			secret := r.tenant(tenant, 1000)
			r.fake.Reset()
			require.NoError(t, r.fake.Behave(fake.Rule{Set: c.set}))
			type outcome struct {
				reply
				err error
			}
			answered := make(chan outcome, 1)
			go func() {
				a, err := n.try(context.Background(), secret, chat("fake-p12-c34", true))
				answered <- outcome{a, err}
			}()
			_, err := r.fake.Wait(within(t, 5*time.Second), func(s fake.Totals) bool { return s.Begun == 1 && (c.ends || s.Silent == 1) })
			require.NoError(t, err)
			n.server.Drain()
			require.Equal(t, 503, n.do(http.MethodGet, "/readyz", "", "").status)
			require.Equal(t, 200, n.do(http.MethodGet, "/healthz", "", "").status)
			refused := n.post("/v1/chat/completions", secret, chat("fake", false))
			require.Equal(t, 503, refused.status)
			require.Equal(t, "draining", refused.code(t))
			require.NotEmpty(t, refused.header.Get("Retry-After"))
			grace := 5 * time.Second
			if !c.ends {
				grace = 100 * time.Millisecond
			}
			require.NoError(t, n.stop(grace))
			out := <-answered
			spent := n.books(t, tenant)
			switch {
			case c.ends:
				require.NoError(t, out.err)
				require.Contains(t, string(out.body), "[DONE]")
				require.EqualValues(t, wholeTokens, spent)
			case c.set["hang"] == "before":
				require.Equal(t, 503, out.status)
				require.Equal(t, "draining", out.code(t))
				require.Zero(t, spent)
			default:
				require.Equal(t, 200, out.status)
				require.Error(t, out.err, "a cut stream must not look whole")
				require.Greater(t, spent, int64(promptTokens))
				require.Less(t, spent, int64(wholeTokens))
			}
		})
	}
}

// One connection serves all kinds of calls one after another, as long as the
// answers were whole.
func TestKeepAlive(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 100_000)
	conn := n.dial(t)
	from := bufio.NewReader(conn)
	send := func(method, path, body string, more ...string) *http.Response {
		_, err := io.WriteString(conn, rawRequest(method, path, secret, body, more...))
		require.NoError(t, err)
		return readAnswer(t, from, method)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/chat/completions", chat("fake-p12-c34", false), 200},
		{"POST", "/v1/chat/completions", chat("fake-p12-c34", true), 200},
		{"POST", "/v1/chat/completions", `{"model":`, 400},
		{"POST", "/v1/chat/completions", chat("fake-p12-c34", true, `"stream_options":{"include_usage":true}`), 200},
		{"GET", "/v1/chat/completions", "", 405},
		{"HEAD", "/v1/chat/completions", "", 405},
		{"POST", "/v1/quota/consume", `{"cost":1000000}`, 429},
		{"GET", "/v1/models", "", 200},
		{"HEAD", "/img/x", "", 200},
		{"GET", "/v1/nothing", "", 404},
		{"POST", "/v1/chat/completions", chat("fake-p12-c34", false), 200},
	} {
		res := send(c.method, c.path, c.body)
		require.Equal(t, c.status, res.StatusCode, "%s %s", c.method, c.path)
	}
	require.EqualValues(t, 4*wholeTokens+5, n.books(t, "t_1"))
}

// A request that comes in before the last one was answered is served after it,
// and the node still notices by its writes that such a client left.
func TestPipelined(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 100_000)
	conn := n.dial(t)
	one := rawRequest("POST", "/v1/chat/completions", secret, chat("fake-p12-c34", true))
	two := rawRequest("POST", "/v1/chat/completions", secret, chat("fake-p12-c34", false))
	_, err := io.WriteString(conn, one+two+one)
	require.NoError(t, err)
	from := bufio.NewReader(conn)
	for range 3 {
		require.Equal(t, 200, readAnswer(t, from, "POST").StatusCode)
	}
	require.EqualValues(t, 3*wholeTokens, n.books(t, "t_1"))

	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"delay-chunk": "30ms", "chunks": "30"}}))
	_, err = io.WriteString(conn, one+two)
	require.NoError(t, err)
	_, err = from.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	_, err = r.fake.Wait(within(t, 2*time.Second), func(s fake.Totals) bool { return s.Ended == 4 })
	require.NoError(t, err)
	require.Less(t, n.books(t, "t_1"), int64(4*wholeTokens))
	require.EqualValues(t, 4, r.fake.Totals().Begun, "a client that left is not served its next request")
}

// An upstream that closes idle connections costs no call and repeats none. Only a call that is sent
// in the very instant of the close fails: whether it was read then nobody can know, so it is not repeated.
func TestUpstreamClosesIdleConnections(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_1", 100_000)
	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"idle-close": "100ms"}}))
	for i := range 40 {
		if i%5 == 4 {
			<-time.After(200 * time.Millisecond) // until the upstream has closed
		}
		a := n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false))
		require.Equal(t, 200, a.status, "call %d: %s", i, a.body)
	}
	require.EqualValues(t, 40, r.fake.Totals().Begun)
	require.EqualValues(t, 40*wholeTokens, n.books(t, "t_1"))
}

// Concurrency slots come back on every way out (B4).
func TestSlotsComeBack(t *testing.T) {
	r := newRig(t)
	r.yaml = strings.Replace(r.yaml, "first_byte: 3s", "first_byte: 300ms", 1)
	n := r.node()
	secret := r.tenant("t_1", 100_000, concurrency(3))
	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"hang": "before"}}))
	var refused, late atomic.Int32
	var calls sync.WaitGroup
	for range 10 {
		calls.Go(func() {
			a, err := n.try(context.Background(), secret, chat("fake-p12-c34", false))
			switch {
			case err != nil:
				t.Error(err)
			case a.status == 429:
				refused.Add(1)
				if a.header.Get("Retry-After") == "" || a.code(t) != "rate_limit_exceeded" {
					t.Errorf("%v %s", a.header, a.body)
				}
			case a.status == 504:
				late.Add(1)
			default:
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	calls.Wait()
	require.EqualValues(t, 3, late.Load())
	require.EqualValues(t, 7, refused.Load())
	require.Zero(t, n.books(t, "t_1"))
	r.fake.ClearRules()
	require.Equal(t, 200, n.post("/v1/chat/completions", secret, chat("fake-p12-c34", false)).status)
}

func (n *node) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	t.Cleanup(func() { conn.Close() })
	return conn
}

func rawRequest(method, path, secret, body string, more ...string) string {
	var head strings.Builder
	head.WriteString(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n", method, path, secret))
	for _, line := range more {
		head.WriteString(line + "\r\n")
	}
	if body != "" {
		head.WriteString(fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body)))
	}
	return head.String() + "\r\n" + body
}

// readAnswer reads one answer of a connection to its end.
func readAnswer(t *testing.T, from *bufio.Reader, method string) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(from, &http.Request{Method: method})
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res
}

// A client that stops reading, without leaving, does not keep its hold and its upstream call for ever.
func TestClientThatStopsReading(t *testing.T) {
	r := newRig(t)
	r.yaml = strings.Replace(r.yaml, "idle: 2s", "idle: 300ms", 1)
	n := r.node()
	secret := r.tenant("t_1", 100_000)
	require.NoError(t, r.fake.Behave(fake.Rule{Set: fake.Settings{"chunks": "64", "pad-bytes": "1000000"}}))
	conn := n.dial(t)
	_, err := io.WriteString(conn, rawRequest("POST", "/v1/chat/completions", secret, chat("fake-p12-c64", true)))
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = io.ReadFull(conn, one)
	require.NoError(t, err)
	_, err = r.fake.Wait(within(t, 10*time.Second), func(s fake.Totals) bool { return s.Ended == 1 })
	require.NoError(t, err)
	spent := n.books(t, "t_1")
	require.Positive(t, spent)
	require.LessOrEqual(t, spent, int64(12+100))
}
