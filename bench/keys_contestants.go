package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A keyedContestant limits each of many keys by itself.
type keyedContestant struct {
	name  string
	calls []string // by which it is asked
	// open makes one for so many keys. Its calls end with ctx, if they wait.
	open func(ctx context.Context, keys int, b keyedBucket) (keyed, error)
	// alone makes what it has for one key, which takes none. nil: there is none.
	alone func(ctx context.Context, b keyedBucket) (keyed, error)
}

// keyed is a keyedContestant at work. There is one of each for each of its calls:
// every goroutine calls it once, and then what that returned over and over. A call
// is true if the key may leave.
type keyed struct {
	each []func() (call func(key string) bool)
	stop func()
}

// A keyedBucket is what each key has: one unit drains in that time, and so many
// leave at once.
type keyedBucket struct {
	every time.Duration
	burst int
}

// whole is the time in which a full bucket drains.
func (b keyedBucket) whole() time.Duration { return time.Duration(b.burst) * b.every }

// perSecond is the rate at which it drains.
func (b keyedBucket) perSecond() rate.Limit { return rate.Every(b.every) }

// limits are the bucket for us. One may wait for the next unit, and what a late
// wake-up has lost is made up, as x/time does.
func (b keyedBucket) limits() shaper.Limits {
	return shaper.Limits{Rate: b.perSecond(), Burst: b.burst, Depth: 1, Slack: max(b.every, shaper.DefaultSlack)}
}

const (
	// bareMap stands beside the contestants: a look-up, without a lock, in a map
	// that has the key, which is what a key costs at the least.
	bareMap = "map"

	oursKeyed   = "shaper"
	oursDrained = "shaper-drained"
)

// drainedBucket is drained when its key comes again, and never refuses.
var drainedBucket = keyedBucket{every: time.Nanosecond, burst: 1_000}

// keyedContestants are all that is compared.
var keyedContestants = []keyedContestant{
	{
		name: oursKeyed, calls: []string{"Wait", "Allow"},
		open: openGroup, alone: openShaperAlone,
	},
	{
		name: oursDrained, calls: []string{"Wait", "Allow"},
		open: func(ctx context.Context, keys int, _ keyedBucket) (keyed, error) {
			return openGroup(ctx, keys, drainedBucket)
		},
		alone: func(ctx context.Context, _ keyedBucket) (keyed, error) { return openShaperAlone(ctx, drainedBucket) },
	},
	{name: "x-time", calls: []string{"Wait", "Allow"}, open: openLimiterMap, alone: openXTimeAlone},
	{name: "sethvargo", calls: []string{"Take"}, open: openMemoryStore},
	{name: "throttled", calls: []string{"RateLimitCtx"}, open: openMemStore},
	{name: "throttled-unbounded", calls: []string{"RateLimitCtx"}, open: func(ctx context.Context, _ int, b keyedBucket) (keyed, error) {
		return openMemStore(ctx, 0, b)
	}},
	{name: "httprate", calls: []string{"OnLimit"}, open: openWindowCounter},
	{name: bareMap, calls: []string{"look-up"}, open: openBareMap},
}

func keyedContestantNamed(name string) (keyedContestant, error) {
	for _, c := range keyedContestants {
		if c.name == name {
			return c, nil
		}
	}
	return keyedContestant{}, fmt.Errorf("no contestant with keys is named %q", name)
}

// keyedCall is for contestants of which all goroutines make the same call.
func keyedCall(call func(key string) bool) func() func(string) bool {
	return func() func(string) bool { return call }
}

func openGroup(ctx context.Context, keys int, b keyedBucket) (keyed, error) {
	l := b.limits()
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithMaxKeys(keys))
	if err != nil {
		return keyed{}, err
	}
	return keyed{
		each: []func() func(string) bool{
			keyedCall(func(key string) bool { return g.Wait(ctx, key) == nil }),
			keyedCall(g.Allow),
		},
		stop: func() { _ = g.Close() }, // Close always returns nil.
	}, nil
}

