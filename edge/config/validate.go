package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"tollgate/quota"
)

// Bounds of the tables; larger ones are refused.
const (
	modelsMax    = 1000
	routesMax    = 1000
	upstreamsMax = 1000
	storesMax    = 100
	nameMax      = 64  // bytes of a store's or an upstream's name; it is a label of metrics
	patternMax   = 256 // bytes of a model's pattern or a route's path
)

// Margins between deadlines that have to follow one another.
const (
	holdMargin    = time.Minute      // a hold outlives the longest upstream call by this
	reclaimMargin = 30 * time.Second // a reclaim comes this much after the last possible report
)

// validate is all checks, in the order of the file's sections.
func (c *Config) validate() Faults {
	faults := boundsOf("", *c)
	faults = append(faults, c.checkListeners()...)
	faults = append(faults, c.checkStores()...)
	faults = append(faults, c.checkLedger()...)
	faults = append(faults, c.checkUpstreams()...)
	faults = append(faults, c.checkRoutes()...)
	faults = append(faults, c.checkModels()...)
	faults = append(faults, c.Policy.check()...)
	faults = append(faults, c.checkHoldTTL(c.Policy.HoldTTL)...)
	faults = append(faults, c.checkLease()...)
	faults = append(faults, c.checkWebhook()...)
	if c.Limits.Body > c.Limits.BodyTotal {
		faults.add("limits.body", 0, "%s is above limits.body_total (%s), so such a body could never be read", c.Limits.Body, c.Limits.BodyTotal)
	}
	return faults
}

func (c *Config) checkListeners() (faults Faults) {
	for path, addr := range map[string]string{"listen": c.Listen, "admin.listen": c.Admin.Listen} {
		if err := checkHostPort(addr); err != nil {
			faults.add(path, 0, "%v", err)
		}
	}
	if _, port, err := net.SplitHostPort(c.Listen); err == nil && port != "0" && c.Listen == c.Admin.Listen {
		faults.add("admin.listen", 0, "is the same address as listen")
	}
	if !isLoopback(c.Admin.Listen) && !c.Admin.Token.IsSet() {
		faults.add("admin.listen", 0, "%s can be reached from other machines, so it needs a token: set admin.token_env (now %q, unset or empty) or admin.token_file", c.Admin.Listen, c.Admin.TokenEnv)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		faults.add("tls", 0, "cert and key belong together; only one of them is set")
	}
	for path, file := range map[string]string{"tls.cert": c.TLS.Cert, "tls.key": c.TLS.Key} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			faults.add(path, 0, "%v", err)
		}
	}
	if !isName(c.Node.ID, true) {
		faults.add("node.id", 0, "%q must be at most %d of [A-Za-z0-9._-]", c.Node.ID, nameMax)
	}
	if !isName(c.Node.Region, true) {
		faults.add("node.region", 0, "%q must be at most %d of [A-Za-z0-9._-]", c.Node.Region, nameMax)
	}
	if c.DataDir == "" {
		faults.add("data_dir", 0, "must not be empty")
	}
	return faults
}

func (c *Config) checkStores() (faults Faults) {
	if _, ok := c.Stores["default"]; !ok {
		faults.add("stores", 0, "must have a store named default: the documents of API keys live there")
	}
	checkTable(&faults, "stores", c.Stores, storesMax)
	for _, name := range sorted(c.Stores) {
		path := join("stores."+name, "url")
		u := c.Stores[name].URL
		_, _, _, rest := u.split()
		switch scheme := u.Scheme(); scheme {
		case "redis", "rediss", "redis+cluster", "redis+sentinel":
			hosts, tail, _ := strings.Cut(rest, "/")
			tail, _, _ = strings.Cut(tail, "?")
			for host := range strings.SplitSeq(hosts, ",") {
				if !strings.Contains(host, ":") {
					host += ":6379"
				}
				if err := checkHostPort(host); err != nil {
					faults.add(path, 0, "%v", err)
				}
			}
			db := tail
			if scheme == "redis+sentinel" {
				var master string
				if master, db, _ = strings.Cut(tail, "/"); master == "" {
					faults.add(path, 0, "needs the master's name: redis+sentinel://host:port,host:port/master")
				}
			} else if scheme != "redis+cluster" && strings.Contains(hosts, ",") {
				faults.add(path, 0, "several hosts need redis+cluster:// or redis+sentinel://")
			}
			if n, err := strconv.Atoi(db); db != "" && (err != nil || n < 0) {
				faults.add(path, 0, "the database must be a number, not %q", db)
			} else if scheme == "redis+cluster" && n != 0 {
				faults.add(path, 0, "a cluster has database 0 only")
			}
		default:
			faults.add(path, 0, "must begin with redis://, rediss://, redis+cluster:// or redis+sentinel://")
		}
	}
	return faults
}

