package upstream

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestFormsOfAStreamCarryTheSameEvents(t *testing.T) {
	s := start(t, Options{})
	want := events(do(t, s, http.MethodPost, chatPath, streamBody, Settings{"text": "utf8"}).body)
	require.Len(t, want, 1+5+1+1+1)
	for _, knobs := range []Settings{
		{"split": "1"},
		{"split": "7", "delay-piece": "1us"},
		{"join": "3"},
		{"join": "100"},
		{"sse": "crlf"},
		{"sse": "crlf", "split": "1"},
		{"sse": "cr"},
		{"sse": "nospace"},
		{"sse": "comments+ids"},
		{"sse": "multiline+crlf+bom"},
		{"framing": "close"},
		{"delay-chunk": "1ms"},
		{"delay": "1ms"},
	} {
		knobs["text"] = "utf8"
		a := do(t, s, http.MethodPost, chatPath, streamBody, knobs)
		require.NoError(t, a.err, knobs)
		require.Equal(t, compact(t, want), compact(t, events(a.body)), knobs)
	}
	a := do(t, s, http.MethodPost, chatPath, streamBody, Settings{"sse": "nodone", "text": "utf8"})
	require.Equal(t, want[:len(want)-1], events(a.body))
	for _, e := range s.Log() {
		require.True(t, e.Whole)
		require.EqualValues(t, 5, e.WrittenTokens)
	}
}

func TestSplitWritesAPieceAtATime(t *testing.T) {
	s := start(t, Options{Behaviour: Behaviour{Split: 5}})
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "+strconv.Itoa(len(streamBody))+"\r\n\r\n"+streamBody)
	require.NoError(t, err)
	raw, err := io.ReadAll(conn)
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(raw), "\r\n\r\n")
	require.True(t, strings.HasPrefix(body, "5\r\ndata:\r\n5\r\n {\"id"), body[:30])
}

func TestCuts(t *testing.T) {
	full := 1 + 5 + 1 + 1 + 1 // role, words, finish, usage, [DONE]
	for _, row := range []struct {
		name, body    string
		knobs         Settings
		status        int // 0: the client gets no answer
		events        int
		tokens, bytes int64 // bytes -1: any
	}{
		{"before", streamBody, Settings{"cut": "before"}, 0, 0, 0, 0},
		{"reset", streamBody, Settings{"reset": "true"}, 0, 0, 0, 0},
		{"headers", streamBody, Settings{"cut": "headers"}, 200, 0, 0, 0},
		{"0", streamBody, Settings{"cut": "0"}, 200, 0, 0, 0},
		{"1", streamBody, Settings{"cut": "1"}, 200, 1, 0, -1},
		{"3", streamBody, Settings{"cut": "3"}, 200, 3, 2, -1},
		{"3 joined", streamBody, Settings{"cut": "3", "join": "2"}, 200, 3, 2, -1},
		{"3 gzip", streamBody, Settings{"cut": "3", "encoding": "gzip"}, 200, 3, 2, -1},
		{"3 reset", streamBody, Settings{"cut": "3", "reset": "true"}, 200, -1, 2, -1},
		{"bytes", streamBody, Settings{"cut": "bytes:50"}, 200, 0, 0, 50},
		{"bytes split", streamBody, Settings{"cut": "bytes:50", "split": "7"}, 200, 0, 0, 50},
		{"end", streamBody, Settings{"cut": "end"}, 200, full, 5, -1},
		{"json headers", chatBody, Settings{"cut": "headers"}, 200, 0, 0, 0},
		{"json bytes", chatBody, Settings{"cut": "bytes:50"}, 200, 0, 0, 50},
		{"json chunked end", chatBody, Settings{"cut": "end", "framing": "chunked"}, 200, 1, 5, -1},
		{"json before", chatBody, Settings{"cut": "before"}, 0, 0, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := start(t, Options{})
			a := do(t, s, http.MethodPost, chatPath, row.body, row.knobs)
			require.Error(t, a.err)
			e := ended(t, s, 1)
			require.True(t, e.Cut)
			require.False(t, e.Whole)
			require.False(t, e.Gone)
			require.Equal(t, row.status, e.Status)
			require.Equal(t, row.tokens, e.WrittenTokens)
			require.Zero(t, s.Totals().Calls)
			require.EqualValues(t, 1, s.Totals().Cut)
			if row.knobs["reset"] != "" {
				return // a reset may also destroy what was on its way
			}
			require.Equal(t, row.status, a.status)
			require.Equal(t, row.events, e.Events)
			require.EqualValues(t, len(a.body), e.BodyBytes)
			if row.bytes >= 0 {
				require.Equal(t, row.bytes, e.BodyBytes)
			}
		})
	}
}

