// Package rivals adapts the limiters that are compared, ours among them, each in
// the best use that its documentation shows.
package rivals

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/naive"
	"example.com/leakybucket/shaper"
)

// Ours is the name under which this library stands among them.
const Ours = "shaper"

// Fair is ours with fair queueing, and FairOutside is fair queueing built on top of a plain Shaper. Each call is
// of the next of fairKeys keys.
const (
	Fair        = "shaper-fair"
	FairOutside = "fair-outside"

	fairKeys = 10
)

// A Wait blocks until its caller may leave, or ctx ends.
type Wait func(ctx context.Context) error

// A Line is where the callers of a rival wait.
type Line struct {
	Wait Wait
	Stop func() // frees it
}

// A Rival makes callers wait.
type Rival struct {
	Name string
	// Open makes a line for perSecond departures and up to so many callers that
	// wait at once. If the rival is Traced it calls slot, unless that is nil, on
	// any goroutine, with the instant at which each slot was handed out. Of the
	// others that is unknown outside.
	Open   func(perSecond float64, waiting int, slot func(time.Time)) Line
	Traced bool
}

// all are those that wait. The rates that they are asked for are whole numbers,
// as go.uber.org/ratelimit and failsafe-go take no others.
var all = []Rival{
	ours(Ours, 0),
	ours("shaper-coarse", 0, shaper.WithCoarseTimer()),
	ours("shaper-slack100", 100*time.Millisecond),
	{Name: "x-time", Open: openXTime},
	{Name: "uber", Open: openUber()},
	{Name: "uber-noslack", Open: openUber(ratelimit.WithoutSlack)},
	{Name: "failsafe", Open: openFailsafe},
	{Name: "naive", Open: openNaive},
	{Name: Fair, Open: openFair, Traced: true},
	{Name: FairOutside, Open: openFairOutside},
}

// Named returns the rival of that name. It panics if there is none: all names are
// the experiments' own.
func Named(name string) Rival {
	at := slices.IndexFunc(all, func(r Rival) bool { return r.Name == name })
	if at < 0 {
		panic("no rival is named " + name)
	}
	return all[at]
}

// Must returns a limiter that was made without an error. It panics otherwise: all
// settings are the experiments' own.
func Must[T any](limiter T, err error) T {
	if err != nil {
		panic(err)
	}
	return limiter
}

func ours(name string, slack time.Duration, opts ...shaper.Option) Rival {
	open := func(perSecond float64, waiting int, slot func(time.Time)) Line {
		s := newShaper(shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting, Slack: slack}, slot, opts...)
		return Line{Wait: s.Wait, Stop: func() { _ = s.Close() }} // It returns nil.
	}
	return Rival{Name: name, Open: open, Traced: true}
}

// newShaper returns a Shaper that calls slot, unless that is nil, with the instant of each departure.
func newShaper(l shaper.Limits, slot func(time.Time), opts ...shaper.Option) *shaper.Shaper {
	if slot != nil {
		trace := shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { slot(e.At) }})
		opts = append(slices.Clone(opts), trace)
	}
	return Must(shaper.New(l, opts...))
}

func openFair(perSecond float64, waiting int, slot func(time.Time)) Line {
	s := newShaper(shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting}, slot, shaper.WithFairQueue(nil))
	next := nextKey()
	return Line{
		Wait: func(ctx context.Context) error { return s.For(next()).Wait(ctx) },
		Stop: func() { _ = s.Close() },
	}
}

func openFairOutside(perSecond float64, waiting int, _ func(time.Time)) Line {
	s := newShaper(shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting}, nil)
	f := &fairOutside{shaper: s, paid: map[string]int{}}
	next := nextKey()
	return Line{
		Wait: func(ctx context.Context) error { return f.wait(ctx, next()) },
		Stop: func() { _ = s.Close() },
	}
}

// nextKey returns a function that returns fairKeys keys in turn, over and over.
func nextKey() func() string {
	var calls atomic.Int64
	return func() string { return strconv.FormatInt(calls.Add(1)%fairKeys, 10) }
}

