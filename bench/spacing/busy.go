package spacing

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// busyCompared are those that the goals are about, busyOnce the others.
var (
	busyCompared = []string{rivals.Ours, "shaper-slack100", "x-time"}
	busyOnce     = []string{"shaper-coarse", "uber", "uber-noslack", "failsafe", "naive"}
)

// busyRates are where the goals are judged. At 10,000/s there must be enough
// callers for all late departures to leave at once.
var busyRates = []struct {
	rate    float64
	waiters int
}{{100, 100}, {1_000, 100}, {10_000, 1_000}}

// busyWindow is how long a measurement lasts, and busyQuick how long a quick one does. All
// of it counts.
const (
	busyWindow = 2 * time.Second
	busyQuick  = 600 * time.Millisecond
)

// busyWarm is longer than idleWarm: the load has to get going, and limiters that
// adapt to it have to notice.
const busyWarm = 200 * time.Millisecond

func busyGroups(o run.Options) [][]run.Case[input] {
	var groups [][]run.Case[input]
	for _, l := range loads() {
		for _, at := range busyRates {
			once, window := busyOnce, busyWindow
			if o.Quick {
				if at.rate != 1_000 {
					continue
				}
				once, window = nil, busyQuick
			}
			var group []run.Case[input]
			for _, limiter := range busyCompared {
				group = append(group, caseOf("Busy", o.Times(3, 1), input{limiter, at.rate, at.waiters, l.name, busyWarm, window}))
			}
			for _, limiter := range once {
				group = append(group, caseOf("Busy", 1, input{limiter, at.rate, at.waiters, l.name, busyWarm, window}))
			}
			groups = append(groups, group)
		}
	}
	return groups
}

func busyReport(busy, idle []run.Result[input, result], o run.Options) report.Report {
	if len(busy) == 0 {
		return report.Report{}
	}
	r := report.Report{Tables: []report.Table{busyTable(busy)}, Goals: busyGoals(busy), Lines: run.Lines(busy)}
	r.Pictures = append(r.Pictures, ratePicture(slices.Concat(idle, busy), o.Machine))
	return r
}

func busyTable(results []run.Result[input, result]) report.Table {
	var what []string
	for _, l := range loads() {
		what = append(what, l.name+": "+l.what)
	}
	t := report.Table{
		Title: "Spacing in a busy process",
		Note: strings.Join(what, "; ") + ". Everything else is as for spacing. " +
			"Burst: the largest excess over the rate within any window, in ms of the rate, as the receivers saw it and as the slots were handed out. " +
			"The first is larger, as a goroutine that has been released still has to wait for a P, whatever released it. Of slots it is the largest of the rounds, not their median.",
		Columns: []string{"load", "rate", "waiters", "limiter", "rate reached", "error p50 µs", "error p99 µs",
			"bunched %", "overtaken %", "burst ms", "of slots", "rounds"},
	}
	for _, r := range results {
		in, m := r.Input, r.Median
		t.Rows = append(t.Rows, []string{
			in.Load, report.PerSecond(in.Rate), report.Grouped(in.Waiters), in.Limiter, report.Fixed(m.RateReached, 3),
			report.Figure(m.ErrorP50 / 1000), report.Figure(m.ErrorP99 / 1000), report.Fixed(m.Bunched, 1), report.Fixed(m.Overtaken, 1),
			report.Figure(m.Burst / 1e6), report.Figure(m.SlotBurst / 1e6), strconv.Itoa(len(r.Found)),
		})
	}
	return t
}
