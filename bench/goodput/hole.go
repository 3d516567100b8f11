package goodput

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Hole is the experiment "hole".
var Hole = run.Experiment{
	Name: "hole",
	What: "how soon the rest leaves when 900 of 1,000 waiters give up",
	Note: "The limit is 1,000/s; the time from the first arrival until the other 100 have left, of which 50 are ahead of the 900 and 50 behind: 99 ms is ideal.",
	Goals: []report.Goal{{
		What: "900 of 1,000 give up: until the rest has left, against x-time", Most: 1. / 8,
		Ours: "Hole/limiter=shaper rest-left-ns", Theirs: []string{"Hole/limiter=x-time rest-left-ns"},
	}},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		results, err := run.InTurns(ctx, o, holeChild.Take, holeCases(o))
		return report.Report{Lines: run.Lines(results)}, err
	},
}

const (
	holeLimit   = 1000 // departures per second
	holeWaiting = 1000
	holeStay    = 50 // at either end of the line; those between give up
)

// A holeFound is how soon the rest of a line leaves when its middle gives up.
type holeFound struct {
	Rest float64 `unit:"rest-left-ns"`
}

var holeChild = run.NewMeasurement("hole", func(limiter string) (holeFound, error) {
	took, err := hole(rivals.Named(limiter))
	return holeFound{float64(took)}, err
})

// hole returns how long it takes a line of 1,000 waiters to leave if 900 of them
// give up as soon as all are in line. The time begins with the first arrival, as
// the head leaves while the line forms. If it began when the 900 give up, it
// would be shorter for all limiters by the same few milliseconds, which is more
// of a short time than of a long one. Each waiter has a context of its own, as
// requests do; the contexts of the 900 have a parent, which is cancelled.
func hole(r rivals.Rival) (time.Duration, error) {
	rival := r.Open(holeLimit, holeWaiting, nil)
	defer rival.Stop()
	leaving, giveUp := context.WithCancel(context.Background())
	defer giveUp()

	var (
		staying sync.WaitGroup
		refused atomic.Pointer[error] // of those that stay; such a one has not left
	)
	staying.Add(2 * holeStay)
	waiter := func(parent context.Context) error {
		ctx, cancel := context.WithCancel(parent)
		defer cancel()
		return rival.Wait(ctx)
	}
	stays := func(int) {
		if err := waiter(context.Background()); err != nil {
			refused.Store(&err)
		}
		staying.Done()
	}
	goes := func(int) { _ = waiter(leaving) }

	// One group after the other, as the order within a group is not certain.
	var line []*measure.Waiters
	start := time.Now()
	for _, group := range []struct {
		n    int
		wait func(int)
	}{{holeStay, stays}, {holeWaiting - 2*holeStay, goes}, {holeStay, stays}} {
		w, err := measure.Gather(group.n, group.wait)
		if err != nil {
			return 0, err
		}
		line = append(line, w)
	}
	giveUp()
	staying.Wait()
	took := time.Since(start)
	for _, w := range line {
		w.All.Wait()
	}
	if err := refused.Load(); err != nil {
		return 0, fmt.Errorf("a waiter that stays was refused: %w", *err)
	}
	return took, nil
}

func holeCases(o run.Options) []run.Case[string] {
	var all []run.Case[string]
	for _, name := range []string{rivals.Ours, "x-time", "failsafe", "naive"} {
		all = append(all, run.Case[string]{Name: "Hole/limiter=" + name, Input: name, Rounds: o.Times(5, 1)})
	}
	return all
}
