package identity

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"tollgate/lua"
	"tollgate/quota"
)

func hexOf(hash id) string { return hex.EncodeToString(hash[:]) }

// read finds out all about one secret. An error is ErrUnavailable; a refusal is
// an entry.
func (d *Directory) read(hash string, f *flight) (*entry, error) {
	e := &entry{secret: f.secret, conf: f.secret}
	doc, err := d.secret(hash, f)
	if errors.Is(err, ErrNotFound) {
		e.refused, e.until = ErrUnknownKey, d.clock()+unknownFor
		return e, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: secret: %w", ErrUnavailable, err)
	}
	e.until, e.expires = d.due(), doc.ExpiresAt
	if doc.Status != lua.Active || doc.ExpiresAt != 0 && doc.ExpiresAt <= d.home.Redis.Now() {
		e.refused = ErrDisabledKey
		return e, nil
	}
	who := quota.Principal{Tenant: doc.Tenant, App: doc.App, Key: doc.Key}
	docs, store, err := d.docs(who, doc.Store, e, f)
	if errors.Is(err, ErrNotFound) {
		e.refused, e.until = ErrUnknownKey, d.clock()+unknownFor
		return e, nil
	}
	if err == nil {
		e.who, e.refused, err = d.identity(who, docs, store)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: documents: %w", ErrUnavailable, err)
	}
	return e, nil
}

// identity puts a principal's documents together. refused says that they forbid
// its use; whose secret it is learns first about the key.
func (d *Directory) identity(who quota.Principal, docs Docs, store *lua.Store) (made *Identity, refused, err error) {
	switch {
	case docs.Tenant.ID != who.Tenant || docs.App.ID != who.App || docs.Key.ID != who.Key || docs.Key.App != who.App:
		return nil, nil, errors.New("those of the secret and of its principal disagree")
	case docs.Key.Status != lua.Active:
		return nil, ErrDisabledKey, nil
	case docs.Tenant.Status != lua.Active:
		return nil, ErrSuspendedTenant, nil
	}
	zone, err := d.zone(docs.Tenant.Timezone)
	if err != nil {
		return nil, nil, err
	}
	return &Identity{
		Principal: who, Tenant: docs.Tenant, App: docs.App, Key: docs.Key, Zone: zone, Store: store,
		Budgets: [3]quota.Budget{quota.Org: docs.Tenant.Budget, quota.App: docs.App.Budget, quota.Key: docs.Key.Budget},
	}, nil, nil
}

// zone keeps each zone once: its table weighs more than all documents of a key.
func (d *Directory) zone(name string) (*time.Location, error) {
	if zone, ok := d.zones.Load(name); ok {
		return zone, nil
	}
	zone, err := quota.LoadZone(name)
	if err == nil && d.zones.Size() < zonesMax {
		zone, _ = d.zones.LoadOrStore(name, zone)
	}
	return zone, err
}

// secret reads a secret's document from Redis, else from SQL.
func (d *Directory) secret(hash string, f *flight) (lua.SecretDoc, error) {
	ctx, cancel := d.redisBudget(d.home.Redis)
	doc, ok, err := d.home.Redis.ReadSecret(ctx, hash)
	cancel()
	readsRedis.Inc()
	if err != nil || ok {
		return doc, err
	}
	load, cancel := d.sqlBudget(f)
	defer cancel()
	if err := pace(load, d.opt.SecretLoads, refusedSecrets.Inc); err != nil {
		return doc, err
	}
	readsSecrets.Inc()
	doc, version, err := d.opt.Source.LoadSecret(load, hash)
	if err != nil {
		return doc, err
	}
	d.publishSecret(hash, version, &doc)
	return doc, nil
}

// docs reads a principal's documents from the store named, else from SQL, and
// gives the store where the tenant lives. Where that differs from the name, the
// tenant has moved since the secret's document was written, and its word counts.
func (d *Directory) docs(who quota.Principal, storeName string, e *entry, f *flight) (Docs, *lua.Store, error) {
	for range 2 {
		storeName = orHome(storeName)
		s, ok := d.opt.Stores[storeName]
		if !ok {
			return Docs{}, nil, fmt.Errorf("the tenant's store %q is not in this node's configuration", storeName)
		}
		conf := s.Feed.mark(lua.ConfKey(who.Tenant))
		f.conf.Store(&conf)
		e.conf = conf
		docs, ok, err := d.readConf(s, who)
		if err == nil && !ok {
			docs, err = d.load(s, storeName, who, f)
		}
		if err != nil {
			return docs, nil, err
		}
		if orHome(docs.Tenant.Store) == storeName {
			return docs, s.Redis, nil
		}
		storeName = docs.Tenant.Store
	}
	return Docs{}, nil, fmt.Errorf("store %q says the tenant lives elsewhere", storeName)
}

func orHome(storeName string) string {
	if storeName == "" {
		return DefaultStore
	}
	return storeName
}

// readConf reads from Redis; ok is false where one of the three is missing.
func (d *Directory) readConf(s Store, who quota.Principal) (docs Docs, ok bool, err error) {
	ctx, cancel := d.redisBudget(s.Redis)
	defer cancel()
	readsRedis.Inc()
	conf, err := s.Redis.ReadConf(ctx, who.Tenant, who.App, who.Key)
	if err != nil || conf.Tenant == nil || conf.App == nil || conf.Key == nil {
		return docs, false, err
	}
	return Docs{Tenant: *conf.Tenant, App: *conf.App, Key: *conf.Key}, true, nil
}

// redisBudget bounds one call.
func (d *Directory) redisBudget(s *lua.Store) (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.life, orDefault(d.opt.ReadBudget, s.Budget()))
}
