package main

import (
	"math"
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
	s, err := spacingOf(arrivalsAt(5, 15, 25.5, 29.5, 36), 3, 100)
	require.NoError(t, err)
	require.InDelta(t, 40.0/31, s.RateReached, 1e-9, "4 in 31 ms")
	// The spacings are 10, 10.5, 4 and 6.5 ms, the errors 0, 0.5, 6 and 3.5.
	require.InDelta(t, 2000, s.ErrorP50, 1e-6)
	require.InDelta(t, 5925, s.ErrorP99, 1e-6)
	require.Equal(t, 25.0, s.Bunched)
	require.Equal(t, 3.0, s.Refused)
	require.Zero(t, s.OvertakenSent)
	require.Nil(t, s.OvertakenQueue, "nobody told when they entered")

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
	require.Equal(t, 25.0, s.OvertakenSent)
	require.NotNil(t, s.OvertakenQueue)
	require.Zero(t, *s.OvertakenQueue)
}

func TestOvertaken(t *testing.T) {
	for _, test := range []struct {
		places []int64
		want   float64
	}{
		{nil, 0},
		{[]int64{1, 2, 3, 4}, 0},
		{[]int64{1, 1, 2, 2}, 0},
		{[]int64{4, 1, 2, 3}, 75}, // One has overtaken three.
		{[]int64{2, 3, 4, 1}, 25}, // Three have overtaken one.
		{[]int64{2, 1, 4, 3}, 50},
	} {
		require.Equal(t, test.want, overtaken(test.places), test.places)
	}
}

func TestQuantile(t *testing.T) {
	values := []float64{4, 1, 3, 2}
	require.Equal(t, 1.0, quantile(values, 0))
	require.Equal(t, 2.5, quantile(values, 0.5))
	require.Equal(t, 4.0, quantile(values, 1))
	require.Equal(t, []float64{4, 1, 3, 2}, values, "they stay as they are")
	require.Equal(t, 7.0, quantile([]float64{7}, 0.99))
	require.True(t, math.IsNaN(quantile(nil, 0.5)))
}
