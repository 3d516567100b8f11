// Package admission measures what a call costs that may leave at once, and one
// that is refused.
package admission

import (
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "admission".
var Experiment = run.Experiment{
	Name:     "admission",
	What:     "what a call costs that may leave at once, and one that is refused",
	Estimate: func(o run.Options) time.Duration { return run.Estimate(cases(o)) },
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		results, err := run.InTurns(ctx, o, child.Take, cases(o))
		return reportOf(results), err
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

// A result is what the call costs, by the number of goroutines.
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
			Name:     fmt.Sprintf("Admission/outcome=%s/call=%s/limiter=%s", outcome, c.call, c.limiter),
			Input:    input{c.limiter, c.call, c.refuses, batch},
			Rounds:   o.Times(5, 3),
			Estimate: time.Duration(len(goroutines)) * measure.TimeEstimate(batch),
		})
	}
	return all
}

func reportOf(results []result) report.Report {
	if len(results) == 0 {
		return report.Report{}
	}
	r := report.Report{Tables: tables(results), Goals: goals(results)}
	for _, one := range results {
		for g, n := range goroutines {
			var timings []measure.Timing
			for _, round := range one.Found {
				timings = append(timings, round[g])
			}
			r.Lines = append(r.Lines, report.Lines(fmt.Sprintf("%s/goroutines=%d", one.Name, n), timings)...)
		}
	}
	return r
}

// allocations returns the most that a call needs with any number of goroutines.
func allocations(timings []measure.Timing) (most float64) {
	for _, t := range timings {
		most = max(most, t.Allocs)
	}
	return most
}

func tables(results []result) []report.Table {
	columns := []string{"limiter", "call"}
	for _, n := range goroutines {
		columns = append(columns, fmt.Sprintf("ns, %d at once", n))
	}
	columns = append(columns, "allocations")
	note := fmt.Sprintf("Wall time over all goroutines, per call; medians of %d interleaved rounds, each in a process of its own. ", len(results[0].Found))
	conforming := report.Table{
		Title: "A call that may leave at once",
		Note: note + "No call ever waits: the rate is 1e9 per second. " +
			"failsafe builds a timer for a wait of 0. httprate writes its header fields. " + acquire + " has a cap of 100 in flight, which is never reached.",
		Columns: columns,
	}
	refused := report.Table{
		Title: "A call that is refused",
		Note: note + "The rate is three a day. A refusal that tells when to come back has been asked. " +
			"Wait-full-line is met by 100 waiters, Wait-deadline of the shaper by 99.",
		Columns: append(slices.Clone(columns), "tells when to come back"),
	}
	for _, r := range results {
		row := []string{r.Input.Limiter, r.Input.Call}
		for _, t := range r.Median {
			row = append(row, report.Fixed(t.Ns, 1))
		}
		row = append(row, report.Fixed(allocations(r.Median), 2))
		if !r.Input.Refused {
			conforming.Rows = append(conforming.Rows, row)
			continue
		}
		tells := "no"
		if r.Input.call().tells {
			tells = "yes"
		}
		refused.Rows = append(refused.Rows, append(row, tells))
	}
	return []report.Table{conforming, refused}
}

// goals holds ours against x/time and, where a call is refused, against sethvargo too, which
// refuses fastest of those that tell when to come back.
func goals(results []result) []report.Goal {
	find := func(limiter, call string, refused bool) []measure.Timing {
		found, measured := run.MedianWhere(results, func(in input) bool {
			return in.Limiter == limiter && in.Call == call && in.Refused == refused
		})
		if !measured {
			found = slices.Repeat([]measure.Timing{{Ns: measure.Unknown, Allocs: measure.Unknown}}, len(goroutines))
		}
		return found
	}
	wait := find(rivals.Ours, "Wait", false)
	all := []report.Goal{
		report.AtMost("conforming Wait against x-time, goroutines: 1", 0.5, wait[0].Ns, find("x-time", "Wait", false)[0].Ns, "ns"),
		report.AtMost("conforming Acquire with a cap, and its release, against Wait, goroutines: 1", 1.5, find(rivals.Ours, acquire, false)[0].Ns, wait[0].Ns, "ns"),
	}
	xTime, sethvargo := find("x-time", "Wait-deadline", true), find("sethvargo", "Take", true)
	most := 0.0 // allocations
	for _, refusal := range []struct{ what, call string }{{"line full", "Wait-full-line"}, {"deadline too soon", "Wait-deadline"}} {
		ours := find(rivals.Ours, refusal.call, true)
		for g, n := range goroutines {
			at := fmt.Sprintf("refusal that tells when to come back (%s), goroutines: %d, against ", refusal.what, n)
			all = append(all,
				report.AtMost(at+"x-time's Wait", 0.4, ours[g].Ns, xTime[g].Ns, "ns"),
				report.AtMost(at+"sethvargo's Take", 1, ours[g].Ns, sethvargo[g].Ns, "ns"))
		}
		most = max(most, allocations(ours))
	}
	// What the runtime allocates meanwhile is far below one per hundred calls.
	return append(all, report.Bounded("a refusal", 1.01, most, "allocations"))
}