func (c *Config) checkLedger() (faults Faults) {
	switch _, _, _, rest := c.Ledger.URL.split(); c.Ledger.URL.Scheme() {
	case "sqlite":
		if rest == "" {
			faults.add("ledger.url", 0, "needs a path: sqlite://data/ledger.db")
		}
		if c.Ledger.PasswordEnv != "" || c.Ledger.PasswordFile != "" {
			faults.add("ledger", 0, "password_env and password_file have no meaning with sqlite://")
		}
	case "mysql", "postgres":
		faults.add("ledger.url", 0, "mysql:// and postgres:// are not built in this version; use sqlite://path")
	default:
		faults.add("ledger.url", 0, "must begin with sqlite://")
	}
	k := c.Ledger.Kafka
	if len(k.Brokers) == 0 && c.isSet("ledger.kafka.topic") && k.Topic != "usage" {
		faults.add("ledger.kafka.topic", 0, "has no effect without ledger.kafka.brokers")
	}
	if len(k.Brokers) > 0 && k.Topic == "" {
		faults.add("ledger.kafka.topic", 0, "must not be empty")
	}
	for i, b := range k.Brokers {
		if err := checkHostPort(b); err != nil {
			faults.add(fmt.Sprintf("ledger.kafka.brokers[%d]", i), 0, "%v", err)
		}
	}
	return faults
}

// ownHeaders are set by the node or carry credentials; a fixed header must not.
var ownHeaders = []string{
	"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization", "host", "connection", "content-length", "transfer-encoding",
	"accept-encoding", "te", "trailer", "upgrade", "keep-alive", "x-request-id",
}

