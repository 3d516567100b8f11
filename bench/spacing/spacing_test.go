package spacing

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/internal/realtime"
)

func TestSpacingIsMeasuredBesideALoad(t *testing.T) {
	in := input{limiter: "shaper", rate: 2000, waiters: 20, load: loads()[2], warm: 20 * time.Millisecond, window: 400 * time.Millisecond}
	out := measureSpacing(t, in)
	for tries := 1; tries < 5 && out.Departures == 0; tries++ { // The process has not run in the whole window.
		out = measureSpacing(t, in)
	}
	require.Len(t, out.Bars, measure.HistogramBars)
	require.Positive(t, out.Departures)
	require.Positive(t, out.RateReached)
}

func TestLoadsWorkUntilTheyAreStopped(t *testing.T) {
	for _, l := range loads() {
		var active atomic.Int64
		piece := l.piece
		l.piece = func(random *rand.Rand) {
			active.Add(1)
			piece(random)
			active.Add(-1)
		}
		done, stop := l.start()
		realtime.Until(t, func() bool { return done.Load() >= int64(l.goroutines) }, l.name)
		stop()
		require.Zero(t, active.Load(), l.name)
	}
}
