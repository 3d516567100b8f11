package scale

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/internal/naive"
)

func TestAWaiterTakesMoreThanABareGoroutine(t *testing.T) {
	if !measure.MemoryIsTold() {
		t.Skip("not known on this system")
	}
	var both [2]float64
	for i, limiter := range []string{bareGoroutine, rivals.Ours} {
		both[i] = memoryOf(t, limiter, 2000, true).Bytes
	}
	require.Greater(t, both[0], 2000.0, "the stack alone has 2 KiB")
	require.Greater(t, both[1], both[0])
}

func TestALimiterThatDoesNotWaitIsNotMeasured(t *testing.T) {
	refusing := func(float64, int) rivals.Line {
		return rivals.Line{Wait: func(context.Context) error { return naive.ErrFull }, Stop: func() {}}
	}
	_, err := cancelOf(t, refusing, 100, 20)
	require.EqualError(t, err, "100 of 100 did not wait")
}

func TestCancelsAreTimed(t *testing.T) {
	cancelled, err := cancelOf(t, rivals.Openers["shaper"], 100, 20)
	require.NoError(t, err)
	require.Positive(t, cancelled.P50)
	require.GreaterOrEqual(t, cancelled.P99, cancelled.P50)
}
