// Package rivals adapts the limiters that are compared, ours among them, each in
// the best use that its documentation shows.
package rivals

import (
	"context"
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/naive"
	"example.com/leakybucket/shaper"
)

// Ours is the name under which this library stands among them.
const Ours = "shaper"

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
		opts := opts
		if slot != nil {
			trace := shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { slot(e.At) }})
			opts = append(slices.Clone(opts), trace)
		}
		s := Must(shaper.New(shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting, Slack: slack}, opts...))
		return Line{Wait: s.Wait, Stop: func() { _ = s.Close() }} // It returns nil.
	}
	return Rival{Name: name, Open: open, Traced: true}
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
