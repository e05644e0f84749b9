package ledger

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/google/uuid"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migration is one numbered file. Its number is its place in the list.
type migration struct {
	name       string
	statements []string
}

// migrations reads the embedded files: 0001_…, 0002_…, without a gap.
func migrations(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var list []migration
	for i, name := range names { // Glob sorts
		base := strings.TrimPrefix(name, "migrations/")
		if !strings.HasPrefix(base, fmt.Sprintf("%04d_", i+1)) {
			return nil, fmt.Errorf("%s: want number %04d", base, i+1)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		list = append(list, migration{name: base, statements: statements(string(text))})
	}
	return list, nil
}

// statements splits a migration at semicolons that end a line, and drops
// comment lines, which not every driver accepts.
func statements(text string) []string {
	var list []string
	var one strings.Builder
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "--") {
			continue
		}
		one.WriteString(line)
		if strings.HasSuffix(trimmed, ";") {
			list = append(list, strings.TrimSuffix(strings.TrimSpace(one.String()), ";"))
			one.Reset()
		}
	}
	if one.Len() > 0 {
		list = append(list, one.String())
	}
	return list
}

// migrate brings the schema up to this program's, in one transaction under the
// schema lock, and reads the ledger's id, which the first one makes.
func (db *DB) migrate(ctx context.Context) error {
	list, err := migrations(migrationFiles)
	if err != nil {
		return err
	}
	return db.writeOnce(ctx, func(t *tx) error {
		if err := t.d.lockSchema(ctx, t); err != nil {
			return err
		}
		for _, statement := range []string{
			`CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL PRIMARY KEY, name VARCHAR(200) NOT NULL, applied_at BIGINT NOT NULL)`,
			`CREATE TABLE IF NOT EXISTS meta (name VARCHAR(64) NOT NULL PRIMARY KEY, content VARCHAR(200) NOT NULL)`,
		} {
			if _, err := t.exec(ctx, statement); err != nil {
				return err
			}
		}
		var have int
		if err := t.row(ctx, `SELECT COALESCE(MAX(version), 0) FROM schema_version`, nil, &have); err != nil {
			return err
		}
		if have > len(list) {
			return fmt.Errorf("%w: it has version %d, known are %d", ErrNewerSchema, have, len(list))
		}
		for i := have; i < len(list); i++ {
			if err := apply(ctx, t, i+1, list[i]); err != nil {
				return err
			}
		}
		db.id, err = ledgerID(ctx, t)
		return err
	})
}

func apply(ctx context.Context, t *tx, version int, m migration) error {
	for n, statement := range m.statements {
		if _, err := t.exec(ctx, statement); err != nil {
			return fmt.Errorf("%s, statement %d: %w", m.name, n+1, err)
		}
	}
	_, err := t.exec(ctx, `INSERT INTO schema_version (version, name, applied_at) VALUES (?, ?, ?)`, version, m.name, t.now)
	return err
}

func ledgerID(ctx context.Context, t *tx) (string, error) {
	var id string
	err := t.row(ctx, `SELECT content FROM meta WHERE name = 'ledger_id'`, nil, &id)
	if err == nil || !errors.Is(err, ErrNotFound) {
		return id, err
	}
	random, err := uuid.NewRandom()
	if err != nil {
		return "", err
	}
	id = strings.ReplaceAll(random.String(), "-", "")
	_, err = t.exec(ctx, `INSERT INTO meta (name, content) VALUES ('ledger_id', ?)`, id)
	return id, err
}
