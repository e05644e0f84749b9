package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of publishing.
const (
	publishTimeout = 500 * time.Millisecond // one document; an unreachable Redis costs a caller at most this once
	publishEvery   = time.Second            // between two looks for what was left behind
	publishRound   = publishEvery / 2       // work of one such look; the rest waits for the next, so that repair takes half of its time at most
	publishBatch   = 100                    // publications read at once by the repair
	publishPages   = 10                     // pages of listMax that one Publish brings; what is more is left to the repair
)

var (
	publicationsWritten = metrics.NewCounter(`tollgate_publications_total{result="written"}`)
	publicationsFailed  = metrics.NewCounter(`tollgate_publications_total{result="failed"}`)
)

// Publisher tells Redis what changed in SQL: at once when a caller asks, and by
// a loop per store that finds what a crash or an outage left behind.
//
// The invariant: a publication leaves the queue only after Redis acknowledged
// this version or a newer one. Any number of publishers may do the same work.
type Publisher struct {
	outbox
	stop  context.CancelFunc
	loops sync.WaitGroup
}

// NewPublisher starts a repair loop for each store, by its name in the
// configuration. Close it.
func NewPublisher(db *DB, stores map[string]*lua.Store) *Publisher {
	p := &Publisher{outbox: outbox{db: db, stores: stores}}
	life, stop := context.WithCancel(context.Background())
	p.stop = stop
	for name := range stores {
		p.loops.Go(func() { every(life, publishEvery, func() { p.repair(life, name) }) })
	}
	return p
}

// Close stops the repair and waits for it.
func (p *Publisher) Close() {
	p.stop()
	p.loops.Wait()
}

// Publish brings all that is queued of a tenant to its stores. An error means
// that something is still queued; the repair will bring it.
func (p *Publisher) Publish(ctx context.Context, tenant string) error {
	return p.publishTenant(ctx, tenant, func(*Publication) bool { return true })
}

// repair brings the oldest publications of one store, until none is left, the
// store is away, nothing moves, or the round's time is over.
func (p *Publisher) repair(ctx context.Context, store string) {
	ctx, cancel := context.WithTimeout(ctx, publishRound)
	defer cancel()
	for {
		list, err := p.db.Publications(ctx, store, publishBatch)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("cannot read the queue of publications", "store", store, "error", err)
			}
			return
		}
		moved := 0
		for i := range list {
			err := p.publish(ctx, &list[i])
			switch {
			case err == nil:
				moved++
			case ctx.Err() != nil:
				return
			default:
				slog.Warn("a publication waits", "store", store, "tenant", list[i].Tenant, "kind", list[i].Kind, "error", err)
				if away(err) {
					return
				}
			}
		}
		if len(list) < publishBatch || moved == 0 {
			return
		}
	}
}

// every calls fn at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, fn func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			fn()
		}
	}
}

// outbox writes publications to Redis. Publisher and Adjuster share it.
type outbox struct {
	db     *DB
	stores map[string]*lua.Store
}

// publishTenant brings the wanted ones of a tenant's publications. A store that
// is away is asked once; the other stores still get theirs.
func (o *outbox) publishTenant(ctx context.Context, tenant string, wanted func(*Publication) bool) error {
	for range publishPages {
		list, err := o.db.PublicationsOf(ctx, tenant)
		if err != nil {
			return err
		}
		var errs []error
		gone := map[string]bool{}
		for i := range list {
			p := &list[i]
			if gone[p.Store] || !wanted(p) {
				continue
			}
			if err := o.publish(ctx, p); err != nil {
				errs = append(errs, err)
				gone[p.Store] = away(err)
			}
		}
		if len(list) < listMax || len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
	return fmt.Errorf("ledger: more than %d publications of %s", publishPages*listMax, tenant)
}

// publish writes one publication and takes it off the queue.
func (o *outbox) publish(ctx context.Context, p *Publication) error {
	err := o.write(ctx, p)
	if err == nil {
		err = o.db.DonePublication(ctx, *p)
	}
	if err != nil {
		publicationsFailed.Inc()
		return fmt.Errorf("ledger: publish %s of %s: %w", p.Kind, p.Tenant, err)
	}
	publicationsWritten.Inc()
	return nil
}

func (o *outbox) write(ctx context.Context, p *Publication) error {
	store, ok := o.stores[p.Store]
	if !ok {
		return fmt.Errorf("no store %q is configured here", p.Store)
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if p.Kind == PublishSecret {
		text, err := json.Marshal(&p.Secret.Doc)
		if err == nil {
			_, err = store.PublishSecret(ctx, p.Item, p.Secret.Version, text)
		}
		return err
	}
	// Read after the document: a zone that is newer than it does no harm, since
	// the periods it names are those that the next document makes current.
	tenant, err := o.db.GetTenant(ctx, p.Tenant)
	if err != nil {
		return err
	}
	zone, err := quota.LoadZone(tenant.Timezone)
	if err != nil {
		return err
	}
	field, version, doc, limits := p.conf(store.Now(), zone)
	text, err := json.Marshal(doc)
	if err == nil {
		_, err = store.PublishConf(ctx, p.Tenant, field, version, text, limits)
	}
	return err
}

// away says that the store could not be asked, or did not answer: others would fare no better now.
func away(err error) bool { return errors.Is(err, lua.ErrNotSent) || errors.Is(err, lua.ErrUnknown) }

// conf gives the field of quota:{t}:conf that a publication is about, its
// version and document, and what it sets on accounts that exist at nowMillis
// of Redis' time.
func (p *Publication) conf(nowMillis int64, zone *time.Location) (field string, version int64, doc any, limits []lua.AccountLimit) {
	switch p.Kind {
	case PublishTenant:
		d := p.TenantDoc
		return "tenant", d.Version, d, lua.LimitsOf(quota.Org, d.ID, &d.Budget, &d.OverageLimit, nowMillis, zone)
	case PublishApp:
		d := p.AppDoc
		return "app:" + d.ID, d.Version, d, lua.LimitsOf(quota.App, d.ID, &d.Budget, nil, nowMillis, zone)
	case PublishKey:
		d := p.KeyDoc
		return "key:" + d.ID, d.Version, d, lua.LimitsOf(quota.Key, d.ID, &d.Budget, nil, nowMillis, zone)
	}
	panic("BUG: ledger: a document for publication kind " + string(p.Kind))
}
