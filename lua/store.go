package lua

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/redis/rueidis"
)

// Options of one store. The zero value of each field takes the default named there.
type Options struct {
	// Name of the store in the configuration; a label in metrics and errors.
	Name string
	// URL: redis://, rediss://, redis+cluster://host,host or redis+sentinel://host,host/master/db.
	URL string
	// Connect bounds dialling one connection. Default 200 ms; higher delays the notice of a dead host.
	Connect time.Duration
	// Timeout bounds one call besides its context. Default: the context alone.
	Timeout time.Duration
	// InFlight is the most calls that may wait for Redis at once, also those whose caller has left; beyond it a call
	// fails at once with ErrNotSent. Default 512; higher leaves more unknown outcomes when Redis freezes, and above
	// 1000 the client's own queue may fill.
	InFlight int
	// Guard sees every call before and after; nil: none. The breaker goes here.
	Guard Guard
	// OnInvalidate hears which documents changed; nil keys: all of them may have.
	// It runs on the connection's reader: hand off, never block.
	OnInvalidate func(keys []string)
}

// Guard stands around every call of a store, so that none can bypass it.
type Guard interface {
	// Before refuses a call by an error, which the caller gets wrapped in ErrNotSent.
	Before() error
	// After hears how a call went: nil, ErrUnknown, ErrRefused or ErrNotSent, and how long it took.
	After(err error, took time.Duration)
}

// Store is one Redis: standalone, sentinel or cluster. Safe for concurrent use.
type Store struct {
	name     string
	guard    Guard
	decide   rueidis.Client // scripts: pipelined on one connection, no retry, no cache
	track    rueidis.Client // documents: client-side caching
	inFlight atomic.Int64
	limit    int64
	timeout  time.Duration // of one call; 0: its context alone
	epoch    time.Time     // origin of the monotonic clock
	rtt      roundTrip
	offset   atomic.Int64 // Redis' ms minus ms since epoch, as of the last reply
	stop     context.CancelFunc
	done     sync.WaitGroup
	instead  map[*script]*script // tests only: what runs in place of a script; nil otherwise
}

// heartbeatEvery: a connection that broke is made anew by the next command, and
// until then a tracking one hears nothing; so each gets a command this often.
// Longer leaves documents stale longer, and a call after quiet waits for the dial.
const heartbeatEvery = 200 * time.Millisecond

// Open connects to a store, loads the scripts and learns Redis' time. A store
// that is down at the moment is no error when it is a single Redis: the client
// heals by itself. Close it.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Connect <= 0 {
		o.Connect = 200 * time.Millisecond
	}
	if o.InFlight <= 0 {
		o.InFlight = 512
	}
	base, err := clientOption(o.URL)
	if err != nil {
		return nil, err
	}
	base.Dialer = net.Dialer{Timeout: o.Connect, KeepAlive: 100 * time.Millisecond}
	base.Sentinel.Dialer = base.Dialer
	base.ConnWriteTimeout = 200 * time.Millisecond
	base.AlwaysPipelining = true
	base.PipelineMultiplex = -1
	base.DisableRetry = true
	base.ClientName = "tollgate"

	decide := base
	decide.DisableCache = true
	decide.ReadBufferEachConn, decide.WriteBufferEachConn = 64<<10, 64<<10
	track := base
	track.CacheSizeEachConn = 32 << 20
	track.OnInvalidations = func(messages []rueidis.RedisMessage) {
		if o.OnInvalidate == nil {
			return
		}
		if messages == nil {
			o.OnInvalidate(nil)
			return
		}
		keys := make([]string, 0, len(messages))
		for i := range messages {
			if key, err := messages[i].ToString(); err == nil {
				keys = append(keys, key)
			}
		}
		o.OnInvalidate(keys)
	}

	s := &Store{name: o.Name, guard: o.Guard, limit: int64(o.InFlight), timeout: o.Timeout, epoch: time.Now()}
	s.offset.Store(s.epoch.UnixMilli())
	if s.decide, err = rueidis.NewClient(decide); s.decide == nil {
		return nil, fmt.Errorf("%w: store %s: %w", ErrNotSent, o.Name, err)
	}
	if s.track, err = rueidis.NewClient(track); s.track == nil {
		s.decide.Close()
		return nil, fmt.Errorf("%w: store %s: %w", ErrNotSent, o.Name, err)
	}
	life, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.done.Go(func() { s.heartbeat(life) })
	if err := s.Ping(ctx); err == nil {
		s.preload(ctx)
	}
	return s, nil
}

// Close ends all connections and waits for the heartbeat.
func (s *Store) Close() {
	s.stop()
	s.done.Wait()
	s.decide.Close()
	s.track.Close()
}

// Name is the store's name in the configuration.
func (s *Store) Name() string { return s.name }

// Now is Redis' time in ms as this node best knows it: the last reply's time
// plus what has passed since.
func (s *Store) Now() int64 {
	return time.Since(s.epoch).Milliseconds() + s.offset.Load()
}

// sawTime takes the time of a reply as the new offset.
func (s *Store) sawTime(redisMillis int64) {
	s.offset.Store(redisMillis - time.Since(s.epoch).Milliseconds())
}