func TestResetIsAReset(t *testing.T) {
	s := start(t, Options{Behaviour: Behaviour{Reset: true}})
	a := do(t, s, http.MethodPost, chatPath, chatBody, nil)
	require.True(t, errors.Is(a.err, syscall.ECONNRESET) || errors.Is(a.err, syscall.EPIPE), a.err)
}

func TestStatuses(t *testing.T) {
	s := start(t, Options{})
	for status, code := range map[string]string{
		"400": "invalid_request", "401": "invalid_api_key", "404": "model_not_found", "429": "rate_limit_exceeded",
		"500": "server_error", "503": "overloaded", "529": "overloaded",
	} {
		for _, body := range []string{chatBody, streamBody} {
			a := do(t, s, http.MethodPost, chatPath, body, Settings{"status": status, "header": "retry-after: 7|x-more: yes"})
			require.NoError(t, a.err)
			require.Equal(t, "7", a.header.Get("Retry-After"))
			require.Equal(t, "application/json", a.header.Get("Content-Type"))
			var told struct {
				Error struct {
					Message, Code string
					Param         *string
				}
				Usage *Usage
			}
			require.NoError(t, json.Unmarshal(a.body, &told))
			require.Equal(t, code, told.Error.Code)
			require.Nil(t, told.Usage)
		}
	}
	a := do(t, s, http.MethodPost, chatPath, chatBody, Settings{"status": "500", "error-usage": "true", "error-code": "insufficient_quota"})
	require.Contains(t, string(a.body), `"type":"insufficient_quota"`)
	require.Contains(t, string(a.body), `"completion_tokens":5`)
	require.Equal(t, &Usage{7, 5, 12}, ended(t, s, 15).Reported)
	require.EqualValues(t, 15, s.Totals().Errors)
	require.Zero(t, s.Totals().Calls)
	a = do(t, s, http.MethodPost, chatPath, streamBody, Settings{"status": "204"})
	require.NoError(t, a.err)
	require.Equal(t, 204, a.status)
	require.Empty(t, a.body)
}

func TestBodies(t *testing.T) {
	for _, body := range []string{chatBody, streamBody} {
		s := start(t, Options{})
		get := func(kind string) answer {
			a := do(t, s, http.MethodPost, chatPath, body, Settings{"body": kind})
			require.NoError(t, a.err)
			require.Equal(t, 200, a.status)
			return a
		}
		first := func(a answer) []byte {
			if list := events(a.body); len(list) > 0 {
				return []byte(list[0])
			}
			return a.body
		}
		require.False(t, json.Valid(first(get("malformed"))))
		require.False(t, utf8.Valid(first(get("utf8"))))
		require.Contains(t, string(first(get("deep"))), strings.Repeat("[", deepLevels)+strings.Repeat("]", deepLevels))
		require.Empty(t, get("empty").body)
		require.Equal(t, "text/html", get("html").header.Get("Content-Type"))
		require.Contains(t, string(first(get("error"))), `{"error":{`)
		require.Equal(t, "application/json", get("json").header.Get("Content-Type"))
		a := do(t, s, http.MethodPost, chatPath, body, Settings{"pad-bytes": "70000"})
		require.Greater(t, len(first(a)), 70000)
		require.True(t, json.Valid(first(a)))
	}
}

