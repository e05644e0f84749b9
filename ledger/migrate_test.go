package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenTwiceAtOnce(t *testing.T) {
	for range 10 {
		url := fileURL(t)
		const openers = 4
		var wg sync.WaitGroup
		dbs, errs := [openers]*DB{}, [openers]error{}
		for i := range openers {
			wg.Go(func() { dbs[i], errs[i] = Open(t.Context(), url, Options{}) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		for _, db := range dbs {
			assert.Equal(t, dbs[0].ID(), db.ID())
			assert.Len(t, db.ID(), 32)
		}
		var applied, tables int
		require.NoError(t, dbs[1].reader.QueryRow(`SELECT COUNT(*) FROM schema_version`).Scan(&applied))
		require.NoError(t, dbs[2].reader.QueryRow(`SELECT COUNT(*) FROM sqlite_master WHERE name = 'tenant'`).Scan(&tables))
		list, err := migrations(migrationFiles)
		require.NoError(t, err)
		assert.Equal(t, len(list), applied)
		assert.Equal(t, 1, tables)
		for _, db := range dbs {
			require.NoError(t, db.Close())
		}
		again := openAt(t, url, Options{})
		assert.Equal(t, dbs[0].ID(), again.ID())
	}
}

func TestOpenSettings(t *testing.T) {
	db := openNew(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		var got string
		require.NoError(t, db.writer.QueryRow(`PRAGMA `+pragma).Scan(&got))
		assert.Equal(t, want, got, pragma)
	}
	_, err := db.reader.Exec(`DELETE FROM meta`)
	assert.Error(t, err, "readers must not write")
}

func TestOpenRefusesNewerSchema(t *testing.T) {
	url := fileURL(t)
	db := openAt(t, url, Options{})
	_, err := db.writer.Exec(`INSERT INTO schema_version (version, name, applied_at) VALUES (9999, 'later', 0)`)
	require.NoError(t, err)
	_, err = Open(t.Context(), url, Options{})
	assert.ErrorIs(t, err, ErrNewerSchema)
}

func TestURL(t *testing.T) {
	wd, err := os.Getwd()
	require.NoError(t, err)
	for url, want := range map[string]string{
		"sqlite://data/ledger.db":    filepath.Join(wd, "data/ledger.db"),
		"sqlite:///var/lib/l.db":     "/var/lib/l.db",
		"sqlite://a b%/c.db":         filepath.Join(wd, "a b%/c.db"),
		"sqlite://":                  "",
		"sqlite://dir/":              "",
		"sqlite://l.db?mode=memory":  "",
		"mysql://user:secret@db/x":   "",
		"data/ledger.db":             "",
		"sqlite://l.db#x":            "",
		"SQLITE://l.db":              "",
		"postgres://u:secret@host/d": "",
	} {
		path, err := sqlitePath(url)
		assert.Equal(t, want, path, url)
		if want == "" {
			assert.ErrorIs(t, err, ErrURL, url)
			assert.NotContains(t, err.Error(), "secret")
		}
	}
	db := openAt(t, "sqlite://"+filepath.Join(t.TempDir(), "odd %41 name", "l&=;.db"), Options{})
	assert.NoError(t, db.Ping(t.Context()))
}

func TestMigrationFiles(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	list, err := migrations(fstest.MapFS{
		"migrations/0001_a.sql": file("-- note;\nCREATE TABLE a (\n  x BIGINT\n);\n\nCREATE TABLE b (x BIGINT);\n"),
		"migrations/0002_b.sql": file("CREATE INDEX i ON a (x)"),
	})
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, []string{"CREATE TABLE a (\n  x BIGINT\n)", "CREATE TABLE b (x BIGINT)"}, list[0].statements)
	assert.Equal(t, []string{"CREATE INDEX i ON a (x)"}, list[1].statements)
	_, err = migrations(fstest.MapFS{"migrations/0002_b.sql": file("")})
	assert.Error(t, err, "a gap in the numbers")
}
