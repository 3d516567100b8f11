package scale

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/naive"
)

func TestMain(m *testing.M) { run.Tests(m) }

// Otherwise a cost that a round has for everybody would be counted as the limiter's.
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
	refusing := rivals.Rival{Open: func(float64, int) rivals.Line {
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
}