// A fairOutside keeps the callers of a Shaper in an order of its own, and lets one at a time into the line of the
// Shaper: whom it lets in can't be overtaken any more.
type fairOutside struct {
	shaper *shaper.Shaper

	mu     sync.Mutex
	taken  bool           // by the caller that is let in
	latest int            // tag of that caller
	paid   map[string]int // the last tag of each key
	line   []outsider     // by tag; of equal ones the first to come is first
}

// An outsider is a caller that is not let in yet.
type outsider struct {
	tag   int // what its key has paid with it
	letIn chan struct{}
}

func (f *fairOutside) wait(ctx context.Context, key string) error {
	f.mu.Lock()
	o := outsider{max(f.latest, f.paid[key]) + 1, make(chan struct{})}
	f.paid[key] = o.tag
	at, _ := slices.BinarySearchFunc(f.line, o.tag+1, func(other outsider, tag int) int { return other.tag - tag })
	f.line = slices.Insert(f.line, at, o)
	if !f.taken {
		f.nextLocked()
	}
	f.mu.Unlock()
	select {
	case <-o.letIn:
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		if at := slices.Index(f.line, o); at >= 0 {
			f.line = slices.Delete(f.line, at, at+1)
		} else { // It was let in meanwhile.
			f.nextLocked()
		}
		return ctx.Err()
	}
	err := f.shaper.Wait(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextLocked()
	return err
}

// nextLocked lets the next one in.
func (f *fairOutside) nextLocked() {
	f.taken = len(f.line) > 0
	if f.taken {
		f.latest = f.line[0].tag
		close(f.line[0].letIn)
		f.line = slices.Delete(f.line, 0, 1)
	}
}

// With a burst of 1 x/time spaces departures, as the others do.
func openXTime(perSecond float64, _ int, _ func(time.Time)) Line {
	return Line{Wait: rate.NewLimiter(rate.Limit(perSecond), 1).Wait, Stop: func() {}}
}

// Take knows no context: a caller that gives up stays until its slot has come.
func openUber(opts ...ratelimit.Option) func(perSecond float64, _ int, _ func(time.Time)) Line {
	return func(perSecond float64, _ int, _ func(time.Time)) Line {
		l := ratelimit.New(int(perSecond), opts...)
		wait := func(ctx context.Context) error {
			l.Take()
			return ctx.Err()
		}
		return Line{Wait: wait, Stop: func() {}}
	}
}

// AcquirePermit does not look at deadlines. A caller that has one is to say how
// long it may wait, with the other call.
func openFailsafe(perSecond float64, _ int, _ func(time.Time)) Line {
	l := ratelimiter.NewSmooth[any](uint(perSecond), time.Second)
	wait := func(ctx context.Context) error {
		if deadline, ok := ctx.Deadline(); ok {
			return l.AcquirePermitWithMaxWait(ctx, max(0, time.Until(deadline))) // -1 would be no bound.
		}
		return l.AcquirePermit(ctx)
	}
	return Line{Wait: wait, Stop: func() {}}
}

func openNaive(perSecond float64, waiting int, _ func(time.Time)) Line {
	q := naive.New(perSecond, waiting)
	q.Start()
	return Line{Wait: q.Wait, Stop: q.Stop}
}

// A KeyedRival limits each of many keys by itself.
type KeyedRival struct {
	Name  string
	Calls []string // by which it is asked
	// Open makes one for so many keys. Its calls end with ctx, if they wait.
	Open func(ctx context.Context, keys int, b Bucket) Keyed
	// Alone makes the rival's limiter for one key, which takes no key. nil: there is none.
	Alone func(ctx context.Context, b Bucket) Keyed
}

// Keyed is a KeyedRival at work. Each has a function for each of its calls, which
// every goroutine calls once; what that returned it calls over and over. A call
// reports whether the key may leave.
type Keyed struct {
	Each []func() (call func(key string) bool)
	Stop func()
	// TellsWhen asks once, and reports whether the key is refused and told when to come
	// back. nil: a call of Each does not tell.
	TellsWhen func(key string) bool
}

// A Bucket is the bucket of each key: one unit drains in the time Every, and Burst units leave at
// once.
type Bucket struct {
	Every time.Duration
	Burst int
}

// whole returns the time in which a full bucket drains.
func (b Bucket) whole() time.Duration { return time.Duration(b.Burst) * b.Every }

// perSecond returns the rate at which it drains.
func (b Bucket) perSecond() rate.Limit { return rate.Every(b.Every) }

// Limits are the bucket for us. One caller may wait for the next unit, and time lost by a late
// wake-up is made up, as x/time does.
func (b Bucket) Limits() shaper.Limits {
	return shaper.Limits{Rate: b.perSecond(), Burst: b.Burst, Depth: 1, Slack: max(b.Every, shaper.DefaultSlack)}
}

const (
	// BareMap stands beside the rivals: a look-up, without a lock, in a map
	// that has the key, which is the least cost of a key.
	BareMap = "map"

	// OursDrained is ours with [DrainedBucket].
	OursDrained = Ours + "-drained"
)

// DrainedBucket is drained when its key comes again, and never refuses.
var DrainedBucket = Bucket{Every: time.Nanosecond, Burst: 1_000}

// AllKeyed are those that are compared, ours first.
var AllKeyed = []KeyedRival{
	{
		Name: Ours, Calls: []string{"Wait", "Allow"},
		Open: openGroup, Alone: openShaperAlone,
	},
	{
		Name: OursDrained, Calls: []string{"Wait", "Allow"},
		Open: func(ctx context.Context, keys int, _ Bucket) Keyed {
			return openGroup(ctx, keys, DrainedBucket)
		},
		Alone: func(ctx context.Context, _ Bucket) Keyed { return openShaperAlone(ctx, DrainedBucket) },
	},
	{Name: "x-time", Calls: []string{"Wait", "Allow"}, Open: openLimiterMap, Alone: openXTimeAlone},
	{Name: "sethvargo", Calls: []string{"Take"}, Open: openMemoryStore},
	{Name: "throttled", Calls: []string{"RateLimitCtx"}, Open: openMemStore},
	{Name: "throttled-unbounded", Calls: []string{"RateLimitCtx"}, Open: func(ctx context.Context, _ int, b Bucket) Keyed {
		return openMemStore(ctx, 0, b)
	}},
	{Name: "httprate", Calls: []string{"OnLimit"}, Open: openWindowCounter},
	{Name: BareMap, Calls: []string{"look-up"}, Open: openMap},
}

// KeyedNamed returns the rival of that name. It panics if there is none.
func KeyedNamed(name string) KeyedRival {
	at := slices.IndexFunc(AllKeyed, func(c KeyedRival) bool { return c.Name == name })
	if at < 0 {
		panic("no rival with keys is named " + name)
	}
	return AllKeyed[at]
}

// keyedCall is for rivals on which all goroutines make the same call.
func keyedCall(call func(key string) bool) func() func(string) bool {
	return func() func(string) bool { return call }
}

func openGroup(ctx context.Context, keys int, b Bucket) Keyed {
	l := b.Limits()
	g := Must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithMaxKeys(keys)))
	return Keyed{
		Each: []func() func(string) bool{
			keyedCall(func(key string) bool { return g.Wait(ctx, key) == nil }),
			keyedCall(g.Allow),
		},
		Stop: func() { _ = g.Close() }, // Close always returns nil.
	}
}

