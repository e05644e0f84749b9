package lua

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua/redistest"
	"tollgate/quota"
)

// nineAccounts is the longest chain, in periods that are not about to end.
func nineAccounts(tenant string, now int64) quota.Chain {
	const hour = 3_600_000
	windows := []quota.Window{{}, {Name: "m202611", Start: now - hour, End: now + hour}, {Name: "d20261130", Start: now - hour, End: now + hour}}
	var chain quota.Chain
	for i, p := range []quota.Period{quota.Ever, quota.Month, quota.Day} {
		for j, scope := range quota.Scopes {
			chain = append(chain, quota.Account{Scope: scope, ID: []string{tenant, "a_1", "k_1"}[j], Period: p, Window: windows[i]})
		}
	}
	return chain
}

// crowd is 100 workers over two stores that each spend 1 credit many times, on
// a limit that carries half of it.
type crowd struct {
	stores  [2]*Store
	tenant  string
	chain   quota.Chain
	loads   *Loads
	each    int
	settles bool // reserve and settle, instead of consume
}

func newCrowd(t *testing.T, url, tenant string, limited, each int) *crowd {
	c := &crowd{stores: [2]*Store{open(t, url), open(t, url)}, tenant: tenant, each: each, loads: &Loads{Version: 1}}
	c.chain = nineAccounts(tenant, c.stores[0].Now())
	if limited < 3 {
		c.chain = c.chain[:3]
	}
	for i := range c.chain {
		l := AccountLoad{Total: quota.Unlimited, MaxInflight: -1}
		if i == limited {
			l.Total = int64(100 * each / 2)
		}
		c.loads.Accounts = append(c.loads.Accounts, l)
	}
	return c
}

func (c *crowd) run(t *testing.T) {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			s := c.stores[w%2]
			for i := range c.each {
				id := fmt.Sprintf("%d-%d", w, i)
				a := &ReserveArgs{
					Target: Target{Tenant: c.tenant, ID: id, Chain: c.chain}, Amount: 1, TTL: time.Minute, Consume: !c.settles,
					Fingerprint: "f", Attempt: "t", PriceID: "p", Node: "n", NotAfter: s.Now() + 60_000,
				}
				got, err := persist(func() (ReserveReply, error) { return s.Reserve(t.Context(), a) })
				if err == nil && got.Outcome == NeedLoad {
					a.Loads = c.loads
					got, err = persist(func() (ReserveReply, error) { return s.Reserve(t.Context(), a) })
				}
				if err != nil || (got.Outcome != Done && got.Outcome != Short) {
					t.Errorf("%s: %+v %v", id, got, err)
					return
				}
				if got.Outcome == Short {
					continue
				}
				admitted.Add(1)
				if !c.settles {
					continue
				}
				end, err := persist(func() (SettleReply, error) {
					return s.Settle(t.Context(), &SettleArgs{Target: a.Target, Actual: 1, Tokens: -1})
				})
				if err != nil || end.Outcome != Done {
					t.Errorf("settle %s: %+v %v", id, end, err)
					return
				}
			}
		})
	}
	wg.Wait()
	want := int64(100 * c.each / 2)
	require.Equal(t, want, admitted.Load())
	states, err := c.stores[0].ReadAccounts(t.Context(), c.tenant, c.chain)
	require.NoError(t, err)
	for i, s := range states {
		require.Equal(t, quota.AccountState{Total: c.loads.Accounts[i].Total, Spent: want}, *s, "account %d", i)
	}
}

// persist repeats a call whose outcome is unknown: on a busy machine Redis may
// be starved until the client gives its connection up. A repeat has no second effect.
func persist[R any](call func() (R, error)) (R, error) {
	for tries := 0; ; tries++ {
		got, err := call()
		if err == nil || tries == 100 || !(errors.Is(err, ErrUnknown) || errors.Is(err, ErrNotSent)) {
			return got, err
		}
	}
}

// The limit carries half of what a crowd asks for: exactly that half gets in,
// whatever the scope and period of the limit, the path and the kind of Redis.
func TestExactUnderConcurrency(t *testing.T) {
	single, cluster := redistest.Start(t).URL(), redistest.StartCluster(t).URL()
	few, many := 50, 1000
	if long() {
		few = many
	}
	for _, tc := range []struct {
		name    string
		url     string
		limited int // place in the chain
		each    int
		settles bool
	}{
		{"org", single, 0, many, false},
		{"org, reserve and settle", single, 0, few, true},
		{"app", single, 1, few, false},
		{"key, reserve and settle", single, 2, few, true},
		{"month of the app", single, 4, few, false},
		{"day of the key, reserve and settle", single, 8, few, true},
		{"org on a cluster", cluster, 0, few, false},
		{"org on a cluster, reserve and settle", cluster, 0, few, true},
		{"day of the org on a cluster", cluster, 6, few, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCrowd(t, tc.url, fmt.Sprintf("t_%d%d%v", tc.limited, tc.each, tc.settles), tc.limited, tc.each)
			c.settles = tc.settles
			c.run(t)
		})
	}
}
