package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

// watched returns a program that serves and sends no burst, and the address of its page.
func watched(t *testing.T, args ...string) (p *program, proxy, page string) {
	t.Helper()
	p, proxy = serving(t, append([]string{"-burst", "0"}, args...)...)
	line := p.stdout.awaits(t, `Watch it:  http://127\.0\.0\.1:\d+/\n`)
	return p, proxy, strings.TrimSuffix(strings.TrimPrefix(line, "Watch it:  "), "/\n")
}

// client is one without connections that outlast a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// postTo presses a button of a page that is served, with header fields if wanted.
func postTo(t *testing.T, page, name, body string, fields ...string) (status int, state demoState) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page+"/demo/"+name, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
		if fields[i] == "Host" {
			r.Host = fields[i+1]
		}
	}
	got, err := client.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	if got.StatusCode == http.StatusOK {
		require.NoError(t, json.NewDecoder(got.Body).Decode(&state))
	}
	return got.StatusCode, state
}

// awaitState asks for the state of a demo until it is as wanted. It does not watch: no
// scene begins.
func awaitState(t *testing.T, page string, wanted func(demoState) bool) (last demoState) {
	t.Helper()
	realtime.Until(t, func() bool {
		_, last = postTo(t, page, "candidate", `{"limits":"25/s depth 50"}`)
		return wanted(last)
	}, "the state is as wanted")
	return last
}

func hasEnded(s demoState) bool { return s.Errand != nil && s.Errand.Ended }

// openStream opens the stream of a page's events, and returns it after its first event.
func openStream(t *testing.T, page string) *bufio.Reader {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, page+"/api/events", nil)
	require.NoError(t, err)
	got, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = got.Body.Close() })
	require.Equal(t, http.StatusOK, got.StatusCode)
	events := bufio.NewReader(got.Body)
	line, err := events.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "event: hello\n", line)
	return events
}

func TestThePageIsServedWithTheDemosButtons(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t)
	got, body := ask(t, page+"/")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Contains(t, body, `"/demo/panel.js"`)
	require.Contains(t, body, "proxy")
	require.Contains(t, got.Header.Get("Content-Security-Policy"), "default-src 'none'")
	for _, file := range []string{"panel.js", "panel.css"} {
		got, body = ask(t, page+"/demo/"+file)
		require.Equal(t, http.StatusOK, got.StatusCode)
		require.NotEmpty(t, body)
		require.NotContains(t, body, "innerHTML", "text must stay text")
		require.Equal(t, "nosniff", got.Header.Get("X-Content-Type-Options"))
	}
	got, _ = ask(t, page+"/demo/nothing")
	require.Equal(t, http.StatusNotFound, got.StatusCode)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.Empty(t, p.stderr.String())
}

func TestNoPageIsServedWhereNoneIsWanted(t *testing.T) {
	t.Parallel()
	p, _ := serving(t, "-burst", "0", "-inspect", "")
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.NotContains(t, p.stdout.String(), "Watch it")

	for _, c := range []config{{inspect: defaultPage, once: true}, {inspect: defaultPage, outbound: true}, {}} {
		l, err := listenPage(c)
		require.NoError(t, err)
		require.Nil(t, l)
	}
}

func TestThePageIsForThisMachineOnly(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0"} {
		_, err := listenPage(config{inspect: addr})
		require.ErrorContains(t, err, "this machine only", addr)
		require.ErrorContains(t, err, addr)
	}
	for _, addr := range []string{"127.0.0.1:0", "localhost:0", "127.0.0.2:0"} {
		l, err := listenPage(config{inspect: addr})
		require.NoError(t, err, addr)
		require.True(t, l.Addr().(*net.TCPAddr).IP.IsLoopback())
		require.NoError(t, l.Close())
	}
}

// Another site that the visitor has open can send requests to this machine, and can make
// its own name stand for it.
func TestNoOtherSitePressesAButton(t *testing.T) {
	t.Parallel()
	p, proxy, page := watched(t)
	for _, fields := range [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "http://other.example"},
		{"Origin", proxy},
		{"Origin", "null"},
	} {
		status, _ := postTo(t, page, "burst", `{"n":1}`, fields...)
		require.Equal(t, http.StatusForbidden, status, fields)
	}
	status, _ := postTo(t, page, "burst", `{"n":1}`, "Host", "other.example")
	require.Equal(t, http.StatusMisdirectedRequest, status)
	status, state := postTo(t, page, "stop", `{}`, "Sec-Fetch-Site", "same-origin", "Origin", page)
	require.Equal(t, http.StatusOK, status)
	require.Nil(t, state.Errand)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

