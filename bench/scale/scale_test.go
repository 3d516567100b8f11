package scale

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/naive"
)

// fewWaiting are lines as in Experiment, but short.
var fewWaiting = run.Experiment{Groups: func(run.Options) []run.Group {
	var g run.Group
	for _, name := range []string{bareGoroutine, rivals.Ours} {
		g.Cases = append(g.Cases, run.One(name, 1, func(t *testing.T) report.Figure { return memoryOf(t, name, 2000, true) }))
	}
	return []run.Group{g}
}}

func TestMain(m *testing.M) { run.Tests(m, fewWaiting) }

func TestAWaiterTakesMoreThanABareGoroutine(t *testing.T) {
	if !measure.MemoryIsTold() {
		t.Skip("not known on this system")
	}
	var both [2]float64
	for i, c := range fewWaiting.Groups(run.Options{})[0].Cases {
		lines, err := run.InChild(t.Context(), run.Options{}, c)
		require.NoError(t, err)
		both[i] = report.Median(lines, c.Name, "B/waiter")
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
