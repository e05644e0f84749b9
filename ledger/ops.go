package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Bounds of what describes an operation. Longer is refused with ErrInvalid.
const (
	opIDBytesMax = 128
	whoRunesMax  = 200
	opTriesMax   = 3 // a transaction that lost a race is run again; then the caller gets the error
)

// Op says who wants what, and makes it safe to ask twice.
type Op struct {
	ID     string   // the caller's op_id, 1 … 128 printable ASCII; "" : no protection against repeats
	Who    string   // for the admin log; never a credential
	What   string   // the operation's name: "tenant.create"
	Digest [32]byte // of all that the operation depends on; the same id with another digest is ErrOpConflict
}

func (op Op) check() error {
	if len(op.ID) > opIDBytesMax {
		return invalid("op_id", "longer than %d bytes", opIDBytesMax)
	}
	for i := range len(op.ID) {
		if op.ID[i] < ' ' || op.ID[i] > '~' {
			return invalid("op_id", "must be printable ASCII")
		}
	}
	if utf8.RuneCountInString(op.Who) > whoRunesMax {
		return invalid("who", "longer than %d characters", whoRunesMax)
	}
	return nil
}

var errOpRace = errors.New("ledger: another caller records this op_id now")

// write runs fn once per op. A repeat fills out, a pointer, with what the first
// run left there, and reports so. out is kept in SQL: never put a secret there.
func (db *DB) write(ctx context.Context, op Op, out any, fn func(t *tx) error) (repeat bool, err error) {
	if err := op.check(); err != nil {
		return false, err
	}
	for try := 1; ; try++ {
		err = db.writeOnce(ctx, func(t *tx) error {
			var err error
			if repeat, err = t.beginOp(ctx, op, out); err != nil || repeat {
				return err
			}
			if err := fn(t); err != nil {
				return err
			}
			return t.endOp(ctx, op, out)
		})
		if err == nil || try == opTriesMax || ctx.Err() != nil || (!errors.Is(err, errOpRace) && !db.d.isBusy(err)) {
			return repeat, err
		}
	}
}

func (t *tx) beginOp(ctx context.Context, op Op, out any) (repeat bool, err error) {
	if op.ID == "" {
		return false, nil
	}
	var what, digest, answer string
	err = t.row(ctx, `SELECT what, digest, answer FROM op WHERE op_id = ?`, []any{op.ID}, &what, &digest, &answer)
	switch {
	case err == nil && (what != op.What || digest != hex.EncodeToString(op.Digest[:])):
		return false, ErrOpConflict
	case err == nil:
		return true, json.Unmarshal([]byte(answer), out)
	case !errors.Is(err, ErrNotFound):
		return false, err
	}
	// Before the work: where writers run side by side, the second waits here.
	_, err = t.exec(ctx, `INSERT INTO op (op_id, what, digest, answer, created_at) VALUES (?, ?, ?, '', ?)`,
		op.ID, op.What, hex.EncodeToString(op.Digest[:]), t.now)
	if err != nil && t.d.isUnique(err) {
		return false, errOpRace
	}
	return false, err
}

func (t *tx) endOp(ctx context.Context, op Op, out any) error {
	if op.ID == "" {
		return nil
	}
	answer, err := json.Marshal(out)
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, `UPDATE op SET answer = ? WHERE op_id = ?`, string(answer), op.ID)
	return err
}

// log writes one row of the admin log. Neither document may hold a secret.
func (t *tx) log(ctx context.Context, op Op, tenant, item string, before, after any) error {
	oldDoc, newDoc := "", ""
	for _, doc := range []struct {
		from any
		to   *string
	}{{before, &oldDoc}, {after, &newDoc}} {
		if doc.from == nil {
			continue
		}
		data, err := json.Marshal(doc.from)
		if err != nil {
			return err
		}
		*doc.to = string(data)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, `INSERT INTO admin_log (id, at, who, what, op_id, tenant, item, old_doc, new_doc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id.String(), t.now, op.Who, op.What, op.ID, tenant, item, oldDoc, newDoc)
	return err
}

const idAlphabet = "0123456789abcdefghijklmnopqrstuvwxyz"

// newID gives prefix + 20 random characters: 103 bits.
func newID(prefix string) string {
	id := make([]byte, 0, len(prefix)+20)
	id = append(id, prefix...)
	var random [32]byte
	for len(id) < cap(id) {
		rand.Read(random[:]) //nolint:errcheck // never fails
		for _, b := range random {
			// 252 = 7 · 36: larger bytes would favour the first characters.
			if b < 252 && len(id) < cap(id) {
				id = append(id, idAlphabet[b%36])
			}
		}
	}
	return string(id)
}

// nameRunesMax bounds names of tenants, apps and keys.
const nameRunesMax = 200

func checkName(name string) error {
	if !utf8.ValidString(name) {
		return invalid("name", "must be UTF-8")
	}
	if utf8.RuneCountInString(name) > nameRunesMax {
		return invalid("name", "longer than %d characters", nameRunesMax)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return invalid("name", "control characters are not allowed")
		}
	}
	return nil
}

// listMax bounds one page of a list; limits outside 1 … listMax mean listMax.
const listMax = 1000

func page(limit int) int {
	if limit < 1 || limit > listMax {
		return listMax
	}
	return limit
}

func exists(kind, id string) error { return fmt.Errorf("%w: %s %s", ErrExists, kind, id) }