func openShaperAlone(ctx context.Context, b Bucket) Keyed {
	s := Must(shaper.New(b.Limits()))
	return Keyed{
		Each: []func() func(string) bool{
			keyedCall(func(string) bool { return s.Wait(ctx) == nil }),
			keyedCall(func(string) bool { return s.Allow() }),
		},
		Stop: func() { _ = s.Close() },
	}
}

// A limiterMap is the map of programs that keep one of x/time's limiters for
// each user: a map behind a mutex. A program that wants keys deleted has to do
// so by itself.
type limiterMap struct {
	bucket Bucket

	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

func (m *limiterMap) of(key string) *rate.Limiter {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.limiters[key]
	if l == nil {
		l = rate.NewLimiter(m.bucket.perSecond(), m.bucket.Burst)
		m.limiters[key] = l
	}
	return l
}

func openLimiterMap(ctx context.Context, _ int, b Bucket) Keyed {
	m := &limiterMap{bucket: b, limiters: make(map[string]*rate.Limiter)}
	return Keyed{
		Each: []func() func(string) bool{
			keyedCall(func(key string) bool { return m.of(key).Wait(ctx) == nil }),
			keyedCall(func(key string) bool { return m.of(key).Allow() }),
		},
		Stop: func() {},
	}
}

func openXTimeAlone(ctx context.Context, b Bucket) Keyed {
	l := rate.NewLimiter(b.perSecond(), b.Burst)
	return Keyed{
		Each: []func() func(string) bool{
			keyedCall(func(string) bool { return l.Wait(ctx) == nil }),
			keyedCall(func(string) bool { return l.Allow() }),
		},
		Stop: func() {},
	}
}

// openMemoryStore has keys swept as soon as its comment allows, which is the time
// in which a bucket is full again, but not more than once a second.
func openMemoryStore(ctx context.Context, _ int, b Bucket) Keyed {
	full := max(b.whole(), time.Second)
	store := Must(memorystore.New(&memorystore.Config{
		Tokens: uint64(b.Burst), Interval: b.whole(), SweepInterval: full, SweepMinTTL: full,
	}))
	return Keyed{
		Each: []func() func(string) bool{keyedCall(func(key string) bool {
			_, _, _, ok, err := store.Take(ctx, key)
			return err == nil && ok
		})},
		Stop: func() { _ = store.Close(context.Background()) }, // It returns nil.
		TellsWhen: func(key string) bool {
			_, _, reset, ok, err := store.Take(ctx, key)
			return err == nil && !ok && time.Unix(0, int64(reset)).After(time.Now())
		},
	}
}

// openMemStore bounds the keys, as throttled's README does; 0 is no bound.
func openMemStore(ctx context.Context, keys int, b Bucket) Keyed {
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, b.Every), MaxBurst: b.Burst - 1}
	l := Must(throttled.NewGCRARateLimiterCtx(Must(memstore.NewCtx(keys)), quota))
	l.SetMaxCASAttemptsLimit(10_000) // With the 10 that it has, some calls of 64 goroutines come to nothing.
	return Keyed{
		Each: []func() func(string) bool{keyedCall(func(key string) bool {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			return err == nil && !limited
		})},
		Stop: func() {},
		TellsWhen: func(key string) bool {
			limited, r, err := l.RateLimitCtx(ctx, key, 1)
			return err == nil && limited && r.RetryAfter > 0
		},
	}
}

