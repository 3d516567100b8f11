// Package goodput measures how a limiter's callers fare when some give up: the
// share of the limit that goes to callers that are still there, and how soon the
// rest of a line leaves when its middle gives up.
package goodput

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "goodput".
var Experiment = run.Experiment{
	Name: "goodput",
	What: "the share of the limit that goes to callers who are still there",
	Note: "Of a limit of 100/s, to callers that give up after 500 ms. Even arrivals; the window begins after a line of 50 has been there for two seconds. " +
		"From an empty line those that decide at arrival do well until it has filled (4.5 s at 111/s), and never again. " +
		"cancel: a timer cancels the context, as a closed connection does. deadline: the context has one. " +
		"failsafe is told the time left until a deadline as its longest wait. " +
		"uber's Take cannot be cancelled and goes on: served are the callers that were still there when it returned. naive has room for 1,000.",
	// All run side by side: they wait for nothing but the clock.
	Groups: func(o run.Options) []run.Group { return []run.Group{{AtOnce: true, Cases: cases(o)}} },
	// The picture has how much of the limit is served, by how callers give up and by how much is offered.
	Conclude: func(r *report.Report, o run.Options) error {
		panel := func(title, by string) report.Panel {
			p := report.Panel{Title: title, Axis: "% of the limit", Limiters: limiters, Figure: func(limiter string, i int) float64 {
				return report.Median(r.Lines, nameOf(limiter, stream{by, offered[i]}), "served-%")
			}}
			for _, rate := range offered {
				p.Settings = append(p.Settings, fmt.Sprintf("%g/s offered", rate))
			}
			return p
		}
		return r.DrawBars(report.Bars{
			Name: "goodput", Title: "What is served when callers give up?",
			Panels:  []report.Panel{panel("callers bring a deadline", byDeadline), panel("callers cancel, as closed connections do", byCancel)},
			Caption: fmt.Sprintf("Of a limit of %d/s, while more are offered and callers give up after %v. %s.", limit, patience, o.Machine),
		}, rivals.Ours)
	},
}

const (
	limit    = 100 // departures per second
	patience = 500 * time.Millisecond
	depth    = 1000 // so deep that patience ends before the line does
)

// The two ways in which callers give up. A cancellation, as by a closed
// connection, comes without notice; a deadline is known at entry.
const (
	byCancel   = "cancel"
	byDeadline = "deadline"
)

// A stream is one that asks for more than the limit.
type stream struct {
	by      string
	offered float64 // requests per second
}

var (
	offered  = []float64{111, 125, 200}
	limiters = []string{rivals.Ours, "x-time", "uber", "failsafe", "naive"}
)

// goodput returns the share of the limit that is served, in percent, within a
// window that begins when the stream has run for the time fill. The stream
// begins with a line as long as callers are patient, which at 11 % too many
// would take 4.5 seconds to form, and goes on at an even pace. Some callers may
// still wait when goodput returns: where they cannot be cancelled, the last one
// may take minutes.
func goodput(open rivals.Opener, s stream, fill, window time.Duration) (served float64, callers *sync.WaitGroup) {
	line := open(limit, depth)
	defer line.Stop()
	var inTime atomic.Int64
	start := time.Now()
	caller := func() {
		ctx, cancel := patientContext(s.by)
		defer cancel()
		// A wait that cannot be cancelled serves no caller if its own has gone
		// meanwhile.
		if line.Wait(ctx) != nil || ctx.Err() != nil {
			return
		}
		if at := time.Since(start); at >= fill && at < fill+window {
			inTime.Add(1)
		}
	}
	callers = new(sync.WaitGroup)
	for range int(limit * patience / time.Second) {
		callers.Go(caller)
	}
	interval := time.Duration(float64(time.Second) / s.offered)
	// Callers do not come at the instants of the slots. If a slot fell on the very
	// moment at which a caller gives up, chance would decide, to the harm of those
	// that cannot hand a slot on.
	for at := interval / 3; at < fill+window; at += interval {
		time.Sleep(at - time.Since(start))
		callers.Go(caller)
	}
	return 100 * float64(inTime.Load()) / (limit * window.Seconds()), callers
}