// A slow upstream has no worker left for the full rate. It asks for a pause, and the line
// is held: almost all are served all the same, more slowly.
func TestASlowUpstreamHoldsTheLine(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "40/s depth 60")
	status, state := postTo(t, page, "slow", `{"on":true}`)
	require.Equal(t, http.StatusOK, status)
	require.True(t, state.Clients.Slow)
	usual := capacityFor(newLimitsInfo(limitsOf(t, "40/s depth 60")), 0)
	require.InDelta(t, 10*usual.serviceTime.Seconds(), state.Clients.ServiceTime, 1e-9)
	_, _ = postTo(t, page, "burst", `{"n":60}`)
	state = awaitState(t, page, func(s demoState) bool { return s.Clients.Failed > 0 })
	require.False(t, hasEnded(state))
	_, state = postTo(t, page, "slow", `{"on":false}`)
	require.False(t, state.Clients.Slow)
	require.Less(t, state.LastIn, 60.0/40+0.001, "the pause is over too")
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

// Whoever measures the proxy must meet no clients of ours.
func TestNoClientsComeWhileNoPageIsOpen(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t)
	time.Sleep(sceneLead + 300*time.Millisecond)
	_, state := postTo(t, page, "candidate", `{"limits":"25/s depth 50"}`)
	require.Zero(t, state.Candidate.Seen)
	got, body := ask(t, page+"/api/buckets?source=proxy")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Regexp(t, `"departed":\s*0\b`, body)
	require.False(t, state.Clients.Scene)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

// With a page open, Ctrl-C must not wait for the stream to end: it would never.
func TestInterruptEndsThePageToo(t *testing.T) {
	t.Parallel()
	p, proxy, page := watched(t, "-limits", "1/s depth 4")
	events := openStream(t, page)
	statuses := clientsOf(4, proxy)
	// All have come: each waits, or has been served. One more may leave meanwhile.
	awaitState(t, page, func(s demoState) bool { return s.Waiting >= 2 && s.Waiting+len(statuses) == 4 })
	p.signals <- os.Interrupt
	p.stdout.awaits(t, `Draining [1-3] waiting requests?`)
	got, _ := ask(t, page+"/api/buckets")
	require.Equal(t, http.StatusOK, got.StatusCode, "the page shows how the line drains")
	status, _ := postTo(t, page, "burst", `{"n":1}`)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, map[int]int{200: 4}, tallyOf(t, 4, statuses))
	require.Equal(t, exitOK, p.ends(t))
	rest, err := io.ReadAll(events)
	require.NoError(t, err, "the stream ends, and is not cut off")
	require.Contains(t, string(rest), "event: bye\n")
	require.Regexp(t, `Drained: [1-3] served, 0 gave up\.\n$`, p.stdout.String())
	require.Empty(t, p.stderr.String())
}

// Requests that a dry run would delay or refuse pass at the instant at which they come.
func TestADryRunDelaysAndRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := newDryRuns(limitsOf(t, defaultLimits))
		require.NoError(t, err)
		defer d.close()
		begin, passed := time.Now(), 0
		var handler http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			require.Equal(t, begin, time.Now())
			passed++
		})
		for _, middleware := range slices.Backward(d.middleware()) {
			handler = middleware(handler)
		}
		for range 200 {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/search?client=ana", nil))
		}
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, healthPath, nil))
		require.Equal(t, 201, passed)
		require.Equal(t, candidateState{Limits: "25/s depth 50", Seen: 200, Refused: 149}, d.state())
		all := maps.Collect(d.clients.All())
		require.Len(t, all, 1)
		require.EqualValues(t, 200-5-10, all["search/ana"].Refused)

		require.NoError(t, d.try(limitsOf(t, "10/s depth 60")))
		require.Equal(t, candidateState{Limits: "10/s depth 60"}, d.state(), "what was counted under other limits")
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, candidateState{Limits: "10/s depth 60", Seen: 1}, d.state())
	})
}

func TestACandidateIsTighterWhereItCanBe(t *testing.T) {
	for limits, want := range map[string]string{
		defaultLimits:                  "25/s depth 50",
		"20/s burst 5 depth 7 wait 1s": "10/s burst 5 depth 3 wait 1s",
		"50/s depth 9 inflight 2":      "25/s depth 4",
		"1 per 365d depth 8":           "1 per 8760h depth 8",
		"inf depth 9":                  defaultLimits,
	} {
		got, err := candidateFor(limitsOf(t, limits))
		require.NoError(t, err)
		require.Equal(t, limitsOf(t, want).String(), got.String(), limits)
	}
}

