package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s := New(o)
	require.NoError(t, s.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// newClient neither reuses connections nor decodes bodies.
func newClient(t *testing.T) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

const (
	chatPath   = "/v1/chat/completions"
	chatBody   = `{"model":"fake-p7-c5","messages":[{"role":"user","content":"hello"}]}`
	streamBody = `{"model":"fake-p7-c5","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello"}]}`
)

type answer struct {
	status int
	header http.Header
	body   []byte
	err    error // of the call, or of reading its body
}

func do(t *testing.T, s *Server, method, path, body string, knobs Settings) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
	require.NoError(t, err)
	for name, value := range knobs {
		req.Header.Set("x-fake-"+name, value)
	}
	resp, err := newClient(t).Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: data, err: err}
}

// ended waits until n calls have ended, and returns the last entry.
func ended(t *testing.T, s *Server, n int64) Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.Wait(ctx, func(t Totals) bool { return t.Ended >= n })
	require.NoError(t, err)
	log := s.Log()
	return log[len(log)-1]
}

// silent waits until a call hangs.
func silent(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := s.Wait(ctx, func(t Totals) bool { return t.Silent == 1 })
	require.NoError(t, err)
}

// events reads a stream strictly by the standard: any line end, comments, several data lines.
func events(body []byte) []string {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(body))
	var all, lines []string
	sc := bufio.NewScanner(strings.NewReader(text))
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		line := sc.Text()
		if line == "" {
			if lines != nil {
				all = append(all, strings.Join(lines, "\n"))
			}
			lines = nil
			continue
		}
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			lines = append(lines, strings.TrimPrefix(data, " "))
		}
	}
	return all
}

// compact is the events with their JSON in one spelling.
func compact(t *testing.T, list []string) []string {
	t.Helper()
	out := make([]string, len(list))
	for i, e := range list {
		if out[i] = e; e != "[DONE]" {
			var b bytes.Buffer
			require.NoError(t, json.Compact(&b, []byte(e)))
			out[i] = b.String()
		}
	}
	return out
}

// chunk is what a client reads of an event.
type chunk struct {
	Choices []struct {
		Index        int `json:"index"`
		Delta        struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
}

func chunks(t *testing.T, list []string) []chunk {
	t.Helper()
	var out []chunk
	for _, e := range list {
		if e == "[DONE]" {
			continue
		}
		var c chunk
		require.NoError(t, json.Unmarshal([]byte(e), &c), e)
		out = append(out, c)
	}
	return out
}
