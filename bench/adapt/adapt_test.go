package adapt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
)

func TestMain(m *testing.M) { run.Tests(m, Experiment) }

// A fixed rate of C is the best that there is while C holds, and one above it has exactly the excess refused. So much is known
// without measuring, and says that the upstream and the figures are right.
func TestFixedRatesAreAsExpected(t *testing.T) {
	t.Parallel()
	s := scenarios()[0]
	for of, want := range map[float64]steadyFigures{0.5: {50, 0}, 1: {100, 0}, 1.5: {100, 100. / 3}} {
		calls := s.play(t, 4, openFixed(of))
		got := steady(s, calls).(steadyFigures)
		require.InDelta(t, want.Use, got.Use, 0.1, "%v", of)
		require.InDelta(t, want.Refused, got.Refused, 0.1, "%v", of)
	}
}

// Servers that nobody waits for take their service times and the way, and with a queue they serve C.
func TestTheServersBearWhatTheySay(t *testing.T) {
	t.Parallel()
	s := scenarios()[7]
	require.Equal(t, "Queue", s.name)
	calls := between(s.play(t, 1, openFixed(0.3)), warm, until)
	var sum time.Duration
	for _, c := range calls {
		sum += c.latency
	}
	require.InDelta(t, 130, float64(sum/time.Duration(len(calls)))/1e6, 3)
	require.InDelta(t, 100, steady(s, s.play(t, 1, openFixed(1.5))).(steadyFigures).Use, 1)
}

// The instants of a fall and a rise are found as they were made: 100/s, 20/s from 60 s on, and 100/s again from 70 s on.
func TestTheFiguresFindAFallAndARise(t *testing.T) {
	s := scenario{rate: 100, falls: true}
	var calls []call
	for at := time.Duration(0); at < 3*time.Minute; {
		calls = append(calls, call{left: at})
		if at >= 61*time.Second && at < 125*time.Second {
			at += 50 * time.Millisecond
		} else {
			at += 10 * time.Millisecond
		}
	}
	require.InDelta(t, 0.84, s.downAfter(calls, time.Minute, 2*time.Minute), 0.02, "110 % of 30 are 16 and 17 at the two rates")
	require.InDelta(t, 4.88, s.backAfter(calls, 2*time.Minute, 3*time.Minute), 0.02)
	require.False(t, measure.Known(s.backAfter(calls, 62*time.Second, 63*time.Second)))
	require.InDelta(t, 100*60+30*60, s.borne(0, 2*time.Minute), 1e-6)
}
