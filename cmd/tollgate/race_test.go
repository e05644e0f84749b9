//go:build long

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A node built with the race detector, under all that clients and operators do at once. Needs a C
// compiler; make e2e runs it.
func TestRaceDetectorUnderMixedLoad(t *testing.T) {
	raced := filepath.Join(binaries, "tollgate-race")
	build := exec.Command("go", "build", "-race", "-o", raced, "tollgate/cmd/tollgate")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	r := newRig(t)
	r.program = "tollgate-race"
	a, b := r.node(settings{log: "{level: info}"}), r.node(settings{log: "{level: info}", shutdown: "{grace: 1s}"})
	secret := a.tenant("t_race", 100_000)
	second := a.key("t_race", "k_2")
	var calls, turns atomic.Int64
	end := time.Now().Add(10 * time.Second)
	crowd(8, 1, func(w int) (int, []byte) {
		for i := 0; time.Now().Before(end); i++ {
			n := []*node{a, b}[(w+i)%2]
			calls.Add(1)
			switch i % 7 {
			case 0:
				n.post("/v1/chat/completions", secret, hello)
			case 1:
				n.post("/v1/chat/completions", second, `{"model":"fake-c9","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
			case 2:
				id := fmt.Sprintf(`{"request_id":"r-%d-%d",`, w, i)
				n.post("/v1/quota/reserve", secret, id+`"cost":9}`)
				[]*node{b, a}[(w+i)%2].post("/v1/quota/settle", secret, id+`"actual":7}`)
			case 3:
				n.post("/v1/chat/completions", secret, hello, "x-fake-cut", "2")
			case 4:
				n.do("GET", n.url+"/v1/quota/balance", second, "")
			case 5:
				n.consume(second, 3)
			case 6:
				switch turns.Add(1) % 6 {
				case 0:
					n.ask("PATCH", "/tenants/t_race", `{"limits":{"concurrency":6}}`)
				case 1:
					n.ask("POST", "/tenants/t_race/adjust", `{"scope":"org","delta":500}`)
				case 2:
					n.ask("POST", "/tenants/t_race/keys/k_2/suspend", "")
				case 3:
					n.ask("POST", "/tenants/t_race/keys/k_2/resume", "")
				case 4:
					n.ask("GET", "/tenants/t_race/usage", "")
				case 5:
					n.do("GET", n.admin+"/metrics", adminToken, "")
				}
			}
		}
		return 200, nil
	}, func(int, []byte) {})
	b.chatStream(secret, "fake-c20", "x-fake-hang", "3").events(3)
	b.signal(syscall.SIGTERM)
	a.signal(syscall.SIGTERM)
	require.Zero(t, a.code(), a.out.String()) // the detector's own code is 66
	require.Zero(t, b.code(), b.out.String())
	require.NotContains(t, a.out.String()+b.out.String(), "DATA RACE")
	require.Zero(t, r.account("t_race").Prepaid)
	t.Logf("%d calls", calls.Load())
}
