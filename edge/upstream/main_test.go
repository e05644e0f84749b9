package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is a timeout that a passing test never waits for.
const long = 20 * time.Second

func open(t testing.TB, o Options) *Upstream {
	t.Helper()
	if o.Name == "" {
		o.Name = "test"
	}
	u, err := New(o)
	require.NoError(t, err)
	t.Cleanup(u.Close)
	return u
}

// rawServer accepts on loopback and hands every connection to serve, which ends with it.
func rawServer(t testing.TB, serve func(net.Conn, *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all []chan struct{}
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			end := make(chan struct{})
			all = append(all, end)
			go func() {
				defer close(end)
				defer c.Close()
				serve(c, bufio.NewReader(c))
			}()
		}
		for _, end := range all {
			<-end
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}

// readRequest reads one whole request; false at the end of the connection.
func readRequest(r *bufio.Reader) (*http.Request, []byte, bool) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, nil, false
	}
	body, err := io.ReadAll(req.Body)
	return req, body, err == nil
}

// answers serves the same raw bytes to every request and then closes or goes on.
func answers(raw string, closeAfter bool) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		for {
			if _, _, ok := readRequest(r); !ok {
				return
			}
			if _, err := io.WriteString(c, raw); err != nil || closeAfter {
				return
			}
		}
	}
}

func post(u *Upstream, body string) *Call {
	c := u.NewCall([]byte("POST"), []byte("/v1/chat/completions"))
	c.AddHeader([]byte("Content-Type"), []byte("application/json"))
	c.SetBody([]byte(body))
	return c
}

// all reads the answer's body to its end.
func all(c *Call) (string, error) {
	b, err := io.ReadAll(c)
	return string(b), err
}

// exchange does one whole call.
func exchange(u *Upstream, body string) (status int, answer string, err error) {
	c := post(u, body)
	defer c.Close()
	if err := u.Do(c); err != nil {
		return 0, "", err
	}
	answer, err = all(c)
	return c.Header.StatusCode(), answer, err
}

// await is for what another goroutine is about to do.
func await[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(long):
		t.Fatalf("did not happen: %s", what)
		panic("unreachable")
	}
}

func requireIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}