func TestEachClientHasAKeyForEachRoute(t *testing.T) {
	for target, want := range map[string]string{
		"/message_send?client=ana": "message_send/ana",
		"/search/more?client=ben":  "search/ben",
		"/?client=ben":             "other/ben",
		"/burst":                   "burst/192.0.2.1",
		"/":                        "other/192.0.2.1",
		"/a?client=x/y":            "a/x%2Fy",
	} {
		got, err := keyOf(httptest.NewRequest(http.MethodGet, target, nil))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// watchFor gives the sign of a page each second, for as long as d.
func watchFor(s *scene, d time.Duration) {
	for range d / time.Second {
		s.watch()
		time.Sleep(time.Second)
	}
}

func TestTheScenePlaysWhileAPageIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := &stubbedProxy{}
		c := clientsAt(proxy)
		s := newScene(c, limitsOf(t, defaultLimits))
		defer c.close()
		defer s.close()
		time.Sleep(time.Hour)
		require.Empty(t, proxy.at(), "nobody watches")

		begin := time.Since(proxy.begin)
		watchFor(s, 10*time.Second)
		time.Sleep(unwatchedAfter)
		synctest.Wait()
		came := proxy.at()
		// The last sign came after 9 s, so the scene ends after 12 s. Meanwhile there are
		// 25 clients a second, and two bursts of 152, of which three in ten come at once.
		require.Equal(t, 46, came[begin+sceneLead])
		require.Equal(t, 46, came[begin+sceneLead+scenePeriod])
		require.Equal(t, 2*152+12*25, proxy.total())

		time.Sleep(time.Hour)
		require.Equal(t, came, proxy.at(), "nobody watches any more")
	})
}

func TestAVisitorsWishOutlastsASignButNotTheVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := &stubbedProxy{}
		c := clientsAt(proxy)
		s := newScene(c, limitsOf(t, defaultLimits))
		defer c.close()
		defer s.close()
		s.watch()
		s.play(false)
		watchFor(s, 5*time.Second)
		require.Empty(t, proxy.at())
		time.Sleep(time.Millisecond) // Between two beats.
		s.flow(true)
		watchFor(s, 2*time.Second)
		time.Sleep(sceneBeat - 2*time.Millisecond) // The last beat's clients come.
		s.flow(false)
		require.Equal(t, 2*40, proxy.total())
		time.Sleep(unwatchedAfter + sceneBeat)
		synctest.Wait()

		s.watch()
		playing, steady := s.state()
		require.True(t, playing, "for the next visitor")
		require.False(t, steady)
	})
}

// A line that needs long to drain would never be empty if a burst came every few
// seconds; and however large the line is, the scene stays small.
func TestTheSceneFitsTheLimits(t *testing.T) {
	for limits, want := range map[string]struct {
		burst  int
		period time.Duration
	}{
		defaultLimits:                 {152, 8 * time.Second},
		"10/s depth 100":              {152, 15 * time.Second},
		"1/min depth 100":             {152, 90 * time.Second},
		"50/s":                        {3, 8 * time.Second},
		"1000000/s depth 1000000":     {300, 8 * time.Second},
		"inf":                         {300, 8 * time.Second},
		"inf depth 10 inflight 4":     {300, 8 * time.Second},
		"1000000000/s burst 99999999": {300, 8 * time.Second},
	} {
		s := newScene(nil, limitsOf(t, limits))
		require.Equal(t, want.burst, s.burst, limits)
		require.Equal(t, min(want.period, time.Minute), s.period, limits)
	}
}

// A stubbed proxy answers in virtual time, and records when requests came.
type stubbedProxy struct {
	begin  time.Time
	answer func(n int) result // to the n-th request, from 1; nil: served
	takes  time.Duration

	mu   sync.Mutex
	came []time.Duration // after begin
}

// clientsAt returns simulatedClients whose requests go to s. They must be made in a bubble.
func clientsAt(s *stubbedProxy) *simulatedClients {
	s.begin = time.Now()
	return &simulatedClients{now: newSession(), send: s.serve}
}

func (s *stubbedProxy) serve(ctx context.Context, _ string) result {
	s.mu.Lock()
	s.came = append(s.came, time.Since(s.begin))
	n := len(s.came)
	s.mu.Unlock()
	sleep(ctx, s.takes)
	switch {
	case ctx.Err() != nil:
		return result{}
	case s.answer != nil:
		return s.answer(n)
	}
	return result{status: http.StatusOK}
}

// at returns how many requests came at each instant.
func (s *stubbedProxy) at() map[time.Duration]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[time.Duration]int{}
	for _, d := range s.came {
		count[d]++
	}
	return count
}

func (s *stubbedProxy) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.came)
}

func TestABurstOfThePageComesAtOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{}
		c := clientsAt(s)
		defer c.close()
		e := &errand{name: "burst", clients: 150}
		require.NoError(t, c.burst(e, 0, nil))
		synctest.Wait()
		require.Equal(t, map[time.Duration]int{0: 150}, s.at())
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 150, served: 150}, got)
		require.Same(t, e, c.latestErrand())
	})
}

// All clients come together. Those that are refused come back together, as their
// Retry-After is the same: a herd.
func TestARefusedHerdComesBackTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{}
		served := map[time.Duration]int{}
		s.answer = func(int) result {
			s.mu.Lock()
			defer s.mu.Unlock()
			now := time.Since(s.begin)
			if served[now]++; served[now] > 50 {
				return result{status: http.StatusTooManyRequests, retryAfter: time.Second}
			}
			return result{status: http.StatusOK}
		}
		c := clientsAt(s)
		defer c.close()
		e := &errand{name: "herd", clients: 180}
		require.NoError(t, c.herd(e))
		synctest.Wait()
		require.ErrorIs(t, c.herd(&errand{clients: 1}), errOneHerd)
		time.Sleep(5 * time.Second)
		require.Equal(t, map[time.Duration]int{0: 180, time.Second: 130, 2 * time.Second: 80, 3 * time.Second: 30}, s.at())
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 420, served: 180, refused: 240}, got)
		require.NoError(t, c.herd(&errand{clients: 1}), "the first one has ended")
	})
}

func TestAHerdThatIsNeverServedGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{answer: func(int) result {
			return result{status: http.StatusTooManyRequests, retryAfter: 7 * time.Second}
		}}
		c := clientsAt(s)
		defer c.close()
		e := &errand{name: "herd", clients: 2}
		require.NoError(t, c.herd(e))
		time.Sleep(herdTime)
		synctest.Wait()
		_, ended := e.report()
		require.True(t, ended)
		require.Len(t, s.at(), 9, "at 0 s, 7 s, ... 56 s")
	})
}

func TestClientsWithoutPatienceGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: time.Second}
		c := clientsAt(s)
		defer c.close()
		e := &errand{clients: 10}
		require.NoError(t, c.burst(e, 0, func(i int) time.Duration { return time.Duration(i%2) * 300 * time.Millisecond }))
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		got, ended := e.report()
		require.False(t, ended)
		require.Equal(t, tally{sent: 5, disconnected: 5}, got)
		time.Sleep(700 * time.Millisecond)
		synctest.Wait()
		got, ended = e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 10, served: 5, disconnected: 5}, got)
	})
}

func TestMoreClientsThanFitAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: time.Second}
		c := clientsAt(s)
		defer c.close()
		require.NoError(t, c.burst(&errand{clients: maxBurst - 1}, 0, nil))
		require.ErrorIs(t, c.burst(&errand{clients: 2}, 0, nil), errTooManyClients)
		require.ErrorIs(t, c.herd(&errand{clients: 2}), errTooManyClients)
		require.NoError(t, c.burst(&errand{clients: 1}, 0, nil))
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, c.burst(&errand{clients: maxBurst}, 0, nil), "all have gone")
	})
}

func TestStopSendsAllAwayAndOthersMayCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: time.Minute}
		c := clientsAt(s)
		defer c.close()
		e := &errand{clients: 10}
		require.NoError(t, c.burst(e, time.Second, nil))
		time.Sleep(600 * time.Millisecond) // The last come after 800 ms and after 1 s.
		c.stop()
		synctest.Wait()
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 7, disconnected: 7}, got)
		later := &errand{clients: 1}
		require.NoError(t, c.burst(later, 0, nil))
		time.Sleep(time.Minute)
		synctest.Wait()
		got, _ = later.report()
		require.Equal(t, tally{sent: 1, served: 1}, got)
	})
}

// Ctrl-C in the middle of a herd: those in the line are served, and none comes back.
func TestAtTheEndNoClientComesAndNoneIsSentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubbedProxy{takes: 500 * time.Millisecond, answer: func(n int) result {
			if n > 50 {
				return result{status: http.StatusTooManyRequests, retryAfter: time.Second}
			}
			return result{status: http.StatusOK}
		}}
		c := clientsAt(s)
		defer c.close()
		e := &errand{clients: 80}
		require.NoError(t, c.herd(e))
		time.Sleep(100 * time.Millisecond)
		c.end()
		require.ErrorIs(t, c.burst(&errand{clients: 1}, 0, nil), errStopping)
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		got, ended := e.report()
		require.True(t, ended)
		require.Equal(t, tally{sent: 80, served: 50, refused: 30}, got)
	})
}