func TestEncodingIsFlushedPerEvent(t *testing.T) {
	for encoding, open := range map[string]func(io.Reader) io.Reader{
		"deflate": func(r io.Reader) io.Reader { return flate.NewReader(r) },
		"gzip": func(r io.Reader) io.Reader {
			z, err := gzip.NewReader(r)
			require.NoError(t, err)
			return z
		},
	} {
		s := start(t, Options{Behaviour: Behaviour{Encoding: encoding, Hang: "2"}})
		resp, err := newClient(t).Post(s.URL()+chatPath, "application/json", strings.NewReader(streamBody))
		require.NoError(t, err)
		require.Equal(t, encoding, resp.Header.Get("Content-Encoding"))
		r := bufio.NewReader(open(resp.Body))
		for range 2 { // two events come through while the third is held back
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(line, "data: {"), line)
			_, err = r.ReadString('\n')
			require.NoError(t, err)
		}
		silent(t, s)
		s.Release()
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.True(t, bytes.HasSuffix(rest, []byte("data: [DONE]\n\n")))
		require.True(t, ended(t, s, 1).Whole)

		a := do(t, s, http.MethodPost, chatPath, chatBody, nil)
		require.NoError(t, a.err)
		plain, err := io.ReadAll(open(bytes.NewReader(a.body)))
		require.NoError(t, err)
		require.True(t, json.Valid(plain))
	}
}

func TestClientGoneIsSeen(t *testing.T) {
	for _, row := range []struct {
		name  string
		knobs Behaviour
		read  int // events the client reads before it goes
	}{
		{"silent before the first byte", Behaviour{Hang: "before"}, 0},
		{"long delay", Behaviour{Delay: time.Hour}, 0},
		{"silent after the headers", Behaviour{Hang: "0"}, 0},
		{"silent after two", Behaviour{Hang: "2"}, 2},
		{"slow chunks", Behaviour{DelayChunk: time.Hour}, 1},
		{"slow pieces", Behaviour{Split: 1, DelayPiece: time.Hour}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := start(t, Options{Behaviour: row.knobs})
			conn, err := net.Dial("tcp", s.Addr())
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			_, err = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: "+strconv.Itoa(len(streamBody))+"\r\n\r\n"+streamBody)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = s.Wait(ctx, func(t Totals) bool { return t.Begun == 1 })
			require.NoError(t, err)
			r := bufio.NewReader(conn)
			for seen := 0; seen < row.read; {
				line, err := r.ReadString('\n')
				require.NoError(t, err)
				if strings.HasPrefix(line, "data: ") {
					seen++
				}
			}
			require.NoError(t, conn.Close())
			e := ended(t, s, 1)
			require.True(t, e.Gone)
			require.False(t, e.Whole)
			require.Equal(t, row.read, e.Events)
			require.EqualValues(t, 1, s.Totals().Gone)
		})
	}
}

func TestIdleConnectionIsClosed(t *testing.T) {
	s := start(t, Options{Behaviour: Behaviour{IdleClose: time.Millisecond}})
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	all, err := io.ReadAll(conn) // ends when the server closes
	require.NoError(t, err)
	require.NotContains(t, string(all), "Connection: close")
	require.Contains(t, string(all), `"fake"`)
	require.True(t, s.Log()[0].Whole)
}

func TestHeaders(t *testing.T) {
	s := start(t, Options{})
	a := do(t, s, http.MethodPost, chatPath, chatBody, Settings{"cookie-bytes": "12288", "conn-close": "1"})
	require.NoError(t, a.err)
	require.Len(t, a.header.Get("Set-Cookie"), 12288)
	a = do(t, s, http.MethodPost, chatPath, chatBody, Settings{"framing": "chunked"})
	require.NoError(t, a.err)
	require.Empty(t, a.header.Get("Content-Length"))
	require.True(t, json.Valid(a.body))
}

func TestCloseEndsCallsThatHang(t *testing.T) {
	s := start(t, Options{Behaviour: Behaviour{Hang: "before"}})
	got := make(chan error, 1)
	client := newClient(t)
	go func() {
		resp, err := client.Post(s.URL()+chatPath, "application/json", strings.NewReader(chatBody))
		if err == nil {
			_ = resp.Body.Close()
		}
		got <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.Wait(ctx, func(t Totals) bool { return t.Begun == 1 })
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Error(t, <-got)
	require.EqualValues(t, 1, s.Totals().Ended)
	require.NoError(t, s.Close(), "a second close does nothing")
	require.ErrorIs(t, s.Start("127.0.0.1:0"), ErrStarted)
}
