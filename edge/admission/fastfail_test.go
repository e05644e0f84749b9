package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/quota"
)

// clock is a time that tests set.
type clock struct{ now time.Time }

func (c *clock) time() time.Time { return c.now }

func (c *clock) add(d time.Duration) { c.now = c.now.Add(d) }

func shortCacheAt(t *testing.T) (*shortCache, *clock) {
	at := &clock{now: time.UnixMilli(1_800_000_000_000)}
	c := newShortCache(at.time)
	t.Cleanup(c.close)
	return c, at
}

var testChain = quota.Chain{{Scope: quota.Org, ID: "t_1"}, {Scope: quota.App, ID: "a_1"}, {Scope: quota.Key, ID: "k_1"}}

// refused is a decision that found the key with less than the need.
func refused(total, spent int64) *quota.Decision {
	unlimited := quota.AccountState{Total: quota.Unlimited}
	return &quota.Decision{Chain: testChain, States: []quota.AccountState{unlimited, unlimited, {Total: total, Spent: spent}}}
}

// learnt remembers a decision, and waits for the cache to take it.
func learnt(c *shortCache, epoch uint64, d *quota.Decision, need int64) {
	c.learn("t_1", epoch, d, need)
	c.entries.Wait()
}

func TestFastFailRefusesWhatIsKnownToBeShort(t *testing.T) {
	c, at := shortCacheAt(t)
	learnt(c, 7, refused(100, 90), 11)

	d, no, _ := c.refuses("t_1", 7, testChain, 11, 0)
	require.True(t, no)
	require.Equal(t, quota.InsufficientQuota, d.Refusal.Reason)
	require.Equal(t, quota.Key, d.Refusal.Scope)
	require.EqualValues(t, 10, d.Refusal.Remaining)
	require.Len(t, d.States, len(d.Chain))

	for name, try := range map[string]struct {
		tenant string
		epoch  uint64
		chain  quota.Chain
		need   int64
	}{
		"what fits":                      {"t_1", 7, testChain, 10},
		"after a change of the tenant":   {"t_1", 8, testChain, 11},
		"another tenant's":               {"t_2", 7, testChain, 11},
		"a chain without the short one":  {"t_1", 7, testChain[:2], 11},
		"another key of the same tenant": {"t_1", 7, quota.Chain{testChain[0], testChain[1], {Scope: quota.Key, ID: "k_2"}}, 11},
	} {
		_, no, _ := c.refuses(try.tenant, try.epoch, try.chain, try.need, 0)
		require.False(t, no, name)
	}
	_ = at
}

// When an entry's time is up, one request asks Redis; the others are refused meanwhile.
func TestFastFailLetsOneAsk(t *testing.T) {
	c, at := shortCacheAt(t)
	learnt(c, 7, refused(100, 90), 11)
	at.add(shortHigh + time.Millisecond)
	_, no, doubted := c.refuses("t_1", 7, testChain, 11, 0)
	require.False(t, no)
	require.NotNil(t, doubted)
	for range 10 {
		_, no, _ = c.refuses("t_1", 7, testChain, 11, 0)
		require.True(t, no)
	}
	at.add(shortHigh + time.Millisecond)
	_, no, _ = c.refuses("t_1", 7, testChain, 11, 0)
	require.False(t, no, "the next one may ask")
}

// Credits that came back without a change of documents (a settle, a release, an
// expiry) end an entry at the first request that Redis admits, not never.
func TestFastFailEndsWhenRedisAdmits(t *testing.T) {
	c, at := shortCacheAt(t)
	learnt(c, 7, refused(100, 90), 11)
	at.add(shortHigh + time.Millisecond)
	_, _, doubted := c.refuses("t_1", 7, testChain, 11, 0)
	doubted.over.Store(true)
	for range 100 {
		_, no, _ := c.refuses("t_1", 7, testChain, 11, 0)
		require.False(t, no)
	}
	learnt(c, 7, refused(100, 95), 11)
	_, no, _ := c.refuses("t_1", 7, testChain, 11, 0)
	require.True(t, no, "until it is short again")
}

// Credits in other nodes' leases may come back: such a refusal is not remembered.
func TestFastFailDoesNotLearnPending(t *testing.T) {
	c, _ := shortCacheAt(t)
	d := refused(100, 40)
	d.States[2].Prepaid, d.States[2].Leased = 50, 50
	learnt(c, 7, d, 11)
	_, no, _ := c.refuses("t_1", 7, testChain, 11, 0)
	require.False(t, no)
}
