package shaper_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// One process lowers the rate of all, and another sets it to what it was, and to what it has
// been given itself. The rate that was set last is in force, or nobody could undo a change
// but the process that made it.
func TestAProcessCanSetTheRateBackThatAnotherHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := shaper.Limits{Rate: 1000, Depth: 10}
		var both [2]*shaper.Shaper
		for i := range both {
			s, err := shaper.New(limits, shaper.WithBucket(m, "key"))
			require.NoError(t, err)
			defer s.Close()
			both[i] = s
		}
		inForce := func(want rate.Limit) {
			t.Helper()
			for range 2 { // The first may be the one that learns it.
				for _, s := range both {
					require.NoError(t, s.Wait(t.Context()))
				}
			}
			for _, s := range both {
				require.Equal(t, want, s.Limits().Rate)
			}
			time.Sleep(time.Second)
		}
		inForce(1000)
		slower := limits
		slower.Rate = 200
		require.NoError(t, both[0].SetLimits(slower))
		inForce(200)
		require.NoError(t, both[1].SetLimits(limits))
		inForce(1000)

		// A change of something else does not put an old rate in force again.
		require.NoError(t, both[0].SetLimits(slower))
		inForce(200)
		deeper := both[1].Limits()
		deeper.Depth = 20
		require.NoError(t, both[1].SetLimits(deeper))
		inForce(200)
		require.NoError(t, both[0].SetLimits(limits))
		inForce(1000)
	})
}