func openShaperAlone(ctx context.Context, b keyedBucket) (keyed, error) {
	s, err := shaper.New(b.limits())
	if err != nil {
		return keyed{}, err
	}
	return keyed{
		each: []func() func(string) bool{
			keyedCall(func(string) bool { return s.Wait(ctx) == nil }),
			keyedCall(func(string) bool { return s.Allow() }),
		},
		stop: func() { _ = s.Close() },
	}, nil
}

// A limiterMap is what programs have that keep one of x/time's limiters for each
// user: a map behind a mutex. Whoever wants keys deleted has to write that himself.
type limiterMap struct {
	bucket keyedBucket

	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

func (m *limiterMap) of(key string) *rate.Limiter {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.limiters[key]
	if l == nil {
		l = rate.NewLimiter(m.bucket.perSecond(), m.bucket.burst)
		m.limiters[key] = l
	}
	return l
}

func openLimiterMap(ctx context.Context, _ int, b keyedBucket) (keyed, error) {
	m := &limiterMap{bucket: b, limiters: make(map[string]*rate.Limiter)}
	return keyed{
		each: []func() func(string) bool{
			keyedCall(func(key string) bool { return m.of(key).Wait(ctx) == nil }),
			keyedCall(func(key string) bool { return m.of(key).Allow() }),
		},
		stop: func() {},
	}, nil
}

func openXTimeAlone(ctx context.Context, b keyedBucket) (keyed, error) {
	l := rate.NewLimiter(b.perSecond(), b.burst)
	return keyed{
		each: []func() func(string) bool{
			keyedCall(func(string) bool { return l.Wait(ctx) == nil }),
			keyedCall(func(string) bool { return l.Allow() }),
		},
		stop: func() {},
	}, nil
}

// openMemoryStore has keys swept as soon as its comment allows, which is the time
// in which a bucket is full again, but not more than once a second.
func openMemoryStore(ctx context.Context, _ int, b keyedBucket) (keyed, error) {
	full := max(b.whole(), time.Second)
	store, err := memorystore.New(&memorystore.Config{
		Tokens: uint64(b.burst), Interval: b.whole(), SweepInterval: full, SweepMinTTL: full,
	})
	if err != nil {
		return keyed{}, err
	}
	return keyed{
		each: []func() func(string) bool{keyedCall(func(key string) bool {
			_, _, _, ok, err := store.Take(ctx, key)
			return err == nil && ok
		})},
		stop: func() { _ = store.Close(context.Background()) }, // It returns nil.
	}, nil
}

// openMemStore bounds the keys, as its README does; 0 is no bound.
func openMemStore(ctx context.Context, keys int, b keyedBucket) (keyed, error) {
	store, err := memstore.NewCtx(keys)
	if err != nil {
		return keyed{}, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerDuration(1, b.every), MaxBurst: b.burst - 1,
	})
	if err != nil {
		return keyed{}, err
	}
	l.SetMaxCASAttemptsLimit(10_000) // With the 10 that it has, some calls of 64 goroutines come to nothing.
	return keyed{
		each: []func() func(string) bool{keyedCall(func(key string) bool {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			return err == nil && !limited
		})},
		stop: func() {},
	}, nil
}

// openWindowCounter has a request and an answer for each goroutine, as there is
// only an entrance for HTTP.
func openWindowCounter(_ context.Context, _ int, b keyedBucket) (keyed, error) {
	l := httprate.NewRateLimiter(b.burst, b.whole())
	each := func() func(string) bool {
		answer := headerOnly{}
		request := &http.Request{Header: http.Header{}}
		return func(key string) bool { return !l.OnLimit(answer, request, key) }
	}
	return keyed{each: []func() func(string) bool{each}, stop: func() {}}, nil
}

// openBareMap is for one goroutine until all keys have come.
func openBareMap(context.Context, int, keyedBucket) (keyed, error) {
	seen := make(map[string]int64)
	return keyed{
		each: []func() func(string) bool{keyedCall(func(key string) bool {
			if _, has := seen[key]; !has {
				seen[key] = 1
			}
			return true
		})},
		stop: func() {},
	}, nil
}
