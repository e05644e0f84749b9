package config

import (
	"time"

	"tollgate/quota"
)

// Config is the whole file. The tags say, besides the field's name: words (values with a meaning of their own), oneof,
// and the bounds min and max, which Validate checks.
type Config struct {
	// Listen is the data plane's host:port. Default 127.0.0.1:8080.
	Listen string `yaml:"listen"`
	TLS    TLS    `yaml:"tls"`
	Admin  Admin  `yaml:"admin"`
	Node   Node   `yaml:"node"`
	// DataDir keeps the node's id, its journal and by default its ledger. One node per directory. Default ./data.
	DataDir string `yaml:"data_dir"`
	// Stores are the Redis servers by name. A tenant names its store; the documents of API keys live in "default", which
	// must exist. Default: one at 127.0.0.1:6379.
	Stores map[string]Store `yaml:"stores"`
	Ledger Ledger           `yaml:"ledger"`
	// Upstreams are the APIs behind this node, by name. Default: none, the node then serves the decision API only.
	Upstreams map[string]Upstream `yaml:"upstreams"`
	Routes    Routes              `yaml:"routes"`
	Models    Models              `yaml:"models"`
	// Policy holds for every tenant, except for the fields that the tenant's own document sets.
	Policy  Policy  `yaml:"policy"`
	Lease   Lease   `yaml:"lease"`
	Journal Journal `yaml:"journal"`
	// IdempotencyTTL is how long an Idempotency-Key is remembered. Default 24h. Too long fills Redis with marks of past
	// calls, too short lets a late repeat be charged again.
	IdempotencyTTL time.Duration `yaml:"idempotency_ttl" min:"1m" max:"30d"`
	Webhook        Webhook       `yaml:"webhook"`
	Limits         Limits        `yaml:"limits"`
	Shutdown       Shutdown      `yaml:"shutdown"`
	Log            Log           `yaml:"log"`
	// DebugHeaders adds x-quota-mode to every answer. Default false: it tells clients about the node's inner state.
	DebugHeaders bool `yaml:"debug_headers"`

	// Warnings are what the file sets and this node will not act on, or what looks like a mistake. Say them at start.
	Warnings []string `yaml:"-" json:"-"`

	set map[string]int // path → line of every field that the file sets
}

