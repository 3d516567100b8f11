package spacing

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/realtime"
)

func TestMain(m *testing.M) { run.Tests(m) }

// [rivals.Named] and loadNamed panic if there is none.
func TestEveryCaseCanBeMeasured(t *testing.T) {
	names := map[string]bool{}
	all := slices.Concat(idleGroups(run.Options{}), busyGroups(run.Options{}), fairBusyGroups(run.Options{}))
	for _, group := range all {
		for _, c := range group {
			rivals.Named(c.Input.Limiter)
			loadNamed(c.Input.Load)
			require.False(t, names[c.Name], "two benchmarks have the name %s", c.Name)
			names[c.Name] = true
		}
	}
	require.Contains(t, names, "Spacing/limiter=x-time/rate=1000/waiters=100/load=idle")
	require.Contains(t, names, "FairBusy/limiter=shaper-fair/rate=1000/waiters=100/load=loops")
	require.Contains(t, names, "Busy/limiter=shaper/rate=10000/waiters=1000/load=loops")
}

// What a child finds is of the limiter and the load that it was asked for.
func TestSpacingIsMeasuredInAChild(t *testing.T) {
	in := input{Limiter: "shaper", Rate: 2000, Waiters: 20, Load: "pieces", Warm: 20 * time.Millisecond, Window: 400 * time.Millisecond}
	out, err := child.Take(t.Context(), in)
	for tries := 1; tries < 5 && err == nil && out.Departures == 0; tries++ { // The child has not run in the whole window.
		out, err = child.Take(t.Context(), in)
	}
	require.NoError(t, err)
	require.Len(t, out.Histogram, measure.HistogramBins)
	require.Positive(t, out.Departures)
	require.Positive(t, out.RateReached)

	_, err = child.Take(t.Context(), input{Limiter: "nobody", Load: idle})
	require.ErrorContains(t, err, "no rival is named nobody")
	_, err = child.Take(t.Context(), input{Limiter: "naive", Load: "heavy"})
	require.ErrorContains(t, err, "no load is named heavy")
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
		running := l.start()
		realtime.Until(t, func() bool { return running.pieces() >= int64(l.goroutines) }, l.name)
		running.stop()
		require.Zero(t, active.Load(), l.name)
	}
}
