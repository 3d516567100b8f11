package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
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

// The burst goes to the proxy by HTTP: one leaves at once and 20 wait, as the limits say.
func TestABurstOfThePageGoesThroughTheProxy(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "20/s depth 20")
	status, state := postTo(t, page, "burst", `{"n":60}`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "burst", state.Errand.Name)
	got := awaitState(t, page, hasEnded).Errand
	require.Equal(t, 60, got.Sent)
	require.GreaterOrEqual(t, got.Served, 21)
	require.Less(t, got.Served, 21+20) // A busy machine may take up to a second to send all.
	require.Equal(t, 60, got.Served+got.Refused)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

func TestAHerdIsServedInTheEnd(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "40/s depth 20")
	status, _ := postTo(t, page, "herd", `{"n":60}`)
	require.Equal(t, http.StatusOK, status)
	status, _ = postTo(t, page, "herd", `{"n":60}`)
	require.Equal(t, http.StatusConflict, status)
	got := awaitState(t, page, hasEnded).Errand
	require.Equal(t, 60, got.Served)
	require.Equal(t, got.Sent-60, got.Refused)
	require.NotZero(t, got.Refused)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

// Every second client goes away after 400 ms to 1.6 s, and the last of 31 waits for 3 s,
// or for less when others have gone.
func TestClientsOfThePageThatGiveUpAreAbandoned(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "10/s depth 40")
	status, _ := postTo(t, page, "impatient", `{"n":31}`)
	require.Equal(t, http.StatusOK, status)
	got := awaitState(t, page, hasEnded).Errand
	require.Equal(t, 31, got.Sent)
	require.NotZero(t, got.GaveUp)
	require.LessOrEqual(t, got.GaveUp, 15)
	require.Equal(t, 31-got.GaveUp, got.Served)
	// A client whose turn has come may still give up before the upstream has answered.
	_, body := ask(t, page+"/api/buckets?source=proxy")
	var list struct{ Buckets []struct{ Abandoned int } }
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Len(t, list.Buckets, 1)
	require.NotZero(t, list.Buckets[0].Abandoned)
	require.LessOrEqual(t, list.Buckets[0].Abandoned, got.GaveUp)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}

func TestStopSendsTheClientsOfThePageAway(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t, "-limits", "6/h depth 40")
	_, _ = postTo(t, page, "burst", `{"n":31}`)
	awaitState(t, page, func(s demoState) bool { return s.Waiting == 30 && s.Errand.Served == 1 })
	status, _ := postTo(t, page, "stop", `{}`)
	require.Equal(t, http.StatusOK, status)
	state := awaitState(t, page, func(s demoState) bool { return hasEnded(s) && s.Waiting == 0 })
	require.Equal(t, 30, state.Errand.GaveUp)
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

func TestAnOpenPageBeginsTheScene(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t)
	realtime.Until(t, func() bool {
		_, state := postTo(t, page, "watch", `{}`)
		return state.Waiting > 20
	}, "more than 20 wait")
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
	require.Regexp(t, `Drained: \d+ served, 0 gave up\.\n$`, p.stdout.String())
}

func TestTheSliderOfThePageReachesTheProxy(t *testing.T) {
	t.Parallel()
	p, _, page := watched(t)
	status, state := postTo(t, page, "rate", `{"rate":20}`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "20/s depth 100", state.Limits)
	_, body := ask(t, page+"/api/buckets?source="+url.QueryEscape("proxy"))
	require.Regexp(t, `"limits":\s*"20/s depth 100"`, body)
	p.signals <- os.Interrupt
	require.Equal(t, exitOK, p.ends(t))
}
