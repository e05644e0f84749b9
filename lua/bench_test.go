package lua_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	. "tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// BenchmarkConsume is one reserve-and-settle on three accounts, from 64 callers at once.
func BenchmarkConsume(b *testing.B) {
	r := redistest.Start(b)
	s, err := Open(b.Context(), Options{Name: "default", URL: r.URL()})
	require.NoError(b, err)
	defer s.Close()
	chain := quota.Chain{{Scope: quota.Org, ID: "t_b"}, {Scope: quota.App, ID: "a_b"}, {Scope: quota.Key, ID: "k_b"}}
	free := AccountLoad{Total: quota.Unlimited, MaxInflight: -1}
	loads := &Loads{Version: 1, Accounts: []AccountLoad{free, free, free}}
	var serial atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := fmt.Sprint(serial.Add(1))
			got, err := s.Reserve(b.Context(), &ReserveArgs{
				Target: Target{Tenant: "t_b", ID: id, Chain: chain, Loads: loads},
				Amount: 1, Consume: true, Fingerprint: "f", Attempt: "a" + id, Node: "n", NotAfter: s.Now() + 10_000,
			})
			if err != nil || got.Outcome != Done {
				b.Errorf("%v %v", got.Outcome, err)
				return
			}
		}
	})
	b.StopTimer()
	info, _ := r.Do("INFO", "commandstats")
	for line := range strings.Lines(info.(string)) {
		if strings.Contains(line, "evalsha") {
			b.Log(line)
		}
	}
}
