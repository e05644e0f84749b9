package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Defaults and bounds of Options.
const (
	writeTimeoutDefault = 5 * time.Second
	readConnsDefault    = 4
	busyTimeout         = 5 * time.Second       // how long SQLite waits for another process' write; the caller's ctx ends it earlier
	openRetryPause      = 20 * time.Millisecond // between attempts to open while another process switches the file to WAL
)

// Options are what Open cannot know by itself.
type Options struct {
	// Stores are the names a tenant's store may have. "default" is always known.
	Stores []string
	// CheckPolicy refuses a policy object with unknown fields or bad values; its
	// error is shown to the administrator. nil: any JSON object will do.
	CheckPolicy func(policy []byte) error
	// Now is the wall clock that rows are stamped with. nil: time.Now.
	Now func() time.Time
	// WriteTimeout bounds every write, waiting for its turn included. Default 5 s.
	// Too low: writes fail while another process holds the database; too high:
	// an administrator waits as long for the bad news.
	WriteTimeout time.Duration
	// ReadConns bounds reads at once; more wait. Default 4.
	ReadConns int
}

// DB is an open ledger. Its methods may be called concurrently.
type DB struct {
	opt    Options
	d      dialect
	writer *sql.DB // one connection: SQLite has one writer, and waiting in Go honours ctx
	reader *sql.DB
	id     string
}

// dialect is everything that differs between SQL servers.
type dialect struct {
	rebind   func(query string) string // from ? to the server's placeholders
	isUnique func(error) bool          // a primary key or unique index refused the row
	isBusy   func(error) bool          // worth another try: the server was locked or aborted us
	writeTx  *sql.TxOptions            // must read what was committed before a row lock was had
	readTx   *sql.TxOptions            // one snapshot for all reads
	// lockSchema keeps other processes from migrating until the transaction ends.
	lockSchema func(ctx context.Context, t *tx) error
}

// Open opens the ledger that the URL names, creates it if it is missing, and
// migrates it to this program's schema. Close it in the end.
func Open(ctx context.Context, ledgerURL string, opt Options) (*DB, error) {
	path, err := sqlitePath(ledgerURL)
	if err != nil {
		return nil, err
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.WriteTimeout <= 0 {
		opt.WriteTimeout = writeTimeoutDefault
	}
	if opt.ReadConns <= 0 {
		opt.ReadConns = readConnsDefault
	}
	db := &DB{opt: opt, d: sqliteDialect}
	if err := db.openSQLite(ctx, path); err != nil {
		db.Close()
		return nil, fmt.Errorf("ledger: open: %w", err)
	}
	if err := db.migrate(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("ledger: migrate: %w", err)
	}
	return db, nil
}

// Close waits for running calls and closes the database.
func (db *DB) Close() error {
	var errs []error
	for _, pool := range []*sql.DB{db.reader, db.writer} {
		if pool != nil {
			errs = append(errs, pool.Close())
		}
	}
	return errors.Join(errs...)
}

// ID names this ledger: made once with the database, never changed. Each Redis
// store is marked with it (tgledger), so that a store serves one ledger only.
func (db *DB) ID() string { return db.id }

// Ping says whether the ledger answers reads.
func (db *DB) Ping(ctx context.Context) error { return db.reader.PingContext(ctx) }

// sqlitePath gives the file that sqlite://PATH names. Errors never repeat the
// URL: it may carry a password.
func sqlitePath(ledgerURL string) (string, error) {
	scheme, path, ok := strings.Cut(ledgerURL, "://")
	if !ok || scheme != "sqlite" || path == "" || strings.ContainsAny(path, "?#\x00") || strings.HasSuffix(path, "/") {
		return "", ErrURL
	}
	return filepath.Abs(path)
}

var sqliteDialect = dialect{
	rebind: func(query string) string { return query },
	isUnique: func(err error) bool {
		code := sqliteCode(err)
		return code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY || code == sqlite3.SQLITE_CONSTRAINT_UNIQUE
	},
	isBusy: func(err error) bool { return sqliteCode(err)&0xff == sqlite3.SQLITE_BUSY },
	// Writers begin immediately, so the transaction itself is the lock.
	lockSchema: func(context.Context, *tx) error { return nil },
}

// sqliteCode gives SQLite's extended result code, or 0.
func sqliteCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

func (db *DB) openSQLite(ctx context.Context, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	dsn := func(more string) string {
		return fmt.Sprintf("file://%s?_busy_timeout=%d&_foreign_keys=1&_dqs=0%s",
			(&url.URL{Path: path}).EscapedPath(), busyTimeout.Milliseconds(), more)
	}
	var err error
	if db.writer, err = sql.Open("sqlite", dsn("&_journal_mode=WAL&_synchronous=FULL&_txlock=immediate")); err != nil {
		return err
	}
	db.writer.SetMaxOpenConns(1)
	// Two processes that turn a new file to WAL at once: one of them is told
	// "busy" whatever its busy_timeout.
	ctx, cancel := context.WithTimeout(ctx, db.opt.WriteTimeout)
	defer cancel()
	for {
		err = db.writer.PingContext(ctx)
		if err == nil || !db.d.isBusy(err) {
			break
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(openRetryPause):
		}
	}
	if err != nil {
		return err
	}
	if db.reader, err = sql.Open("sqlite", dsn("&_query_only=1")); err != nil {
		return err
	}
	db.reader.SetMaxOpenConns(db.opt.ReadConns)
	db.reader.SetMaxIdleConns(db.opt.ReadConns)
	return nil
}

// tx is one transaction, with the time its rows are stamped with.
type tx struct {
	*sql.Tx
	d   *dialect
	now int64 // ms
}

// exec gives the number of rows that the statement touched.
func (t *tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	r, err := t.ExecContext(ctx, t.d.rebind(query), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// row scans the only row of a query, or gives ErrNotFound.
func (t *tx) row(ctx context.Context, query string, args []any, dest ...any) error {
	err := t.QueryRowContext(ctx, t.d.rebind(query), args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// each calls scan for every row of a query.
func (t *tx) each(ctx context.Context, query string, args []any, scan func(scanner) error) error {
	rows, err := t.QueryContext(ctx, t.d.rebind(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// scanner is a row to be read: *sql.Row or *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

// read runs fn on one snapshot of the database.
func (db *DB) read(ctx context.Context, fn func(t *tx) error) error {
	stx, err := db.reader.BeginTx(ctx, db.d.readTx)
	if err != nil {
		return fmt.Errorf("ledger: begin: %w", err)
	}
	defer stx.Rollback() //nolint:errcheck // nothing was written
	return fn(&tx{Tx: stx, d: &db.d, now: db.opt.Now().UnixMilli()})
}

// writeOnce runs fn in one transaction and commits it unless fn fails.
func (db *DB) writeOnce(ctx context.Context, fn func(t *tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.opt.WriteTimeout)
	defer cancel()
	stx, err := db.writer.BeginTx(ctx, db.d.writeTx)
	if err != nil {
		return fmt.Errorf("ledger: begin: %w", err)
	}
	defer stx.Rollback() //nolint:errcheck // no-op after a commit
	if err := fn(&tx{Tx: stx, d: &db.d, now: db.opt.Now().UnixMilli()}); err != nil {
		return err
	}
	if err := stx.Commit(); err != nil {
		return fmt.Errorf("ledger: commit: %w", err)
	}
	return nil
}
