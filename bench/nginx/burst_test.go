package nginx

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
)

// arrivalsAt are requests 1, 2, … at instants in ms.
func arrivalsAt(ms ...float64) []arrival {
	all := make([]arrival, len(ms))
	for i, at := range ms {
		all[i] = arrival{number: i + 1, at: time.Duration(at * float64(time.Millisecond))}
	}
	return all
}

func TestSpacingOfArrivals(t *testing.T) {
	s, err := spacingOf(arrivalsAt(5, 15, 25.5, 29.5, 36), 3, 100)
	require.NoError(t, err)
	require.InDelta(t, 40.0/31, s.RateReached, 1e-9, "4 in 31 ms")
	require.InDelta(t, 2e6, s.ErrorP50, 1e-3, "of 0, 0.5, 6 and 3.5 ms")
	require.Equal(t, 25.0, s.Bunched)
	require.Equal(t, 3.0, s.Refused)
	require.Zero(t, s.Overtaken)
	require.False(t, measure.Known(s.OvertakenInLine), "no request says when it entered")

	_, err = spacingOf(arrivalsAt(1), 0, 100)
	require.Error(t, err)
}

func TestOrderIsThatOfArrivalAtTheUpstream(t *testing.T) {
	all := arrivalsAt(40, 10, 20, 30) // 2, 3, 4, 1
	for i := range all {
		all[i].entered = int64(100 + i)
	}
	all[0].entered = 200 // The first one sent entered last.
	s, err := spacingOf(all, 0, 100)
	require.NoError(t, err)
	require.InDelta(t, 100.0/3, s.Overtaken, 1e-9, "of three after the first")
	require.Zero(t, s.OvertakenInLine)
}
