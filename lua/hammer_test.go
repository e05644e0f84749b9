package lua_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "tollgate/lua"
	"tollgate/lua/redistest"
	"tollgate/quota"
)

// TestTenThousandOnOneBucket: 10,000 goroutines on one bucket for 5 s get what
// flows in and the burst, no more; and no less than what flows in, since a
// bucket that is asked all the time must refill all the same.
func TestTenThousandOnOneBucket(t *testing.T) {
	r := redistest.Start(t)
	const callers, lasts = 10_000, 5 * time.Second
	const rate, burst = 2000, 500 // per second
	for _, procs := range []int{1, 2} {
		t.Run(fmt.Sprint("GOMAXPROCS=", procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			s, err := Open(t.Context(), Options{Name: "default", URL: r.URL()})
			require.NoError(t, err)
			defer s.Close()
			tenant := fmt.Sprint("t_hammer", procs)
			bucket := []BucketArg{{Scope: quota.Key, ID: "k_1", Unit: quota.UnitRPS, Limit: quota.Bucket{Rate: rate, Burst: burst}}}
			var admitted, refused atomic.Int64
			var crowd sync.WaitGroup
			start := time.Now()
			first := s.Now()
			for range callers {
				crowd.Go(func() {
					for time.Since(start) < lasts {
						got, err := s.Take(t.Context(), tenant, bucket, 1, 1, s.Now()+60_000)
						switch {
						case errors.Is(err, ErrNotSent): // as many as may are in flight
							<-time.After(200 * time.Millisecond)
						case err != nil:
							// The answer was lost, the token perhaps taken: it counts as admitted nowhere, which only lowers the sum.
						case got.Outcome == Done:
							admitted.Add(1)
						default:
							refused.Add(1)
						}
					}
				})
			}
			crowd.Wait()
			require.NoError(t, s.Ping(t.Context()))
			seconds := float64(s.Now()-first+5) / 1000 // Redis' own time, from before the first call to after the last
			most := rate*seconds + burst
			t.Logf("%d admitted, %d refused in %.2f s; %.0f could be", admitted.Load(), refused.Load(), seconds, most)
			require.LessOrEqual(t, float64(admitted.Load()), most)
			require.Greater(t, float64(admitted.Load()), 0.5*rate*lasts.Seconds(), "it refills while it is hammered")
		})
	}
}
