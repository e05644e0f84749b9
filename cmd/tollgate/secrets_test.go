package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// No key, token or credential is in any log or metric, whatever is sent; and the logs can be read.
func TestNothingSecretIsTold(t *testing.T) {
	for format, readable := range map[string]func(string) bool{"text": readableText, "json": readableJSON} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.node(settings{log: "{level: debug, format: " + format + "}"})
			secret := n.tenant("t_quiet", 500)
			rotated := n.must("POST", "/tenants/t_quiet/keys/k_1/rotate", `{"overlap":"1h"}`)["secret"].(string)
			const prompt = "a-prompt-that-is-nobodys-business"
			secrets := []string{secret, rotated, adminToken, upstreamKey, prompt}
			chat := strings.Replace(hello, "hello", prompt, 1)
			flip := map[byte]string{'x': "y"}[secret[10]] // another letter in the middle: a wrong checksum
			if flip == "" {
				flip = "x"
			}
			wrong := secret[:10] + flip + secret[11:]
			secrets = append(secrets, wrong)

			// Good and bad calls of every sort.
			require.Equal(t, 200, n.post("/v1/chat/completions", secret, chat).status)
			require.Equal(t, 200, n.post("/v1/chat/completions", rotated, chat).status)
			require.NoError(t, n.chatStream(secret, "fake-p1-c2").rest())
			require.Equal(t, 401, n.post("/v1/chat/completions", wrong, chat).status)
			require.Equal(t, 401, n.do("POST", n.url+"/v1/chat/completions", "", chat, "Authorization", "Basic "+secret).status)
			require.Equal(t, 400, n.do("POST", n.url+"/v1/chat/completions", secret, chat, "x-api-key", rotated).status)
			require.Equal(t, 400, n.post("/v1/chat/completions", secret, chat+`{`).status)
			require.Equal(t, 400, n.post("/v1/quota/consume", secret, `{"cost":1,"`+secret+`":2}`).status)
			require.Equal(t, 404, n.post("/v2/"+secret, secret, chat).status)
			require.Equal(t, 429, n.consume(secret, 100_000).status)
			require.Equal(t, 431, n.do("POST", n.url+"/v1/chat/completions", secret, chat, "x-long", strings.Repeat(secret, 3000)).status)
			for _, behaviour := range []string{"before", "headers", "2"} {
				n.post("/v1/chat/completions", secret, chat, "x-fake-cut", behaviour)
			}
			require.Equal(t, 500, n.post("/v1/chat/completions", secret, chat, "x-fake-status", "500").status)
			require.Equal(t, 502, n.post("/v1/chat/completions", secret, chat, "x-fake-status", "401").status, "the upstream refuses the node's credential")
			gone := n.chatStream(secret, "fake-p1-c50", "x-fake-hang", "3")
			gone.events(3)
			require.NoError(t, gone.res.Body.Close())
			require.Equal(t, 401, n.do("GET", n.admin+"/admin/v1/tenants", secret, "").status)
			require.Equal(t, 400, n.ask("POST", "/tenants", `{"id":"`+secret+`","total":1}`).status)
			require.Equal(t, 400, n.ask("POST", "/tenants/"+secret+"/suspend", "").status)
			require.Equal(t, 404, n.ask("GET", "/"+secret, "").status)
			r.settled("t_quiet")
			// With Redis away errors are logged.
			r.redis.Stop()
			require.Equal(t, 503, n.post("/v1/chat/completions", secret, chat).status)
			require.Equal(t, 503, n.post("/v1/chat/completions", rotated, chat).status)
			require.Contains(t, []int{202, 503}, n.ask("POST", "/tenants/t_quiet/adjust", `{"scope":"org","delta":1}`).status)
			require.NoError(t, r.redis.Restart())
			eventually(t, "the node serves again", func() bool { return n.consume(secret, 1).status == 200 })

			metrics := n.do("GET", n.admin+"/metrics", adminToken, "")
			require.Equal(t, 200, metrics.status)
			require.Equal(t, 401, n.do("GET", n.admin+"/metrics", "", "").status)
			n.signal(syscall.SIGTERM)
			require.Zero(t, n.code())
			served, err := os.ReadFile(filepath.Join(r.dir, "upstream.log"))
			require.NoError(t, err)
			require.NotEmpty(t, served)
			for name, text := range map[string]string{"the node's log": n.out.String(), "the metrics": string(metrics.body), "the upstream's output": r.fake.out.String(), "the upstream's log": string(served)} {
				for _, s := range secrets {
					require.NotContains(t, text, s, name)
					if strings.HasPrefix(s, "tg-") {
						require.NotContains(t, text, s[3:27], "%s: the random part", name)
					}
				}
			}
			ledger, err := os.ReadFile(filepath.Join(r.dir, "ledger.db"))
			require.NoError(t, err)
			require.NotContains(t, string(ledger), secret[3:27])
			for line := range strings.Lines(n.out.String()) {
				require.True(t, readable(strings.TrimSuffix(line, "\n")), "an odd line in the log: %q", line)
			}
		})
	}
}

var textLine = regexp.MustCompile(`^time=\S+ level=(DEBUG|INFO|WARN|ERROR) msg=("[^"]+"|\S+)( [a-z_]+=("([^"\\]|\\.)*"|\S*))*$`)

func readableText(line string) bool { return textLine.MatchString(line) }

func readableJSON(line string) bool {
	var m struct{ Time, Level, Msg string }
	return json.Unmarshal([]byte(line), &m) == nil && m.Time != "" && m.Level != "" && m.Msg != ""
}
