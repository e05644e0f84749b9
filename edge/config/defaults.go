package config

import (
	"path/filepath"
	"time"

	"tollgate/quota"
)

// adminTokenEnv is where the admin token comes from unless the file says otherwise. It alone may be unset.
const adminTokenEnv = "TOLLGATE_ADMIN_TOKEN"

const storeURLDefault = "redis://127.0.0.1:6379/0"

const (
	day         = 24 * time.Hour
	kib    Size = 1 << 10
	mib    Size = 1 << 20
	gib    Size = 1 << 30
	second      = time.Second
)

// Default is the configuration of a node without a file. Load and Parse start from it.
func Default() *Config {
	return &Config{
		Listen:  "127.0.0.1:8080",
		Admin:   Admin{Listen: "127.0.0.1:9090", TokenEnv: adminTokenEnv},
		DataDir: "./data",
		Stores:  map[string]Store{"default": defaultStore(storeURLDefault)},
		Ledger: Ledger{
			LoadBudget: 200 * time.Millisecond, Fold: "consume", Retain: 400 * day, Reconcile: time.Hour,
			Kafka: Kafka{Topic: "usage"},
		},
		Policy: defaultPolicy(),
		Lease: Lease{
			Enabled: true, TTL: 5 * time.Minute, Renew: 10 * second, Reclaim: 21 * time.Minute, Flush: second, HotRate: 5,
		},
		Journal:        Journal{Sync: 10 * time.Millisecond, MaxBytes: 4 * gib},
		IdempotencyTTL: day,
		Limits:         Limits{Body: 32 * mib, BodyTotal: gib, Header: 64 * kib},
		Shutdown:       Shutdown{Grace: 120 * second},
		Log:            Log{Level: "info", Format: "text"},
	}
}

func defaultPolicy() Policy {
	return Policy{
		Outage: "local", OutageCap: 100_000, Fit: "clamp", WarnBelow: 10 * percent, HoldTTL: 15 * time.Minute,
		Stale: time.Hour, Timezone: "UTC", Show: "all", Interrupted: "delivered",
	}
}

func defaultStore(url string) Store {
	return Store{URL: ConnURL{raw: url}, Connect: 200 * time.Millisecond, InFlight: 512}
}

func defaultUpstream() Upstream {
	return Upstream{
		Dialect:  "none",
		Timeout:  Timeouts{Connect: 2 * second, FirstByte: 120 * second, Idle: 60 * second, Total: 600 * second},
		AskUsage: "auto", OnDisconnect: "cancel",
		Drain: Drain{Time: 30 * second, Bytes: 4 * mib, Streams: 64},
	}
}

func defaultModel() Model {
	return Model{MinOutput: minOutputDefault, Tokenizer: "bytes", ReserveFactor: quota.FactorMin}
}

// minOutputDefault is lowered to the model's maximum where that is smaller.
const minOutputDefault = 256

// setDefaults of the elements of maps run before the file's fields are read into them.
func (s *Store) setDefaults()    { *s = defaultStore("") }
func (u *Upstream) setDefaults() { *u = defaultUpstream() }
func (m *Model) setDefaults()    { *m = defaultModel() }

// shortField names the field that a plain value stands for.
func (Store) shortField() string    { return "url" }
func (Timeouts) shortField() string { return "total" }

// complete fills in the defaults that depend on other fields, and turns short forms into the long ones.
func (c *Config) complete() {
	if c.Ledger.URL.raw == "" {
		c.Ledger.URL.raw = "sqlite://" + filepath.Join(c.DataDir, "ledger.db")
	}
	if s, ok := c.Stores["default"]; ok && s.URL.raw == "" && !c.isSet("stores.default.url") {
		s.URL.raw = storeURLDefault
		c.Stores["default"] = s
	}
	for name, u := range c.Upstreams {
		path := "upstreams." + name
		t := &u.Timeout
		if c.isSet(path + ".timeout.total") {
			for field, d := range map[string]*time.Duration{"connect": &t.Connect, "first_byte": &t.FirstByte, "idle": &t.Idle} {
				if !c.isSet(path+".timeout."+field) && t.Total > 0 {
					*d = min(*d, t.Total)
				}
			}
		}
		a := &u.Auth
		if a.BearerEnv != "" || a.BearerFile != "" {
			a.Header, a.Prefix = "Authorization", "Bearer "
			if a.Env == "" && a.File == "" {
				a.Env, a.File = a.BearerEnv, a.BearerFile
			}
		}
		if a.Header == "" && u.Dialect == "anthropic" {
			a.Header = "x-api-key"
		} else if a.Header == "" {
			a.Header, a.Prefix = "Authorization", "Bearer "
		}
		c.Upstreams[name] = u
	}
	for name, m := range c.Models {
		path := "models." + name
		if !c.isSet(path + ".min_output") {
			m.MinOutput = max(1, min(m.MinOutput, m.MaxOutput))
		}
		if !c.isSet(path + ".price.cached_input") {
			m.Price.CachedInput = m.Price.Input
		}
		if !c.isSet(path + ".price.cache_write") {
			m.Price.CacheWrite = m.Price.Input
		}
		c.Models[name] = m
	}
}

func (c *Config) isSet(path string) bool {
	_, ok := c.set[path]
	return ok
}
