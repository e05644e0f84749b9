package upstream

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFraming reads raw answers, written in one go and byte by byte.
func TestFraming(t *testing.T) {
	const h = "HTTP/1.1 200 OK\r\n"
	rows := []struct {
		name, raw string
		body      string
		doErr     error
		readErr   error
		reused    bool
	}{
		{"sized", h + "Content-Length: 5\r\n\r\nhello", "hello", nil, nil, true},
		{"sized, cut", h + "Content-Length: 9\r\n\r\nhello", "hello", nil, ErrCut, false},
		{"sized, bytes behind", h + "Content-Length: 5\r\n\r\nhelloHTTP/1.1 200", "hello", nil, nil, false},
		{"empty", h + "Content-Length: 0\r\n\r\n", "", nil, nil, true},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", "", nil, nil, true},
		{"chunked", h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n06;x=y\r\n world\r\n0\r\n\r\n", "hello world", nil, nil, true},
		{"chunked, bare line feeds", h + "Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", "hello", nil, nil, true},
		{"chunked with trailers", h + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n", "a", nil, nil, true},
		{"chunked, cut in the data", h + "Transfer-Encoding: chunked\r\n\r\n9\r\nhello", "hello", nil, ErrCut, false},
		{"chunked, cut behind the data", h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello", "hello", nil, ErrCut, false},
		{"chunked, cut between chunks", h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "hello", nil, ErrCut, false},
		{"chunked, cut in the trailer", h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", "hello", nil, ErrCut, false},
		{"chunked, bad size", h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n", "hello", nil, ErrProtocol, false},
		{"chunked, negative size", h + "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", "", nil, ErrProtocol, false},
		{"chunked, absurd size", h + "Transfer-Encoding: chunked\r\n\r\n8000000000000000\r\nhello\r\n", "", nil, ErrProtocol, false},
		{"chunked, bad end", h + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n", "hello", nil, ErrProtocol, false},
		{"chunked, endless size line", h + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("x", 2*readBytes), "", nil, ErrProtocol, false},
		{"until close", h + "\r\nhello", "hello", nil, nil, false},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", nil, nil, false},
		{"Connection: close", h + "Connection: close\r\nContent-Length: 5\r\n\r\nhello", "hello", nil, nil, false},
		{"interim answers first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + h + "Content-Length: 2\r\n\r\nok", "ok", nil, nil, true},
		{"interim answers without end", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), "", ErrProtocol, nil, false},
		{"another protocol", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "", ErrProtocol, nil, false},
		{"no HTTP", "SSH-2.0-OpenSSH\r\n\r\n", "", ErrProtocol, nil, false},
		{"two lengths", h + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "", ErrProtocol, nil, false},
		{"head without end", h + "X: " + strings.Repeat("x", HeadBytesMax), "", ErrProtocol, nil, false},
		{"closed without a byte", "", "", ErrNoAnswer, nil, false},
		{"closed in the head", h + "Content-Le", "", ErrNoAnswer, nil, false},
		{"head of 60 KiB", h + "X: " + strings.Repeat("x", 60<<10) + "\r\nContent-Length: 2\r\n\r\nok", "ok", nil, nil, true},
	}
	for _, row := range rows {
		for _, split := range []bool{false, true} {
			// Bytes that arrive later are seen when the connection is taken again: see TestIdleConnectionWithUnaskedBytesIsNotUsed.
			if split && (len(row.raw) > 4<<10 || strings.HasSuffix(row.name, "behind")) {
				continue
			}
			name := row.name
			if split {
				name += ", split"
			}
			t.Run(name, func(t *testing.T) {
				url := rawServer(t, func(c net.Conn, r *bufio.Reader) {
					if _, _, ok := readRequest(r); !ok {
						return
					}
					if split {
						for i := range len(row.raw) {
							_, _ = io.WriteString(c, row.raw[i:i+1])
						}
					} else {
						_, _ = io.WriteString(c, row.raw)
					}
					if row.reused {
						_, _ = r.ReadByte() // until the client closes
					} else {
						// A close with unread bytes would reset; nothing is unread.
						_ = c.(*net.TCPConn).CloseWrite()
						_, _ = r.ReadByte()
					}
				})
				u := open(t, Options{URL: url})
				c := post(u, "{}")
				err := u.Do(c)
				if row.doErr != nil {
					requireIs(t, err, row.doErr)
					assert.True(t, c.Sent())
				} else {
					require.NoError(t, err)
					body, err := all(c)
					assert.Equal(t, row.body, body)
					if row.readErr != nil {
						requireIs(t, err, row.readErr)
					} else {
						require.NoError(t, err)
					}
				}
				c.Close()
				open, idle := u.Conns()
				want := 0
				if row.reused {
					want = 1
				}
				assert.Equal(t, [2]int{want, want}, [2]int{open, idle})
				u.Close()
			})
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	url := rawServer(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false))
	u := open(t, Options{URL: url})
	for range 2 {
		c := u.NewCall([]byte("HEAD"), []byte("/"))
		require.NoError(t, u.Do(c))
		assert.EqualValues(t, 0, c.BodySize())
		body, err := all(c)
		require.NoError(t, err)
		assert.Empty(t, body)
		assert.Equal(t, 5, c.Header.ContentLength())
		c.Close()
	}
	u.Close()
}

func TestNoByteIsHeldBack(t *testing.T) {
	next := make(chan string)
	url := rawServer(t, func(c net.Conn, r *bufio.Reader) {
		if _, _, ok := readRequest(r); !ok {
			return
		}
		for s := range next {
			_, _ = io.WriteString(c, s)
		}
	})
	u := open(t, Options{URL: url})
	c := post(u, "{}")
	go func() { next <- "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" }()
	require.NoError(t, u.Do(c), "the head comes before any byte of the body")
	buf := make([]byte, 1024)
	for _, step := range [][2]string{
		{"a\r\nda", "da"},           // part of a chunk
		{"ta: 5", "ta: 5"},          // more of it
		{"\n\n\n", "\n\n\n"},        // the whole chunk, but not its line end
		{"\r\n3\r\nabc\r\n", "abc"}, // the rest, and a chunk of its own
		{"1\r\nx\r\n2\r\ny", "xy"},  // two chunks in one read, the second begun
	} {
		next <- step[0]
		n, err := c.Read(buf)
		require.NoError(t, err)
		assert.Equal(t, step[1], string(buf[:n]))
	}
	next <- "z\r\n0\r\n\r\n"
	rest, err := all(c)
	require.NoError(t, err)
	assert.Equal(t, "z", rest)
	c.Close()
	close(next)
	u.Close()
}

func TestConnectionIsKeptWhenTheEndWasNotAskedFor(t *testing.T) {
	// All data was read, but not the final chunk that already arrived with it.
	url := rawServer(t, answers("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", false))
	u := open(t, Options{URL: url})
	c := post(u, "{}")
	require.NoError(t, u.Do(c))
	_, err := io.ReadFull(c, make([]byte, 5))
	require.NoError(t, err)
	c.Close()
	_, idle := u.Conns()
	assert.Equal(t, 1, idle)

	c = post(u, "{}")
	require.NoError(t, u.Do(c))
	_, err = io.ReadFull(c, make([]byte, 4))
	require.NoError(t, err)
	c.Close()
	openConns, _ := u.Conns()
	assert.Zero(t, openConns, "an answer left in the middle costs its connection")
	u.Close()
}

func TestKeepAliveHeaderShortensIdleTime(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"":                      time.Minute,
		"timeout=5, max=100":    4 * time.Second,
		"max=100, timeout=3":    2 * time.Second,
		"timeout=1":             500 * time.Millisecond,
		"timeout=0":             0,
		"timeout=600":           time.Minute,
		"timeout=x":             time.Minute,
		"timeout=-1":            time.Minute,
		"timeout=9999999999999": time.Minute,
	} {
		assert.Equal(t, want, idleMax(time.Minute, []byte(header)), header)
	}
}

// FuzzAnswer: no bytes of an upstream make Do or Read panic, hang, or give more than was sent.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), uint8(3))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200\n\n"), uint8(200))
	f.Fuzz(func(t *testing.T, raw []byte, step uint8) {
		client, server := net.Pipe()
		go func() {
			for rest := raw; len(rest) > 0; {
				n := min(len(rest), int(step)+1)
				if _, err := server.Write(rest[:n]); err != nil {
					break
				}
				rest = rest[n:]
			}
			_ = server.Close()
		}()
		u := &Upstream{name: "fuzz", timeout: Timeouts{}.withDefaults(), owned: names()}
		u.timeout.Idle = 5 * time.Second
		u.pool.connsMax, u.pool.mu.open = 1, 1
		c := post(u, "")
		c.totalAt = time.Now().Add(5 * time.Second)
		require.True(t, c.own(newConn(client, client, time.Second)))
		if c.readHead(c.mu.conn, c.totalAt) == nil {
			body, err := io.ReadAll(c)
			assert.LessOrEqual(t, len(body), len(raw))
			assert.NotErrorIs(t, err, ErrTimeoutIdle)
			assert.NotErrorIs(t, err, ErrTimeoutTotal)
		}
		c.Close()
		u.pool.close()
	})
}
