package ledger

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/quota"
)

// newAdjuster is one whose repair does not run.
func newAdjuster(db *DB, stores map[string]*lua.Store) *Adjuster {
	return &Adjuster{outbox: outbox{db: db, stores: stores}}
}

var orgOfX = quota.Account{Scope: quota.Org, ID: "t_x"}

// totals gives the org's total in SQL and in Redis, loading it there if need be.
func totals(t testing.TB, db *DB, store *lua.Store) (inSQL, inRedis int64) {
	loads, err := db.LoadAccounts(t.Context(), "t_x", quota.Chain{orgOfX})
	require.NoError(t, err)
	r, err := store.Load(t.Context(), "t_x", quota.Chain{orgOfX}, &loads)
	require.NoError(t, err)
	require.Equal(t, lua.Done, r.Outcome)
	return loads.Accounts[0].Total, r.States[0].Total
}

func TestAdjustOutcomes(t *testing.T) {
	s, store, stores := redis(t)
	db := openNew(t)
	seed(t, db, 1000)
	a := newAdjuster(db, stores)
	adjust := func(scope quota.Scope, id string, delta int64) Adjustment {
		t.Helper()
		got, _, err := a.Adjust(t.Context(), op("adjust"), "t_x", scope, id, delta)
		require.NoError(t, err)
		return got
	}
	got := adjust(quota.Org, "t_x", 500) // Redis does not hold the account yet
	assert.Equal(t, AdjustApplied, got.State)
	assert.Equal(t, &AdjustAnswer{Total: 1500}, got.Answer())

	do(t, s, "HSET", lua.AccountKey("t_x", orgOfX), "spent", "100", "prepaid", "20", "inflight", "1")
	got = adjust(quota.Org, "t_x", -1381)
	assert.Equal(t, AdjustRefused, got.State)
	assert.Equal(t, RefusedBelowUsage, got.Reason)
	assert.Equal(t, &AdjustAnswer{Total: 1500, Prepaid: 20, Spent: 100}, got.Answer())
	got = adjust(quota.Org, "t_x", -1380)
	assert.Equal(t, AdjustApplied, got.State, "down to what is used")
	assert.Equal(t, &AdjustAnswer{Total: 120, Prepaid: 20, Spent: 100}, got.Answer())

	assert.Equal(t, RefusedUnlimited, adjust(quota.App, "a_y", 1).Reason)
	assert.Equal(t, RefusedUnlimited, adjust(quota.Key, "k_z", -1).Reason)
	assert.Equal(t, RefusedTooLarge, adjust(quota.Org, "t_x", quota.CreditsMax).Reason)
	_, _, err := a.Adjust(t.Context(), op("adjust"), "t_x", quota.App, "a_none", 1)
	require.ErrorIs(t, err, ErrNotFound)
	_, _, err = a.Adjust(t.Context(), op("adjust"), "t_x", quota.Org, "t_x", 0)
	require.ErrorIs(t, err, ErrInvalid)

	inSQL, inRedis := totals(t, db, store)
	assert.Equal(t, int64(120), inSQL)
	assert.Equal(t, int64(120), inRedis)
	list, err := db.Publications(t.Context(), "default", 0)
	require.NoError(t, err)
	for _, p := range list {
		assert.Equal(t, PublishSecret, p.Kind, "an adjustment leaves nothing that keeps loads out")
	}
}

func TestAdjustRepeat(t *testing.T) {
	_, store, stores := redis(t)
	db := openNew(t)
	seed(t, db, 1000)
	a := newAdjuster(db, stores)
	again := op("adjust")
	for i := range 3 {
		got, repeat, err := a.Adjust(t.Context(), again, "t_x", quota.Org, "t_x", 5)
		require.NoError(t, err)
		assert.Equal(t, i > 0, repeat)
		assert.Equal(t, &AdjustAnswer{Total: 1005}, got.Answer())
	}
	inSQL, inRedis := totals(t, db, store)
	assert.Equal(t, int64(1005), inSQL)
	assert.Equal(t, int64(1005), inRedis)
}

