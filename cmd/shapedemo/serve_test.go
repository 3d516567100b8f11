package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serving starts a program that fires no burst, and returns where it serves.
func serving(t *testing.T, args ...string) (p *program, at string) {
	t.Helper()
	p = start(append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	return p, strings.TrimPrefix(p.stdout.awaits(t, `Serving on http://127\.0\.0\.1:\d+`), "Serving on ")
}

// ask sends a request on a connection of its own, and returns the answer and
// its body.
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

// herdOf lets n clients ask at the same time; each sends its status.
func herdOf(n int, url string) <-chan int {
	statuses := make(chan int, n) // Room for all: nobody is held up by a test that fails.
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
		select {
		case status := <-statuses:
			count[status]++
		case <-time.After(20 * time.Second):
			require.FailNow(t, "no answer")
		}
	}
	return count
}

func TestProxyForwardsAndTellsTheWait(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path+"?"+r.URL.RawQuery+" "+r.Header.Get("X-Forwarded-For"))
	}))
	defer upstream.Close()
	p, at := serving(t, "-upstream", upstream.URL+"/base", "-limits", "1 per 10s depth 0")
	require.NotContains(t, p.stdout.String(), "straight", "a burst at somebody's upstream")
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
	require.Contains(t, p.stdout.String(), "Nobody waits: stopping")
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
	for name, sig := range map[string]os.Signal{"Ctrl-C": os.Interrupt, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			p, at := serving(t, "-burst", "0", "-limits", "5/s depth 4")
			statuses := herdOf(6, at)
			require.Equal(t, map[int]int{200: 1, 429: 1}, tallyOf(t, 2, statuses)) // So the line is full.
			p.signals <- sig
			p.stdout.awaits(t, `Draining [1-4] waiting \(at most \d+ ms; Ctrl-C again to stop at once\)`)

			require.Equal(t, 503, tallyOne(t, at), "a newcomer while the line drains")
			got, _ := ask(t, at+healthPath)
			require.Equal(t, http.StatusServiceUnavailable, got.StatusCode)

			require.Equal(t, map[int]int{200: 4}, tallyOf(t, 4, statuses))
			require.Equal(t, exitOK, p.ends(t))
			require.Regexp(t, `Drained: [1-4] left, 0 gave up\.\n$`, p.stdout.String())
			require.Empty(t, p.stderr.String())
		})
	}
}

// With a cap the upstream has a say in how long it takes.
func TestFarewellPromisesNoMoreThanIsKnown(t *testing.T) {
	for limits, says := range map[string]string{
		"5/s depth 9":            "Draining 4 waiting (at most 800 ms; ",
		"5/s depth 9 inflight 1": "Draining 4 waiting (at least 800 ms; ",
		"inf depth 9 inflight 1": "Draining 4 waiting (at least 0 s; ",
	} {
		require.Contains(t, farewell(4, meaningOf(limitsOf(t, limits))), says)
	}
}

func tallyOne(t *testing.T, at string) int {
	t.Helper()
	got, _ := ask(t, at)
	return got.StatusCode
}

func TestSecondInterruptEndsAtOnce(t *testing.T) {
	p, at := serving(t, "-burst", "0", "-limits", "1 per 60s depth 60")
	statuses := herdOf(62, at)
	require.Equal(t, map[int]int{200: 1, 429: 1}, tallyOf(t, 2, statuses)) // So the line is full.
	p.signals <- os.Interrupt
	p.stdout.awaits(t, `Draining 60 waiting`)
	p.signals <- os.Interrupt
	require.Equal(t, exitInterrupted, p.ends(t))
	require.Equal(t, map[int]int{503: 60}, tallyOf(t, 60, statuses), "those in the line are told")
	require.Contains(t, p.stdout.String(), "Stopped at once; 60 in the line got a 503.")
}

// A client that leaves the line gives its place up, and is counted.
func TestClientThatVanishesIsAbandoned(t *testing.T) {
	f, err := startFragile(size{workers: 9, service: time.Millisecond})
	require.NoError(t, err)
	defer f.close()
	front, err := newDoor(config{addr: "127.0.0.1:0"})
	require.NoError(t, err)
	p, err := startProxy(front.listener, limitsOf(t, "1 per 60s depth 2"), f.url)
	require.NoError(t, err)
	defer p.close()

	require.Equal(t, http.StatusOK, tallyOne(t, p.url))
	ctx, vanish := context.WithCancel(t.Context())
	gone := make(chan answer, 1)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		gone <- get(ctx, client, p.url)
	}()
	require.Eventually(t, func() bool { return p.shaper.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)
	vanish()
	require.Zero(t, (<-gone).status)
	require.Eventually(t, func() bool { return p.shaper.Stats().Abandoned == 1 }, 10*time.Second, time.Millisecond)
	require.Zero(t, p.shaper.Stats().Waiting)
	require.Contains(t, statusLine(1, p.shaper.Stats(), 3), "departed 1   refused 0   abandoned 1   unanswered 3")
}
