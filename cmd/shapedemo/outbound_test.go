package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// slowOutbound is so slow that a busy machine does not bring two departures together.
var slowOutbound = []string{"-outbound", "-limits", "10/s depth 20 slack 10ms", "-callers", "20"}

func TestOutboundOnceShowsWhatEachSawAndSucceeds(t *testing.T) {
	t.Parallel()
	var p *program
	var status int
	served := regexp.MustCompile(`(?m)^  served +[1-9] +[23]\d$`)
	judged := undisturbed(300*time.Millisecond, func() bool {
		p = start(append(slowOutbound, "-once")...)
		status = p.ends(t)
		return status == exitOK && served.MatchString(p.stdout.String())
	})
	require.Equal(t, exitOK, status, "%s%s", &p.stdout, &p.stderr)
	require.Empty(t, p.stderr.String())
	shown := p.stdout.String()
	require.Contains(t, shown, "  limits     10/s depth 20 slack 10ms:\n"+
		"             one request leaves every 100 ms\n"+
		"             20 may wait, the last for 2 s\n"+
		"             request 22 of a simultaneous burst is refused\n")
	require.Contains(t, shown, "within 25 ms")
	require.Contains(t, shown, "20 callers call the API directly")
	if judged { // On a machine that stalls again and again fewer leave.
		require.Regexp(t, `(?m)^  calls answered +\d+ +[23]\d$`, shown)
		require.Regexp(t, served, shown)
	}
	require.Regexp(t, `(?m)^  refused by the API, with 429 +[1-9]\d* +0$`, shown)
	require.Regexp(t, `(?m)^  served per second +[0-3](\.\d+)? +(\d|10)(\.\d+)?$`, shown)
	require.Regexp(t, `(?m)^  longest +\S+ \S+ +\S+ m?s$`, shown)
	require.Regexp(t, `✓ Direct: \d+ calls were refused by the API, \d served\.\n  Through the Transport: none refused, \d+ served\.\n$`, shown)
	require.NotContains(t, shown, "refused by the shaper")
	require.NotContains(t, shown, "\x1b", "colour without a terminal")
	require.NotContains(t, shown, "Ctrl-C")
}

func TestOutboundFailsIfTheShaperLetsBurstsThrough(t *testing.T) {
	t.Parallel()
	p := start("-outbound", "-once", "-limits", "5/s burst 5 depth 20", "-callers", "20")
	require.Equal(t, exitFailed, p.ends(t))
	require.Regexp(t, `✗ \d+ calls? (was|were) refused by the API behind the shaper, because two reached it within 50 ms: "5/s burst 5 depth 20" lets\s+requests leave together`, p.stdout.String())
}

func TestOutboundGoesOnUntilCtrlC(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]os.Signal{"Ctrl-C": os.Interrupt, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *program
			ended := regexp.MustCompile(`\nStopped after \S+ m?s: [1-9]\d* served, 0 refused by the API\.\n$`)
			undisturbed(50*time.Millisecond, func() bool {
				p = start(slowOutbound...)
				p.stdout.awaits(t, `The callers go on through the Transport until Ctrl-C\.`)
				time.Sleep(250 * time.Millisecond) // Two or three calls.
				p.signals <- sig
				require.Equal(t, exitOK, p.ends(t))
				return ended.MatchString(p.stdout.String())
			})
			require.Regexp(t, ended, p.stdout.String())
			require.Empty(t, p.stderr.String())
		})
	}
}

func TestJudgeOutbound(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "10/s depth 20 slack 10ms"))
	good := func() (direct, shaped poolResult) {
		return poolResult{callStats: callStats{served: 3, refused: 60, duration: outboundTime}},
			poolResult{callStats: callStats{served: 31, duration: outboundTime}}
	}
	direct, shaped := good()
	require.Empty(t, judgeOutbound(info, time.Millisecond, direct, shaped))
	for says, spoil := range map[string]func(direct, shaped *poolResult){
		"nothing to show":                                   func(direct, _ *poolResult) { direct.refused = 0 },
		"2 calls were refused by the API":                   func(_, shaped *poolResult) { shaped.refused = 2 },
		"1 call was refused by the API":                     func(_, shaped *poolResult) { shaped.refused = 1 },
		"1 call failed":                                     func(direct, _ *poolResult) { direct.failed = 1 },
		"2 calls failed":                                    func(_, shaped *poolResult) { shaped.failed = 2 },
		"3 calls were served with the shaper, 3 without it": func(_, shaped *poolResult) { shaped.served = 3 },
		"32 calls were served in 3 s, but only 31 may":      func(_, shaped *poolResult) { shaped.served = 32 },
	} {
		t.Run(says, func(t *testing.T) {
			direct, shaped := good()
			spoil(&direct, &shaped)
			faults := judgeOutbound(info, time.Millisecond, direct, shaped)
			require.Len(t, faults, 1)
			text := outboundVerdict(plain(), direct, shaped, faults)
			require.Contains(t, text, "✗ ")
			require.Contains(t, text, says)
		})
	}
}

