package proxies

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

func TestWhereProgramsAreMissingTheReportSaysHowToGetThem(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "bin")) // Go is not there, either.
	p := findPrograms(t.Context(), run.Options{}, t.TempDir(), os.Getenv("PATH"))
	require.Len(t, p.missing, 3)
	require.EqualError(t, p.missing[0], "nginx is missing; to get it, on Debian: apt-get install nginx-light")
	require.EqualError(t, p.missing[1], "haproxy is missing; to get it, on Debian: apt-get install haproxy")
	require.ErrorContains(t, p.missing[2], "shaperd is missing; it is built with Go from within this project's tree")
	for _, r := range rivals {
		require.Equal(t, r.name == middleware, p.has(r.name), r.name)
	}
	require.Empty(t, present(p, casesOf(run.Options{}).leavings[2:]), "the others are worth their time")

	for _, missing := range p.missing {
		require.Contains(t, note(p), missing.Error())
	}

	t.Setenv("SHAPER_REQUIRE_ALL", "")
	require.NoError(t, p.required())
	t.Setenv("SHAPER_REQUIRE_ALL", "1")
	require.ErrorIs(t, p.required(), p.missing[1])
	_, err := compare(t.Context(), run.Options{}, os.Getenv("PATH"), cases{})
	require.ErrorContains(t, err, "haproxy is missing")
}

func TestProgramsAreFoundBesideThePath(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sbin"), 0o755))
	program := filepath.Join(dir, "sbin", "nginx")
	require.NoError(t, os.WriteFile(program, []byte("#!"), 0o755))
	found, err := findProgram(filepath.Join(dir, "bin"), "nginx", "nginx-light")
	require.NoError(t, err)
	require.Equal(t, program, found)

	require.NoError(t, os.Chmod(program, 0o644))
	_, err = findProgram(filepath.Join(dir, "bin"), "nginx", "nginx-light")
	require.Error(t, err, "it can't be run")
}

func TestVersionsAreThosePrinted(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	say := func(text string) {
		require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho '"+text+"' >&2\n"), 0o755))
	}
	say("nginx version: nginx/1.22.1 (Ubuntu)")
	c := candidate{asked: []string{"-v"}, version: regexp.MustCompile(`nginx/\S+`)}
	version, err := c.askVersion(t.Context(), program)
	require.NoError(t, err)
	require.Equal(t, "nginx/1.22.1", version)

	say("something else")
	_, err = c.askVersion(t.Context(), program)
	require.ErrorContains(t, err, "something else")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err = c.askVersion(ctx, program)
	require.ErrorIs(t, err, context.Canceled)
}

func TestProxiesAreConfiguredWithWhatIsMeasured(t *testing.T) {
	s := setting{Listen: "127.0.0.1:1", Upstream: "127.0.0.1:2", Rate: 100, Line: 300, AtOnce: 7}
	for _, config := range []string{nginxConfig, haproxyConfig, caddyConfig} {
		require.Contains(t, s.in(config, 4000), "127.0.0.1:2")
		require.NotRegexp(t, `\{(listen|upstream|rate|line|at-once|files)\}`, s.in(config, 4000))
	}
	for _, want := range []string{"listen 127.0.0.1:1 ", "server 127.0.0.1:2;", "rate=100r/s;", "burst=300;", "worker_connections 4000;", "daemon off;", "access_log off;"} {
		require.Contains(t, s.in(nginxConfig, 4000), want)
	}
}

// arrivalsAt are requests 1, 2, … at instants in ms.
func arrivalsAt(ms ...float64) []arrival {
	all := make([]arrival, len(ms))
	for i, at := range ms {
		all[i] = arrival{number: i + 1, at: time.Duration(at * float64(time.Millisecond))}
	}
	return all
}

func TestSpacingOfArrivals(t *testing.T) {
	s, err := spacingOf(arrivalsAt(5, 15, 25.5, 29.5, 36), 100, 0)
	require.NoError(t, err)
	require.InDelta(t, 40.0/31, s.RateReached, 1e-9, "4 in 31 ms")
	require.InDelta(t, 2e6, s.ErrorP50, 1e-3, "of 0, 0.5, 6 and 3.5 ms")
	require.Equal(t, 25.0, s.Bunched)
	require.Zero(t, s.Overtaken)
	require.Equal(t, 4, s.Departures)

	_, err = spacingOf(arrivalsAt(1), 100, 0)
	require.Error(t, err)
}

func TestNobodyLooksAtTheLead(t *testing.T) {
	s, err := spacingOf(arrivalsAt(0, 0, 0, 10, 20, 30), 100, 15*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, s.Departures)
	require.Zero(t, s.ErrorP50)
	require.Zero(t, s.Bunched)
	require.InDelta(t, 1, s.RateReached, 1e-9)
}

