package scale

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/naive"
)

func TestMain(m *testing.M) {
	run.Child()
	os.Exit(m.Run())
}

func memoryFor(limiter string, ownContext bool, bytes, beyond float64) memoryResult {
	found := memoryFound{bytes, beyond}
	return memoryResult{Case: run.Case[memoryInput]{Input: memoryInput{limiter, manyWaiting, ownContext}}, Found: []memoryFound{found}, Median: found}
}

func TestMemoryGoalLooksAtLinesWithoutContexts(t *testing.T) {
	g := memoryGoal(nil)
	require.Equal(t, report.NotMeasured, g.Got)
	require.False(t, g.Reached)
	results := []memoryResult{
		memoryFor("shaper", false, 2900, 160),
		memoryFor("shaper", true, 3300, 570),
		memoryFor("x-time", false, 3200, 470),
	}
	g = memoryGoal(results)
	require.Equal(t, "160 B, and 570 with a context of its own", g.Got)
	require.True(t, g.Reached)
	results[0].Median.Beyond = 161
	require.False(t, memoryGoal(results).Reached)
}

func TestCancelIsComparedWithXTime(t *testing.T) {
	of := func(limiter string, us float64) cancelResult {
		m := cancelFound{P50: 1000 * us}
		return cancelResult{Case: run.Case[cancelInput]{Input: cancelInput{Limiter: limiter}}, Found: []cancelFound{m}, Median: m}
	}
	require.True(t, cancelGoal([]cancelResult{of("shaper", 5), of("x-time", 5), of("failsafe", 4)}).Reached)
	require.False(t, cancelGoal([]cancelResult{of("shaper", 5.1), of("x-time", 5)}).Reached)
	require.Equal(t, report.NotMeasured, cancelGoal([]cancelResult{of("shaper", 5)}).Got)
}

func TestMemoryTable(t *testing.T) {
	table := memoryTable([]memoryResult{
		memoryFor("shaper", false, 2900, 170),
		memoryFor("shaper", true, 3300, 570),
	})
	require.Equal(t, []string{"limiter", "100,000", "beyond", "100,000, own context", "beyond"}, table.Columns)
	require.Contains(t, table.Rows, []string{"shaper", "2900", "170", "3300", "570"})
	require.Contains(t, table.Rows, []string{"naive", "-", "-", "-", "-"})
}

// Otherwise what a round costs everybody would be counted as the limiter's.
func TestMemoryBeyondAGoroutineIsOfTheSameRound(t *testing.T) {
	if !measure.MemoryIsTold() {
		t.Skip("not known on this system")
	}
	found, err := memoryChild.Take(t.Context(), memoryInput{bareGoroutine, 2000, true})
	require.NoError(t, err)
	require.Greater(t, found.Bytes, 2000.0, "the stack alone has 2 KiB")
	ours, err := memoryChild.Take(t.Context(), memoryInput{"shaper", 2000, true})
	require.NoError(t, err)
	require.Greater(t, ours.Bytes, found.Bytes)
}

func TestALimiterThatDoesNotWaitIsNotMeasured(t *testing.T) {
	refusing := rivals.Rival{Open: func(float64, int, func(time.Time)) rivals.Line {
		return rivals.Line{Wait: func(context.Context) error { return naive.ErrFull }, Stop: func() {}}
	}}
	_, err := cancelLatencies(refusing, 100, 20)
	require.EqualError(t, err, "100 of 100 did not wait")
}

func TestCancelIsMeasuredInAChild(t *testing.T) {
	cancelled, err := cancelChild.Take(t.Context(), cancelInput{"shaper", 100, 20})
	require.NoError(t, err)
	require.Positive(t, cancelled.P50)
	require.GreaterOrEqual(t, cancelled.P99, cancelled.P50)
	require.Len(t, cancelTable([]cancelResult{{Found: []cancelFound{cancelled}, Median: cancelled}}).Rows, 1)
}

// [rivals.Named] panics if there is none.
func TestEveryLimiterCanBeMeasured(t *testing.T) {
	for _, c := range cancelCases(run.Options{}) {
		rivals.Named(c.Input.Limiter)
	}
	for _, name := range memoryLimiters[1:] {
		rivals.Named(name)
	}
}