// If calls left the shaper apart and reached the API together, the machine was
// late, and there is one more try; so there is if it was late with their slots. If
// they left together, it was the shaper, and there is none.
func TestOutboundTriesAgainIfTheMachineWasLate(t *testing.T) {
	at := func(ms ...int) (instants []time.Time) {
		for _, n := range ms {
			instants = append(instants, time.UnixMilli(int64(n)))
		}
		return instants
	}
	info := newLimitsInfo(limitsOf(t, "10/s depth 20 slack 10ms"))
	bunched := poolResult{callStats: callStats{served: 9, refused: 2, duration: outboundTime}, departed: at(0, 95, 195)}
	burst := poolResult{callStats: callStats{served: 9, refused: 2, duration: outboundTime}, departed: at(0, 100, 101)}
	stalled := poolResult{callStats: callStats{served: 2, duration: outboundTime}, departed: at(0, 2500), late: 2.4}
	busy := poolResult{callStats: callStats{served: 8, duration: outboundTime}, departed: at(0, 95), late: 0.7}
	lateBurst := poolResult{callStats: callStats{served: 2, refused: 2, duration: outboundTime}, departed: at(0, 100, 101), late: 2.4}
	lateAndFast := poolResult{callStats: callStats{served: 2, duration: outboundTime}, departed: at(0, 100, 189), late: 2.4}
	lateInSlack := poolResult{callStats: callStats{served: 2, duration: outboundTime}, departed: at(0, 100, 190), late: 2.4}
	lone := poolResult{callStats: callStats{refused: 1}, departed: at(0)}
	good := poolResult{callStats: callStats{served: 9, duration: outboundTime}, departed: at(0, 100)}
	for name, row := range map[string]struct {
		results []poolResult
		err     error
		calls   int
		refused int
	}{
		"none is refused":    {[]poolResult{good}, nil, 1, 0},
		"the machine, once":  {[]poolResult{bunched, good}, nil, 2, 0},
		"the machine, twice": {[]poolResult{bunched, bunched, good}, nil, 2, 2},
		"it stalls":          {[]poolResult{stalled, good}, nil, 2, 0},
		"it stalls, twice":   {[]poolResult{stalled, stalled, good}, nil, 2, 0},
		"it is a bit late":   {[]poolResult{busy, good}, nil, 1, 0},
		"the shaper":         {[]poolResult{burst, good}, nil, 1, 2},
		"the shaper, late":   {[]poolResult{lateBurst, good}, nil, 1, 2},
		"too fast, and late": {[]poolResult{lateAndFast, good}, nil, 1, 0},
		"in slack, and late": {[]poolResult{lateInSlack, good}, nil, 2, 0},
		"only one has left":  {[]poolResult{lone, good}, nil, 1, 1},
		"an interrupt":       {[]poolResult{bunched, good}, context.Canceled, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			got, err := repeatIfMachineWasLate(plain(), info, 25*time.Millisecond, func() (poolResult, error) {
				calls++
				return row.results[calls-1], row.err
			})
			require.Equal(t, row.err, err)
			require.Equal(t, row.calls, calls)
			require.Equal(t, row.refused, got.refused)
		})
	}

	direct := poolResult{callStats: callStats{served: 3, refused: 60, duration: outboundTime}}
	faults := judgeOutbound(info, 25*time.Millisecond, direct, bunched)
	require.Equal(t, []string{"2 calls were refused by the API behind the shaper, because two reached it within 25 ms that had left the shaper at least 95 ms apart, in both tries: this machine is too busy; try a slower -limits"}, faults)
	require.Equal(t, []string{
		`2 calls left the shaper within 1 ms: more than "10/s depth 20 slack 10ms" allows`,
		"2 calls were refused by the API behind the shaper, because two reached it within 25 ms",
	}, judgeOutbound(info, 25*time.Millisecond, direct, burst))
}

