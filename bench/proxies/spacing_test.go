package proxies

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	s, err := spacingOf(arrivalsAt(5, 15, 25.5, 29.5, 36), 100, 0)
	require.NoError(t, err)
	require.InDelta(t, 40.0/31, s.RateReached, 1e-9, "4 in 31 ms")
	require.InDelta(t, 2e6, s.ErrorP50, 1e-3, "of 0, 0.5, 6 and 3.5 ms")
	require.Equal(t, 25.0, s.Bunched)
	require.Zero(t, s.Overtaken)
	require.Equal(t, 4, s.Departures)

	_, err = spacingOf(arrivalsAt(1), 100, 0)
	require.Error(t, err)
}

func TestNobodyLooksAtTheLead(t *testing.T) {
	s, err := spacingOf(arrivalsAt(0, 0, 0, 10, 20, 30), 100, 15*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, s.Departures)
	require.Zero(t, s.ErrorP50)
	require.Zero(t, s.Bunched)
	require.InDelta(t, 1, s.RateReached, 1e-9)
}

func TestOrderIsThatOfArrivalAtTheUpstream(t *testing.T) {
	s, err := spacingOf(arrivalsAt(40, 10, 20, 30), 100, 0) // 2, 3, 4, 1
	require.NoError(t, err)
	require.InDelta(t, 100.0/3, s.Overtaken, 1e-9, "of three after the first")
}

func TestRequestsKeepTheLineFromRunningDry(t *testing.T) {
	require.Equal(t, 300, spacingInput{ours, 100, time.Second, 2 * time.Second}.requests())
	require.Equal(t, 3*time.Millisecond, spacingInput{Rate: 100}.every())
	require.Equal(t, 300*time.Microsecond, spacingInput{Rate: 1000}.every())
}

// Eight requests at 100/s: 2, 4, 6 and 8 are to leave at 25 ms, when 1 and 2 have been served.
func TestSlotsOfThoseThatLeft(t *testing.T) {
	at := func(numbers []int, ms ...float64) []arrival {
		all := arrivalsAt(ms...)
		for i := range all {
			all[i].number = numbers[i]
		}
		return all
	}
	const left = 25 * time.Millisecond
	kept, err := leavingOf(at([]int{1, 2, 3, 5, 7}, 10, 20, 35, 45, 55), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 100, Asked: 0}, kept)

	empty, err := leavingOf(at([]int{1, 2, 3, 5, 7}, 10, 20, 35, 55, 85), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 50, Asked: 0}, empty)

	spent, err := leavingOf(at([]int{1, 2, 3, 4, 5, 6, 7, 8}, 10, 20, 35, 45, 55, 65, 75, 85), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 60, Asked: 100}, spent)

	early, err := leavingOf(at([]int{1, 2, 3, 4, 5, 6, 7, 8}, 10, 20, 26, 26, 26, 26, 26, 26), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 50, Asked: 100}, early, "a burst does not make up for what it is spent on")

	_, err = leavingOf(at([]int{1, 2, 3, 4, 5, 6, 7, 8}, 1, 2, 3, 4, 5, 6, 7, 8), left, 8, 100)
	require.ErrorIs(t, err, errNoLine)
}
