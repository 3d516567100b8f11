package spacing

import (
	"fmt"
	"math"
	"strings"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// goals judges the goals of the spacing experiment, as far as its results reach.
// Where a rate was left out, so is its goal.
func goals(results []run.Result[input, result]) []report.Goal {
	at := func(limiter string, rate float64) (result, bool) {
		return find(results, limiter, rate, goalWaiters, idle)
	}
	var all []report.Goal
	for _, g := range []struct{ rate, times float64 }{{100, 8}, {1_000, 7}, {10_000, 6}} {
		if ours, measured := at("shaper", g.rate); measured {
			rival, whole := bestLibrary(at, g.rate, func(r result) float64 { return r.ErrorP50 / 1000 })
			if !whole {
				continue
			}
			all = append(all, lessThan(rival, ours.ErrorP50/1000, g.times, " µs", report.Goal{
				What: "spacing error p50 at " + report.PerSecond(g.rate) + " against the best library",
				Want: fmt.Sprintf("≥ %g× lower", g.times),
			}))
		}
	}
	for _, rate := range []float64{1_000, 10_000} {
		if ours, measured := at("shaper", rate); measured {
			rival, whole := bestLibrary(at, rate, func(r result) float64 { return r.Bunched })
			if !whole {
				continue
			}
			all = append(all, lessThan(rival, ours.Bunched, 10, " %", report.Goal{
				What: "spacings below half an interval at " + report.PerSecond(rate) + " against the best library",
				Want: "≥ 10× fewer",
			}))
		}
	}
	for _, g := range []struct{ rate, within float64 }{{10, 0.3}, {100, 0.3}, {1_000, 0.3}, {10_000, 0.3}, {100_000, 1}} {
		if ours, measured := at("shaper", g.rate); measured {
			off := 100 * math.Abs(ours.RateReached-1)
			all = append(all, report.Goal{
				What:    "rate reached at " + report.PerSecond(g.rate),
				Want:    fmt.Sprintf("within %g %%", g.within),
				Got:     fmt.Sprintf("%.2f %% off", off),
				Reached: off <= g.within,
			})
		}
	}
	if allocations, measured := allocationGoal(at); measured {
		all = append(all, allocations)
	}
	for _, g := range []struct{ rate, times float64 }{{100, 1.5}, {1_000, 2}, {10_000, 5}} {
		all = append(all, cpuGoal(at, "shaper", "CPU per departure", g.rate, g.times)...)
	}
	for _, rate := range []float64{100, 1_000, 10_000} {
		all = append(all, cpuGoal(at, "shaper-coarse", "CPU per departure with the coarse timer", rate, 1.3)...)
	}
	return all
}

// A lookup returns the median of a limiter at a rate, where the goals are judged.
type lookup func(limiter string, rate float64) (result, bool)

// bestLibrary returns the lowest figure of the three waiting libraries, each in
// that of its forms that does best. Without one of them nothing can be judged, as
// it might have been the best.
func bestLibrary(at lookup, rate float64, figure func(result) float64) (best float64, whole bool) {
	best = math.Inf(1)
	for _, name := range []string{"x-time", "uber", "uber-noslack", "failsafe"} {
		r, measured := at(name, rate)
		if !measured {
			return 0, false
		}
		best = min(best, figure(r))
	}
	return best, true
}

// lessThan judges whether ours is so many times less than the rival's.
func lessThan(rival, ours, times float64, unit string, g report.Goal) report.Goal {
	switch {
	case ours == 0 && rival == 0:
		g.Got = "0" + unit + ", as the rival"
		g.Reached = true // It cannot be lower.
	case ours == 0:
		g.Got = fmt.Sprintf("0%s, the rival %s%s", unit, report.Figure(rival), unit)
		g.Reached = true
	default:
		g.Got = fmt.Sprintf("%s× (%s against %s%s)", report.Figure(rival/ours), report.Figure(ours), report.Figure(rival), unit)
		g.Reached = rival >= times*ours
	}
	return g
}

// allocationGoal looks at the rates with enough departures in a second. At lower
// ones the few allocations that the runtime makes by itself would count.
func allocationGoal(at lookup) (g report.Goal, measured bool) {
	var most float64
	for _, rate := range []float64{1_000, 10_000, 100_000} {
		if r, here := at("shaper", rate); here {
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

func cpuGoal(at lookup, limiter, what string, rate, times float64) []report.Goal {
	ours, measured := at(limiter, rate)
	rival, too := at("x-time", rate)
	if !measured || !too {
		return nil
	}
	g := report.Goal{
		What: what + " at " + report.PerSecond(rate) + " against x-time",
		Want: fmt.Sprintf("≤ %g×", times),
		Got:  "not known on this system",
	}
	if measure.Known(rival.CPU) && measure.Known(ours.CPU) {
		g.Got = fmt.Sprintf("%.2f×", ours.CPU/rival.CPU)
		g.Reached = ours.CPU <= times*rival.CPU
	}
	return []report.Goal{g}
}

// busyGoals judges for each load and each slack whether the rate is held at all
// rates that were measured.
func busyGoals(results []run.Result[input, result]) []report.Goal {
	var all []report.Goal
	for _, g := range []struct {
		limiter string
		slack   float64 // in ms
		share   float64
	}{{"shaper", 20, 0.95}, {"shaper-slack100", 100, 0.98}} {
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
