// Package rivals adapts the limiters that are compared, ours among them, each in
// the best use that its documentation shows.
package rivals

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/fair"
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

// An Opener makes a line for perSecond departures and up to so many callers that
// wait at once.
type Opener = func(perSecond float64, waiting int) Line

// Openers are the rivals that wait, by name. The rates that they are asked for are whole numbers,
// as go.uber.org/ratelimit and failsafe-go take no others.
var Openers = map[string]Opener{
	Ours:              openShaper(0),
	"shaper-coarse":   openShaper(0, shaper.WithCoarseTimer()),
	"shaper-slack100": openShaper(100 * time.Millisecond),
	"x-time":          openXTime,
	"uber":            openUber(),
	"uber-noslack":    openUber(ratelimit.WithoutSlack),
	"failsafe":        openFailsafe,
	"naive":           openNaive,
	Fair:              openFair,
	FairOutside:       openFairOutside,
}

// Must returns a limiter, or another result, that was made without an error. It panics otherwise: all
// settings are the experiments' own.
func Must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

func openShaper(slack time.Duration, opts ...shaper.Option) Opener {
	return func(perSecond float64, waiting int) Line {
		s := newShaper(perSecond, waiting, slack, opts...)
		return Line{Wait: s.Wait, Stop: func() { _ = s.Close() }} // It returns nil.
	}
}

func newShaper(perSecond float64, waiting int, slack time.Duration, opts ...shaper.Option) *shaper.Shaper {
	return Must(shaper.New(shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting, Slack: slack}, opts...))
}

func openFair(perSecond float64, waiting int) Line {
	s := newShaper(perSecond, waiting, 0, shaper.WithFairQueue(nil))
	next := nextKey()
	return Line{
		Wait: func(ctx context.Context) error { return s.For(next()).Wait(ctx) },
		Stop: func() { _ = s.Close() },
	}
}

