package main

import (
	"fmt"
	"math"
	"strings"
)

// spacingGoals judges the goals of the spacing part, as far as its results
// reach: where a rate was left out, its goal is.
func spacingGoals(results []spacingResult) []goal {
	at := func(contestant string, rate float64) (spacingResult, bool) {
		return spacingOf(results, contestant, rate, goalWaiters, idle)
	}
	var goals []goal
	for _, g := range []struct{ rate, times float64 }{{100, 8}, {1_000, 7}, {10_000, 6}} {
		if ours, measured := at("shaper", g.rate); measured {
			rival, all := bestLibrary(at, g.rate, func(r spacingResult) float64 { return r.ErrorP50 })
			if !all {
				continue
			}
			goals = append(goals, lessThan(rival, ours.ErrorP50, g.times, " µs", goal{
				What: "spacing error p50 at " + perSecond(g.rate) + " against the best library",
				Want: fmt.Sprintf("≥ %g× lower", g.times),
			}))
		}
	}
	for _, rate := range []float64{1_000, 10_000} {
		if ours, measured := at("shaper", rate); measured {
			rival, all := bestLibrary(at, rate, func(r spacingResult) float64 { return r.Bunched })
			if !all {
				continue
			}
			goals = append(goals, lessThan(rival, ours.Bunched, 10, " %", goal{
				What: "spacings below half an interval at " + perSecond(rate) + " against the best library",
				Want: "≥ 10× fewer",
			}))
		}
	}
	for _, g := range []struct{ rate, within float64 }{{10, 0.3}, {100, 0.3}, {1_000, 0.3}, {10_000, 0.3}, {100_000, 1}} {
		if ours, measured := at("shaper", g.rate); measured {
			off := 100 * math.Abs(ours.RateReached-1)
			goals = append(goals, goal{
				What:    "rate reached at " + perSecond(g.rate),
				Want:    fmt.Sprintf("within %g %%", g.within),
				Got:     fmt.Sprintf("%.2f %% off", off),
				Reached: off <= g.within,
			})
		}
	}
	if allocations, measured := allocationGoal(at); measured {
		goals = append(goals, allocations)
	}
	for _, g := range []struct{ rate, times float64 }{{100, 1.5}, {1_000, 2}, {10_000, 5}} {
		goals = append(goals, cpuGoal(at, "shaper", "CPU per departure", g.rate, g.times)...)
	}
	for _, rate := range []float64{100, 1_000, 10_000} {
		goals = append(goals, cpuGoal(at, "shaper-coarse", "CPU per departure with the coarse timer", rate, 1.3)...)
	}
	return goals
}

type spacingAt func(contestant string, rate float64) (spacingResult, bool)

// bestLibrary is the lowest figure of the three waiting libraries, each in the
// one of its forms that does best. Without one of them nothing can be judged:
// it might have been the best.
func bestLibrary(at spacingAt, rate float64, figure func(spacingResult) float64) (best float64, all bool) {
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
func lessThan(rival, ours, times float64, unit string, g goal) goal {
	switch {
	case ours == 0 && rival == 0:
		g.Got = "0" + unit + ", as the rival"
		g.Reached = true // There is nothing left to better.
	case ours == 0:
		g.Got = fmt.Sprintf("0%s, the rival %s%s", unit, figure(rival), unit)
		g.Reached = true
	default:
		g.Got = fmt.Sprintf("%s× (%s against %s%s)", figure(rival/ours), figure(ours), figure(rival), unit)
		g.Reached = rival >= times*ours
	}
	return g
}

// allocationGoal looks at the rates where a second has departures enough. At
// lower ones the few allocations that the runtime makes by itself would count.
func allocationGoal(at spacingAt) (g goal, measured bool) {
	var most float64
	for _, rate := range []float64{1_000, 10_000, 100_000} {
		if r, here := at("shaper", rate); here {
			most, measured = max(most, r.AllocsPerWait), true
		}
	}
	return goal{
		What:    "allocations per wait, at 1,000/s and above",
		Want:    "0 (< 0.05: the process has others, a few)",
		Got:     fmt.Sprintf("%.3f", most),
		Reached: most < 0.05,
	}, measured
}

func cpuGoal(at spacingAt, contestant, what string, rate, times float64) []goal {
	ours, measured := at(contestant, rate)
	rival, too := at("x-time", rate)
	if !measured || !too {
		return nil
	}
	g := goal{
		What: what + " at " + perSecond(rate) + " against x-time",
		Want: fmt.Sprintf("≤ %g×", times),
		Got:  "not known on this system",
	}
	if rival.CPUPer100k > 0 {
		g.Got = fmt.Sprintf("%.2f×", ours.CPUPer100k/rival.CPUPer100k)
		g.Reached = ours.CPUPer100k <= times*rival.CPUPer100k
	}
	return []goal{g}
}

// busyGoals judges for each load and each slack whether the rate is held at all
// rates that were measured.
func busyGoals(results []spacingResult) []goal {
	var goals []goal
	for _, g := range []struct {
		contestant string
		slack      float64 // in ms
		share      float64
	}{{"shaper", 20, 0.95}, {"shaper-slack100", 100, 0.98}} {
		slack := fmt.Sprintf("%g ms of slack", g.slack)
		for _, l := range loads() {
			one := goal{
				What:    fmt.Sprintf("rate in a busy process (%s), %s, against x-time", l.name, slack),
				Want:    fmt.Sprintf("≥ %g×", g.share),
				Reached: true,
			}
			var got []string
			for _, at := range busyRates {
				ours, measured := spacingOf(results, g.contestant, at.rate, at.waiters, l.name)
				rival, too := spacingOf(results, "x-time", at.rate, at.waiters, l.name)
				switch {
				case !measured || !too:
					continue
				case rival.RateReached == 0:
					got = append(got, fmt.Sprintf("x-time let nobody leave at %s", perSecond(at.rate)))
					one.Reached = false // Nothing is known.
					continue
				}
				times := ours.RateReached / rival.RateReached
				got = append(got, fmt.Sprintf("%.3f× at %s", times, perSecond(at.rate)))
				one.Reached = one.Reached && times >= g.share
			}
			if len(got) > 0 {
				one.Got = strings.Join(got, ", ")
				goals = append(goals, one)
			}
		}
		if largest, measured := largestSlotBurst(results, g.contestant); measured {
			goals = append(goals, goal{
				What: "largest burst of slots within any window in a busy process, " + slack,
				Want: fmt.Sprintf("≤ %g ms of the rate", g.slack),
				Got:  fmt.Sprintf("%.3f ms", largest),
				// A nanosecond of tolerance, as these are sums of floats.
				Reached: largest <= g.slack+1e-6,
			})
		}
	}
	return goals
}

// largestSlotBurst is of all loads and rates.
func largestSlotBurst(results []spacingResult, contestant string) (largest float64, measured bool) {
	for _, r := range results {
		if r.Contestant == contestant {
			largest, measured = max(largest, r.SlotBurstMS), true
		}
	}
	return largest, measured
}
