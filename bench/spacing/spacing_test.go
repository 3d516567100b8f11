package spacing

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/realtime"
)

func TestEveryCaseCanBeMeasured(t *testing.T) {
	names := map[string]bool{}
	all := slices.Concat(idleGroups(run.Options{}), busyGroups(run.Options{}), fairBusyGroups(run.Options{}))
	for _, group := range all {
		for _, c := range group.Cases {
			_, words, _ := strings.Cut(c.Name, "/limiter=")
			require.Contains(t, rivals.Openers, words[:strings.Index(words, "/")])
			require.False(t, names[c.Name], "two benchmarks have the name %s", c.Name)
			names[c.Name] = true
		}
	}
	require.Contains(t, names, "Spacing/limiter=x-time/rate=1000/waiters=100/load=idle")
	require.Contains(t, names, "FairBusy/limiter=shaper-fair/rate=1000/waiters=100/load=loops")
	require.Contains(t, names, "Busy/limiter=shaper/rate=10000/waiters=1000/load=loops")
}

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
		running := l.start()
		realtime.Until(t, func() bool { return running.done.Load() >= int64(l.goroutines) }, l.name)
		running.stop()
		require.Zero(t, active.Load(), l.name)
	}
}
