package simulate_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/cmd/shapereplay/internal/simulate"
)

// What the picture shows must be what is counted, however long the log becomes.
func TestSeriesHoldEveryRequest(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 7))
	for _, span := range []time.Duration{time.Millisecond, time.Second, time.Hour, 30 * 24 * time.Hour} {
		s := newSimulation(t, "default: 3/s depth 20\nlimits:\n  api: 1/s\n", simulate.Options{Series: true})
		at := time.Duration(0)
		for range 2000 {
			at += time.Duration(chance.Int64N(int64(span)) / 1000)
			key := "api"
			if chance.IntN(2) == 0 {
				key = "other"
			}
			s.Arrive(start.Add(at), key, "")
		}
		for _, r := range s.Result().Rules {
			bins := r.Series.Bins()
			require.LessOrEqual(t, len(bins), 240)
			var all simulate.Bin
			for _, b := range bins {
				all.Arrived += b.Arrived
				all.Left += b.Left
				all.Refused += b.Refused
				all.Waiting += b.Waiting
			}
			require.Equal(t, simulate.Bin{Arrived: r.Requests, Left: r.AtOnce + r.Waited, Refused: r.Refused(), Waiting: r.TotalWait}, all)
			require.LessOrEqual(t, at, r.Series.Width()*240)
		}
	}
}

func TestSeriesTellWhen(t *testing.T) {
	s := newSimulation(t, "default: 10/s depth 2", simulate.Options{Series: true})
	come(s, 0, "a", 4)       // They leave at 0, 100 and 200 ms, and one is refused.
	come(s, 9999*ms, "b", 1) // So a bin is 64 ms wide.
	come(s, 10000*ms, "a", 1)
	r := s.Result().Rules[0]
	require.Equal(t, 64*ms, r.Series.Width())
	require.Equal(t, []simulate.Bin{
		{Arrived: 4, Left: 1, Refused: 1, Waiting: 2 * 64 * ms},
		{Left: 1, Waiting: 36*ms + 64*ms},
		{Waiting: 64 * ms},
		{Left: 1, Waiting: 8 * ms},
	}, r.Series.Bins()[:4])
	require.Equal(t, simulate.Bin{Arrived: 2, Left: 2}, r.Series.Bins()[156])
	require.Len(t, r.Series.Bins(), 157)
}