// Ping asks for Redis' time: the cheapest proof that it answers.
func (s *Store) Ping(ctx context.Context) error {
	res, err := s.do(ctx, "time", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.decide.B().Time().Build())
	})
	if err != nil {
		return err
	}
	parts, err := res.AsIntSlice()
	if err != nil || len(parts) != 2 {
		return fmt.Errorf("%w: time", ErrReply)
	}
	s.sawTime(parts[0]*1000 + parts[1]/1000)
	return nil
}

// preload puts all scripts into Redis' cache. Failing is harmless: a call whose
// script is missing sends it along.
func (s *Store) preload(ctx context.Context) {
	for _, node := range s.decide.Nodes() {
		for _, sc := range scripts {
			node.Do(ctx, node.B().ScriptLoad().Script(sc.body).Build())
		}
	}
}

func (s *Store) heartbeat(ctx context.Context) {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// Keeps Redis' time, the round trip and the connection known while nothing is decided.
			ping, cancel := context.WithTimeout(ctx, budgetHigh)
			_ = s.Ping(ping)
			cancel()
			for _, node := range s.track.Nodes() {
				beat, cancel := context.WithTimeout(ctx, heartbeatEvery)
				node.Do(beat, node.B().Ping().Build())
				cancel()
			}
		}
	}
}

// ClaimLedger binds the store to a ledger at first use and checks it ever
// after: ErrForeign when it belongs to another one.
func (s *Store) ClaimLedger(ctx context.Context, id string) error {
	_, err := s.do(ctx, "claim", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.decide.B().Setnx().Key(LedgerKey).Value(id).Build())
	})
	if err != nil {
		return err
	}
	res, err := s.do(ctx, "claim", func(ctx context.Context) rueidis.RedisResult {
		return s.decide.Do(ctx, s.decide.B().Get().Key(LedgerKey).Build())
	})
	if err != nil {
		return err
	}
	if owner, err := res.ToString(); err != nil || owner != id {
		return fmt.Errorf("%w: store %s belongs to %s, this node's ledger is %s", ErrForeign, s.name, owner, id)
	}
	return nil
}

// do runs one call under the guard and the bound on calls in flight. The client
// may block without looking at a context (a full ring, a reconnect that another
// caller began), so the call runs in a goroutine of its own, and the caller
// leaves at its deadline. The call stays in flight until Redis has answered or
// the connection is found dead (0.3 s): so InFlight bounds what a frozen Redis
// may still run, the client's ring of 1024 never fills, and a connection slower
// than one budget still comes about. call must not touch what its caller may
// change after it left.
func (s *Store) do(ctx context.Context, name string, call func(context.Context) rueidis.RedisResult) (rueidis.RedisResult, error) {
	var none rueidis.RedisResult
	if ctx.Err() != nil {
		return none, fmt.Errorf("%w: store %s: %w", ErrNotSent, s.name, context.Cause(ctx))
	}
	if s.inFlight.Add(1) > s.limit {
		s.inFlight.Add(-1)
		redisErrors("in_flight").Inc()
		return none, fmt.Errorf("%w: store %s has %d calls in flight, its limit (stores.%s.in_flight)", ErrNotSent, s.name, s.limit, s.name)
	}
	if s.guard != nil {
		if err := s.guard.Before(); err != nil {
			s.inFlight.Add(-1)
			return none, fmt.Errorf("%w: store %s: %w", ErrNotSent, s.name, err)
		}
	}
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	start := time.Now()
	var res rueidis.RedisResult
	var err error
	answer := make(chan rueidis.RedisResult, 1)
	go func() {
		defer s.inFlight.Add(-1)
		answer <- call(context.WithoutCancel(ctx))
	}()
	select {
	case res = <-answer:
		err = classify(res.Error())
	case <-ctx.Done():
		select {
		case res = <-answer: // in the same moment
			err = classify(res.Error())
		default:
			err = fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
		}
	}
	took := time.Since(start)
	scriptSeconds(name).Update(took.Seconds())
	if s.guard != nil {
		s.guard.After(err, took)
	}
	if err == nil {
		s.rtt.saw(took)
	} else {
		redisErrors(errorKind(err)).Inc()
		return none, fmt.Errorf("store %s: %s: %w", s.name, name, err)
	}
	return res, nil
}

// classify tells what a failed call may have done. Only an answer of Redis, or
// a connection that never came about, proves that nothing was written.
func classify(err error) error {
	if err == nil || rueidis.IsRedisNil(err) {
		return nil
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// errorKind is the label of an error: Redis' own code word, or ours.
func errorKind(err error) string {
	if redisErr, ok := rueidis.IsRedisErr(err); ok {
		if word, _, _ := strings.Cut(redisErr.Error(), " "); len(word) <= 16 && word == strings.ToUpper(word) {
			return strings.ToLower(word)
		}
		return "other"
	}
	if errors.Is(err, ErrNotSent) {
		return "not_sent"
	}
	return "unknown_outcome"
}

// DurationBuckets are the upper bounds, in seconds, of this node's histograms of
// short waits: from 10 µs, what a local decision takes, to 1 s, the longest budget.
var DurationBuckets = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1}

func scriptSeconds(name string) *metrics.PrometheusHistogram {
	return metrics.GetOrCreatePrometheusHistogramExt(`tollgate_redis_script_duration_seconds{script="`+name+`"}`, DurationBuckets)
}

func redisErrors(kind string) *metrics.Counter {
	return metrics.GetOrCreateCounter(`tollgate_redis_errors_total{kind="` + kind + `"}`)
}

// randomGen names one life of an account in Redis: 64 random bits in hex.
func randomGen() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
