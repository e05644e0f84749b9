package lua

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// documentTTL is how long the client may cache a document that no invalidation
// takes back; the bound on staleness should one ever be lost.
const documentTTL = 30 * time.Second

// ReadSecret reads an API key's document through client-side caching: until it
// changes, further reads cost no round trip, and the change reaches
// Options.OnInvalidate. ok is false when Redis has none.
func (s *Store) ReadSecret(ctx context.Context, hash string) (doc SecretDoc, ok bool, err error) {
	list, err := s.readDocs(ctx, SecretKey(hash), "doc")
	if err != nil || list[0] == "" {
		return doc, false, err
	}
	return doc, true, decodeDoc(list[0], &doc)
}

// Conf is what Redis holds of a tenant's documents; nil where it has none.
type Conf struct {
	Tenant *TenantDoc
	App    *AppDoc
	Key    *KeyDoc
}

// ReadConf reads the three documents of a principal, like ReadSecret.
func (s *Store) ReadConf(ctx context.Context, tenant, app, key string) (Conf, error) {
	var c Conf
	list, err := s.readDocs(ctx, ConfKey(tenant), "tenant", "app:"+app, "key:"+key)
	if err != nil {
		return c, err
	}
	if list[0] != "" {
		c.Tenant = new(TenantDoc)
		err = decodeDoc(list[0], c.Tenant)
	}
	if err == nil && list[1] != "" {
		c.App = new(AppDoc)
		err = decodeDoc(list[1], c.App)
	}
	if err == nil && list[2] != "" {
		c.Key = new(KeyDoc)
		err = decodeDoc(list[2], c.Key)
	}
	return c, err
}

func (s *Store) readDocs(ctx context.Context, key string, fields ...string) ([]string, error) {
	res, err := s.do(ctx, "read_documents", func(ctx context.Context) rueidis.RedisResult {
		return s.track.DoCache(ctx, s.track.B().Hmget().Key(key).Field(fields...).Cache(), documentTTL)
	})
	if err != nil {
		return nil, err
	}
	list, err := res.ToArray()
	if err != nil || len(list) != len(fields) {
		return nil, fmt.Errorf("%w: documents", ErrReply)
	}
	out := make([]string, len(fields))
	for i := range list {
		if !list[i].IsNil() {
			if out[i], err = list[i].ToString(); err != nil {
				return nil, fmt.Errorf("%w: documents", ErrReply)
			}
		}
	}
	return out, nil
}

// decodeDoc reads "<version> <json>".
func decodeDoc(stored string, doc any) error {
	_, text, ok := strings.Cut(stored, " ")
	if !ok || json.Unmarshal([]byte(text), doc) != nil {
		return fmt.Errorf("%w: document", ErrReply)
	}
	return nil
}