// TLS is the data plane's certificate. HTTP/1.1 only; terminate HTTP/2 in front of the node.
type TLS struct {
	// Cert and Key are PEM files. Both or neither; default neither, plain HTTP.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Admin is the admin API's listener.
type Admin struct {
	// Listen is host:port. Default 127.0.0.1:9090. An address that others can reach needs a token.
	Listen string `yaml:"listen"`
	// TokenEnv names the environment variable with the bearer token, TokenFile a file with it. Default TOLLGATE_ADMIN_TOKEN;
	// while that is unset, a loopback listener asks for no token.
	TokenEnv  string `yaml:"token_env"`
	TokenFile string `yaml:"token_file"`
	Token     Secret `yaml:"-"`
	// MetricsOpen serves /metrics without the token. Default false.
	MetricsOpen bool `yaml:"metrics_open"`
}

// Node is who this node is among its siblings.
type Node struct {
	// ID is 1 to 64 of [A-Za-z0-9._-]. Default: made once and kept in data_dir. Two nodes must never share one.
	ID string `yaml:"id"`
	// Region is a label in usage events. Default none.
	Region string `yaml:"region"`
	// Share is the part of a tenant's balance that this node may spend alone in an outage, above 0 and at most 1; auto is
	// 1 / live nodes. Default auto. Shares that add up to more than 1 oversell in an outage, less strand credits.
	Share float64 `yaml:"share" words:"auto=0" min:"0.000001" max:"1"`
}

// Store is one Redis. Short form: its URL alone.
type Store struct {
	// URL is redis://, rediss:// (TLS), redis+cluster://host:port,host:port or redis+sentinel://host:port,…/master/db.
	URL ConnURL `yaml:"url"`
	// PasswordEnv and PasswordFile keep the password out of the URL; after loading URL contains it.
	PasswordEnv  string `yaml:"password_env"`
	PasswordFile string `yaml:"password_file"`
	// Connect bounds the dial of one connection. Default 200ms. Too high hides a dead server, too low fails over a slow network.
	Connect time.Duration `yaml:"connect" min:"10ms" max:"10s"`
	// Timeout bounds one call; auto is what is left of limits.decision. Default auto. Too high makes clients wait on a sick
	// Redis, too low turns slow answers into unknown outcomes.
	Timeout time.Duration `yaml:"timeout" words:"auto=0" min:"1ms" max:"10s"`
	// InFlight is how many calls may wait for this store at once; beyond it a call is refused at once. Default 512. Too
	// high queues behind a sick Redis, too low refuses bursts.
	InFlight int `yaml:"in_flight" min:"1" max:"65536"`
}

// Ledger is the durable truth in SQL.
type Ledger struct {
	// URL is sqlite://path (all nodes of one machine). Default sqlite://<data_dir>/ledger.db.
	URL ConnURL `yaml:"url"`
	// PasswordEnv and PasswordFile keep the password out of the URL; after loading URL contains it.
	PasswordEnv  string `yaml:"password_env"`
	PasswordFile string `yaml:"password_file"`
	// LoadBudget bounds reading one account from SQL in a call. Default 200ms. Too high makes first calls wait on a sick
	// database, too low answers 503 where patience would have helped.
	LoadBudget time.Duration `yaml:"load_budget" min:"10ms" max:"10s"`
	// Fold says what may share one usage event per key and second: consume (calls of consume and auth without an id) or
	// never. Default consume. never costs one row for each such call.
	Fold string `yaml:"fold" oneof:"consume|never"`
	// Retain is how long usage events are kept. Default 400d. Longer grows the database, shorter ends what can be audited.
	Retain time.Duration `yaml:"retain" min:"1d" max:"3650d"`
	// Reconcile is the time between two reconciliations. Default 1h. Shorter loads the database, longer finds faults later.
	Reconcile time.Duration `yaml:"reconcile" min:"1m" max:"7d"`
	Kafka     Kafka         `yaml:"kafka"`
}

// Kafka is an additional sink of usage events.
type Kafka struct {
	// Brokers are host:port. Default none: no sink.
	Brokers []string `yaml:"brokers"`
	// Topic receives the events. Default usage.
	Topic string `yaml:"topic"`
}

// Upstream is one API behind the node.
type Upstream struct {
	// URL is http:// or https://, host, and an optional path prefix.
	URL string `yaml:"url"`
	// Dialect says whose usage reports to read: openai, anthropic, or none (only routes with a cost). Default none.
	Dialect string `yaml:"dialect" oneof:"openai|anthropic|none"`
	Auth    Auth   `yaml:"auth"`
	// Headers are set on every request; the client's of the same names are dropped. Credentials belong into auth.
	Headers map[string]string `yaml:"headers"`
	Timeout Timeouts          `yaml:"timeout"`
	// MaxConcurrency is how many calls of this node may run at this upstream; beyond it 503 upstream_busy. 0 is no limit
	// of its own. Default 0. Too high floods the upstream, too low refuses what it could serve.
	MaxConcurrency int `yaml:"max_concurrency" min:"0" max:"1000000"`
	// AskUsage says whether the node asks for usage in streams when the client did not: auto (where the dialect knows how),
	// always or never. Default auto. never charges such streams by estimate.
	AskUsage string `yaml:"ask_usage" oneof:"auto|always|never"`
	// OnDisconnect says what happens to a call whose client left: cancel it, or drain its answer to learn the usage.
	// Default cancel. drain pays for output that nobody reads.
	OnDisconnect string `yaml:"on_disconnect" oneof:"cancel|drain"`
	Drain        Drain  `yaml:"drain"`
}

// Auth is the node's own credential at an upstream: "header: prefix+secret". Short form: bearer_env or bearer_file alone.
type Auth struct {
	// Header and Prefix default to what the dialect uses: x-api-key for anthropic, else Authorization with "Bearer ".
	Header string `yaml:"header"`
	Prefix string `yaml:"prefix"`
	// Env names the environment variable with the secret, File a file with it. At most one source; none sends no credential.
	Env  string `yaml:"env"`
	File string `yaml:"file"`
	// BearerEnv and BearerFile stand for header Authorization, prefix "Bearer " and the source.
	BearerEnv  string `yaml:"bearer_env"`
	BearerFile string `yaml:"bearer_file"`
	Secret     Secret `yaml:"-"`
}

// Timeouts bound the phases of one upstream call. Too low cuts honest answers, too high keeps holds and connections for
// an upstream that is gone. Short form: the total alone; the other phases then end with it.
type Timeouts struct {
	Connect   time.Duration `yaml:"connect" min:"10ms" max:"1m"`     // dial and TLS handshake. Default 2s.
	FirstByte time.Duration `yaml:"first_byte" min:"100ms" max:"6h"` // request sent → head of the answer. Default 120s.
	Idle      time.Duration `yaml:"idle" min:"100ms" max:"6h"`       // between two pieces of the answer. Default 60s.
	Total     time.Duration `yaml:"total" min:"100ms" max:"6h"`      // the whole call. Default 600s.
}

// Drain bounds what is read on after a client left, with on_disconnect: drain. What is beyond is cancelled.
type Drain struct {
	Time    time.Duration `yaml:"time" min:"1s" max:"10m"`      // per stream. Default 30s.
	Bytes   Size          `yaml:"bytes" min:"1KiB" max:"1GiB"`  // per stream. Default 4MiB.
	Streams int           `yaml:"streams" min:"1" max:"100000"` // at once on this node. Default 64.
}

// Route sends a path to an upstream.
type Route struct {
	// Path is a literal path, or a literal prefix followed by "*". The longest literal wins.
	Path string `yaml:"path"`
	// Upstream names one of upstreams.
	Upstream string `yaml:"upstream"`
	// Cost is what one call of a path without a known size is charged, in credits. Default none: such a path is 404.
	Cost *int64 `yaml:"cost" min:"1" max:"9007199254740991"`
}

// Model is what a request for one model may use and what that costs.
type Model struct {
	// MaxOutput is the model's largest output in tokens, the bound of requests that bring none. Required. Too high freezes
	// more than needed, too low cuts answers short.
	MaxOutput int64 `yaml:"max_output" min:"1" max:"1099511627776"`
	// MinOutput is the smallest output bound worth a call, in tokens: below it a clamped request is refused. Default 256,
	// or max_output if that is smaller. Too high refuses the last credits, too low sends calls that cannot finish.
	MinOutput int64 `yaml:"min_output" min:"1" max:"1099511627776"`
	// Tokenizer counts prompts: bytes (a quick estimate from their length), o200k or cl100k. Default bytes.
	Tokenizer string `yaml:"tokenizer" oneof:"bytes|o200k|cl100k"`
	// ReserveFactor multiplies the estimate that is frozen, 1 to 1.5. Default 1. Too high freezes credits of others, too
	// low lets the actual cost overrun the hold.
	ReserveFactor quota.Decimal `yaml:"reserve_factor" min:"1" max:"1.5"`
	// Price is in credits per call and per token. Required: what is free must say so. cached_input and cache_write
	// default to input, call to 0.
	Price quota.Price `yaml:"price"`
}

// Lease is local credit for hot keys.
type Lease struct {
	// Enabled lets hot keys be decided without Redis. Default true.
	Enabled bool `yaml:"enabled"`
	// TTL is how long a lease may be used after its last renewal was sent. Default 5m. Longer survives longer outages and
	// keeps a dead node's credits frozen longer.
	TTL time.Duration `yaml:"ttl" min:"10s" max:"1h"`
	// Renew is the time between two renewals. Default 10s. Shorter loads Redis, longer moves credits more slowly.
	Renew time.Duration `yaml:"renew" min:"1s" max:"5m"`
	// Reclaim is when Redis takes back what a silent node holds; at least ttl + max(policy.hold_ttl, longest upstream
	// total) + flush + renew + 30s. Default 21m. Longer keeps credits of a dead node frozen.
	Reclaim time.Duration `yaml:"reclaim" min:"1m" max:"24h"`
	// Flush is the time between two reports of what was spent. Default 1s. Shorter loads Redis, longer shows older numbers.
	Flush time.Duration `yaml:"flush" min:"100ms" max:"1m"`
	// HotRate is how many direct reserves per second make a key hot. Default 5. Lower leases for keys that hardly need it.
	HotRate int `yaml:"hot_rate" min:"1" max:"1000000"`
}

// The words of journal.sync.
const (
	SyncAlways time.Duration = 0  // before every answer
	SyncNever  time.Duration = -1 // left to the operating system
)

// Journal is the node's log on its own disk.
type Journal struct {
	// Sync is the time between two syncs to disk, always, or never. Default 10ms. It bounds what a power failure loses; a
	// crash of the process loses nothing. Shorter costs disk writes.
	Sync time.Duration `yaml:"sync" words:"always=0|never=-1" min:"1ms" max:"10s"`
	// MaxBytes bounds the log; at the bound the node answers 503 rather than serve what it cannot record. Default 4GiB.
	MaxBytes Size `yaml:"max_bytes" min:"64MiB" max:"1TiB"`
}

// Webhook hears of warnings and alerts.
type Webhook struct {
	// URL is http:// or https://. Default none.
	URL string `yaml:"url"`
	// SecretEnv names the environment variable with the signing secret, SecretFile a file with it. Default none: unsigned.
	SecretEnv  string `yaml:"secret_env"`
	SecretFile string `yaml:"secret_file"`
	Secret     Secret `yaml:"-"`
}

// Limits bound what one request, and all of a node's together, may take.
type Limits struct {
	// Decision bounds every admission; auto is max(50 ms, 4 × p99 round trip to the tenant's store), at most 1 s.
	// Default auto. Too high makes clients wait in an outage, too low gives up on a store that is merely far away.
	Decision time.Duration `yaml:"decision" words:"auto=0" min:"5ms" max:"10s"`
	// Body bounds one request body that has to be read whole; larger is 413. Default 32MiB.
	Body Size `yaml:"body" min:"1KiB" max:"1GiB"`
	// BodyTotal bounds all such bodies that are in memory at once; beyond it 503 node_busy. Default 1GiB.
	BodyTotal Size `yaml:"body_total" min:"1MiB" max:"1TiB"`
	// Header bounds the head of a request; larger is 431. Default 64KiB. Each connection keeps a buffer of this size.
	Header Size `yaml:"header" min:"4KiB" max:"1MiB"`
}

// Shutdown is what SIGTERM starts.
type Shutdown struct {
	// Delay is how long the node goes on serving while /readyz is already 503, so that balancers notice. Default 0s.
	Delay time.Duration `yaml:"delay" min:"0s" max:"10m"`
	// Grace is how long running calls may still take; the rest is cut and charged as delivered. Default 120s.
	Grace time.Duration `yaml:"grace" min:"0s" max:"1h"`
}

// Log goes to standard error.
type Log struct {
	Level  string `yaml:"level" oneof:"debug|info|warn|error"` // Default info.
	Format string `yaml:"format" oneof:"text|json"`            // Default text.
}
