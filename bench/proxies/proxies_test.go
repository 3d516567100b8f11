package proxies

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/realtime"
)

// TestMain lets the test program be the proxy, as the program itself is.
func TestMain(m *testing.M) {
	run.Child()
	status := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(status)
}

// built is where all programs are that tests start themselves.
var built string

var findOnce = sync.OnceValues(func() (p *programs, err error) {
	if built, err = os.MkdirTemp("", "bench-proxies-test"); err != nil {
		return nil, err
	}
	return findPrograms(context.Background(), run.Options{}, built)
})

// needAll skips the test unless no program may be missing: to build shaperd takes minutes.
func needAll(t *testing.T) *programs {
	t.Helper()
	if os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip("needs nginx, haproxy and minutes to build shaperd; SHAPER_REQUIRE_ALL=1 runs it")
	}
	p, err := findOnce()
	require.NoError(t, err)
	return p
}

// handful are measurements of so few requests that only figures which do not depend on
// the machine can be judged: each kind, and each proxy, but not each kind with each proxy.
func (p *programs) handful() []run.Case {
	all := []run.Case{
		p.spacingCase(1, spacingInput{nginx, 1000, 0, 20 * time.Millisecond}),
		p.leavingCase(1, leavingInput{middleware, 200, leadOf(named(middleware)), 100}),
	}
	if measure.MemoryIsTold() {
		for _, name := range []string{middleware, haproxySessions, caddy} {
			all = append(all, p.waitingCase(1, name, 50))
		}
	}
	return append(all, p.ceilings(50*time.Millisecond)...)
}

func (p *programs) ceilings(window time.Duration) (all []run.Case) {
	for _, r := range rivals {
		all = append(all, p.ceilingCase(1, r.name, window))
	}
	return all
}

func TestTheWholeComparison(t *testing.T) {
	p := needAll(t)
	all := p.handful()
	r, err := p.compare(t.Context(), run.Options{}, []run.Group{{Cases: all}})
	require.NoError(t, err)
	require.Regexp(t, `shaperd: Caddy \(v\d.* nginx \(nginx/\d.* HAProxy \(HAProxy version \d`, r.Note)
	require.Len(t, r.Lines, len(all))
	require.Len(t, r.Pictures, 1)
}

// What becomes of slots does not depend on how fast the machine is. But if the upstream stalls
// it sees late the requests that the proxy goes on sending. So a measurement that went wrong while
// this process stalled is taken again.
func TestWhoseSlotsAreLost(t *testing.T) {
	p := needAll(t)
	for name, lost := range map[string]bool{ours: false, middleware: false, haproxyMaxconn: false, nginx: true, haproxySessions: true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found leaving
			for well, tries := false, 0; !well && tries < 12; tries++ {
				var err error
				stalled := realtime.LongestStall(func() {
					found, err = p.measureLeaving(t.Context(), leavingInput{name, 200, leadOf(named(name)), 160})
				})
				require.NoError(t, err)
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
	require.Equal(t, 10_000, requestsFor(named(nginx), 10_000, 20_000))
	require.Equal(t, 9800, requestsFor(named(caddy), 10_000, 20_000), "each has a connection to the upstream, too")
	require.Zero(t, requestsFor(named(haproxySessions), 10_000, 20_000), "they wait in the kernel")
	require.Equal(t, 824, requestsFor(named(ours), 10_000, 1024))
}

func TestAnInterruptionLeavesNothingBehind(t *testing.T) {
	p := needAll(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var started []*stage
	for _, r := range rivals {
		s, err := p.stage(ctx, r.name, 100, 10, false)
		require.NoError(t, err)
		defer s.close()
		started = append(started, s)
	}
	cancel()
	for _, s := range started {
		<-s.Ended
	}

	// Wherever it is by then: the measurement would take an hour, as would the build on a slow machine.
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := p.compare(ctx, run.Options{}, []run.Group{{Cases: p.ceilings(time.Hour)}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	_, err = Experiment.Measure(ctx, run.Options{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	left, err := filepath.Glob(filepath.Join(folder, "bench-proxies*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAProxyThatCannotStartSaysWhy(t *testing.T) {
	p := needAll(t)
	s := setting{Listen: "127.0.0.1:1", Upstream: "nowhere at all", Rate: 100, Line: -1}
	for name, says := range map[string]string{nginx: "nginx.conf", haproxyMaxconn: "haproxy.cfg", ours: "depth"} {
		_, err := p.start(t.Context(), named(name), s)
		require.ErrorContains(t, err, says, name)
	}
	s.Rate = 0
	_, err := startMiddleware(t.Context(), s)
	require.ErrorContains(t, err, "0/s")
}

func TestProxiesAreConfiguredWithWhatIsMeasured(t *testing.T) {
	s := setting{Listen: "127.0.0.1:1", Upstream: "127.0.0.1:2", Rate: 100, Line: 300, AtOnce: 7}
	for _, r := range rivals {
		if r.file != "" {
			require.Contains(t, s.in(r.config, 4000), "127.0.0.1:2", r.name)
			require.NotRegexp(t, `\{[a-z-]+\}`, s.in(r.config, 4000), r.name)
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
	u, err := startUpstream(0, false)
	require.NoError(t, err)
	defer u.close()
	ask := func(path string) (status int) {
		status, _, err := fasthttp.Get(nil, "http://"+u.address+path)
		require.NoError(t, err)
		return status
	}
	for _, path := range []string{"/2", "/", "/1"} {
		require.Equal(t, 200, ask(path))
	}
	arrivals, err := u.take()
	require.NoError(t, err)
	require.Len(t, arrivals, 2)
	require.EqualValues(t, 2, arrivals[0].Entered)
	require.EqualValues(t, 1, arrivals[1].Entered)
	require.LessOrEqual(t, arrivals[0].At, arrivals[1].At)
	arrivals, err = u.take()
	require.NoError(t, err)
	require.Empty(t, arrivals, "they are taken once")

	require.Equal(t, 404, ask("/nonsense"))
	_, err = u.take()
	require.Error(t, err)
}
