// Package admission measures the cost of a call that may leave at once, and of one that is refused.
package admission

import (
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "admission".
var Experiment = run.Experiment{
	Name: "admission",
	What: "what a call costs that may leave at once, and one that is refused",
	Note: "Wall time over all goroutines, per call. leaves: no call ever waits, as the rate is 1e9 per second. " +
		"failsafe builds a timer for a wait of 0. httprate writes its header fields. " + acquire + " has a cap of 100 in flight, which is never reached. " +
		"refused: the rate is three a day. Wait-full-line is met by 100 waiters, Wait-deadline of the shaper by 99. " +
		"Both tell when to come back, as do Reserve-Delay-Cancel, throttled, sethvargo and httprate, and no other.",
	Goals: goals(),
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		results, err := run.InTurns(ctx, o, child.Take, cases(o))
		return report.Report{Lines: lines(results)}, err
	},
}

// goroutines are how many call at once.
var goroutines = []int{1, 2, 64}

// An input names one of the calls.
type input struct {
	Limiter, Call string
	Refused       bool
	Batch         time.Duration // how long each number of goroutines calls
}

// A result is the cost of the call, by the number of goroutines.
type result = run.Result[input, []measure.Timing]

var child = run.NewMeasurement("admission", func(in input) ([]measure.Timing, error) {
	each, stop, err := in.call().open()
	if err != nil {
		return nil, err
	}
	defer stop()
	var found []measure.Timing
	for _, n := range goroutines {
		t, err := measure.TimeCalls(each, n, in.Batch)
		if err != nil {
			return nil, fmt.Errorf("%d goroutines: %w", n, err)
		}
		found = append(found, t)
	}
	return found, nil
})

// call returns the call that is named. It panics if there is none.
func (in input) call() call {
	for _, c := range calls() {
		if c.limiter == in.Limiter && c.call == in.Call && c.refuses == in.Refused {
			return c
		}
	}
	panic(in.Limiter + " has no call " + in.Call)
}

func cases(o run.Options) []run.Case[input] {
	batch := 50 * time.Millisecond
	if o.Quick {
		batch /= 10
	}
	var all []run.Case[input]
	for _, c := range calls() {
		outcome := "leaves"
		if c.refuses {
			outcome = "refused"
		}
		all = append(all, run.Case[input]{
			Name:   fmt.Sprintf("Admission/outcome=%s/call=%s/limiter=%s", outcome, c.call, c.limiter),
			Input:  input{c.limiter, c.call, c.refuses, batch},
			Rounds: o.Times(5, 3),
		})
	}
	return all
}

// lines are one for each number of goroutines and round.
func lines(results []result) (lines []report.Line) {
	for _, one := range results {
		for g, n := range goroutines {
			var timings []measure.Timing
			for _, round := range one.Found {
				timings = append(timings, round[g])
			}
			lines = append(lines, report.Lines(fmt.Sprintf("%s/goroutines=%d", one.Name, n), timings)...)
		}
	}
	return lines
}

// goals holds ours against x/time and, where a call is refused, against sethvargo too, which
// refuses fastest of those that tell when to come back.
func goals() []report.Goal {
	of := func(outcome, call, limiter string, goroutines int) string {
		return fmt.Sprintf("Admission/outcome=%s/call=%s/limiter=%s/goroutines=%d ns/call", outcome, call, limiter, goroutines)
	}
	wait := of("leaves", "Wait", rivals.Ours, 1)
	all := []report.Goal{
		{What: "conforming Wait against x-time, goroutines: 1", Ours: wait, Theirs: []string{of("leaves", "Wait", "x-time", 1)}, Most: 0.5},
		{
			What: "conforming Acquire with a cap, and its release, against Wait, goroutines: 1",
			Ours: of("leaves", acquire, rivals.Ours, 1), Theirs: []string{wait}, Most: 1.5,
		},
	}
	for _, refusal := range []struct{ what, call string }{{"line full", "Wait-full-line"}, {"deadline too soon", "Wait-deadline"}} {
		for _, n := range goroutines {
			what := fmt.Sprintf("refusal that tells when to come back (%s), goroutines: %d, against ", refusal.what, n)
			ours := of("refused", refusal.call, rivals.Ours, n)
			all = append(all,
				report.Goal{What: what + "x-time's Wait", Ours: ours, Theirs: []string{of("refused", "Wait-deadline", "x-time", n)}, Most: 0.4},
				report.Goal{What: what + "sethvargo's Take", Ours: ours, Theirs: []string{of("refused", "Take", "sethvargo", n)}, Most: 1})
		}
	}
	// The runtime allocates a little meanwhile, far below one per hundred calls.
	return append(all, report.Goal{
		What: "allocations of a refusal", Ours: "Admission/outcome=refused/call=Wait-*/limiter=shaper/goroutines=* allocs/call", Most: 1.01,
	})
}
