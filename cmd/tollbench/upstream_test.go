package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(ctx context.Context, out io.Writer, args ...string) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	return root.ExecuteContext(ctx)
}

func TestUpstreamServesUntilStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, w, "upstream", "--listen", "127.0.0.1:0", "--log", filepath.Join(t.TempDir(), "log"), "--completion-tokens", "3", "--ignore-max")
		_ = w.CloseWithError(err) // never fails
		ended <- err
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	_, url, ok := strings.Cut(strings.TrimSpace(line), "listens on ")
	require.True(t, ok, line)

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"max_tokens":1,"messages":[{}]}`))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Contains(t, string(body), `"completion_tokens":3,`)
	cancel()
	require.NoError(t, <-ended)
}

func TestUpstreamBreaksOffWhatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, w, "upstream", "--listen", "127.0.0.1:0", "--hang", "before", "--grace", "1ms")
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	_, url, _ := strings.Cut(strings.TrimSpace(line), "listens on ")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	called := make(chan error, 1)
	go func() {
		resp, err := client.Get(url + "/v1/models")
		if err == nil {
			_ = resp.Body.Close()
		}
		called <- err
	}()
	resp, err := client.Get(url + "/_fake/wait?begun=1")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	cancel()
	require.ErrorContains(t, <-ended, "--grace 1ms")
	require.Error(t, <-called)
}

func TestUpstreamRefusesBadFlags(t *testing.T) {
	const free = "--listen=127.0.0.1:0"
	for _, args := range [][]string{
		{"upstream", free, "--usage", "never"},
		{"upstream", free, "--cut", "x"},
		{"upstream", "--listen", "nowhere:x"},
		{"upstream", free, "more"},
		{"upstream", free, "--log", "/nonexistent/dir/log"},
		{"nothing"},
	} {
		require.Error(t, run(t.Context(), io.Discard, args...), args)
	}
}
