package spacing

import (
	"fmt"
	"math"
	"strings"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// goals judges the goals of the spacing experiment, as far as its results reach.
// Where a rate was left out, so is its goal.
func goals(results []run.Result[input, result]) []report.Goal {
	at := func(limiter string, rate float64) (result, bool) {
		return find(results, limiter, rate, goalWaiters, idle)
	}
	var all []report.Goal
	for _, g := range []struct{ rate, factor float64 }{{100, 8}, {1_000, 7}, {10_000, 6}} {
		ours, theirs, measured := againstLibraries(at, g.rate, func(r result) float64 { return r.ErrorP50 / 1000 })
		if measured {
			all = append(all, report.Lower("spacing error p50 at "+report.PerSecond(g.rate)+" against the best library", g.factor, ours, theirs, "µs"))
		}
	}
	for _, rate := range []float64{1_000, 10_000} {
		ours, theirs, measured := againstLibraries(at, rate, func(r result) float64 { return r.Bunched })
		if measured {
			all = append(all, report.Lower("spacings below half an interval at "+report.PerSecond(rate)+" against the best library", 10, ours, theirs, "%"))
		}
	}
	for _, g := range []struct{ rate, within float64 }{{10, 0.3}, {100, 0.3}, {1_000, 0.3}, {10_000, 0.3}, {100_000, 1}} {
		if ours, measured := at(rivals.Ours, g.rate); measured {
			all = append(all, report.Bounded("rate reached at "+report.PerSecond(g.rate), g.within, 100*math.Abs(ours.RateReached-1), "% off"))
		}
	}
	if allocations, measured := allocationGoal(at); measured {
		all = append(all, allocations)
	}
	for _, g := range []struct{ rate, factor float64 }{{100, 1.5}, {1_000, 2}, {10_000, 4}} {
		all = append(all, cpuGoal(at, rivals.Ours, "CPU per departure", g.rate, g.factor)...)
	}
	// What saves CPU time must not cost the spacing.
	if ours, measured := at(rivals.Ours, 10_000); measured {
		all = append(all, report.Bounded("spacing error p50 at 10,000/s, at that CPU time", 5, ours.ErrorP50/1000, "µs"))
	}
	for _, rate := range []float64{100, 1_000, 10_000} {
		all = append(all, cpuGoal(at, "shaper-coarse", "CPU per departure with the coarse timer", rate, 1.3)...)
	}
	return all
}

// A lookup returns the median of a limiter at a rate, where the goals are judged.
type lookup func(limiter string, rate float64) (result, bool)

// againstLibraries returns our figure, and the lowest of the three waiting
// libraries, each in that of its forms that does best. Without one of them nothing
// can be judged, as it might have been the best.
func againstLibraries(at lookup, rate float64, figure func(result) float64) (ours, best float64, measured bool) {
	best = math.Inf(1)
	for _, name := range []string{rivals.Ours, "x-time", "uber", "uber-noslack", "failsafe"} {
		r, measured := at(name, rate)
		switch {
		case !measured:
			return 0, 0, false
		case name == rivals.Ours:
			ours = figure(r)
		default:
			best = min(best, figure(r))
		}
	}
	return ours, best, true
}

// allocationGoal looks at the rates with enough departures in a second. At lower
// ones the few allocations that the runtime makes by itself would count.
func allocationGoal(at lookup) (g report.Goal, measured bool) {
	var most float64
	for _, rate := range []float64{1_000, 10_000, 100_000} {
		if r, here := at(rivals.Ours, rate); here {
			most, measured = max(most, r.Allocs), true
		}
	}
	return report.Goal{
		What:    "allocations per wait, at 1,000/s and above",
		Want:    "0 (< 0.05: the process has others, a few)",
		Got:     fmt.Sprintf("%.3f", most),
		Reached: most < 0.05,
	}, measured
}

func cpuGoal(at lookup, limiter, what string, rate, factor float64) []report.Goal {
	ours, measured := at(limiter, rate)
	theirs, too := at("x-time", rate)
	if !measured || !too {
		return nil
	}
	what += " at " + report.PerSecond(rate) + " against x-time"
	return []report.Goal{report.AtMost(what, factor, ours.CPU/1e4, theirs.CPU/1e4, "s per 100,000")}
}

// busyGoals judges for each load and each slack whether the rate is held at all
// rates that were measured.
func busyGoals(results []run.Result[input, result]) []report.Goal {
	var all []report.Goal
	for _, g := range []struct {
		limiter string
		slack   float64 // in ms
		share   float64
	}{{rivals.Ours, 20, 0.95}, {"shaper-slack100", 100, 0.98}} {
		slack := fmt.Sprintf("%g ms of slack", g.slack)
		for _, l := range loads() {
			one := report.Goal{
				What:    fmt.Sprintf("rate in a busy process (%s), %s, against x-time", l.name, slack),
				Want:    fmt.Sprintf("≥ %g×", g.share),
				Reached: true,
			}
			var got []string
			for _, at := range busyRates {
				ours, measured := find(results, g.limiter, at.rate, at.waiters, l.name)
				rival, too := find(results, "x-time", at.rate, at.waiters, l.name)
				switch {
				case !measured || !too:
					continue
				case rival.RateReached == 0:
					got = append(got, fmt.Sprintf("with x-time nothing left at %s", report.PerSecond(at.rate)))
					one.Reached = false // Nothing is known.
					continue
				}
				times := ours.RateReached / rival.RateReached
				got = append(got, fmt.Sprintf("%.3f× at %s", times, report.PerSecond(at.rate)))
				one.Reached = one.Reached && times >= g.share
			}
			if len(got) > 0 {
				one.Got = strings.Join(got, ", ")
				all = append(all, one)
			}
		}
		if largest, measured := largestSlotBurst(results, g.limiter); measured {
			all = append(all, report.Goal{
				What: "largest burst of slots within any window in a busy process, " + slack,
				Want: fmt.Sprintf("≤ %g ms of the rate", g.slack),
				Got:  fmt.Sprintf("%.3f ms", largest),
				// A nanosecond of tolerance, as these are sums of floats.
				Reached: largest <= g.slack+1e-6,
			})
		}
	}
	return all
}

// largestSlotBurst returns the largest of all loads and rates, in milliseconds.
func largestSlotBurst(results []run.Result[input, result], limiter string) (largest float64, measured bool) {
	for _, r := range results {
		if r.Input.Limiter == limiter && measure.Known(r.Median.SlotBurst) {
			largest, measured = max(largest, r.Median.SlotBurst/1e6), true
		}
	}
	return largest, measured
}
