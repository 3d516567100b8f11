package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// serving starts a program that sends no burst, and returns where it serves.
func serving(t *testing.T, args ...string) (p *program, at string) {
	t.Helper()
	p = start(append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	return p, strings.TrimPrefix(p.awaits(t, `Serving on http://127\.0\.0\.1:\d+`), "Serving on ")
}

// ask sends a request on a connection of its own, and returns the response
// and its body.
func ask(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Close = true
	got, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	return got, string(body)
}

// clientsOf starts n clients at the same time, and returns a channel with the
// status that each gets.
func clientsOf(n int, url string) <-chan int {
	statuses := make(chan int, n) // Room for all, so that no client hangs when the test fails.
	for range n {
		go func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			statuses <- get(context.Background(), client, url).status
		}()
	}
	return statuses
}

// tallyOf waits for n statuses and counts each.
func tallyOf(t *testing.T, n int, statuses <-chan int) map[int]int {
	t.Helper()
	count := map[int]int{}
	for range n {
		count[realtime.Next(t, statuses)]++
	}
	return count
}

func TestProxyForwardsAndTellsTheWait(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path+"?"+r.URL.RawQuery+" "+r.Header.Get("X-Forwarded-For"))
	}))
	defer upstream.Close()
	p, at := serving(t, "-upstream", upstream.URL+"/base", "-limits", "1 per 10s depth 0")
	require.NotContains(t, p.stdout.String(), "direct", "a burst sent to -upstream")
	require.Contains(t, p.stdout.String(), "curl")

	got, body := ask(t, at+"/a;b?x=1;2&y=%zz")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Equal(t, "/base/a;b?x=1;2&y=%zz 127.0.0.1", body, "path and query as they came")
	require.Regexp(t, `^shaper;dur=\d+\.\d{3}$`, got.Header.Get("Server-Timing"))

	got, _ = ask(t, at)
	require.Equal(t, http.StatusTooManyRequests, got.StatusCode)
	require.Regexp(t, `^shaper;dur=\d+\.\d{3}$`, got.Header.Get("Server-Timing"))

	got, body = ask(t, at+"/healthz")
	require.Equal(t, http.StatusOK, got.StatusCode, "a health check stands in no line")
	require.Equal(t, "ok\n", body)

	upstream.Close()
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.Contains(t, p.stdout.String(), "No request is waiting: stopping")
}

func TestUpstreamThatIsDownIsA502(t *testing.T) {
	upstream := httptest.NewServer(http.NotFoundHandler())
	upstream.Close()
	p, at := serving(t, "-upstream", upstream.URL)
	got, body := ask(t, at)
	require.Equal(t, http.StatusBadGateway, got.StatusCode)
	require.NotContains(t, body, upstream.URL)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

func TestInterruptDrainsTheLine(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]os.Signal{"Ctrl-C": os.Interrupt, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			p, at, page := watched(t, "-limits", "5/s depth 8")
			statuses := clientsOf(9, at)
			// All have come: each waits, or has been served.
			awaitState(t, page, func(s panelState) bool { return s.Waiting >= 4 && s.Waiting+len(statuses) == 9 })
			p.signals <- sig
			p.awaits(t, `Draining [1-8] waiting requests? \(at most [\d.]+ m?s; Ctrl-C again to stop at once\)`)

			realtime.Until(t, func() bool { return get(t.Context(), client, at+healthPath).status == 0 }, "a newcomer finds no server")
			require.Equal(t, map[int]int{200: 9}, tallyOf(t, 9, statuses))
			require.Equal(t, exitOK, p.ends(t))
			require.Regexp(t, `Drained: [1-8] served, 0 gave up\.\n$`, p.stdout.String())
			require.Empty(t, p.stderr.String())
		})
	}
}

