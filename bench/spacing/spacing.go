// Package spacing measures how evenly callers leave, in which order, whether the
// rate is reached, and what it costs: in a process that does nothing else, and in
// one whose other goroutines keep all its Ps busy.
package spacing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"example.com/leakybucket/bench/internal/plot"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Experiments returns "spacing" and "busy". Both draw which share of the rate is
// reached; if both are measured, the picture of the second shows what the first
// has found too.
func Experiments() []run.Experiment {
	var idle []run.Result[input, result]
	return []run.Experiment{
		{
			Name:     "spacing",
			What:     "how evenly callers leave at 10 to 100,000/s, in which order, and what it costs",
			Estimate: func(o run.Options) time.Duration { return run.Estimate(idleGroups(o)...) },
			Measure: func(ctx context.Context, o run.Options) (r report.Report, err error) {
				idle, err = run.InTurns(ctx, o, child.Take, idleGroups(o)...)
				return idleReport(idle, o), err
			},
		},
		{
			Name:     "busy",
			What:     "the same while other goroutines of the process keep all its Ps busy: is the rate held?",
			Estimate: func(o run.Options) time.Duration { return run.Estimate(busyGroups(o)...) },
			Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
				busy, err := run.InTurns(ctx, o, child.Take, busyGroups(o)...)
				return busyReport(busy, idle, o), err
			},
		},
	}
}

// idleLimiters are those that differ when the process does nothing else.
var idleLimiters = []string{rivals.Ours, "shaper-coarse", "x-time", "uber", "uber-noslack", "failsafe", "naive"}

// goalWaiters is how many wait where the goals are judged.
const goalWaiters = 100

// idleWindows are how long a measurement lasts. All of it counts, and it is seconds at
// high rates, too: in pieces of a tenth of a second, limiters have looked better than
// they are.
var idleWindows = []struct {
	rate   float64
	window time.Duration
	quick  time.Duration // 0: left out
}{
	{10, 2500 * time.Millisecond, 0},
	{100, 3 * time.Second, 1100 * time.Millisecond},
	{1_000, 3 * time.Second, 400 * time.Millisecond},
	{10_000, 3 * time.Second, 300 * time.Millisecond},
	{100_000, time.Second, 200 * time.Millisecond},
}

const idleWarm = 150 * time.Millisecond

// idleGroups are what is measured: goalWaiters first, and most often.
func idleGroups(o run.Options) [][]run.Case[input] {
	var groups [][]run.Case[input]
	for _, waiters := range []int{goalWaiters, 1, 10_000} {
		for _, at := range idleWindows {
			window, rounds := at.window, 1
			switch {
			case waiters == goalWaiters && at.rate > 10:
				rounds = o.Times(3, 1)
			case waiters != goalWaiters && at.rate == 10:
				continue // A round takes long, and one tells that all do alike.
			}
			if o.Quick {
				if window = at.quick; window == 0 || waiters != goalWaiters {
					continue
				}
			}
			var group []run.Case[input]
			for _, limiter := range idleLimiters {
				group = append(group, caseOf("Spacing", rounds, input{limiter, at.rate, waiters, idle, idleWarm, window}))
			}
			groups = append(groups, group)
		}
	}
	return groups
}

func caseOf(what string, rounds int, in input) run.Case[input] {
	return run.Case[input]{
		Name:     fmt.Sprintf("%s/limiter=%s/rate=%.0f/waiters=%d/load=%s", what, in.Limiter, in.Rate, in.Waiters, in.Load),
		Input:    in,
		Rounds:   rounds,
		Estimate: in.Warm + in.Window,
	}
}

// find returns the median of what was measured of a limiter.
func find(results []run.Result[input, result], limiter string, rate float64, waiters int, load string) (result, bool) {
	return run.MedianWhere(results, func(in input) bool {
		return in.Limiter == limiter && in.Rate == rate && in.Waiters == waiters && in.Load == load
	})
}