// patientContext returns a context that ends after patience.
func patientContext(by string) (context.Context, context.CancelFunc) {
	if by == byDeadline {
		return context.WithTimeout(context.Background(), patience)
	}
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(patience, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

func cases(o run.Options) (all []run.Case) {
	fill, window := 2*time.Second, 10*time.Second
	if o.Quick {
		fill, window = 700*time.Millisecond, 2*time.Second
	}
	for _, name := range limiters {
		for _, by := range []string{byCancel, byDeadline} {
			for _, rate := range offered {
				s := stream{by, rate}
				all = append(all, run.One(nameOf(name, s), 1, func(*testing.T) report.Figure {
					served, _ := goodput(rivals.Openers[name], s, fill, window)
					return report.Figure{Value: served, Unit: "served-%"}
				}))
			}
		}
	}
	return all
}

func nameOf(limiter string, s stream) string {
	return fmt.Sprintf("Goodput/limiter=%s/offered=%g/by=%s", limiter, s.offered, s.by)
}

// Hole is the experiment "hole".
var Hole = run.Experiment{
	Name: "hole",
	What: "how soon the rest leaves when 900 of 1,000 waiters give up",
	Note: "The limit is 1,000/s; the time from the first arrival until the other 100 have left, of which 50 are ahead of the 900 and 50 behind: 99 ms is ideal.",
	Goals: []report.Goal{{
		What: "900 of 1,000 give up: until the rest has left, against x-time", Most: 1. / 8,
		Ours: "Hole/limiter=shaper rest-left-ns", Theirs: []string{"Hole/limiter=x-time rest-left-ns"},
	}},
	Groups: func(o run.Options) []run.Group {
		var all []run.Case
		for _, name := range []string{rivals.Ours, "x-time", "failsafe", "naive"} {
			all = append(all, run.One("Hole/limiter="+name, o.Times(5, 1), func(t *testing.T) report.Figure {
				took, err := hole(t, rivals.Openers[name])
				require.NoError(t, err)
				return report.Figure{Value: float64(took), Unit: "rest-left-ns"}
			}))
		}
		return []run.Group{{Cases: all}}
	},
}

const (
	holeLimit   = 1000 // departures per second
	holeWaiting = 1000
	holeStay    = 50 // at either end of the line; those between give up
)

// hole returns how long it takes a line of 1,000 waiters to leave if 900 of them
// give up as soon as all are in line. The time begins with the first arrival, as
// the head leaves while the line forms. If it began when the 900 give up, it
// would be shorter for all limiters by the same few milliseconds, which is more
// of a short time than of a long one. Each waiter has a context of its own, as
// requests do; the contexts of the 900 have a parent, which is cancelled.
func hole(t testing.TB, open rivals.Opener) (time.Duration, error) {
	rival := open(holeLimit, holeWaiting)
	defer rival.Stop()
	leaving, giveUp := context.WithCancel(context.Background())
	defer giveUp()

	var refused atomic.Pointer[error] // of those that stay; such a one has not left
	waiter := func(parent context.Context) error {
		ctx, cancel := context.WithCancel(parent)
		defer cancel()
		return rival.Wait(ctx)
	}
	stays := func(int) {
		if err := waiter(context.Background()); err != nil {
			refused.Store(&err)
		}
	}
	goes := func(int) { _ = waiter(leaving) }

	// One group after the other, as the order within a group is not certain.
	start := time.Now()
	ahead := measure.Gather(t, holeStay, stays)
	between := measure.Gather(t, holeWaiting-2*holeStay, goes)
	behind := measure.Gather(t, holeStay, stays)
	giveUp()
	ahead.Wait()
	behind.Wait()
	took := time.Since(start)
	between.Wait()
	if err := refused.Load(); err != nil {
		return 0, fmt.Errorf("a waiter that stays was refused: %w", *err)
	}
	return took, nil
}
