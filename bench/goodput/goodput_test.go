package goodput

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) {
	run.Child()
	os.Exit(m.Run())
}

// In virtual time nothing is late, and what is served is exact.
func TestGoodputInVirtualTime(t *testing.T) {
	for _, c := range []struct {
		limiter string
		by      string
		served  float64
	}{
		{"shaper", byCancel, 100},
		{"shaper", byDeadline, 100},
		{"x-time", byCancel, 0}, // those in line have given up before their slot comes
		{"x-time", byDeadline, 100},
		{"failsafe", byCancel, 0},
		{"failsafe", byDeadline, 100},
	} {
		t.Run(c.limiter+" by "+c.by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				served, callers := goodput(rivals.Named(c.limiter), stream{c.by, 125}, 2*time.Second, 10*time.Second)
				callers.Wait()
				require.InDelta(t, c.served, served, 0.2, "one departure at either end of the window")
			})
		})
	}
}

func TestTheReportHasAFigureForEachStream(t *testing.T) {
	served := []float64{99.96, 1, 2, 3, 4, 98}
	one := result{Case: cases(run.Options{})[0], Found: [][]float64{served}, Median: served}
	r := reportOf([]result{one}, run.Options{})
	require.Equal(t, []string{"limiter", "111/s by cancel", "125/s by cancel", "200/s by cancel", "111/s by deadline", "125/s by deadline", "200/s by deadline"}, r.Tables[0].Columns)
	require.Equal(t, [][]string{{"shaper", "100.0", "1.0", "2.0", "3.0", "4.0", "98.0"}}, r.Tables[0].Rows)
	require.Len(t, r.Lines, len(streams))
	require.Equal(t, "Goodput/limiter=shaper/offered=200/by=deadline", r.Lines[5].Name)
	require.Equal(t, []report.Figured{{Value: 98, Unit: "served-%"}}, r.Lines[5].Figures)
	require.Equal(t, "goodput", r.Pictures[0].Name)
	require.Empty(t, reportOf(nil, run.Options{}).Tables)
}

// [rivals.Named] panics if there is none.
func TestEveryLimiterCanBeMeasured(t *testing.T) {
	for _, c := range cases(run.Options{}) {
		rivals.Named(c.Input.Limiter)
	}
	for _, c := range holeCases(run.Options{}) {
		rivals.Named(c.Input)
	}
	served, err := child.Take(t.Context(), input{"shaper", 10 * time.Millisecond, 100 * time.Millisecond})
	require.NoError(t, err)
	require.Len(t, served, len(streams))
}
