package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// client is one without connections that outlast a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a request, and returns the response and its body.
func ask(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	got, err := client.Get(url)
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
		go func() { statuses <- get(context.Background(), client, url).status }()
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
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path+"?"+r.URL.RawQuery+" "+r.Header.Get("X-Forwarded-For"))
	}))
	defer upstream.Close()
	p, at := serving(t, "-upstream", upstream.URL+"/base", "-limits", "1/h burst 2 depth 0", "-inspect", "")
	require.NotContains(t, p.stdout.String(), "direct", "a burst sent to -upstream")

	got, body := ask(t, at+"/a;b?x=1;2&y=%zz")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Equal(t, "/base/a;b?x=1;2&y=%zz 127.0.0.1", body, "path and query as they came")
	require.Regexp(t, `^shaper;dur=\d+\.\d{3}$`, got.Header.Get("Server-Timing"))

	upstream.Close()
	got, body = ask(t, at)
	require.Equal(t, http.StatusBadGateway, got.StatusCode)
	require.NotContains(t, body, upstream.URL)

	got, _ = ask(t, at)
	require.Equal(t, http.StatusTooManyRequests, got.StatusCode)
	require.Regexp(t, `^shaper;dur=\d+\.\d{3}$`, got.Header.Get("Server-Timing"))

	got, body = ask(t, at+"/healthz")
	require.Equal(t, http.StatusOK, got.StatusCode, "a health check stands in no line")
	require.Equal(t, "ok\n", body)

	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.Contains(t, p.stdout.String(), "curl")
	require.Contains(t, p.stdout.String(), "No request is waiting: stopping")
	require.NotContains(t, p.stdout.String(), "k6", "the script judges the default limits")
	require.NotContains(t, p.stdout.String(), "Watch it", "a page that nobody wanted")
}

// With a page open, the program must not wait for the stream of the page to end: it would never.
func TestInterruptDrainsTheLineAndEndsThePage(t *testing.T) {
	t.Parallel()
	p, at, page := watched(t, "-limits", "1/s depth 8")
	stream, err := client.Get(page + "/api/events")
	require.NoError(t, err)
	defer stream.Body.Close()
	require.Equal(t, http.StatusOK, stream.StatusCode)
	statuses := clientsOf(9, at)
	realtime.Until(t, func() bool {
		_, state := postTo(t, page, "state", "")
		return state.Waiting >= 1 && state.Waiting+len(statuses) == 9
	}, "all wait, or have been served")
	p.signals <- os.Interrupt
	p.awaits(t, `Draining [1-8] waiting requests? \(at most [\d.]+ m?s; Ctrl-C again to stop at once\)`)

	realtime.Until(t, func() bool { return get(t.Context(), client, at+healthPath).status == 0 }, "a newcomer finds no server")
	got, _ := ask(t, page+"/api/buckets")
	require.Equal(t, http.StatusOK, got.StatusCode, "the page shows how the line drains")
	status, _ := postTo(t, page, "burst", "1")
	require.Equal(t, http.StatusBadRequest, status)
	status, state := postTo(t, page, "rate", "4") // The rest goes faster.
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 4.0, state.Rate)
	require.Equal(t, map[int]int{200: 9}, tallyOf(t, 9, statuses))
	require.Equal(t, exitOK, p.ends(t))
	events, err := io.ReadAll(stream.Body)
	require.NoError(t, err, "the stream ends, and is not cut off")
	require.Regexp(t, `(?s)^event: hello\n.*event: bye\n`, string(events))
	require.Regexp(t, `Drained: [1-8] served, 0 gave up\.\n$`, p.stdout.String())
	require.Empty(t, p.stderr.String())
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
	t.Parallel()
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

// watched returns a program that serves and sends no burst, and the address of its page.
func watched(t *testing.T, args ...string) (p *program, proxy, page string) {
	t.Helper()
	p, proxy = serving(t, append([]string{"-burst", "0"}, args...)...)
	line := p.awaits(t, `Watch it:  http://127\.0\.0\.1:\d+/\n`)
	return p, proxy, strings.TrimSuffix(strings.TrimPrefix(line, "Watch it:  "), "/\n")
}