func TestCallsThatLeaveTooFastAreFound(t *testing.T) {
	for name, row := range map[string]struct {
		limits string
		ms     []int
		calls  int
		within time.Duration
	}{
		"none":                     {"10/s slack 10ms", nil, 0, 0},
		"one":                      {"10/s slack 10ms", []int{0}, 0, 0},
		"within the slack":         {"10/s slack 10ms", []int{0, 100, 190, 290}, 0, 0},
		"the slack, twice":         {"10/s slack 10ms", []int{0, 90, 180}, 3, 180 * time.Millisecond},
		"after a rest":             {"10/s slack 10ms", []int{0, 500, 590, 700, 710}, 2, 10 * time.Millisecond},
		"more than the slack":      {"10/s slack 10ms", []int{0, 89}, 2, 89 * time.Millisecond},
		"a burst that is allowed":  {"10/s burst 3 slack 10ms", []int{0, 0, 0, 90}, 0, 0},
		"a burst that is too long": {"10/s burst 3 slack 10ms", []int{0, 0, 0, 89}, 4, 89 * time.Millisecond},
		"slack of many intervals":  {"1000/s", []int{0, 0, 0, 0, 0}, 0, 0},
		"without a limit":          {"inf", []int{0, 0, 0}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var r poolResult
			for _, ms := range row.ms {
				r.departed = append(r.departed, time.UnixMilli(int64(ms)))
			}
			calls, within := r.leftTooFast(newLimitsInfo(limitsOf(t, row.limits)))
			require.Equal(t, row.calls, calls)
			require.Equal(t, row.within, within)
		})
	}
}

// A timeline of requests at the API: when each comes, and the Retry-After that it
// gets, or "".
func TestTheAPIRefusesAllRequestsAfterABurst(t *testing.T) {
	type visit struct {
		after time.Duration // the one before
		wants string
	}
	const ms = time.Millisecond
	for name, visits := range map[string][]visit{
		"evenly":                  {{0, ""}, {10 * ms, ""}, {10 * ms, ""}},
		"two at once":             {{0, ""}, {0, "1"}},
		"two within the interval": {{0, ""}, {10*ms - 1, "1"}, {500 * ms, "1"}, {400 * ms, "1"}, {100 * ms, ""}},
		"two in the penalty":      {{0, ""}, {0, "1"}, {500 * ms, "1"}, {ms, "1"}, {499 * ms, ""}},
		"all back at once":        {{0, ""}, {0, "1"}, {time.Second, ""}, {0, "1"}},
		"at the end too early":    {{0, ""}, {0, "1"}, {time.Second - 1, "1"}, {2, "1"}, {time.Second, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &burstIntolerantAPI{interval: 10 * ms}
				for i, v := range visits {
					time.Sleep(v.after)
					rec := httptest.NewRecorder()
					a.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
					require.Equal(t, v.wants, rec.Header().Get("Retry-After"), i)
					require.Equal(t, map[bool]int{true: 200, false: 429}[v.wants == ""], rec.Code, i)
				}
			})
		})
	}
}

// script is a transport that gives each call its next response. When it has none
// left, a call hangs until it is cancelled.
type script struct {
	next func() (status int, retryAfter string, err error)
}

func (s script) RoundTrip(r *http.Request) (*http.Response, error) {
	status, after, err := s.next()
	if status == 0 && err == nil {
		<-r.Context().Done()
		err = r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader("")),
		Header: http.Header{"Retry-After": {after}},
	}, nil
}

func TestCallersWaitForAsLongAsTheyAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []struct {
			status int
			after  string
			err    error
			at     time.Duration // when it is asked for
		}{
			{status: 200, at: 0},
			{status: 200, at: 0},
			{status: 429, after: "3", at: 0},
			{status: 429, after: "soon", at: 3 * time.Second},
			{status: 429, after: "0", at: 4 * time.Second},
			{err: &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 2 * time.Second}, at: 5 * time.Second},
			{status: 502, at: 7 * time.Second},
			{err: errors.New("broken"), at: 7100 * time.Millisecond},
			{at: 7200 * time.Millisecond}, // It is under way at the end.
		}
		start, asked := time.Now(), 0
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		pool := &callers{count: 1, url: "http://x/", client: &http.Client{Transport: script{func() (int, string, error) {
			a := results[asked]
			require.Equal(t, a.at, time.Since(start), asked)
			asked++
			return a.status, a.after, a.err
		}}}}
		saw := pool.run(ctx)
		require.Equal(t, len(results), asked)
		require.Equal(t, callStats{
			served: 2, refused: 3, rejected: 1, failed: 2, times: []time.Duration{0, 0}, duration: 10 * time.Second,
		}, saw)
		require.Equal(t, 8, saw.answered())
		require.InDelta(t, 0.2, saw.perSecond(), 1e-9)
	})
}
