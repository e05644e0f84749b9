package edge_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startNginx runs nginx with testdata/nginx.conf in front of a node, and returns its URL.
func startNginx(t *testing.T, node, backend string) string {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // Debian keeps it off an ordinary user's PATH
		_, err = os.Stat(path)
	}
	require.NoError(t, err, "nginx is needed: apt-get install nginx-light")
	text, err := os.ReadFile(filepath.Join("testdata", "nginx.conf"))
	require.NoError(t, err)
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	conf := filepath.Join(dir, "nginx.conf")
	filled := strings.NewReplacer("@DIR@", dir, "@LISTEN@", addr, "@NODE@", node, "@BACKEND@", backend).Replace(string(text))
	require.NoError(t, os.WriteFile(conf, []byte(filled), 0o600))
	cmd := exec.Command(path, "-p", dir, "-c", conf, "-e", filepath.Join(dir, "error.log"))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
	return "http://" + addr
}

func TestNginxAuthRequest(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_nginx", 12)
	front := startNginx(t, n.url, r.fake.URL())
	get := func(key string, header ...string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front+"/any/path?cost=1", strings.NewReader("body"))
		require.NoError(t, err)
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := r.client.Do(req)
		require.NoError(t, err)
		res.Body.Close()
		return res
	}
	require.Equal(t, 401, get("").StatusCode)
	require.Equal(t, 401, get("tg-unknown").StatusCode)
	first := get(secret, "cost", "0", "x-quota-cost", "0")
	require.Equal(t, 200, first.StatusCode)
	require.Equal(t, "7", first.Header.Get("x-ratelimit-remaining"))
	require.Equal(t, 200, get(secret).StatusCode)
	refused := get(secret)
	require.Equal(t, 429, refused.StatusCode, "5 needed, 2 left")
	require.Equal(t, "60", refused.Header.Get("Retry-After"))
	require.EqualValues(t, 10, n.settled("t_nginx").Spent)
	require.EqualValues(t, 2, r.fake.Totals().Calls, "what was refused never reached the service")

	// Without deny=403 the true status is told directly; the query takes nothing else.
	require.Equal(t, 429, n.post("/v1/quota/auth?cost=5", secret, "").status)
	require.Equal(t, 200, n.do("GET", "/v1/quota/auth", secret, "").status)
	require.Equal(t, 400, n.do("GET", "/v1/quota/auth?cost=0", secret, "").status)
	require.Equal(t, 400, n.do("GET", "/v1/quota/auth?price=1", secret, "").status)
	// Envoy puts the client's path and query behind the prefix: no price for the client there.
	require.Equal(t, 200, n.do("GET", "/v1/quota/auth/any/path?cost=0&deny=403", secret, "").status)
	require.EqualValues(t, 12, n.settled("t_nginx").Spent)
	require.Equal(t, 429, n.do("GET", "/v1/quota/auth/any/path?deny=403", secret, "").status)
}
