package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A call that does not come out as it should would be measured as something
// else: a wait, or a refusal of another kind.
func TestEveryAdmissionCallComesOutAsItShould(t *testing.T) {
	for _, c := range admissionCalls() {
		t.Run(fmt.Sprintf("%s/%s/refuses=%v", c.limiter, c.call, c.refuses), func(t *testing.T) {
			each, stop, err := c.open()
			require.NoError(t, err)
			defer stop()
			for _, goroutines := range admissionGoroutines {
				_, _, err := callAtOnce(each, goroutines, 100)
				require.NoError(t, err)
			}
		})
	}
}

func TestCallsThatComeOutWrongAreAnError(t *testing.T) {
	n := 0
	every := func() bool { n++; return n%4 != 0 }
	_, _, err := callAtOnce(shared(every), 1, 100)
	require.ErrorContains(t, err, "25 of 100")
	_, err = timeCalls(shared(func() bool { return false }), 2, time.Millisecond)
	require.Error(t, err)
}

// admissionResultsOf gives ours the nanoseconds ours, and all others theirs.
func admissionResultsOf(ours, theirs, allocs float64) []admissionResult {
	var results []admissionResult
	for _, c := range admissionCalls() {
		ns := theirs
		if c.limiter == "shaper" {
			ns = ours
		}
		var byRound [][]admissionTiming
		for _, disturbed := range []float64{1, 9, 1} { // the round in the middle does not count
			var timings []admissionTiming
			for _, g := range admissionGoroutines {
				timings = append(timings, admissionTiming{Goroutines: g, NsPerCall: ns * disturbed, Allocs: allocs})
			}
			byRound = append(byRound, timings)
		}
		results = append(results, admissionMedians(c, byRound))
	}
	return results
}

func TestAdmissionGoals(t *testing.T) {
	reached := func(ours, theirs, allocs float64) (which []bool) {
		for _, g := range admissionGoals(admissionResultsOf(ours, theirs, allocs)) {
			which = append(which, g.Reached)
		}
		return which
	}
	// Conforming; by deadline with 1 and 64; the slower with 1, 2 and 64;
	// allocations.
	require.Equal(t, []bool{true, true, true, true, true, true, true}, reached(40, 100, 1))
	require.Equal(t, []bool{true, false, false, true, true, true, true}, reached(50, 100, 0))
	require.Equal(t, []bool{false, false, false, true, true, true, false}, reached(99, 100, 2))
	require.Equal(t, []bool{false, false, false, false, false, false, true}, reached(100, 100, 1))
}

func TestAdmissionTablesSayWhoTellsWhenToComeBack(t *testing.T) {
	tables := admissionTables(admissionResultsOf(40, 100, 1), 3)
	require.Len(t, tables, 2)
	require.Len(t, append(tables[0].Rows, tables[1].Rows...), len(admissionCalls()))
	require.Contains(t, tables[1].Rows, []string{"shaper", "Wait-full-line", "40.0", "40.0", "40.0", "1.00", "yes"})
	require.Contains(t, tables[1].Rows, []string{"x-time", "Wait-deadline", "100.0", "100.0", "100.0", "1.00", "no"})
	for _, table := range tables {
		for _, row := range table.Rows {
			require.Len(t, row, len(table.Columns))
		}
	}
}
