package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// goalNamed picks a goal out of goals.
func goalNamed(t *testing.T, goals []goal, what string) goal {
	t.Helper()
	for _, g := range goals {
		if g.What == what {
			return g
		}
	}
	require.Fail(t, "no such goal", "%s in %+v", what, goals)
	return goal{}
}

// idleResult is of 100 waiters at 1,000/s with nothing else running.
func idleResult(contestant string, p50, bunched, cpu float64) spacingResult {
	return spacingResult{Contestant: contestant, Rate: 1000, Waiters: 100, Load: idle,
		RateReached: 0.9975, ErrorP50: p50, Bunched: bunched, CPUPer100k: cpu}
}

func TestGoalsCompareWithTheBestLibrary(t *testing.T) {
	results := []spacingResult{
		idleResult("shaper", 10, 0.5, 6), idleResult("shaper-coarse", 100, 10, 4.1),
		idleResult("x-time", 90, 9, 3), idleResult("uber", 75, 8, 3), idleResult("uber-noslack", 70, 4, 3), idleResult("failsafe", 80, 5, 3),
		idleResult("naive", 1, 0.1, 1), // It is no library.
	}
	goals := spacingGoals(results)
	require.Equal(t, goal{"spacing error p50 at 1,000/s against the best library", "≥ 7× lower", "7.00× (10.0 against 70.0 µs)", true},
		goalNamed(t, goals, "spacing error p50 at 1,000/s against the best library"))
	require.Equal(t, goal{"spacings below half an interval at 1,000/s against the best library", "≥ 10× fewer", "8.00× (0.500 against 4.00 %)", false},
		goalNamed(t, goals, "spacings below half an interval at 1,000/s against the best library"))
	require.Equal(t, goal{"rate reached at 1,000/s", "within 0.3 %", "0.25 % off", true}, goalNamed(t, goals, "rate reached at 1,000/s"))
	require.Equal(t, goal{"CPU per departure at 1,000/s against x-time", "≤ 2×", "2.00×", true},
		goalNamed(t, goals, "CPU per departure at 1,000/s against x-time"))
	require.Equal(t, goal{"CPU per departure with the coarse timer at 1,000/s against x-time", "≤ 1.3×", "1.37×", false},
		goalNamed(t, goals, "CPU per departure with the coarse timer at 1,000/s against x-time"))
	require.True(t, goalNamed(t, goals, "allocations per wait, at 1,000/s and above").Reached)
	require.Len(t, goals, 6, "and none of the rates that were left out")

	results[0].ErrorP50, results[0].RateReached, results[0].AllocsPerWait, results[0].CPUPer100k = 10.1, 1.0031, 0.05, 6.1
	for _, g := range spacingGoals(results) {
		require.False(t, g.Reached, g.What)
	}
}

func TestGoalsWithNothingToDivideBy(t *testing.T) {
	g := lessThan(12, 0, 10, " %", goal{})
	require.Equal(t, goal{Got: "0 %, the rival 12.0 %", Reached: true}, g)
	g = lessThan(0, 0, 10, " %", goal{})
	require.Equal(t, goal{Got: "0 %, as the rival", Reached: true}, g)
	require.False(t, lessThan(0, 1, 10, " %", goal{}).Reached)

	for _, g := range spacingGoals([]spacingResult{idleResult("shaper", 1, 1, 0), idleResult("x-time", 10, 10, 0)}) {
		require.NotContains(t, g.What, "best library", "who is missing might be the best")
	}

	unknown := spacingGoals([]spacingResult{idleResult("shaper", 1, 1, 0), idleResult("x-time", 10, 10, 0)})
	require.Equal(t, "not known on this system", goalNamed(t, unknown, "CPU per departure at 1,000/s against x-time").Got)
}

func TestBusyGoalsWantEachRate(t *testing.T) {
	at := func(contestant string, rate float64, waiters int, reached float64) spacingResult {
		return spacingResult{Contestant: contestant, Rate: rate, Waiters: waiters, Load: "loops", RateReached: reached}
	}
	results := []spacingResult{
		at("shaper", 100, 100, 0.96), at("shaper-slack100", 100, 100, 0.97), at("x-time", 100, 100, 1),
		at("shaper", 1000, 100, 0.95), at("shaper-slack100", 1000, 100, 1), at("x-time", 1000, 100, 0.98),
	}
	results[0].SlotBurstMS, results[1].SlotBurstMS, results[3].SlotBurstMS = 19.5, 100.1, 20
	goals := busyGoals(results)
	require.Equal(t, []goal{
		{"rate in a busy process (loops), 20 ms of slack, against x-time", "≥ 0.95×", "0.960× at 100/s, 0.969× at 1,000/s", true},
		{"largest burst of slots within any window in a busy process, 20 ms of slack", "≤ 20 ms of the rate", "20.000 ms", true},
		{"rate in a busy process (loops), 100 ms of slack, against x-time", "≥ 0.98×", "0.970× at 100/s, 1.020× at 1,000/s", false},
		{"largest burst of slots within any window in a busy process, 100 ms of slack", "≤ 100 ms of the rate", "100.100 ms", false},
	}, goals)
	require.Empty(t, busyGoals(nil))
}
