package main

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

// contestants are all that wait. The rates that they are asked for are whole
// numbers, as go.uber.org/ratelimit and failsafe-go take no others.
var contestants = []contestant{
	ours("shaper", 0),
	ours("shaper-coarse", 0, shaper.WithCoarseTimer()),
	ours("shaper-slack100", 100*time.Millisecond),
	{name: "x-time", open: openXTime},
	{name: "uber", open: openUber()},
	{name: "uber-noslack", open: openUber(ratelimit.WithoutSlack)},
	{name: "failsafe", open: openFailsafe},
	{name: "naive", open: openNaive},
}

func contestantNamed(name string) (contestant, error) {
	for _, c := range contestants {
		if c.name == name {
			return c, nil
		}
	}
	return contestant{}, fmt.Errorf("no contestant is named %q", name)
}

func ours(name string, slack time.Duration, opts ...shaper.Option) contestant {
	open := func(perSecond float64, waiting int, opts ...shaper.Option) (s *shaper.Shaper, stop func()) {
		l := shaper.Limits{Rate: rate.Limit(perSecond), Depth: waiting, Slack: slack}
		s, err := shaper.New(l, opts...)
		if err != nil {
			panic(err) // The limits are the benchmark's own.
		}
		return s, func() { _ = s.Close() } // Close always returns nil.
	}
	return contestant{
		name: name,
		open: func(perSecond float64, waiting int) (func(context.Context) error, func()) {
			s, stop := open(perSecond, waiting, opts...)
			return s.Wait, stop
		},
		lined: func(perSecond float64, waiting int) (func(context.Context) error, func() int, func()) {
			s, stop := open(perSecond, waiting, opts...)
			return s.Wait, func() int { return s.Stats().Waiting }, stop
		},
		traced: func(perSecond float64, waiting int, slot func(time.Time)) (func(context.Context) error, func()) {
			told := shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) { slot(e.At) }})
			s, stop := open(perSecond, waiting, append(slices.Clone(opts), told)...)
			return s.Wait, stop
		},
	}
}

// With a burst of 1 x/time spaces departures, as the others do.
func openXTime(perSecond float64, _ int) (func(context.Context) error, func()) {
	return rate.NewLimiter(rate.Limit(perSecond), 1).Wait, func() {}
}

// Take knows no context: a caller who gives up stays until its time has come.
func openUber(opts ...ratelimit.Option) func(perSecond float64, _ int) (func(context.Context) error, func()) {
	return func(perSecond float64, _ int) (func(context.Context) error, func()) {
		l := ratelimit.New(int(perSecond), opts...)
		wait := func(ctx context.Context) error {
			l.Take()
			return ctx.Err()
		}
		return wait, func() {}
	}
}

// AcquirePermit does not look at deadlines. Who has one is to say how long he
// may wait, with the other call.
func openFailsafe(perSecond float64, _ int) (func(context.Context) error, func()) {
	l := ratelimiter.NewSmooth[any](uint(perSecond), time.Second)
	wait := func(ctx context.Context) error {
		if deadline, ok := ctx.Deadline(); ok {
			return l.AcquirePermitWithMaxWait(ctx, max(0, time.Until(deadline))) // -1 would be no bound.
		}
		return l.AcquirePermit(ctx)
	}
	return wait, func() {}
}

func openNaive(perSecond float64, waiting int) (func(context.Context) error, func()) {
	q := startNaiveQueue(perSecond, waiting)
	return q.Wait, q.stop
}
