package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

func TestGoalsAgainstARival(t *testing.T) {
	require.Equal(t, Goal{"error", "≥ 7× lower", "7.00× (10.0 against 70.0 µs)", true}, Lower("error", 7, 10, 70, "µs"))
	require.False(t, Lower("error", 7, 10, 69.9, "µs").Reached)
	require.Equal(t, Goal{"error", "≥ 7× lower", "0, against 12.0 µs", true}, Lower("error", 7, 0, 12, "µs"))
	require.True(t, Lower("error", 7, 0, 0, "µs").Reached, "there is nothing lower than 0")
	require.False(t, Lower("error", 7, 1, 0, "µs").Reached)

	require.Equal(t, Goal{"CPU", "≤ 1.5×", "1.50× (3.00 against 2.00 s)", true}, AtMost("CPU", 1.5, 3, 2, "s"))
	require.False(t, AtMost("CPU", 1.5, 3.1, 2, "s").Reached)
	require.Equal(t, Goal{"CPU", "≤ 1.5×", "3.00 against 0 s", false}, AtMost("CPU", 1.5, 3, 0, "s"))

	require.Equal(t, Goal{"error", "at most 5 µs", "5.00 µs", true}, Bounded("error", 5, 5, "µs"))
	require.False(t, Bounded("error", 5, 5.01, "µs").Reached)

	for _, g := range []Goal{
		Bounded("", 1, measure.Unknown, ""),
		Lower("", 1, measure.Unknown, 1, ""), Lower("", 1, 1, measure.Unknown, ""),
		AtMost("", 1, measure.Unknown, 1, ""), AtMost("", 1, 1, measure.Unknown, ""),
	} {
		require.Equal(t, NotMeasured, g.Got)
		require.False(t, g.Reached)
	}
}
