package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) { run.Tests(m) }

// A call that does not come out as it should would be measured as something
// else: a wait, or a refusal of another kind.
func TestEveryCallComesOutAsItShould(t *testing.T) {
	names := map[string]bool{}
	for _, c := range cases(run.Options{}) {
		require.False(t, names[c.Name], "two benchmarks have the name %s", c.Name)
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			call, stop, err := c.Input.call().open()
			require.NoError(t, err)
			defer stop()
			for _, n := range goroutines {
				_, err := measure.TimeCalls(func() func() bool { return call }, n, 100*time.Microsecond)
				require.NoError(t, err)
			}
		})
	}
}

func TestACallIsMeasuredInAChild(t *testing.T) {
	found, err := child.Take(t.Context(), input{"x-time", "Allow", true, time.Millisecond})
	require.NoError(t, err)
	require.Len(t, found, len(goroutines))
	require.Positive(t, found[0].Ns)
	_, err = child.Take(t.Context(), input{Limiter: "x-time", Call: "Guess"})
	require.ErrorContains(t, err, "x-time has no call Guess")
}
