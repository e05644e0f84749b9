package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/uuid"

	"tollgate/edge"
	"tollgate/edge/admin"
	"tollgate/edge/admission"
	"tollgate/edge/config"
	"tollgate/edge/identity"
	"tollgate/edge/upstream"
	"tollgate/ledger"
	"tollgate/lua"
)

// Bounds of start and stop.
const (
	openTimeout    = 10 * time.Second // ledger and stores at start
	settleDrain    = 10 * time.Second // ends that still wait for Redis at stop
	claimRetry     = time.Second      // between two tries to bind a store that does not answer
	claimEvery     = 2 * time.Second  // between two looks whether a store is still this ledger's: it may have been emptied
	cutWait        = time.Second      // from the end of the grace, when calls are cut, until connections are closed
	nodeIDFile     = "node_id"
	nodeIDPrefix   = "n-"
	dataDirMode    = 0o750
	nodeIDFileMode = 0o640
)

// node is everything one process runs, in the order in which it is closed.
type node struct {
	cfg       *config.Config
	id        string
	db        *ledger.DB
	stores    map[string]*lua.Store
	settler   *ledger.Settler
	reaper    *ledger.Reaper
	publisher *ledger.Publisher
	adjuster  *ledger.Adjuster
	directory *identity.Directory
	engine    *admission.Engine
	upstreams map[string]*upstream.Upstream
	data      *edge.Server
	listener  *openListener
	admin     *http.Server
	leaving   atomic.Bool  // SIGTERM came
	unclaimed atomic.Int64 // stores not yet known to belong to this ledger
}

// serve runs the node until ctx ends, then stops it in order.
func serve(ctx context.Context, cfg *config.Config) (err error) {
	n := &node{cfg: cfg, stores: map[string]*lua.Store{}, upstreams: map[string]*upstream.Upstream{}}
	defer n.close()
	if err := n.open(ctx); err != nil {
		return err
	}
	if n.listener, err = listen(cfg.Listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	adminListener, err := net.Listen("tcp", cfg.Admin.Listen)
	if err != nil {
		n.listener.Close()
		return fmt.Errorf("admin.listen: %w", err)
	}
	failed := make(chan error, 3)
	go func() { failed <- n.data.Serve(n.listener) }()
	go func() { failed <- n.admin.Serve(adminListener) }()
	claims, stopClaims := context.WithCancel(ctx)
	defer stopClaims()
	n.claimStores(claims, failed)
	slog.Info("the node serves", "node", n.id, "listen", n.listener.Addr().String(), "admin", adminListener.Addr().String(),
		"version", version, "scripts", lua.ScriptsHash)
	select {
	case <-ctx.Done():
		return n.stop(cfg.Shutdown.Delay)
	case err := <-failed:
		slog.Error("the node cannot go on", "error", err)
		return errors.Join(err, n.stop(0))
	}
}

// open builds the node from the ground up: truth, stores, settlement, decisions, listeners.
func (n *node) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := os.MkdirAll(n.cfg.DataDir, dataDirMode); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	if n.id, err = nodeID(n.cfg); err != nil {
		return err
	}
	names := make([]string, 0, len(n.cfg.Stores))
	for name := range n.cfg.Stores {
		names = append(names, name)
	}
	n.db, err = ledger.Open(ctx, n.cfg.Ledger.URL.Reveal(), ledger.Options{Stores: names, CheckPolicy: n.cfg.CheckPolicy})
	if err != nil {
		return fmt.Errorf("ledger.url: %s: %w", n.cfg.Ledger.URL, err)
	}
	list := make([]*lua.Store, 0, len(names))
	known := map[string]identity.Store{}
	feeds := map[*lua.Store]*identity.Feed{}
	for name, c := range n.cfg.Stores {
		feed := identity.NewFeed()
		store, err := lua.Open(ctx, lua.Options{
			Name: name, URL: c.URL.Reveal(), Connect: c.Connect, Timeout: c.Timeout, InFlight: c.InFlight, OnInvalidate: feed.Invalidate,
		})
		if err != nil {
			return err
		}
		known[name] = identity.Store{Redis: store, Feed: feed}
		feeds[store] = feed
		n.stores[name] = store
		list = append(list, store)
	}
	n.publisher = ledger.NewPublisher(n.db, n.stores)
	n.adjuster = ledger.NewAdjuster(n.db, n.stores)
	loader := ledger.Loader{DB: n.db, Publisher: n.publisher}
	n.settler = ledger.NewSettler(loader, list...)
	n.reaper = ledger.NewReaper(n.id, n.cfg.Policy.HoldTTL, n.db, list...)
	loads := identity.NewLoadLimiter()
	n.directory = identity.New(identity.Options{
		Stores: known, Source: source{n.db}, LoadBudget: n.cfg.Ledger.LoadBudget, DocLoads: loads,
	})
	for name, c := range n.cfg.Upstreams {
		if n.upstreams[name], err = newUpstream(name, &c); err != nil {
			return err
		}
	}
	n.unclaimed.Store(int64(len(list)))
	n.engine = admission.New(admission.Options{
		Node: n.id, Loader: loader, Settler: n.settler, Served: n.reaper.Served,
		Decision: n.cfg.Limits.Decision, Loads: loads, Load: n.cfg.Ledger.LoadBudget,
		Epoch: func(store *lua.Store, tenant string) uint64 { return feeds[store].Epoch(lua.ConfKey(tenant)) },
	})
	n.data = edge.New(edge.Options{
		Config: n.cfg, Node: n.id, Directory: n.directory, Settler: n.settler, Loader: loader, Upstreams: n.upstreams, Ready: n.ready,
		Started:   func() bool { return n.unclaimed.Load() == 0 },
		Admission: n.engine,
	})
	api := admin.New(admin.Options{
		DB: n.db, Stores: n.stores, Publisher: n.publisher, Adjuster: n.adjuster,
		Token: n.cfg.Admin.Token.Reveal(), MetricsOpen: n.cfg.Admin.MetricsOpen, Ready: n.ready,
	})
	n.admin = api.HTTPServer()
	metrics.GetOrCreateGauge(fmt.Sprintf(`tollgate_build_info{version=%q,scripts=%q,config=%q}`, version, lua.ScriptsHash, n.cfg.Hash()), func() float64 { return 1 })
	return nil
}