// With a cap, the time also depends on the upstream.
func TestDrainMessagePromisesNoMoreThanIsKnown(t *testing.T) {
	for limits, says := range map[string]string{
		"5/s depth 9":            "Draining 4 waiting requests (at most 800 ms; ",
		"5/s depth 9 inflight 1": "Draining 4 waiting requests (at least 800 ms; ",
		"inf depth 9 inflight 1": "Draining 4 waiting requests (at least 0 s; ",
	} {
		require.Contains(t, drainMessage(4, newLimitsInfo(limitsOf(t, limits))), says)
	}
}

func TestSecondInterruptEndsAtOnce(t *testing.T) {
	var p *program
	var told map[int]int
	undisturbed(50*time.Millisecond, func() bool { // The program gives the answers a moment to be sent.
		var at string
		p, at = serving(t, "-burst", "0", "-limits", "6/h depth 60")
		statuses := clientsOf(62, at)
		require.Equal(t, map[int]int{200: 1, 429: 1}, tallyOf(t, 2, statuses)) // The refusal shows that the line is full.
		p.signals <- os.Interrupt
		p.awaits(t, `Draining 60 waiting requests`)
		p.signals <- os.Interrupt
		require.Equal(t, exitInterrupted, p.ends(t))
		told = tallyOf(t, 60, statuses)
		return told[503] == 60
	})
	require.Equal(t, map[int]int{503: 60}, told, "those in the line are told")
	require.Contains(t, p.stdout.String(), "Stopped at once; 60 waiting requests got a 503.")
}

// filled returns a proxy with a full bucket, in front of an upstream that takes that long,
// and the logs of the requests that come to it.
func filled(t *testing.T, limits string, serviceTime time.Duration, impatient *impatientClient) (*proxy, *requestLogs) {
	t.Helper()
	f, err := startFragileUpstream(capacity{workers: 9, serviceTime: serviceTime}, nil)
	require.NoError(t, err)
	t.Cleanup(f.close)
	s, err := shaper.New(limitsOf(t, limits), shaper.WithTrace(traceRequests()))
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	logs := &requestLogs{impatient: map[int]*impatientClient{7: impatient}}
	p := startProxy(l, s, f.url, logs.middleware)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	require.True(t, s.Allow())
	return p, logs
}

// A client whose turn has come does not wait any more: its patience must not run
// out while it is being served. Its turn comes once it is in line. On a busy machine that
// may be too late for it: then a client with more patience, which is served for longer in
// turn, tries again.
func TestAnImpatientClientWhoseTurnComesStays(t *testing.T) {
	t.Parallel()
	for patience := 300 * time.Millisecond; ; patience *= 2 {
		c := &impatientClient{upload: true, patiencePerPlace: patience}
		p, logs := filled(t, "6/h depth 2", 2*patience, c)
		go func() {
			for p.shaper.Stats().Waiting == 0 && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			_ = p.shaper.SetLimits(shaper.Limits{Rate: 1000, Depth: 2})
		}()
		got := c.send(t.Context(), client, p.url, 7)
		requests := logs.byArrival()
		if got.left && patience < 3*time.Second {
			continue
		}
		require.Equal(t, http.StatusOK, got.status)
		require.Len(t, requests, 1)
		require.Same(t, c, requests[0].client)
		require.NotZero(t, requests[0].enqueued)
		require.Zero(t, c.leftAt())
		return
	}
}

// A client that disconnects gives up its place in the line. A patient client that does
// so is counted too.
func TestAnImpatientClientLeavesTheLine(t *testing.T) {
	for name, upload := range map[string]bool{"download": false, "upload": true} {
		t.Run(name, func(t *testing.T) {
			c := &impatientClient{upload: upload, patiencePerPlace: 10 * time.Millisecond}
			p, logs := filled(t, "6/h depth 2", 0, c)
			require.Equal(t, result{left: true}, c.send(t.Context(), client, p.url, 7))
			requests := logs.byArrival() // It returns when the shaper, too, has noticed.
			require.Len(t, requests, 1)
			require.Zero(t, requests[0].departed)
			require.Zero(t, p.shaper.Stats().Waiting)
			require.EqualValues(t, 1, p.shaper.Stats().Abandoned)
		})
	}
}