// postTo presses a button of a page that is served, with header fields if wanted.
func postTo(t *testing.T, page, name, body string, fields ...string) (status int, state panelState) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page+"/demo/"+name, strings.NewReader(body))
	require.NoError(t, err)
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

// Another site that the visitor has open can send requests to this machine, and can make
// its own name stand for it.
func TestThePageHasTheDemosButtonsAndNoOtherSitePressesThem(t *testing.T) {
	t.Parallel()
	p, proxy, page := watched(t)
	require.Contains(t, p.stdout.String(), "k6 run -e BASE_URL="+proxy+" loadtest/k6.js\n")
	got, body := ask(t, page+"/")
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Contains(t, body, `"/demo/panel.js"`)
	_, body = ask(t, page+"/api/v1/buckets")
	require.Contains(t, body, `"proxy"`)
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

	for _, fields := range [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "http://other.example"},
		{"Origin", proxy},
		{"Origin", "null"},
	} {
		status, _ := postTo(t, page, "burst", "1", fields...)
		require.Equal(t, http.StatusForbidden, status, fields)
	}
	status, _ := postTo(t, page, "burst", "1", "Host", "other.example")
	require.Equal(t, http.StatusMisdirectedRequest, status)
	status, state := postTo(t, page, "stop", "", "Sec-Fetch-Site", "same-origin", "Origin", page)
	require.Equal(t, http.StatusOK, status)
	require.Nil(t, state.Errand)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.Empty(t, p.stderr.String())
}

// panelAt returns the panel of a shaper, whose clients s answers. It works in bubbles only.
func panelAt(t *testing.T, limits string, s *stubbedProxy) *panel {
	t.Helper()
	shaped, err := shaper.New(limitsOf(t, limits))
	require.NoError(t, err)
	s.begin, s.came = time.Now(), map[time.Duration]int{}
	p := newPanel(shaped, s.serve)
	t.Cleanup(func() {
		p.close()
		require.NoError(t, shaped.Close())
	})
	return p
}

// press presses a button, and returns the state or the sentence about the mistake.
func press(t *testing.T, p *panel, name, value string) (s panelState, wrong string) {
	t.Helper()
	w := httptest.NewRecorder()
	p.handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/demo/"+name, strings.NewReader(value)))
	if w.Code != http.StatusOK {
		return s, w.Body.String()
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
	return s, ""
}

func TestAButtonSaysWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := panelAt(t, defaultLimits, &stubbedProxy{fits: maxBurst, takes: time.Second})
		for _, row := range []struct{ name, value, says string }{
			{"burst", "", "from 1 to 10000"},
			{"burst", "0", "from 1 to 10000"},
			{"burst", "10001", "from 1 to 10000"},
			{"herd", "1.5", "from 1 to 10000"},
			{"impatient", "many", "from 1 to 10000"},
			{"burst", strings.Repeat("1", 1001), "too large"},
			{"rate", "0", "from 5 to 200 per second"},
			{"rate", "4.9", "from 5 to 200 per second"},
			{"rate", "200.1", "from 5 to 200 per second"},
			{"rate", "fast", "fast"},
			{"rate", "NaN", "NaN/s"},
		} {
			_, wrong := press(t, p, row.name, row.value)
			require.Contains(t, wrong, row.says, row)
		}
		state, _ := press(t, p, "burst", "9999")
		require.Equal(t, &errandState{ID: 1, Name: "burst", Clients: 9999}, state.Errand)
		_, wrong := press(t, p, "herd", "2")
		require.Contains(t, wrong, "do not fit beside")
		p.end()
		_, wrong = press(t, p, "burst", "1")
		require.Contains(t, wrong, "stopping")
		_, wrong = press(t, newPanel(p.shaper, nil), "burst", "1")
		require.Contains(t, wrong, "404", "no clients for a server of the user's")
	})
}

func TestTheSliderReTimesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := panelAt(t, defaultLimits, &stubbedProxy{})
		for range 101 {
			go func() { _ = p.shaper.Wait(t.Context()) }()
		}
		synctest.Wait()
		before, _ := press(t, p, "state", "")
		require.Equal(t, 100, before.Waiting)
		require.InDelta(t, 2, before.LastIn, 1e-9)

		after, _ := press(t, p, "rate", "10")
		require.Equal(t, 10.0, after.Rate)
		require.InDelta(t, 10, after.LastIn, 1e-9)
		time.Sleep(10 * time.Second)
	})
}

