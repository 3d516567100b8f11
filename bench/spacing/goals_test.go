package spacing

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// goalNamed picks a goal out of goals.
func goalNamed(t *testing.T, goals []report.Goal, what string) report.Goal {
	t.Helper()
	for _, g := range goals {
		if g.What == what {
			return g
		}
	}
	require.Fail(t, "no such goal", "%s in %+v", what, goals)
	return report.Goal{}
}

// found is a result as if it had been measured.
func found(in input, r result) run.Result[input, result] {
	return run.Result[input, result]{Case: run.Case[input]{Input: in}, Found: []result{r}, Median: r}
}

// idleResult is of 100 waiters at 1,000/s with nothing else running. Its error is
// in µs, its CPU time in seconds per 100,000.
func idleResult(limiter string, p50, bunched, cpu float64) run.Result[input, result] {
	return found(input{Limiter: limiter, Rate: 1000, Waiters: 100, Load: idle},
		result{Spread: measure.Spread{Spacing: measure.Spacing{RateReached: 0.9975, ErrorP50: 1000 * p50, Bunched: bunched}}, CPU: 1e4 * cpu})
}

func TestGoalsCompareWithTheBestLibrary(t *testing.T) {
	results := []run.Result[input, result]{
		idleResult("shaper", 10, 0.5, 6), idleResult("shaper-coarse", 100, 10, 4.1),
		idleResult("x-time", 90, 9, 3), idleResult("uber", 75, 8, 3), idleResult("uber-noslack", 70, 4, 3), idleResult("failsafe", 80, 5, 3),
		idleResult("naive", 1, 0.1, 1), // It is no library.
	}
	all := goals(results)
	require.Equal(t, report.Goal{What: "spacing error p50 at 1,000/s against the best library", Want: "≥ 7× lower", Got: "7.00× (10.0 against 70.0 µs)", Reached: true},
		goalNamed(t, all, "spacing error p50 at 1,000/s against the best library"))
	require.Equal(t, report.Goal{What: "spacings below half an interval at 1,000/s against the best library", Want: "≥ 10× lower", Got: "8.00× (0.500 against 4.00 %)", Reached: false},
		goalNamed(t, all, "spacings below half an interval at 1,000/s against the best library"))
	require.Equal(t, report.Goal{What: "rate reached at 1,000/s", Want: "at most 0.3 % off", Got: "0.250 % off", Reached: true}, goalNamed(t, all, "rate reached at 1,000/s"))
	require.Equal(t, report.Goal{What: "CPU per departure at 1,000/s against x-time", Want: "≤ 2×", Got: "2.00× (6.00 against 3.00 s per 100,000)", Reached: true},
		goalNamed(t, all, "CPU per departure at 1,000/s against x-time"))
	require.Equal(t, report.Goal{What: "CPU per departure with the coarse timer at 1,000/s against x-time", Want: "≤ 1.3×", Got: "1.37× (4.10 against 3.00 s per 100,000)", Reached: false},
		goalNamed(t, all, "CPU per departure with the coarse timer at 1,000/s against x-time"))
	require.True(t, goalNamed(t, all, "allocations per wait, at 1,000/s and above").Reached)
	require.Len(t, all, 6, "and none of the rates that were left out")

	of := &results[0].Median
	of.ErrorP50, of.RateReached, of.Allocs, of.CPU = 10_100, 1.0031, 0.05, 61_000
	for _, g := range goals(results) {
		require.False(t, g.Reached, g.What)
	}
}

func TestLessCPUTimeMustNotCostTheSpacing(t *testing.T) {
	reached := func(us, cpu float64) (cpuReached, spacingReached bool) {
		ours, theirs := idleResult("shaper", us, 0, cpu), idleResult("x-time", 97, 90, 1)
		ours.Input.Rate, theirs.Input.Rate = 10_000, 10_000
		all := goals([]run.Result[input, result]{ours, theirs})
		return goalNamed(t, all, "CPU per departure at 10,000/s against x-time").Reached,
			goalNamed(t, all, "spacing error p50 at 10,000/s, at that CPU time").Reached
	}
	for _, c := range []struct {
		us, cpu                    float64
		cpuReached, spacingReached bool
	}{{5, 4, true, true}, {5.1, 3, true, false}, {1.2, 4.1, false, true}} {
		cpuReached, spacingReached := reached(c.us, c.cpu)
		require.Equal(t, c.cpuReached, cpuReached, c)
		require.Equal(t, c.spacingReached, spacingReached, c)
	}
}

func TestGoalsOfWhatIsMissing(t *testing.T) {
	all := goals([]run.Result[input, result]{idleResult("shaper", 1, 1, 0), idleResult("x-time", 10, 10, measure.Unknown)})
	for _, g := range all {
		require.NotContains(t, g.What, "best library", "one that is missing might be the best")
	}
	require.Equal(t, report.NotMeasured, goalNamed(t, all, "CPU per departure at 1,000/s against x-time").Got)
}

func TestBusyGoalsWantEachRate(t *testing.T) {
	at := func(limiter string, rate float64, waiters int, reached float64) run.Result[input, result] {
		return found(input{Limiter: limiter, Rate: rate, Waiters: waiters, Load: "loops"},
			result{Spread: measure.Spread{Spacing: measure.Spacing{RateReached: reached}}, SlotBurst: measure.Unknown})
	}
	results := []run.Result[input, result]{
		at("shaper", 100, 100, 0.96), at("shaper-slack100", 100, 100, 0.97), at("x-time", 100, 100, 1),
		at("shaper", 1000, 100, 0.95), at("shaper-slack100", 1000, 100, 1), at("x-time", 1000, 100, 0.98),
	}
	for i, ns := range map[int]float64{0: 19.5e6, 1: 100.1e6, 3: 20e6} {
		results[i].Median.SlotBurst = ns
	}
	all := busyGoals(results)
	require.Equal(t, []report.Goal{
		{What: "rate in a busy process (loops), 20 ms of slack, against x-time", Want: "≥ 0.95×", Got: "0.960× at 100/s, 0.969× at 1,000/s", Reached: true},
		{What: "largest burst of slots within any window in a busy process, 20 ms of slack", Want: "≤ 20 ms of the rate", Got: "20.000 ms", Reached: true},
		{What: "rate in a busy process (loops), 100 ms of slack, against x-time", Want: "≥ 0.98×", Got: "0.970× at 100/s, 1.020× at 1,000/s", Reached: false},
		{What: "largest burst of slots within any window in a busy process, 100 ms of slack", Want: "≤ 100 ms of the rate", Got: "100.100 ms", Reached: false},
	}, all)
	require.Empty(t, busyGoals(nil))
}
