package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fileURL names a ledger in the test's own folder.
func fileURL(t testing.TB) string {
	return "sqlite://" + filepath.Join(t.TempDir(), "data", "ledger.db")
}

// openAt opens a ledger and closes it with the test.
func openAt(t testing.TB, url string, opt Options) *DB {
	db, err := Open(t.Context(), url, opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func openNew(t testing.TB) *DB { return openAt(t, fileURL(t), Options{Stores: []string{"big"}}) }

// clock is a wall clock that only the test moves.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time { return time.UnixMilli(c.ms.Load()) }

var opSerial atomic.Int64

// op makes an operation that no other test has, with its id as content.
func op(what string) Op {
	id := fmt.Sprintf("op-%d", opSerial.Add(1))
	return Op{ID: id, Who: "test", What: what, Digest: sha256.Sum256([]byte(id))}
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

//go:fix inline
func ptr[T any](v T) *T { return new(v) }

// seed makes t_x with app a_y and key k_z, all totals unlimited except the tenant's.
func seed(t testing.TB, db *DB, total int64) quota.Principal {
	ctx := t.Context()
	_, _, err := db.CreateTenant(ctx, op("tenant.create"), Tenant{ID: "t_x", Name: "X", Total: total})
	require.NoError(t, err)
	_, _, err = db.CreateApp(ctx, op("app.create"), App{ID: "a_y", Tenant: "t_x", Total: quota.Unlimited})
	require.NoError(t, err)
	_, _, err = db.CreateKey(ctx, op("key.create"), Key{ID: "k_z", Tenant: "t_x", App: "a_y", Total: quota.Unlimited}, hashOf("first"))
	require.NoError(t, err)
	return quota.Principal{Tenant: "t_x", App: "a_y", Key: "k_z"}
}

// drain plays the publisher: it takes what is due off the queue and gives it.
func drain(t require.TestingT, db *DB) []Publication {
	list, err := db.Publications(context.Background(), "", 0)
	require.NoError(t, err)
	for _, p := range list {
		require.NoError(t, db.DonePublication(context.Background(), p))
	}
	return list
}
