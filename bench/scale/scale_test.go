package scale

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
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
