package admin

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"tollgate/ledger"
	"tollgate/quota"
)

const (
	pageDefault = 100
	pageMax     = 1000
	whoHeader   = "X-Tollgate-Who" // who asks, for the admin log; never a credential
	whoRunesMax = 100
)

// opBody is the part that the bodies of all changes have.
type opBody struct {
	OpID string `json:"op_id"`
}

func (b *opBody) opID() *string { return &b.OpID }

// change decodes the body of a change into target and makes the operation. The
// same op_id with the same path and body, op_id apart, is a repeat. Without an
// op_id each request stands for itself.
func change(r *http.Request, what string, target interface{ opID() *string }) (ledger.Op, error) {
	body, err := decodeBody(r, target)
	if err != nil {
		return ledger.Op{}, err
	}
	if err := onlyParams(r.URL.Query()); err != nil {
		return ledger.Op{}, err
	}
	id := target.opID()
	if *id == "" {
		*id = "auto-" + uuid.NewString()
	}
	var content map[string]any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(&content); err != nil {
		return ledger.Op{}, invalid("", "The body must be a JSON object.")
	}
	delete(content, "op_id")
	canonical, err := json.Marshal(content) // names sorted
	if err != nil {
		return ledger.Op{}, err
	}
	digest := sha256.Sum256(slices.Concat([]byte(r.Method+" "+r.URL.Path+"\n"), canonical))
	return ledger.Op{ID: *id, Who: who(r), What: what, Digest: digest}, nil
}

// who names the asker for the admin log: what the header says, cut to what is
// printable, or else "admin".
func who(r *http.Request) string {
	name := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return -1
		}
		return c
	}, r.Header.Get(whoHeader))
	if runes := []rune(name); len(runes) > whoRunesMax {
		name = string(runes[:whoRunesMax])
	}
	if name = strings.TrimSpace(name); name == "" {
		return "admin"
	}
	return name
}

// onlyParams refuses query parameters that nothing would look at.
func onlyParams(query url.Values, known ...string) error {
	for name := range query {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return invalid(name, "Unknown query parameter %s; this takes none.", name)
			}
			return invalid(name, "Unknown query parameter %s; known here: %s.", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// page reads ?after=&limit=.
func page(r *http.Request) (after string, limit int, err error) {
	query := r.URL.Query()
	if err := onlyParams(query, "after", "limit"); err != nil {
		return "", 0, err
	}
	limit = pageDefault
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > pageMax {
			return "", 0, invalid("limit", "limit: must be a whole number from 1 to %d.", pageMax)
		}
	}
	after = query.Get("after")
	if len(after) > 64 {
		return "", 0, invalid("after", "after: must be an id, as the last page's next gives it.")
	}
	return after, limit, nil
}

// next is the id to go on after, "" at the end of a list. A full page may be the last one; then the next is empty.
func next[T any](list []T, limit int, id func(*T) string) string {
	if len(list) < limit {
		return ""
	}
	return id(&list[len(list)-1])
}

// tenantOf, appOf and keyOf take an id from the path.
func tenantOf(r *http.Request) (string, error) { return pathID(r, "tenant", "t_") }
func appOf(r *http.Request) (string, error)    { return pathID(r, "app", "a_") }
func keyOf(r *http.Request) (string, error)    { return pathID(r, "key", "k_") }

func pathID(r *http.Request, name, prefix string) (string, error) {
	id := r.PathValue(name)
	if err := quota.CheckID(prefix, id); err != nil {
		return "", invalid(name, "%q is not the id of a %s: %s followed by 1 to 62 of A-Z a-z 0-9 _ -.", clip(id), name, prefix)
	}
	return id, nil
}

// clip keeps an answer from repeating a whole long input.
func clip(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// total reads a total as it is given: nil, null, is unlimited.
func total(credits *int64) (int64, error) {
	if credits == nil {
		return quota.Unlimited, nil
	}
	if err := quota.CheckAmount(*credits); err != nil {
		return 0, fromField(&ledger.InvalidError{Field: "total", Err: err})
	}
	return *credits, nil
}

// orNull is the reverse of total.
func orNull(total int64) *int64 {
	if total == quota.Unlimited {
		return nil
	}
	return &total
}

// changed is what the answer to a change says besides the thing itself.
type changed struct {
	OpID string `json:"op_id,omitempty"`
	// Published: all nodes know. false: Redis was away; nodes will know as soon as it is back.
	Published *bool `json:"published,omitempty"`
}