func (c *Config) checkUpstreams() (faults Faults) {
	checkTable(&faults, "upstreams", c.Upstreams, upstreamsMax)
	for _, name := range sorted(c.Upstreams) {
		u, path := c.Upstreams[name], "upstreams."+name
		if err := checkHTTP(u.URL); err != nil {
			faults.add(path+".url", 0, "%v", err)
		}
		if !isToken(u.Auth.Header) && u.Auth.Secret.IsSet() {
			faults.add(path+".auth.header", 0, "%q is not a header's name", u.Auth.Header)
		}
		for _, h := range sorted(u.Headers) {
			switch {
			case !isToken(h):
				faults.add(path+".headers."+h, 0, "is not a header's name")
			case slices.Contains(ownHeaders, strings.ToLower(h)):
				faults.add(path+".headers."+h, 0, "cannot be set here; credentials belong into auth, the rest is the node's own")
			case strings.ContainsFunc(u.Headers[h], func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
				faults.add(path+".headers."+h, 0, "has control characters")
			}
		}
		for phase, d := range map[string]time.Duration{"connect": u.Timeout.Connect, "first_byte": u.Timeout.FirstByte, "idle": u.Timeout.Idle} {
			if d > u.Timeout.Total {
				faults.add(path+".timeout."+phase, 0, "%v is longer than the total of %v", d, u.Timeout.Total)
			}
		}
	}
	return faults
}

// ownPaths are answered by the node itself, whatever the routes say.
var ownPaths = []string{"/v1/quota/", "/healthz", "/readyz"}

func (c *Config) checkRoutes() (faults Faults) {
	if len(c.Routes) > routesMax {
		faults.add("routes", 0, "has %d entries, at most %d are allowed", len(c.Routes), routesMax)
	}
	seen := map[string]int{}
	for i := range c.Routes {
		r, path := &c.Routes[i], fmt.Sprintf("routes[%d]", i)
		literal, _ := r.literal()
		if first, ok := seen[literal]; ok {
			faults.add(path+".path", 0, "%q has the same literal prefix as routes[%d]; which of the two should win?", r.Path, first)
		} else {
			seen[literal] = i
		}
		switch {
		case !strings.HasPrefix(literal, "/") || strings.ContainsAny(literal, "*?# ") || strings.Contains(literal, "//"):
			faults.add(path+".path", 0, `%q must be a path such as /v1/models, with at most one "*", at its end`, r.Path)
		case len(r.Path) > patternMax:
			faults.add(path+".path", 0, "is longer than %d bytes", patternMax)
		case slices.ContainsFunc(ownPaths, func(own string) bool { return strings.HasPrefix(literal, own) }):
			faults.add(path+".path", 0, "%q is never reached: the node answers there itself", r.Path)
		}
		if _, ok := c.Upstreams[r.Upstream]; !ok {
			hint := "there are none"
			if len(c.Upstreams) > 0 {
				hint = fmt.Sprintf("did you mean %q?", nearest(r.Upstream, sorted(c.Upstreams)))
			}
			faults.add(path+".upstream", 0, "%q is not one of upstreams, %s", r.Upstream, hint)
		}
	}
	return faults
}

func (c *Config) checkModels() (faults Faults) {
	if len(c.Models) > modelsMax {
		faults.add("models", 0, "has %d entries, at most %d are allowed", len(c.Models), modelsMax)
	}
	for _, name := range sorted(c.Models) {
		m, path := c.Models[name], "models."+name
		if name == "" || len(name) > patternMax {
			faults.add(path, 0, "a model's name has 1 to %d bytes", patternMax)
		}
		if m.MinOutput > m.MaxOutput {
			faults.add(path+".min_output", 0, "%d is above max_output (%d)", m.MinOutput, m.MaxOutput)
		}
		for _, p := range []quota.Decimal{m.Price.Call, m.Price.Input, m.Price.CachedInput, m.Price.CacheWrite, m.Price.Output} {
			if p < 0 {
				faults.add(path+".price", 0, "must not be negative")
				break
			}
		}
		if c.set == nil {
			continue // built in code: nobody can tell a zero from a missing price
		}
		call, input, output := c.isSet(path+".price.call"), c.isSet(path+".price.input"), c.isSet(path+".price.output")
		switch {
		case !call && !input && !output:
			faults.add(path+".price", 0, "is missing; what is free has to say {input: 0, output: 0}, and 1 credit per token is {input: 1, output: 1}")
		case input != output:
			faults.add(path+".price", 0, "has only one of input and output; give both, 0 for what is free")
		}
	}
	return faults
}

// longestUpstream is the name and total of the upstream call that may take longest.
func (c *Config) longestUpstream() (name string, total time.Duration) {
	for _, n := range sorted(c.Upstreams) {
		if t := c.Upstreams[n].Timeout.Total; t > total {
			name, total = n, t
		}
	}
	return name, total
}

func (c *Config) checkHoldTTL(ttl time.Duration) (faults Faults) {
	if name, total := c.longestUpstream(); total > 0 && ttl < total+holdMargin {
		faults.add("policy.hold_ttl", 0, "%v is too short: a call to upstreams.%s may take %v, so holds must live at least %v", ttl, name, total, total+holdMargin)
	}
	if l := c.Lease; l.Enabled {
		if need := c.reclaimLeast(ttl); l.Reclaim < need {
			faults.add("lease.reclaim", 0, "%v is too short: ttl %v + the longer of hold_ttl %v and the longest upstream total + flush %v + renew %v + %v make at least %v",
				l.Reclaim, l.TTL, ttl, l.Flush, l.Renew, reclaimMargin, need)
		}
	}
	return faults
}

// reclaimLeast is when the last report of a lease may come: after its last use and the longest request begun then.
func (c *Config) reclaimLeast(holdTTL time.Duration) time.Duration {
	_, total := c.longestUpstream()
	return c.Lease.TTL + max(holdTTL, total) + c.Lease.Flush + c.Lease.Renew + reclaimMargin
}

func (c *Config) checkLease() (faults Faults) {
	l := c.Lease
	if !l.Enabled {
		return nil
	}
	if 2*l.Renew > l.TTL {
		faults.add("lease.renew", 0, "%v must be at most half of ttl (%v): one lost renewal may not end a lease", l.Renew, l.TTL)
	}
	if l.Flush > l.Renew {
		faults.add("lease.flush", 0, "%v must be at most renew (%v)", l.Flush, l.Renew)
	}
	return faults
}

func (c *Config) checkWebhook() (faults Faults) {
	w := c.Webhook
	switch {
	case w.URL != "":
		if err := checkHTTP(w.URL); err != nil {
			faults.add("webhook.url", 0, "%v", err)
		}
	case w.SecretEnv != "" || w.SecretFile != "":
		faults.add("webhook.url", 0, "is empty, so a secret has no effect")
	}
	return faults
}

func checkTable[T any](faults *Faults, path string, table map[string]T, most int) {
	if len(table) > most {
		faults.add(path, 0, "has %d entries, at most %d are allowed", len(table), most)
	}
	for _, name := range sorted(table) {
		if !isName(name, false) {
			faults.add(join(path, name), 0, "a name has 1 to %d of [A-Za-z0-9._-]", nameMax)
		}
	}
}

// boundsOf checks the oneof, min and max tags of a struct and all below it.
func boundsOf(path string, v any) Faults {
	var faults Faults
	bounds(&faults, path, reflect.ValueOf(v), "")
	return faults
}

func bounds(faults *Faults, path string, v reflect.Value, tag reflect.StructTag) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			bounds(faults, path, v.Elem(), tag)
		}
		return
	case reflect.Struct:
		for i := range v.NumField() {
			if name := fieldName(v.Type().Field(i)); name != "" {
				bounds(faults, join(path, name), v.Field(i), v.Type().Field(i).Tag)
			}
		}
		return
	case reflect.Map:
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			bounds(faults, join(path, key.String()), v.MapIndex(key), "")
		}
		return
	case reflect.Slice:
		for i := range v.Len() {
			bounds(faults, fmt.Sprintf("%s[%d]", path, i), v.Index(i), "")
		}
		return
	}
	if oneof := tag.Get("oneof"); oneof != "" && !slices.Contains(strings.Split(oneof, "|"), v.String()) {
		faults.add(path, 0, "%q is not one of %s", v.String(), strings.ReplaceAll(oneof, "|", ", "))
	}
	least, most := tag.Get("min"), tag.Get("max")
	if least == "" || slices.ContainsFunc(slices.Collect(maps.Values(wordsOf(tag))), func(word int64) bool { return equals(v, word) }) {
		return
	}
	if number(v) < number(parseLike(v, least)) || number(v) > number(parseLike(v, most)) {
		faults.add(path, 0, "%s is out of bounds, from %s to %s", show(v), least, most)
	}
}

