package upstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRulesOverHTTP(t *testing.T) {
	s := start(t, Options{})
	post := func(body string) answer { return do(t, s, http.MethodPost, "/_fake/behave", body, nil) }
	a := post(`{"model":"fake-p7-c5","path":"/v1/chat/*","skip":1,"times":2,"set":{"status":503,"delay":"1ms","reset":false}}`)
	require.Equal(t, 200, a.status, string(a.body))
	require.Equal(t, 200, do(t, s, http.MethodGet, "/v1/models", ``, nil).status, "another path")
	require.Equal(t, 200, do(t, s, http.MethodPost, chatPath, `{"model":"m","messages":[{}]}`, nil).status, "another model")
	var got []int
	for range 4 {
		got = append(got, do(t, s, http.MethodPost, chatPath, chatBody, nil).status)
	}
	require.Equal(t, []int{200, 503, 503, 200}, got)
	require.Empty(t, s.Rules(), "used up")

	require.NoError(t, s.Behave(Rule{Set: Settings{"status": "500"}}))
	require.NoError(t, s.Behave(Rule{Set: Settings{"status": "429"}}))
	require.Equal(t, 429, do(t, s, http.MethodGet, "/v1/models", ``, nil).status, "the later rule wins")
	require.Equal(t, 404, do(t, s, http.MethodGet, "/v1/models", ``, Settings{"status": "404"}).status, "the request wins")
	require.Equal(t, 418, do(t, s, http.MethodGet, "/v1/models?fake-status=418", ``, nil).status)
	require.Equal(t, 200, do(t, s, http.MethodDelete, "/_fake/behave", ``, nil).status)
	require.Equal(t, 200, do(t, s, http.MethodGet, "/v1/models", ``, nil).status)
}

func TestBadKnobsAreRefused(t *testing.T) {
	s := start(t, Options{})
	for _, body := range []string{
		``, `{}{}`, `{"sett":{}}`, `{"set":{"nope":1}}`, `{"set":{"delay":200}}`, `{"set":{"delay":"-1s"}}`, `{"set":{"delay":"2h"}}`,
		`{"set":{"chunks":-1}}`, `{"set":{"chunks":"x"}}`, `{"set":{"usage":"never"}}`, `{"set":{"cut":"sometimes"}}`,
		`{"set":{"cut":"bytes:x"}}`, `{"set":{"hang":"x"}}`, `{"set":{"sse":"lf"}}`, `{"set":{"header":"x"}}`, `{"set":{"status":100}}`,
		`{"set":{"reset":"perhaps"}}`, `{"set":{"cut":null}}`, `{"set":{"cut":{}}}`, `{"times":-1,"set":{}}`,
	} {
		a := do(t, s, http.MethodPost, "/_fake/behave", body, nil)
		require.Equal(t, 400, a.status, body)
	}
	require.Empty(t, s.Rules())
	a := do(t, s, http.MethodPost, chatPath, chatBody, Settings{"cut": "1", "nope": "1"})
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "nope")
	require.ErrorIs(t, New(Options{Behaviour: Behaviour{Text: "runes"}}).Start("127.0.0.1:0"), ErrKnob)
	for i := range rulesMax {
		require.NoError(t, s.Behave(Rule{Model: strconv.Itoa(i)}))
	}
	require.ErrorIs(t, s.Behave(Rule{}), ErrRules)
}

func TestLogTellsWhoCalled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "served.jsonl")
	s := start(t, Options{LogFile: file, LogEntries: 2, Behaviour: Behaviour{Forbid: "tenant-secret"}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+chatPath, strings.NewReader(chatBody))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer sk-1")
	req.Header.Set("X-Request-Id", "r1")
	req.Header.Set("Idempotency-Key", "i1")
	resp, err := newClient(t).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	e := ended(t, s, 1)
	require.Equal(t, hashOf("sk-1"), e.AuthorizationSHA256)
	require.Equal(t, []string{"r1", "i1"}, []string{e.RequestID, e.IdempotencyKey})
	require.False(t, e.Forbidden)
	for _, leak := range []func(*http.Request){
		func(r *http.Request) { r.Header.Set("X-Any", "a tenant-secret b") },
		func(r *http.Request) { r.URL.RawQuery = "k=tenant-secret" },
	} {
		r := req.Clone(t.Context())
		r.Body, err = req.GetBody()
		require.NoError(t, err)
		leak(r)
		resp, err := newClient(t).Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	require.True(t, ended(t, s, 3).Forbidden)
	require.EqualValues(t, 2, s.Totals().Forbidden)

	a := do(t, s, http.MethodGet, "/_fake/log", ``, nil)
	require.Equal(t, 2, bytes.Count(a.body, []byte("\n")), "the log keeps two")
	require.EqualValues(t, 1, s.Totals().LogDropped)
	a = do(t, s, http.MethodGet, "/_fake/log?since=2", ``, nil)
	require.NoError(t, json.Unmarshal(a.body, &e))
	require.EqualValues(t, 3, e.Seq)

	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		require.NoError(t, json.Unmarshal(sc.Bytes(), &e))
		require.NotContains(t, sc.Text(), "sk-1")
	}
	require.Equal(t, 3, lines, "the file keeps all")
}

func TestKeyIsRequired(t *testing.T) {
	s := start(t, Options{Behaviour: Behaviour{RequireKey: "sk-1", RejectField: "stream_options"}})
	require.Equal(t, 401, do(t, s, http.MethodPost, chatPath, chatBody, nil).status)
	require.Equal(t, 200, do(t, s, http.MethodPost, chatPath, chatBody, Settings{"require-key": ""}).status)
	require.Equal(t, 400, do(t, s, http.MethodPost, chatPath, streamBody, Settings{"require-key": ""}).status)
}

func TestWaitAndReset(t *testing.T) {
	s := start(t, Options{Behaviour: Behaviour{Hang: "before"}})
	got := make(chan answer, 1)
	go func() { got <- do(t, s, http.MethodPost, chatPath, chatBody, nil) }()
	require.Equal(t, 200, do(t, s, http.MethodGet, "/_fake/wait?begun=1&silent=1", ``, nil).status)
	require.Equal(t, 504, do(t, s, http.MethodGet, "/_fake/wait?idle=true&timeout=1ms", ``, nil).status)
	require.Equal(t, 400, do(t, s, http.MethodGet, "/_fake/wait?idle=perhaps", ``, nil).status)
	require.Equal(t, 200, do(t, s, http.MethodPost, "/_fake/reset", ``, nil).status)
	require.Equal(t, Totals{}, s.Totals())
	require.NoError(t, s.Behave(Rule{Set: Settings{"hang": ""}}))
	require.Equal(t, 200, do(t, s, http.MethodGet, "/v1/models", ``, nil).status)
	s.Release()
	old := <-got
	require.NoError(t, old.err)
	require.Equal(t, 200, old.status)
	require.EqualValues(t, 1, s.Totals().Ended, "a call from before the reset is not counted")
	a := do(t, s, http.MethodGet, "/_fake/behave", ``, nil)
	require.Contains(t, string(a.body), `"hang":"before"`)
	require.Equal(t, 404, do(t, s, http.MethodGet, "/_fake/nope", ``, nil).status)
}
