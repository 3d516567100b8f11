package proxies

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/realtime"
)

// TestMain lets the test program be the proxy, as the program itself is.
func TestMain(m *testing.M) {
	run.Child(Experiment)
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

var (
	dir      string
	prepared = sync.OnceValue(func() (err error) {
		if dir, err = os.MkdirTemp("", "bench-proxies"); err == nil {
			_, err = prepare(context.Background(), run.Options{}, dir)
		}
		return err
	})
)

// needAll skips the test unless no program may be missing: to build shaperd takes minutes.
func needAll(t *testing.T) {
	t.Helper()
	if os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip("needs nginx, haproxy and minutes to build shaperd; SHAPER_REQUIRE_ALL=1 runs it")
	}
	require.NoError(t, prepared())
}

// What becomes of slots does not depend on how fast the machine is. But if the upstream stalls
// it sees late the requests that the proxy goes on sending. So a measurement that went wrong while
// this process stalled is taken again.
func TestWhoseSlotsAreLost(t *testing.T) {
	needAll(t)
	for name, lost := range map[string]bool{ours: false, middleware: false, haproxyMaxconn: false, nginx: true, haproxySessions: true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found leaving
			for well, tries := false, 0; !well && tries < 12; tries++ {
				stalled := realtime.LongestStall(func() { found = measureLeaving(t, leavingInput{name, 200, leadOf(rivals[name]), 160}) })
				t.Logf("served %.1f %%, asked %.1f %%, stalled for %v", found.Served, found.Asked, stalled)
				well = lost && found.Served < 65 || !lost && found.Asked < 10 || stalled < 50*time.Millisecond // Ten slots pass in that time.
			}
			if lost {
				require.Less(t, found.Served, 65., "half of the slots are those of callers that have left")
			} else {
				// Of nginx and HAProxy's sessions all come.
				require.Less(t, found.Asked, 10., "who has left does not come to the upstream, unless its request was on its way")
			}
		})
	}
}

func TestRequestsThatWaitAreAsManyAsFilesAllow(t *testing.T) {
	require.Equal(t, 10_000, requestsFor(rivals[nginx], 10_000, 20_000))
	require.Equal(t, 9800, requestsFor(rivals[caddy], 10_000, 20_000), "each has a connection to the upstream, too")
	require.Zero(t, requestsFor(rivals[haproxySessions], 10_000, 20_000), "they wait in the kernel")
	require.Equal(t, 824, requestsFor(rivals[ours], 10_000, 1024))
}