func TestOrderIsThatOfArrivalAtTheUpstream(t *testing.T) {
	s, err := spacingOf(arrivalsAt(40, 10, 20, 30), 100, 0) // 2, 3, 4, 1
	require.NoError(t, err)
	require.InDelta(t, 100.0/3, s.Overtaken, 1e-9, "of three after the first")
}

func TestRequestsKeepTheLineFromRunningDry(t *testing.T) {
	require.Equal(t, 300, spacingInput{ours, 100, time.Second, 2 * time.Second}.requests())
	require.Equal(t, 3*time.Millisecond, spacingInput{Rate: 100}.every())
	require.Equal(t, 300*time.Microsecond, spacingInput{Rate: 1000}.every())
}

// Eight requests at 100/s: 2, 4, 6 and 8 are to leave at 25 ms, when 1 and 2 have been served.
func TestSlotsOfThoseThatLeft(t *testing.T) {
	at := func(numbers []int, ms ...float64) []arrival {
		all := arrivalsAt(ms...)
		for i := range all {
			all[i].number = numbers[i]
		}
		return all
	}
	const left = 25 * time.Millisecond
	kept, err := leavingOf(at([]int{1, 2, 3, 5, 7}, 10, 20, 35, 45, 55), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 100, Asked: 0}, kept)

	empty, err := leavingOf(at([]int{1, 2, 3, 5, 7}, 10, 20, 35, 55, 85), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 50, Asked: 0}, empty)

	spent, err := leavingOf(at([]int{1, 2, 3, 4, 5, 6, 7, 8}, 10, 20, 35, 45, 55, 65, 75, 85), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 60, Asked: 100}, spent)

	early, err := leavingOf(at([]int{1, 2, 3, 4, 5, 6, 7, 8}, 10, 20, 26, 26, 26, 26, 26, 26), left, 8, 100)
	require.NoError(t, err)
	require.Equal(t, leaving{Served: 50, Asked: 100}, early, "a burst does not make up for what it is spent on")

	_, err = leavingOf(at([]int{1, 2, 3, 4, 5, 6, 7, 8}, 1, 2, 3, 4, 5, 6, 7, 8), left, 8, 100)
	require.ErrorIs(t, err, errNoLine)
}

func TestReadHead(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("HTTP/1.1 429 Too Many Requests\r\nServer: x\r\ncontent-length:  3\r\n\r\nok\nGET / HTTP/1.1\r\n\r\n"))
	h, err := readHead(r)
	require.NoError(t, err)
	require.Equal(t, head{first: "HTTP/1.1 429 Too Many Requests", length: 3}, h)
	status, err := h.status()
	require.NoError(t, err)
	require.Equal(t, 429, status)
	_, err = r.Discard(h.length)
	require.NoError(t, err)
	h, err = readHead(r)
	require.NoError(t, err)
	require.Equal(t, head{first: "GET / HTTP/1.1"}, h)
	_, err = h.status()
	require.Error(t, err)

	for _, text := range []string{
		"",
		"HTTP/1.1 200 OK\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: three\r\n\r\n",
	} {
		_, err := readHead(bufio.NewReader(strings.NewReader(text)))
		require.Error(t, err, text)
	}
}

func TestNumberOfARequest(t *testing.T) {
	for first, want := range map[string]int{"GET /17 HTTP/1.1": 17, "GET / HTTP/1.1": 0} {
		number, err := numberOf(first)
		require.NoError(t, err)
		require.Equal(t, want, number)
	}
	for _, first := range []string{"", "GET", "GET 17 HTTP/1.1", "GET /x HTTP/1.1"} {
		_, err := numberOf(first)
		require.Error(t, err, first)
	}
}

func TestUpstreamNotesNumberedRequests(t *testing.T) {
	u, err := startUpstream(0, false)
	require.NoError(t, err)
	defer u.close()
	callers, err := openCallers(t.Context(), u.address, 1)
	require.NoError(t, err)
	defer callers.close()
	for _, path := range []string{"/2", "/", "/1"} {
		require.NoError(t, callers.all[0].send(path))
		status, err := callers.all[0].receive()
		require.NoError(t, err)
		require.Equal(t, 200, status)
	}
	arrivals, err := u.take()
	require.NoError(t, err)
	require.Len(t, arrivals, 2)
	require.Equal(t, 2, arrivals[0].number)
	require.Equal(t, 1, arrivals[1].number)
	require.LessOrEqual(t, arrivals[0].at, arrivals[1].at)
	arrivals, err = u.take()
	require.NoError(t, err)
	require.Empty(t, arrivals, "they are taken once")

	require.NoError(t, callers.all[0].send("/nonsense"))
	_, err = callers.all[0].receive()
	require.Error(t, err)
	_, err = u.take()
	require.Error(t, err)
}
