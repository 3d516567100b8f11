package admission

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) {
	run.Child()
	os.Exit(m.Run())
}

// A call that does not come out as it should would be measured as something
// else: a wait, or a refusal of another kind.
func TestEveryCallComesOutAsItShould(t *testing.T) {
	names := map[string]bool{}
	for _, c := range cases(run.Options{}) {
		require.False(t, names[c.Name], "two benchmarks have the name %s", c.Name)
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			each, stop, err := c.Input.call().open()
			require.NoError(t, err)
			defer stop()
			for _, n := range goroutines {
				_, err := measure.TimeCalls(each, n, 100*time.Microsecond)
				require.NoError(t, err)
			}
		})
	}
}

// It would be compared with calls that do more.
func TestARefusalThatDoesNotTellWhenToComeBackIsNotMeasured(t *testing.T) {
	_, _, err := meetKeyed("sethvargo", fastBucket, false)()
	require.EqualError(t, err, "a refusal of sethvargo does not tell when to come back")
}

func TestACallIsMeasuredInAChild(t *testing.T) {
	found, err := child.Take(t.Context(), input{"x-time", "Allow", true, time.Millisecond})
	require.NoError(t, err)
	require.Len(t, found, len(goroutines))
	require.Positive(t, found[0].Ns)
	_, err = child.Take(t.Context(), input{Limiter: "x-time", Call: "Guess"})
	require.ErrorContains(t, err, "x-time has no call Guess")
}

// resultsOf gives ours the nanoseconds ours, and all others theirs.
func resultsOf(ours, theirs, allocs float64) []result {
	var results []result
	for _, c := range cases(run.Options{}) {
		ns := theirs
		if c.Input.Limiter == "shaper" {
			ns = ours
		}
		r := result{Case: c}
		for _, disturbed := range []float64{1, 9, 1} { // the round in the middle does not count
			var timings []measure.Timing
			for range goroutines {
				timings = append(timings, measure.Timing{Ns: ns * disturbed, Allocs: allocs})
			}
			r.Found = append(r.Found, timings)
		}
		r.Median = measure.Medians(r.Found)
		results = append(results, r)
	}
	return results
}

func TestGoals(t *testing.T) {
	reached := func(results []result) (which []bool) {
		for _, g := range goals(results) {
			which = append(which, g.Reached)
		}
		return which
	}
	// Conforming; Acquire; each refusal with each number of goroutines against
	// x/time and against sethvargo; allocations.
	want := func(conforming, acquired, xTime, sethvargo, allocations bool) []bool {
		refusals := slices.Repeat([]bool{xTime, sethvargo}, 2*len(goroutines))
		return append(append([]bool{conforming, acquired}, refusals...), allocations)
	}
	require.Equal(t, want(true, true, true, true, true), reached(resultsOf(40, 100, 1)))
	require.Equal(t, want(true, true, false, true, true), reached(resultsOf(50, 100, 0)))
	require.Equal(t, want(false, true, false, true, false), reached(resultsOf(99, 100, 2)))
	require.Equal(t, want(false, true, false, false, true), reached(resultsOf(101, 100, 1)))
	require.Equal(t, want(false, false, false, false, false), reached(nil), "nothing is reached that was not measured")

	results := resultsOf(40, 100, 1)
	for _, r := range results {
		switch {
		case r.Input.Limiter == "shaper" && r.Input.Call == acquire:
			r.Median[0].Ns = 61
		case r.Input.Limiter == "shaper" && r.Input.Call == "Wait-full-line":
			r.Median[1].Ns = 41
		}
	}
	missed := want(true, false, true, true, true)
	missed[4] = false // with 2 goroutines, against x/time
	require.Equal(t, missed, reached(results))
}

func TestTheReportHasEachCallAndWhetherItTellsWhenToComeBack(t *testing.T) {
	r := reportOf(resultsOf(40, 100, 1))
	require.Len(t, r.Tables, 2)
	require.Len(t, append(r.Tables[0].Rows, r.Tables[1].Rows...), len(calls()))
	require.Contains(t, r.Tables[1].Rows, []string{"shaper", "Wait-full-line", "40.0", "40.0", "40.0", "1.00", "yes"})
	require.Contains(t, r.Tables[1].Rows, []string{"x-time", "Wait-deadline", "100.0", "100.0", "100.0", "1.00", "no"})
	for _, table := range r.Tables {
		for _, row := range table.Rows {
			require.Len(t, row, len(table.Columns))
		}
	}
	require.Len(t, r.Lines, len(calls())*len(goroutines)*3)
	require.Equal(t, "Admission/outcome=leaves/call=Wait/limiter=shaper/goroutines=64", r.Lines[8].Name)
	require.Equal(t, "[{40 ns/call} {1 allocs/call}]", fmt.Sprint(r.Lines[8].Figures))
	require.Empty(t, reportOf(nil).Tables)
}