func equals(v reflect.Value, word int64) bool {
	if v.CanInt() {
		return v.Int() == word
	}
	return v.Float() == float64(word)
}

// number is for comparing only. A bound above 2^53 would compare inexactly; there is none.
func number(v reflect.Value) float64 {
	if v.CanInt() {
		return float64(v.Int())
	}
	return v.Float()
}

// parseLike reads a bound as the file would write a value of v's type.
func parseLike(v reflect.Value, text string) reflect.Value {
	bound := reflect.New(v.Type()).Elem()
	d := decoder{}
	d.value("", &node{kind: scalar, text: text}, bound, "")
	if len(d.faults) > 0 {
		panic("BUG: config: bound " + text + " of " + v.Type().String())
	}
	return bound
}

func show(v reflect.Value) string { return fmt.Sprint(v.Interface()) }

func sorted[T any](table map[string]T) []string { return slices.Sorted(maps.Keys(table)) }

func checkHostPort(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || strings.ContainsAny(host, "/@ ") {
		return fmt.Errorf("%q is not host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port must be a number up to 65535", addr)
	} else if n == 0 && host == "" {
		return fmt.Errorf("%q names neither a host nor a port", addr)
	}
	return nil
}

// isLoopback is true only for what no other machine can reach.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true // another fault says so
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// checkHTTP never quotes the URL: a mistaken one may carry a password.
func checkHTTP(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		return fmt.Errorf("is missing")
	case err != nil:
		return fmt.Errorf("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("must begin with http:// or https://")
	case u.Hostname() == "":
		return fmt.Errorf("has no host")
	case u.User != nil:
		return fmt.Errorf("must not carry a user or password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("must not have a query or a fragment")
	}
	return nil
}

func isName(s string, orEmpty bool) bool {
	if s == "" {
		return orEmpty
	}
	return len(s) <= nameMax && !strings.ContainsFunc(s, func(r rune) bool {
		return !isAlnum(r) && !strings.ContainsRune("._-", r)
	})
}

// isToken is RFC 9110's token: what a header's name may consist of.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !isAlnum(r) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func isAlnum(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