// A crash before or after any message to Redis, with or without the loss of all
// of Redis, with or without a load by a node in between: each counts once.
func TestAdjustSurvivesCrashes(t *testing.T) {
	s, store, stores := redis(t)
	for crashAt := range 3 { // of the two messages of one adjustment; 2: none
		for _, after := range []bool{false, true} {
			for _, lost := range []string{"", "account", "all"} {
				for _, loaded := range []bool{false, true} {
					name := fmt.Sprintf("message %d, after it ran: %t, lost: %q, loaded again: %t", crashAt, after, lost, loaded)
					do(t, s, "FLUSHALL")
					db := openNew(t)
					seed(t, db, 1000)
					a := newAdjuster(db, stores)
					require.NoError(t, newPublisher(db, stores).Publish(t.Context(), "t_x"))
					totals(t, db, store)

					adj, _, err := db.BeginAdjust(t.Context(), op("adjust"), "t_x", quota.Org, "t_x", 7)
					require.NoError(t, err)
					calls := 0
					crash := func(ctx context.Context, adj Adjustment, force bool) (reply AdjustReply, err error) {
						calls++
						if calls-1 == crashAt && !after {
							return reply, errCrash
						}
						if reply, err = a.send(ctx, adj, force); calls-1 == crashAt && err == nil {
							err = errCrash
						}
						return reply, err
					}
					err = db.BringAdjusts(t.Context(), Subject{"t_x", quota.Org, "t_x"}, crash)
					if crashAt < 2 {
						require.ErrorIs(t, err, errCrash, name)
					} else {
						require.NoError(t, err, name)
					}
					switch lost {
					case "account":
						do(t, s, "DEL", lua.AccountKey("t_x", orgOfX))
					case "all":
						do(t, s, "FLUSHALL")
					}
					if loaded {
						require.NoError(t, newPublisher(db, stores).Publish(t.Context(), "t_x"))
						totals(t, db, store)
					}
					require.NoError(t, a.bring(t.Context(), Subject{"t_x", quota.Org, "t_x"}), name)
					inSQL, inRedis := totals(t, db, store)
					assert.Equal(t, int64(1007), inSQL, name)
					assert.Equal(t, int64(1007), inRedis, name)
					adj, err = db.GetAdjust(t.Context(), "t_x", quota.Org, "t_x", adj.Num)
					require.NoError(t, err)
					assert.Equal(t, AdjustApplied, adj.State, name)
				}
			}
		}
	}
}

// Two nodes adjust one account at once, while Redis forgets everything now and then.
func TestAdjustAtOnce(t *testing.T) {
	s, store, stores := redis(t)
	db := openNew(t)
	seed(t, db, 1000)
	const workers, each = 4, 5
	var wait sync.WaitGroup
	for w := range workers {
		a := newAdjuster(db, stores)
		wait.Go(func() {
			for i := range each {
				got, _, err := a.Adjust(t.Context(), op("adjust"), "t_x", quota.Org, "t_x", 1)
				assert.NoError(t, err)
				assert.NotEqual(t, AdjustRefused, got.State)
				if w == 0 && i%2 == 0 {
					_, err := s.Do("FLUSHALL")
					assert.NoError(t, err)
				}
			}
		})
	}
	wait.Wait()
	require.NoError(t, newAdjuster(db, stores).bring(t.Context(), Subject{"t_x", quota.Org, "t_x"}))
	inSQL, inRedis := totals(t, db, store)
	assert.Equal(t, int64(1000+workers*each), inSQL)
	assert.Equal(t, int64(1000+workers*each), inRedis)
}

func TestAdjustWhileRedisIsAway(t *testing.T) {
	s, store, stores := redis(t)
	wall := new(clock)
	wall.ms.Store(time.Now().UnixMilli())
	db := openAt(t, fileURL(t), Options{Now: wall.now})
	seed(t, db, 1000)
	s.Stop()
	a := NewAdjuster(db, stores)
	defer a.Close()
	begun := time.Now()
	for i := range 3 {
		got, _, err := a.Adjust(t.Context(), op("adjust"), "t_x", quota.Org, "t_x", int64(i+1))
		require.NoError(t, err)
		assert.Equal(t, AdjustPending, got.State)
	}
	assert.Less(t, time.Since(begun), 3*adjustTimeout, "nobody waits longer than that")
	assert.Nil(t, (&Adjustment{}).Answer())

	require.NoError(t, s.Restart())
	wall.ms.Add(2 * adjustGrace.Milliseconds())
	require.Eventually(t, func() bool {
		list, err := db.OpenAdjusts(t.Context(), Subject{"t_x", quota.Org, "t_x"})
		return err == nil && len(list) == 0
	}, 15*time.Second, 20*time.Millisecond)
	inSQL, inRedis := totals(t, db, store)
	assert.Equal(t, int64(1006), inSQL)
	assert.Equal(t, int64(1006), inRedis)
	assert.Equal(t, strconv.Itoa(3), do(t, s, "HGET", lua.AccountKey("t_x", orgOfX), "adj"))
}