func idleReport(results []run.Result[input, result], o run.Options) report.Report {
	r := report.Report{Goals: goals(results), Lines: run.Lines(results)}
	for _, waiters := range []int{1, goalWaiters, 10_000} {
		of := slices.DeleteFunc(slices.Clone(results), func(r run.Result[input, result]) bool { return r.Input.Waiters != waiters })
		if len(of) > 0 {
			r.Tables = append(r.Tables, idleTable(waiters, of))
		}
	}
	if len(r.Tables) == 0 {
		return r
	}
	r.Tables[0].Note = idleNote
	for _, rate := range []float64{1_000, 10_000} {
		if _, measured := find(results, rivals.Ours, rate, goalWaiters, idle); measured {
			r.Pictures = append(r.Pictures, spacingsPicture(results, rate, o.Machine))
		}
	}
	r.Pictures = append(r.Pictures, ratePicture(results, o.Machine))
	return r
}

const idleNote = "Closed loop: each caller waits again as soon as it has left. Instants are those at which callers ran again. " +
	"Error: |spacing - interval|. Bunched: spacings below half an interval. " +
	"Overtaken: departures after one that had begun to wait later; the order is taken just before the call, " +
	"so that two callers within some nanoseconds may be mistaken for each other. " +
	"CPU and allocations are those of the whole process. Medians of as many rounds as the last column says."

func idleTable(waiters int, results []run.Result[input, result]) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("Spacing, %s, nothing else running", report.Counted(waiters, "waiter")),
		Columns: []string{"rate", "limiter", "rate reached", "error p50 µs", "error p99 µs",
			"bunched %", "overtaken %", "CPU s per 100,000", "allocations per wait", "rounds"},
	}
	for _, r := range results {
		m := r.Median
		t.Rows = append(t.Rows, []string{
			report.PerSecond(r.Input.Rate), r.Input.Limiter, report.Fixed(m.RateReached, 4),
			report.Figure(m.ErrorP50 / 1000), report.Figure(m.ErrorP99 / 1000), report.Fixed(m.Bunched, 1), report.Fixed(m.Overtaken, 1),
			report.Figure(m.CPU / 1e4), report.Fixed(m.Allocs, 2), strconv.Itoa(len(r.Found)),
		})
	}
	return t
}

// spacingsPicture draws how the spacings at one rate spread.
func spacingsPicture(results []run.Result[input, result], rate float64, machine string) report.Picture {
	p := plot.Spacings{
		Rate:    rate,
		Caption: fmt.Sprintf("%d requests wait at any time. %s.", goalWaiters, machine),
	}
	for _, r := range results {
		if r.Input.Rate == rate && r.Input.Waiters == goalWaiters && r.Input.Load == idle {
			p.Rows = append(p.Rows, plot.SpacingsRow{Name: r.Input.Limiter, Spread: r.Median.Spread})
		}
	}
	return p.Draw(rivals.Ours)
}

// ratePicture draws which share of the rate each limiter reaches, by load and
// rate: with goalWaiters in an idle process, and with as many as were measured in
// a busy one.
func ratePicture(results []run.Result[input, result], machine string) report.Picture {
	p := plot.Percentages{
		Name:    "rate",
		Title:   "Is the rate reached?",
		What:    "Departures in percent of the rate that was set: in a process that does nothing else, and while other goroutines keep all cores busy. A column that fills its track is 100 %.",
		Axis:    "set rate",
		Caption: fmt.Sprintf("%d requests wait at any time, in a busy process 1,000 at 10,000/s. %s.", goalWaiters, machine),
	}
	for _, r := range results {
		panel := r.Input.Load
		if panel != idle {
			panel = "busy: " + panel
		}
		if r.Input.Load != idle || r.Input.Waiters == goalWaiters {
			p.Columns = append(p.Columns, plot.Column{
				Row: r.Input.Limiter, Panel: panel, At: r.Input.Rate, Label: plot.ShortRate(r.Input.Rate), Percent: 100 * r.Median.RateReached,
			})
		}
	}
	return p.Draw(rivals.Ours)
}
