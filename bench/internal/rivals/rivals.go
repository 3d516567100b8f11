// Package rivals adapts the limiters that are compared, ours among them, each in
// the best use that its documentation shows.
package rivals

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// Ours is the name under which this library stands among them.
const Ours = "shaper"

// A Wait blocks until its caller may leave, or ctx ends.
type Wait func(ctx context.Context) error

// A Rival makes callers wait.
type Rival struct {
	Name string
	// Open makes one for perSecond departures and up to so many callers that
	// wait at once. stop frees it.
	Open func(perSecond float64, waiting int) (wait Wait, stop func())
	// Traced is Open with a function to call, on any goroutine, with the
	// instant at which each slot was handed out. nil: nobody outside can know.
	Traced func(perSecond float64, waiting int, slot func(time.Time)) (wait Wait, stop func())
	// Lined is Open with a function that returns how many are in the line. nil:
	// nobody outside can know.
	Lined func(perSecond float64, waiting int) (wait Wait, inLine func() int, stop func())
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

// Named returns the rival of that name.
func Named(name string) (Rival, error) {
	for _, r := range all {
		if r.Name == name {
			return r, nil
		}
	}
	return Rival{}, fmt.Errorf("no rival is named %q", name)
}

func ours(name string, slack time.Duration, opts ...shaper.Option) Rival {
	open := func(perSecond float64, waiting int, opts ...shaper.Option) (s *shaper.Shaper, stop func()) {
		l := shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting, Slack: slack}
		s, err := shaper.New(l, opts...)
		if err != nil {
			panic(err) // The limits are the benchmark's own.
		}
		return s, func() { _ = s.Close() } // Close always returns nil.
	}
	return Rival{
		Name: name,
		Open: func(perSecond float64, waiting int) (Wait, func()) {
			s, stop := open(perSecond, waiting, opts...)
			return s.Wait, stop
		},
		Lined: func(perSecond float64, waiting int) (Wait, func() int, func()) {
			s, stop := open(perSecond, waiting, opts...)
			return s.Wait, func() int { return s.Stats().Waiting }, stop
		},
		Traced: func(perSecond float64, waiting int, slot func(time.Time)) (Wait, func()) {
			trace := shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { slot(e.At) }})
			s, stop := open(perSecond, waiting, append(slices.Clone(opts), trace)...)
			return s.Wait, stop
		},
	}
}

// With a burst of 1 x/time spaces departures, as the others do.
func openXTime(perSecond float64, _ int) (Wait, func()) {
	return rate.NewLimiter(rate.Limit(perSecond), 1).Wait, func() {}
}

// Take knows no context: a caller that gives up stays until its slot has come.
func openUber(opts ...ratelimit.Option) func(perSecond float64, _ int) (Wait, func()) {
	return func(perSecond float64, _ int) (Wait, func()) {
		l := ratelimit.New(int(perSecond), opts...)
		wait := func(ctx context.Context) error {
			l.Take()
			return ctx.Err()
		}
		return wait, func() {}
	}
}

// AcquirePermit does not look at deadlines. A caller that has one is to say how
// long it may wait, with the other call.
func openFailsafe(perSecond float64, _ int) (Wait, func()) {
	l := ratelimiter.NewSmooth[any](uint(perSecond), time.Second)
	wait := func(ctx context.Context) error {
		if deadline, ok := ctx.Deadline(); ok {
			return l.AcquirePermitWithMaxWait(ctx, max(0, time.Until(deadline))) // -1 would be no bound.
		}
		return l.AcquirePermit(ctx)
	}
	return wait, func() {}
}

func openNaive(perSecond float64, waiting int) (Wait, func()) {
	q := startNaiveQueue(perSecond, waiting)
	return q.Wait, q.stop
}