// The slider moves between a tenth of the rate and four times the rate, but only where these are valid, and the script
// writes the rates of a few a year as 3e-8.
func TestTheSliderStaysWithinValidRates(t *testing.T) {
	for limits, want := range map[string][2]float64{
		defaultLimits:        {5, 200},
		"1000000000/s":       {1e8, 1e9},
		"1 per 365d depth 1": {1. / (365 * 86400), 4. / (365 * 86400)},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := panelAt(t, limits, &stubbedProxy{})
			require.InEpsilon(t, want[0], p.slowest, 1e-9, limits)
			require.InEpsilon(t, want[1], p.fastest, 1e-9, limits)
			for _, rate := range []float64{p.slowest, p.fastest} {
				state, wrong := press(t, p, "rate", fmt.Sprint(rate))
				require.Empty(t, wrong)
				require.InEpsilon(t, rate, state.Rate, 1e-9)
			}
		})
	}
}

// A stubbed proxy answers in virtual time, and records when requests came.
type stubbedProxy struct {
	begin time.Time
	fits  int           // requests at one instant; the others are refused
	pause time.Duration // that a refusal asks for
	takes time.Duration

	mu   sync.Mutex
	came map[time.Duration]int // after begin
}

func (s *stubbedProxy) serve(ctx context.Context) result {
	s.mu.Lock()
	at := time.Since(s.begin)
	s.came[at]++
	full := s.came[at] > s.fits
	s.mu.Unlock()
	sleep(ctx, s.takes)
	switch {
	case ctx.Err() != nil:
		return result{}
	case full:
		return result{status: http.StatusTooManyRequests, retryAfter: s.pause}
	}
	return result{status: http.StatusOK}
}

// A herd comes back together, as all have the same Retry-After, for at most a minute. Clients that give up
// go away at a tenth to four tenths of the 2 s of a full line.
func TestWhatAButtonSends(t *testing.T) {
	type times = map[time.Duration]int
	const s = time.Second
	for name, c := range map[string]struct {
		button string
		proxy  *stubbedProxy
		then   func(p *panel) // half a second later
		came   times
		got    errandState // at last
	}{
		"a burst": {"burst", &stubbedProxy{fits: 180}, nil,
			times{0: 180}, errandState{Sent: 180, Served: 180}},
		"a herd": {"herd", &stubbedProxy{fits: 50, pause: s}, nil,
			times{0: 180, s: 130, 2 * s: 80, 3 * s: 30}, errandState{Sent: 420, Served: 180, Refused: 240}},
		"a herd that is never served": {"herd", &stubbedProxy{pause: 13 * s}, nil,
			times{0: 180, 13 * s: 180, 26 * s: 180, 39 * s: 180, 52 * s: 180}, errandState{Sent: 900, Refused: 900}},
		"clients that give up": {"impatient", &stubbedProxy{fits: 180, takes: s}, nil,
			times{0: 180}, errandState{Sent: 180, Served: 90, GaveUp: 90}},
		"all are sent away": {"herd", &stubbedProxy{fits: 180, takes: s}, (*panel).sendAway,
			times{0: 180}, errandState{Sent: 180, GaveUp: 180}},
		"Ctrl-C in a herd: none comes back, and none is sent away": {"herd", &stubbedProxy{fits: 50, pause: s, takes: s}, (*panel).end,
			times{0: 180}, errandState{Sent: 180, Served: 50, Refused: 130}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := panelAt(t, defaultLimits, c.proxy)
				_, wrong := press(t, p, c.button, "180")
				require.Empty(t, wrong)
				time.Sleep(s / 2)
				if c.then != nil {
					c.then(p)
				}
				time.Sleep(2 * herdTime)
				synctest.Wait()
				require.Equal(t, c.came, c.proxy.came)
				c.got.ID, c.got.Name, c.got.Clients, c.got.Ended = 1, c.button, 180, true
				got, _ := press(t, p, "state", "")
				require.Equal(t, &c.got, got.Errand)
			})
		})
	}
}
