package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"tollgate/lua"
	"tollgate/quota"
)

// sqlBudget is one LoadBudget for all reads of SQL of one flight, from the first on.
func (d *Directory) sqlBudget(f *flight) (context.Context, context.CancelFunc) {
	if f.sqlEnd.IsZero() {
		f.sqlEnd = time.Now().Add(d.opt.LoadBudget)
	}
	return context.WithDeadline(d.life, f.sqlEnd)
}

// pace takes a token, if there will be one in time.
func pace(ctx context.Context, l *rate.Limiter, refused func()) error {
	if err := l.Wait(ctx); err != nil {
		refused()
		return fmt.Errorf("too many reads of SQL: %w", err)
	}
	return nil
}

// load reads a principal's documents from SQL, one read per tenant at a time,
// and publishes them if the tenant lives in this store.
func (d *Directory) load(s Store, storeName string, who quota.Principal, f *flight) (Docs, error) {
	ctx, cancel := d.sqlBudget(f)
	defer cancel()
	waited, err := d.turns.take(ctx, who.Tenant)
	if err != nil {
		refusedDocs.Inc()
		return Docs{}, fmt.Errorf("other reads of the tenant's documents take too long: %w", err)
	}
	defer d.turns.give(who.Tenant)
	if waited {
		// Whoever was first may have published what this one wants.
		if docs, ok, err := d.readConf(s, who); ok || err != nil {
			return docs, err
		}
	}
	if err := pace(ctx, d.opt.DocLoads, refusedDocs.Inc); err != nil {
		return Docs{}, err
	}
	readsDocs.Inc()
	docs, err := d.opt.Source.LoadDocs(ctx, who)
	if err == nil && orHome(docs.Tenant.Store) == storeName {
		d.publishDocs(s.Redis, who, &docs)
	}
	return docs, err
}

// publishSecret and publishDocs write to Redis what SQL said, for the next node.
// Failing is harmless: it is used all the same, and somebody will publish it.
func (d *Directory) publishSecret(hash string, version int64, doc *lua.SecretDoc) {
	text, err := json.Marshal(doc)
	if err == nil {
		ctx, cancel := d.redisBudget(d.home.Redis)
		defer cancel()
		_, err = d.home.Redis.PublishSecret(ctx, hash, version, text)
	}
	if err != nil {
		unpublished.Inc()
	}
}

// publishDocs writes all three under the version of the snapshot, not their own
// older ones: that is what Redis compares loads of accounts with. They bring
// their limits along, since a publisher that comes later with the same change
// will find it old and write none.
func (d *Directory) publishDocs(s *lua.Store, who quota.Principal, docs *Docs) {
	zone, err := d.zone(docs.Tenant.Timezone)
	if err != nil {
		unpublished.Inc()
		return
	}
	now := s.Now()
	for _, part := range []struct {
		field  string
		doc    any
		limits []lua.AccountLimit
	}{
		{"tenant", &docs.Tenant, lua.LimitsOf(quota.Org, who.Tenant, &docs.Tenant.Budget, &docs.Tenant.OverageLimit, now, zone)},
		{"app:" + who.App, &docs.App, lua.LimitsOf(quota.App, who.App, &docs.App.Budget, nil, now, zone)},
		{"key:" + who.Key, &docs.Key, lua.LimitsOf(quota.Key, who.Key, &docs.Key.Budget, nil, now, zone)},
	} {
		text, err := json.Marshal(part.doc)
		if err == nil {
			ctx, cancel := d.redisBudget(s)
			_, err = s.PublishConf(ctx, who.Tenant, part.field, docs.Version, text, part.limits)
			cancel()
		}
		if err != nil {
			unpublished.Inc()
			return
		}
	}
}

// turns lets one caller per tenant pass at a time. Bounded by flightsMax.
type turns struct {
	sync.Mutex
	m map[string]*turn
}

type turn struct {
	taken chan struct{} // holds one token while somebody has the turn
	users int           // who has it and who wait
}

// take waits for the tenant's turn; waited says that somebody else had it. Every
// success needs a give.
func (t *turns) take(ctx context.Context, tenant string) (waited bool, err error) {
	t.Lock()
	turn := t.atLocked(tenant)
	turn.users++
	t.Unlock()
	select {
	case turn.taken <- struct{}{}:
		return false, nil
	default:
	}
	select {
	case turn.taken <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		t.leave(tenant, turn)
		return true, context.Cause(ctx)
	}
}

func (t *turns) give(tenant string) {
	t.Lock()
	turn := t.m[tenant]
	t.Unlock()
	<-turn.taken
	t.leave(tenant, turn)
}

func (t *turns) atLocked(tenant string) *turn {
	if t.m[tenant] == nil {
		t.m[tenant] = &turn{taken: make(chan struct{}, 1)}
	}
	return t.m[tenant]
}

func (t *turns) leave(tenant string, left *turn) {
	t.Lock()
	defer t.Unlock()
	if left.users--; left.users == 0 {
		delete(t.m, tenant)
	}
}