func newUpstream(name string, c *config.Upstream) (*upstream.Upstream, error) {
	return upstream.New(upstream.Options{
		Name: name, URL: c.URL, Headers: c.Headers, ConnsMax: c.MaxConcurrency,
		Auth: upstream.Auth{Header: c.Auth.Header, Prefix: c.Auth.Prefix, Secret: c.Auth.Secret.Reveal()},
		Timeout: upstream.Timeouts{
			Connect: c.Timeout.Connect, FirstByte: c.Timeout.FirstByte, Idle: c.Timeout.Idle, Total: c.Timeout.Total,
		},
	})
}

var errDraining = errors.New("draining")

// ready says why no tenant can be served.
func (n *node) ready() error {
	if n.leaving.Load() {
		return errDraining
	}
	if left := n.unclaimed.Load(); left > 0 {
		return fmt.Errorf("starting: %d of %d stores are not yet known to belong to this ledger", left, len(n.stores))
	}
	return nil
}

// claimStores binds every store to the ledger, or finds that it is another's:
// then the node must not serve. A store that is down is tried until it answers.
// One that was emptied belongs to nobody: it is bound again, before another
// ledger's node may find it free.
func (n *node) claimStores(ctx context.Context, failed chan<- error) {
	for _, store := range n.stores {
		go func() {
			if err := n.keepStore(ctx, store); err != nil {
				failed <- err
			}
		}()
	}
}

// keepStore ends with ctx, or with an error when the store is another ledger's.
func (n *node) keepStore(ctx context.Context, store *lua.Store) error {
	claimed := false
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, claimRetry)
		err := store.ClaimLedger(try, n.db.ID())
		cancel()
		pause := claimRetry
		switch {
		case errors.Is(err, lua.ErrForeign):
			if claimed {
				n.unclaimed.Add(1) // from now on nothing is decided
			}
			return err
		case err == nil:
			pause = claimEvery
			if !claimed {
				claimed = true
				n.unclaimed.Add(-1)
			}
		case !claimed && ctx.Err() == nil:
			slog.Warn("a store does not answer yet", "store", store.Name(), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// stop drains: no new calls, running ones end or are cut, ends reach Redis. A
// second signal ends the waiting.
func (n *node) stop(delay time.Duration) error {
	patience, done := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer done()
	slog.Info("the node drains", "delay", delay, "grace", n.cfg.Shutdown.Grace)
	n.leaving.Store(true) // balancers look at /readyz; until they have noticed, new calls are served
	select {
	case <-time.After(delay):
	case <-patience.Done():
	}
	grace, cancel := context.WithTimeout(patience, n.cfg.Shutdown.Grace)
	defer cancel()
	closing := context.AfterFunc(grace, func() {
		time.Sleep(cutWait)
		if left := n.listener.closeConns(); left > 0 {
			slog.Warn("connections were closed that did not end with their calls", "connections", left)
		}
	})
	err := n.data.Shutdown(grace)
	closing()
	last, cancelLast := context.WithTimeout(context.Background(), settleDrain)
	defer cancelLast()
	if left := n.settler.Close(last); left > 0 {
		slog.Error("ends of holds did not reach Redis; the reaper frees the holds at their deadline", "ends", left)
	}
	n.settler = nil
	return errors.Join(err, n.admin.Shutdown(last))
}

func (n *node) close() {
	if n.settler != nil {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		n.settler.Close(done)
	}
	if n.adjuster != nil {
		n.adjuster.Close()
	}
	if n.publisher != nil {
		n.publisher.Close()
	}
	if n.reaper != nil {
		n.reaper.Close()
	}
	for _, u := range n.upstreams {
		u.Close()
	}
	if n.engine != nil {
		n.engine.Close()
	}
	if n.directory != nil {
		n.directory.Close()
	}
	for _, s := range n.stores {
		s.Close()
	}
	if n.db != nil {
		_ = n.db.Close()
	}
}

// nodeID is the configured id, or one made once and kept in data_dir.
func nodeID(cfg *config.Config) (string, error) {
	if cfg.Node.ID != "" {
		return cfg.Node.ID, nil
	}
	path := filepath.Join(cfg.DataDir, nodeIDFile)
	if data, err := os.ReadFile(path); err == nil {
		if id := strings.TrimSpace(string(data)); id != "" {
			return id, nil
		}
	}
	id := nodeIDPrefix + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	if err := os.WriteFile(path, []byte(id+"\n"), nodeIDFileMode); err != nil {
		return "", fmt.Errorf("data_dir: keeping the node's id: %w", err)
	}
	return id, nil
}