// openWindowCounter has a request and a response for each goroutine, as there is
// only an entrance for HTTP.
func openWindowCounter(_ context.Context, _ int, b Bucket) Keyed {
	l := httprate.NewRateLimiter(b.Burst, b.whole())
	each := func() func(string) bool {
		response := HeaderOnly{}
		request := &http.Request{Header: http.Header{}}
		return func(key string) bool { return !l.OnLimit(response, request, key) }
	}
	return Keyed{
		Each: []func() func(string) bool{each},
		Stop: func() {},
		TellsWhen: func(key string) bool {
			response := HeaderOnly{}
			return l.OnLimit(response, &http.Request{Header: http.Header{}}, key) && http.Header(response).Get("Retry-After") != ""
		},
	}
}

// openMap is for one goroutine until all keys have come.
func openMap(context.Context, int, Bucket) Keyed {
	seen := make(map[string]int64)
	return Keyed{
		Each: []func() func(string) bool{keyedCall(func(key string) bool {
			if _, has := seen[key]; !has {
				seen[key] = 1
			}
			return true
		})},
		Stop: func() {},
	}
}

// HeaderOnly is a response that keeps nothing but its header.
type HeaderOnly http.Header

// Header implements [http.ResponseWriter].
func (h HeaderOnly) Header() http.Header { return http.Header(h) }

// Write implements [http.ResponseWriter].
func (h HeaderOnly) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements [http.ResponseWriter].
func (h HeaderOnly) WriteHeader(int) {}
