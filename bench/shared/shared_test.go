package shared

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) { run.Tests(m) }

// Every limiter is measured on a real server, and lets about as many leave as it should.
func TestEveryLimiterSharesItsRate(t *testing.T) {
	for _, name := range limiters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := input{Limiter: name, Waiters: 8, Rate: 100, Warm: 500 * time.Millisecond, Window: time.Second}
			found := measureFleet(t, in)
			// The machine may be so busy that the processes hardly run in a window of a second.
			for tries := 1; tries < 8 && found.RateReached <= 0.2; tries++ {
				found = measureFleet(t, in)
			}
			require.Greater(t, found.RateReached, 0.2)
			require.Less(t, found.RateReached, 1.2)
			require.Positive(t, found.RoundTrips)
			require.Positive(t, found.CPU)
		})
	}
}

// Four processes over one second. One of them is given twice as many slots as another.
func TestWhatProcessesDidIsMerged(t *testing.T) {
	every := func(from, step time.Duration, n int) (o workerOutput) {
		for i := range n {
			o.Departures = append(o.Departures, measure.Departure{Entered: int64(i) + 1, At: from + time.Duration(i)*step})
		}
		o.RoundTrips, o.CPU = int64(n)/2, 1000*float64(n)
		return o
	}
	outputs := []workerOutput{
		every(0, 20*time.Millisecond, 100), every(5*time.Millisecond, 40*time.Millisecond, 50),
		every(10*time.Millisecond, 40*time.Millisecond, 50), every(15*time.Millisecond, 20*time.Millisecond, 100),
	}
	r := resultOf(input{Rate: 150, Warm: time.Second - time.Millisecond, Window: time.Second}, outputs, 600_000)
	require.InDelta(t, 1, r.RateReached, 0.02)
	require.InDelta(t, 100./3, r.ShareOff, 2, "50 and 25 of 150 instead of 37.5")
	require.InDelta(t, 0.5, r.RoundTrips, 1e-9)
	require.InDelta(t, 1000, r.CPU, 1e-9)
	require.InDelta(t, 2000, r.RedisCPU, 1e-9)
	require.Zero(t, r.Overtaken)

	outputs[0].Departures[60].Entered = 0 // It had begun to wait before all others, and left after some.
	r = resultOf(input{Rate: 150, Warm: time.Second - time.Millisecond, Window: time.Second}, outputs, 0)
	require.InDelta(t, 100./150, r.Overtaken, 0.05)
}
