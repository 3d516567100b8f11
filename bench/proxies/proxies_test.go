package proxies

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	p = findPrograms(context.Background(), run.Options{}, built, os.Getenv("PATH"))
	return p, os.Chmod(built, 0o711) // The workers of nginx must get in.
})

// needAll skips the test unless no program may be missing: to build shaperd takes minutes.
func needAll(t *testing.T) *programs {
	t.Helper()
	if os.Getenv("SHAPER_REQUIRE_ALL") != "1" {
		t.Skip("needs nginx, haproxy and minutes to build shaperd; SHAPER_REQUIRE_ALL=1 runs it")
	}
	p, err := findOnce()
	require.NoError(t, err)
	require.Empty(t, p.missing)
	return p
}

// handful are measurements of so few requests that only figures which do not depend on
// the machine can be judged.
func handful(window time.Duration) (c cases) {
	for _, r := range rivals {
		if r.limit != unlimited {
			c.spacings = append(c.spacings, run.Case[spacingInput]{Name: "ProxySpacing/proxy=" + r.name, Input: spacingInput{r.name, 1000, 0, 20 * time.Millisecond}, Rounds: 1})
			c.leavings = append(c.leavings, run.Case[leavingInput]{Name: "ProxyLeaving/proxy=" + r.name, Input: leavingInput{r.name, 200, leadOf(r), 100}, Rounds: 1})
		}
		if measure.MemoryIsTold() {
			c.waitings = append(c.waitings, run.Case[waitingInput]{Name: "ProxyWaiting/proxy=" + r.name, Input: waitingInput{r.name, 50}, Rounds: 1})
		}
		c.ceilings = append(c.ceilings, run.Case[ceilingInput]{Name: "ProxyCeiling/proxy=" + r.name, Input: ceilingInput{r.name, window}, Rounds: 1})
	}
	return c
}

func TestTheWholeComparison(t *testing.T) {
	needAll(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	r, err := compare(t.Context(), run.Options{}, os.Getenv("PATH"), handful(50*time.Millisecond))
	require.NoError(t, err)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left, "its folder is removed")

	require.Regexp(t, `shaperd: Caddy \(v\d.* nginx \(nginx/\d.* HAProxy \(HAProxy version \d`, r.Note)
	require.NotContains(t, r.Note, "Not measured")
	require.Len(t, r.Lines, 5+5+6+6)
	require.Len(t, r.Pictures, 1)
}

// What becomes of slots does not depend on how fast the machine is. But if the upstream stalls
// it sees late what the proxy goes on sending, and a few requests are on their way when their
// callers leave. So the median of three measurements counts, and one during which this process
// stalled counts only if there are not enough others.
func TestWhoseSlotsAreLost(t *testing.T) {
	p := needAll(t)
	for name, lost := range map[string]bool{ours: false, middleware: false, haproxyMaxconn: false, nginx: true, haproxySessions: true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var served, asked []float64
			for tries := 0; len(served) < 3; tries++ {
				var found leaving
				var err error
				stalled := realtime.LongestStall(func() {
					found, err = p.measureLeaving(t.Context(), leavingInput{name, 200, leadOf(named(name)), 160})
				})
				require.NoError(t, err)
				t.Logf("served %.1f %%, asked %.1f %%, stalled for %v", found.Served, found.Asked, stalled)
				if stalled < 50*time.Millisecond || tries >= 12 { // Ten slots pass in that time.
					served, asked = append(served, found.Served), append(asked, found.Asked)
				}
			}
			slices.Sort(served)
			slices.Sort(asked)
			if lost {
				require.Less(t, served[1], 65., "half of the slots are those of callers that have left")
			} else {
				// Of nginx and HAProxy's sessions all come.
				require.Less(t, asked[1], 10., "who has left does not come to the upstream, unless its request was on its way")
			}
		})
	}
}

func TestMemoryIsThatOfRequestsThatWait(t *testing.T) {
	if !measure.MemoryIsTold() {
		t.Skip("this system does not tell what other processes use")
	}
	p := needAll(t)
	for _, name := range []string{ours, nginx, haproxyMaxconn, caddy} {
		found, err := p.measureWaiting(t.Context(), waitingInput{name, 300})
		require.NoError(t, err, name)
		require.Positive(t, found.AtRest, name)
		require.Greater(t, found.PerRequest, 0.5, name)
		require.Equal(t, 300., found.Requests, name)
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
		<-s.done
	}

	// Wherever it is by then: the last measurement would take an hour.
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(time.Second, cancel)
	_, err := compare(ctx, run.Options{}, os.Getenv("PATH"), cases{ceilings: handful(time.Hour).ceilings})
	require.ErrorIs(t, err, context.Canceled)
	left, err := filepath.Glob(filepath.Join(folder, "bench-proxies*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAProxyThatCannotStartSaysWhy(t *testing.T) {
	p := needAll(t)
	s := setting{Listen: "127.0.0.1:1", Upstream: "nowhere at all", Rate: 100, Line: -1}
	for name, says := range map[string]string{nginx: "nginx.conf", haproxyMaxconn: "haproxy.cfg", ours: "depth"} {
		_, err := named(name).start(t.Context(), p, s)
		require.ErrorContains(t, err, says, name)
	}
	s.Rate = 0
	_, err := startMiddleware(t.Context(), p, s)
	require.ErrorContains(t, err, "0/s")
}

func TestEstimatesFollowTheOptions(t *testing.T) {
	require.LessOrEqual(t, Experiment.Estimate(run.Options{Quick: true}), 15*time.Second)
	require.LessOrEqual(t, Experiment.Estimate(run.Options{Rounds: 3}), 5*time.Minute)
	require.Len(t, casesOf(run.Options{}).spacings, 2*5)
	require.Len(t, casesOf(run.Options{Quick: true}).spacings, 5)
	require.Equal(t, 3, casesOf(run.Options{}).spacings[0].Rounds)
}
