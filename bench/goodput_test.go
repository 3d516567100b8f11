package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time nothing is late, and what is served is exact.
func TestGoodputInVirtualTime(t *testing.T) {
	for _, c := range []struct {
		contestant string
		by         string
		served     float64
	}{
		{"shaper", byCancel, 100},
		{"shaper", byDeadline, 100},
		{"x-time", byCancel, 0}, // those in line have given up before their slot comes
		{"x-time", byDeadline, 100},
		{"failsafe", byCancel, 0},
		{"failsafe", byDeadline, 100},
	} {
		t.Run(c.contestant+" by "+c.by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter, err := contestantNamed(c.contestant)
				require.NoError(t, err)
				served, callers := goodput(limiter, 125, c.by, 2*time.Second, 10*time.Second)
				callers.Wait()
				require.InDelta(t, c.served, served, 0.2, "one departure at either end of the window")
			})
		})
	}
}

func TestGoodputTable(t *testing.T) {
	found := [][]goodputResult{
		{{"shaper", 111, byCancel, 99.96}, {"shaper", 200, byDeadline, 98}},
		{{"x-time", 111, byCancel, 0}, {"x-time", 200, byDeadline, 88.5}},
	}
	table := goodputTable(found, time.Second, 2*time.Second)
	require.Equal(t, []string{"contestant", "111/s by cancel", "200/s by deadline"}, table.Columns)
	require.Equal(t, [][]string{{"shaper", "100.0", "98.0"}, {"x-time", "0.0", "88.5"}}, table.Rows)
}
