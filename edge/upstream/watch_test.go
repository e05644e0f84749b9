package upstream

import (
	"bufio"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func tcpPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestWatchSeesTheClientLeave(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close":          func(c *net.TCPConn) { _ = c.Close() },
		"reset":          func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"shut down half": func(c *net.TCPConn) { _ = c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			client, server := tcpPair(t)
			gone := make(chan struct{}, 2)
			stop := Watch(server, func() { gone <- struct{}{} })
			leave(client)
			await(t, gone, "gone")
			stop()
			stop()
			assert.Empty(t, gone, "once")
		})
	}
}

func TestWatchLeavesTheConnectionAsItWas(t *testing.T) {
	client, server := tcpPair(t)
	never := func() { t.Error("gone, though the client stayed") }
	for range 3 {
		stop := Watch(server, never)
		stop()
		_, err := io.WriteString(client, "next")
		require.NoError(t, err)
		buf := make([]byte, 4)
		_, err = io.ReadFull(server, buf)
		require.NoError(t, err)
		assert.Equal(t, "next", string(buf))
	}
	// A pipelined request ends the watch and stays readable.
	_, err := io.WriteString(client, "next")
	require.NoError(t, err)
	stop := Watch(server, never)
	_ = client.Close()
	stop()
	rest, err := io.ReadAll(server)
	require.NoError(t, err)
	assert.Equal(t, "next", string(rest))
}

func TestWatchCancelsACall(t *testing.T) {
	got, left := make(chan struct{}), make(chan struct{}, 1)
	u := open(t, Options{URL: rawServer(t, func(c net.Conn, r *bufio.Reader) {
		_, _, _ = readRequest(r)
		close(got)
		silence("", left)(c, r)
	})})
	client, server := tcpPair(t)
	c := post(u, "{}")
	stop := Watch(server, c.Cancel)
	go func() {
		<-got
		_ = client.Close()
	}()
	requireIs(t, u.Do(c), ErrCanceled)
	await(t, left, "upstream sees the close")
	stop()
	c.Close()
}

func TestWatchOfWhatIsNoSocketNeverFires(t *testing.T) {
	a, b := net.Pipe()
	stop := Watch(a, func() { t.Error("gone") })
	_ = b.Close()
	stop()
	_ = a.Close()
}
