package edge_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const chatBody = `{"model":"fake-p12-c34","messages":[{"role":"user","content":"hello"}],"max_tokens":100}`

func TestChatIsChargedWhatTheUpstreamReports(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_chat", 10_000)
	a := n.post("/v1/chat/completions", secret, chatBody)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.EqualValues(t, 46, a.json(t)["usage"].(map[string]any)["total_tokens"])
	require.EqualValues(t, 46, n.settled("t_chat").Spent)

	a = n.post("/v1/chat/completions", secret, strings.Replace(chatBody, `{"model"`, `{"stream":true,"model"`, 1))
	require.Equal(t, 200, a.status)
	require.Contains(t, string(a.body), "data: [DONE]")
	require.NotContains(t, string(a.body), `"usage":{`, "the chunk that only the node asked for")
	require.EqualValues(t, 92, n.settled("t_chat").Spent)
}

func TestDecisionAPI(t *testing.T) {
	r := newRig(t)
	n := r.node()
	secret := r.tenant("t_dec", 1000)
	a := n.post("/v1/quota/reserve", secret, `{"request_id":"r1","cost":600}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	t.Logf("%s\n%v", a.body, a.header)
	b := n.post("/v1/quota/reserve", secret, `{"request_id":"r1","cost":600}`)
	require.Equal(t, true, b.json(t)["duplicate"])
	b = n.post("/v1/quota/reserve", secret, `{"request_id":"r1","cost":601}`)
	require.Equal(t, 409, b.status)
	b = n.post("/v1/quota/reserve", secret, `{"cost":401}`)
	require.Equal(t, 429, b.status)
	t.Logf("%s\n%v", b.body, b.header)
	b = n.post("/v1/quota/settle", secret, `{"request_id":"r1","actual":450}`)
	require.Equal(t, 200, b.status, "%s", b.body)
	t.Logf("%s", b.body)
	b = n.post("/v1/quota/consume", secret, `{"cost":50}`)
	require.Equal(t, 200, b.status, "%s", b.body)
	t.Logf("%s", b.body)
	b = n.do("GET", "/v1/quota/balance", secret, "")
	t.Logf("%s", b.body)
	require.EqualValues(t, 500, n.settled("t_dec").Spent)
}