func openFairOutside(perSecond float64, waiting int) Line {
	s := newShaper(perSecond, waiting, 0)
	outside, next := fairOutside{shaper: s}, nextKey()
	return Line{
		Wait: func(ctx context.Context) error { return outside.wait(ctx, next()) },
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

	mu    sync.Mutex
	taken bool                      // by the caller that is let in
	order fair.Order[chan struct{}] // of those that are not let in yet; the channel is closed when one is
}

func (f *fairOutside) wait(ctx context.Context, key string) error {
	f.mu.Lock()
	one := f.order.Push(key, 1, 1, make(chan struct{}))
	if !f.taken {
		f.nextLocked()
	}
	f.mu.Unlock()
	select {
	case <-one.Value:
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		select {
		case <-one.Value: // It was let in meanwhile.
			f.nextLocked()
		default:
			f.order.Remove(one)
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
	one := f.order.Head()
	f.taken = one != nil
	if f.taken {
		f.order.Depart()
		close(one.Value)
	}
}

// With a burst of 1 x/time spaces departures, as the others do.
func openXTime(perSecond float64, _ int) Line {
	return Line{Wait: rate.NewLimiter(rate.Limit(perSecond), 1).Wait, Stop: func() {}}
}

// Take knows no context: a caller that gives up stays until its slot has come.
func openUber(opts ...ratelimit.Option) Opener {
	return func(perSecond float64, _ int) Line {
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
func openFailsafe(perSecond float64, _ int) Line {
	l := ratelimiter.NewSmooth[any](uint(perSecond), time.Second)
	wait := func(ctx context.Context) error {
		if deadline, ok := ctx.Deadline(); ok {
			return l.AcquirePermitWithMaxWait(ctx, max(0, time.Until(deadline))) // -1 would be no bound.
		}
		return l.AcquirePermit(ctx)
	}
	return Line{Wait: wait, Stop: func() {}}
}

func openNaive(perSecond float64, waiting int) Line {
	q := naive.New(perSecond, waiting)
	q.Start()
	return Line{Wait: q.Wait, Stop: q.Stop}
}

// A KeyedRival limits each of many keys by itself.
type KeyedRival struct {
	Calls []string // by which it is asked
	// Open makes one for so many keys. Its calls end with ctx, if they wait.
	Open func(ctx context.Context, keys int, b Bucket) Keyed
	// Alone makes the rival's limiter for one key, which takes no key. nil: there is none.
	Alone func(ctx context.Context, b Bucket) Keyed
}

// Keyed is a KeyedRival at work, with a function for each of its calls. A call reports whether
// the key may leave.
type Keyed struct {
	Each []func(key string) bool
	Stop func()
}

// A Bucket is the bucket of each key: one unit drains in the time Every, and Burst units leave at
// once.
type Bucket struct {
	Every time.Duration
	Burst int
}

// Whole returns the time in which a full bucket drains.
func (b Bucket) Whole() time.Duration { return time.Duration(b.Burst) * b.Every }

// perSecond returns the rate at which it drains.
func (b Bucket) perSecond() rate.Limit { return rate.Every(b.Every) }

// Limits are the bucket for us. One caller may wait for the next unit, and time lost by a late
// wake-up is made up, as x/time does.
func (b Bucket) Limits() shaper.Limits {
	return shaper.Limits{Rate: b.perSecond(), Burst: b.Burst, Depth: 1, Slack: max(b.Every, shaper.DefaultSlack)}
}

// KeyedNames are the rivals with keys in the order in which they are compared, ours first.
var KeyedNames = []string{Ours, "x-time", "sethvargo"}

// KeyedRivals are those by name.
var KeyedRivals = map[string]KeyedRival{
	Ours:        {Calls: []string{"Wait", "Allow"}, Open: openGroup, Alone: openShaperAlone},
	"x-time":    {Calls: []string{"Wait", "Allow"}, Open: openLimiterMap, Alone: openXTimeAlone},
	"sethvargo": {Calls: []string{"Take"}, Open: openMemoryStore},
}

func openGroup(ctx context.Context, keys int, b Bucket) Keyed {
	l := b.Limits()
	g := Must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithMaxKeys(keys)))
	return Keyed{
		Each: []func(string) bool{
			func(key string) bool { return g.Wait(ctx, key) == nil },
			g.Allow,
		},
		Stop: func() { _ = g.Close() }, // Close always returns nil.
	}
}

func openShaperAlone(ctx context.Context, b Bucket) Keyed {
	s := Must(shaper.New(b.Limits()))
	return alone(ctx, s.Wait, s.Allow, func() { _ = s.Close() })
}

func openXTimeAlone(ctx context.Context, b Bucket) Keyed {
	l := rate.NewLimiter(b.perSecond(), b.Burst)
	return alone(ctx, l.Wait, l.Allow, func() {})
}

func alone(ctx context.Context, wait Wait, allow func() bool, stop func()) Keyed {
	return Keyed{
		Each: []func(string) bool{
			func(string) bool { return wait(ctx) == nil },
			func(string) bool { return allow() },
		},
		Stop: stop,
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
		Each: []func(string) bool{
			func(key string) bool { return m.of(key).Wait(ctx) == nil },
			func(key string) bool { return m.of(key).Allow() },
		},
		Stop: func() {},
	}
}

func openMemoryStore(ctx context.Context, _ int, b Bucket) Keyed {
	store := NewMemoryStore(b)
	return Keyed{
		Each: []func(string) bool{func(key string) bool {
			_, _, _, ok, err := store.Take(ctx, key)
			return err == nil && ok
		}},
		Stop: func() { _ = store.Close(context.Background()) }, // It returns nil.
	}
}

// NewMemoryStore returns sethvargo's store, which has keys swept as soon as its comment allows: that
// is the time in which a bucket is full again, but not more than once a second.
func NewMemoryStore(b Bucket) limiter.Store {
	full := max(b.Whole(), time.Second)
	return Must(memorystore.New(&memorystore.Config{
		Tokens: uint64(b.Burst), Interval: b.Whole(), SweepInterval: full, SweepMinTTL: full,
	}))
}