func TestAnInterruptionLeavesNothingBehind(t *testing.T) {
	needAll(t)
	here := os.Getenv(folder)
	running := func() (n int) {
		all, err := procfs.AllProcs()
		require.NoError(t, err)
		for _, one := range all {
			if at, _ := one.Cwd(); strings.HasPrefix(at, here) { // The process may have ended.
				n++
			}
		}
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for _, name := range compared {
		all.Go(func() { _, _ = run.InChild(ctx, run.Options{}, run.Case{Name: "ProxyCeiling/proxy=" + name}) })
	}
	// A process that has just been started is not known yet to who ends it if its parent is killed.
	n, since := 0, time.Now()
	realtime.Until(t, func() bool {
		if now := running(); now != n {
			n, since = now, time.Now()
		}
		return n > len(rivals) && time.Since(since) > time.Second
	}, "the proxies run, and workers of nginx")
	cancel()
	all.Wait()
	realtime.Until(t, func() bool { return running() == 0 }, "all have ended")

	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Setenv(folder, here)
	_, err := Experiment.Run(ctx, run.Options{})
	require.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestProxiesAreConfiguredWithWhatIsMeasured(t *testing.T) {
	s := setting{Listen: "127.0.0.1:1", Upstream: "127.0.0.1:2", Rate: 100, Line: 300, AtOnce: 7}
	for name, r := range rivals {
		if r.file != "" {
			require.Contains(t, s.in(r.config, 4000), "127.0.0.1:2", name)
			require.NotRegexp(t, `\{[a-z-]+\}`, s.in(r.config, 4000), name)
		}
	}
	for _, want := range []string{"listen 127.0.0.1:1 ", "server 127.0.0.1:2;", "rate=100r/s;", "burst=300;", "worker_connections 4000;", "daemon off;", "access_log off;"} {
		require.Contains(t, s.in(nginxConfig, 4000), want)
	}
}

// arrivalsAt are requests 1, 2, … at instants in ms.
func arrivalsAt(ms ...float64) []measure.Departure {
	all := make([]measure.Departure, len(ms))
	for i, at := range ms {
		all[i] = measure.Departure{Entered: int64(i) + 1, At: time.Duration(at * float64(time.Millisecond))}
	}
	return all
}

// The figures themselves are tested in package measure.
func TestSpacingOfArrivalsLeavesOutTheLead(t *testing.T) {
	s, err := spacingOf(arrivalsAt(0, 0, 0, 10, 20, 30), 100, 15*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, s.Departures)
	require.Equal(t, 1.0, s.RateReached)
	require.Zero(t, s.ErrorP99)
	s, err = spacingOf(arrivalsAt(40, 10, 20, 30), 100, 0) // 2, 3, 4, 1
	require.NoError(t, err)
	require.InDelta(t, 100./3, s.Overtaken, 1e-3, "against the order of sending")
	_, err = spacingOf(arrivalsAt(1), 100, 0)
	require.Error(t, err)
}

// Eight requests at 100/s: 2, 4, 6 and 8 are to leave at 25 ms, when 1 and 2 have been served.
func TestSlotsOfThoseThatLeft(t *testing.T) {
	at := func(numbers []int, ms ...float64) []measure.Departure {
		all := arrivalsAt(ms...)
		for i := range all {
			all[i].Entered = int64(numbers[i])
		}
		return all
	}
	const left = 25 * time.Millisecond
	all := []int{1, 2, 3, 4, 5, 6, 7, 8}
	for name, c := range map[string]struct {
		numbers []int
		ms      []float64
		want    leaving
	}{
		"handed on":     {[]int{1, 2, 3, 5, 7}, []float64{10, 20, 35, 45, 55}, leaving{Served: 100, Asked: 0}},
		"left empty":    {[]int{1, 2, 3, 5, 7}, []float64{10, 20, 35, 55, 85}, leaving{Served: 50, Asked: 0}},
		"spent":         {all, []float64{10, 20, 35, 45, 55, 65, 75, 85}, leaving{Served: 60, Asked: 100}},
		"spent at once": {all, []float64{10, 20, 26, 26, 26, 26, 26, 26}, leaving{Served: 50, Asked: 100}}, // A burst does not make up for it.
	} {
		found, err := leavingOf(at(c.numbers, c.ms...), left, 8, 100)
		require.NoError(t, err)
		require.Equal(t, c.want, found, name)
	}
	_, err := leavingOf(at(all, 1, 2, 3, 4, 5, 6, 7, 8), left, 8, 100)
	require.ErrorIs(t, err, errNoLine)
}

func TestUpstreamNotesNumberedRequests(t *testing.T) {
	u := startUpstream(t, 0, false)
	ask := func(path string) (status int) {
		status, _, err := fasthttp.Get(nil, "http://"+u.address+path)
		require.NoError(t, err)
		return status
	}
	for _, path := range []string{"/2", "/", "/1"} {
		require.Equal(t, 200, ask(path))
	}
	arrivals, err := u.seen()
	require.NoError(t, err)
	require.Len(t, arrivals, 2)
	require.EqualValues(t, 2, arrivals[0].Entered)
	require.EqualValues(t, 1, arrivals[1].Entered)
	require.LessOrEqual(t, arrivals[0].At, arrivals[1].At)

	require.Equal(t, 404, ask("/nonsense"))
	_, err = u.seen()
	require.Error(t, err)
}
