package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// history makes requests from a timeline of letters, one for each millisecond:
//
//	e  a request enters the line
//	l  the first in line leaves it
//	p  a request leaves without waiting
//	f  a request is refused because the line is full
//	v  the client of the first in line that has not disconnected disconnects
//	a  the first request whose client has disconnected is taken out of the line
func history(timeline string) (requests []*requestLog) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var line []*requestLog
	gone := func(r *requestLog) bool { return !r.client.leftAt().IsZero() }
	for i, what := range timeline {
		at := begin.Add(time.Duration(i) * time.Millisecond)
		r := &requestLog{arrived: at}
		switch what {
		case 'e':
			line = append(line, r)
			r.enqueued, r.waiting = at, len(line)
		case 'p':
			r.departed = at
		case 'f':
			r.refused, r.reason, r.waiting = at, &shaper.RejectError{Reason: shaper.ErrQueueFull}, len(line)
		case 'l':
			line[0].departed = at
			line = line[1:]
		case 'v':
			line[slices.IndexFunc(line, func(r *requestLog) bool { return !gone(r) })].client = &impatientClient{left: at}
		case 'a':
			i := slices.IndexFunc(line, gone)
			line = slices.Delete(line, i, i+1)
		}
		if strings.ContainsRune("epf", what) {
			requests = append(requests, r)
		}
	}
	return requests
}

// trialOf makes a trial from a history and its results.
func trialOf(timeline string, results tally) trial {
	got := trial{tally: results, requests: history(timeline)}
	for _, r := range got.requests {
		got.arrived = append(got.arrived, r.arrived)
		if !r.departed.IsZero() {
			got.reached = append(got.reached, r.departed)
		}
	}
	return got
}

func TestAWrongRefusalOrAdmissionIsAFault(t *testing.T) {
	refused := func(reason error, waiting int) *requestLog {
		return &requestLog{refused: time.Unix(1, 0), reason: &shaper.RejectError{Reason: reason}, waiting: waiting}
	}
	for name, c := range map[string]struct {
		limits  string
		request *requestLog
		wrong   bool
	}{
		"a full line refuses":      {"100/s depth 2", refused(shaper.ErrQueueFull, 2), false},
		"refused with a place":     {"100/s depth 2", refused(shaper.ErrQueueFull, 1), true},
		"one too many waits":       {"100/s depth 2", &requestLog{enqueued: time.Unix(1, 0), waiting: 3}, true},
		"without a line":           {"100/s burst 2", refused(shaper.ErrQueueFull, 0), false},
		"too late for MaxWait":     {"100/s depth 9 wait 10ms", refused(shaper.ErrTooLate, 1), false},
		"not too late for MaxWait": {"100/s depth 9 wait 30ms", refused(shaper.ErrTooLate, 1), true},
		"no MaxWait":               {"100/s depth 9", refused(shaper.ErrTooLate, 8), true},
	} {
		require.Equal(t, c.wrong, misjudged(newLimitsInfo(limitsOf(t, c.limits)), c.request) != "", name)
	}
}

// A gap between departures is a lost slot, unless the shaper itself reports that
// the machine was that late.
func TestLostSlots(t *testing.T) {
	for name, c := range map[string]struct {
		limits, timeline string
		missed           float64
		lost             int
	}{
		"one every interval":         {"100/s depth 9 slack 1ms", "peee      l         l         l", 0, 0},
		"late within the slack":      {"100/s depth 9 slack 1ms", "peee       l         l        l", 0, 0},
		"one slot lost":              {"100/s depth 9 slack 1ms", "peee                l         l", 0, 1},
		"two slots lost":             {"100/s depth 9 slack 1ms", "peee                          l", 0, 2},
		"late, and owned up to":      {"100/s depth 9 slack 1ms", "peee                l         l", 0.9, 0},
		"none was waiting":           {"100/s depth 9 slack 1ms", "p                   p", 0, 0},
		"none was waiting until now": {"100/s depth 9 slack 1ms", "p       e l", 0, 0},
		"kept waiting alone":         {"100/s depth 9 slack 1ms", "p                 e         l", 0, 1},
		"the default slack":          {"100/s depth 9", "pee                           l         l", 0, 0},
		"more than that":             {"100/s depth 9", "pee                            l         l", 0, 1},
		"no interval to lose":        {"inf", "p              p", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			shaped := trial{requests: history(c.timeline), missedUnits: c.missed}
			require.Equal(t, c.lost, lostSlots(newLimitsInfo(limitsOf(t, c.limits)), shaped))
		})
	}
}

// requireFault requires that a demonstration has the one fault that says so, or none if that is "".
func requireFault(t *testing.T, says string, faults []string) {
	t.Helper()
	if says == "" {
		require.Empty(t, faults)
		return
	}
	require.Len(t, faults, 1)
	require.Contains(t, faults[0], says)
}

func TestJudgeBurst(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "100/s depth 3 slack 1ms"))
	s := capacity{workers: 3, serviceTime: 10 * time.Millisecond}
	const even = "peeeff    l         l         l"
	good := tally{sent: 6, served: 4, refused: 2}
	failed := tally{sent: 6, served: 4, failed: 2}
	for name, c := range map[string]struct {
		direct    tally
		shaped    trial
		impatient int
		says      string // "": nothing
	}{
		"all is well":             {failed, trialOf(even, good), 0, ""},
		"direct did not fail":     {tally{sent: 6, served: 6}, trialOf(even, good), 0, "the upstream served the burst of 6"},
		"too small a burst":       {tally{sent: 3, served: 3}, trialOf("pee       l         l", tally{sent: 3, served: 3}), 0, "the burst of 3 fits into the upstream's"},
		"one failed":              {failed, trialOf(even, tally{sent: 6, served: 3, failed: 1, refused: 2}), 0, "1 request failed behind the shaper"},
		"one got nothing":         {failed, trialOf(even, tally{sent: 6, served: 3, other: 1, refused: 2}), 0, "got no response, or one that this"},
		"one never arrived":       {failed, trialOf(even, tally{sent: 6, served: 5, refused: 1}), 0, "5 were served behind the shaper, but 4"},
		"refused with room":       {failed, trialOf("peefef    l         l         l", good), 0, "a request was refused"},
		"a slot passed":           {failed, trialOf("peeeff    l         l                   l", good), 0, "1 slot passed unused"},
		"at its turn, handed on":  {failed, trialOf("peee va    l         l", tally{sent: 4, served: 3, left: 1}), 2, ""},
		"one slot may be lost":    {failed, trialOf("peee v     l         l         l", tally{sent: 4, served: 3, left: 1}), 2, ""},
		"two slots were spent":    {failed, trialOf("peee vv    l         l         l", tally{sent: 4, served: 2, left: 2}), 2, "2 slots were given to clients that had d"},
		"two slots went by":       {failed, trialOf("peee va                        l         l", tally{sent: 4, served: 3, left: 1}), 2, "2 slots were given to clients that had d"},
		"none disconnected":       {failed, trialOf("peee       l         l         l", tally{sent: 4, served: 4}), 2, "none of 2 impatient clients"},
		"the patient are refused": {failed, trialOf("peeeff va  l         l", tally{sent: 6, served: 3, left: 1, refused: 2}), 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.shaped.impatient = c.impatient
			faults := judgeBurst(info, s, trial{tally: c.direct}, c.shaped)
			requireFault(t, c.says, faults)
		})
	}
}

func TestSendTimesAreOneForEachInOrder(t *testing.T) {
	const span = 250 * time.Millisecond
	for _, n := range []int{0, 1, 2, 7, 150, 10_000} {
		sends := sendTimes(n, span)
		require.Len(t, sends, n)
		require.IsNonDecreasing(t, append([]time.Duration{0, 0}, sends...))
		if n > 2 {
			require.Zero(t, sends[0])
			require.Equal(t, span, sends[n-1])
		}
	}
}

// The upstream must be at least three times as fast as the shaped rate, and take
// what leaves at once. But it must be too slow for the direct burst.
func TestUpstreamIsFastEnoughForTheShaperAndTooSlowForTheBurst(t *testing.T) {
	for text, burst := range map[string]int{
		"50/s depth 100":         150,
		"60/s depth 20":          120,
		"1/s depth 5":            10,
		"10/min depth 3":         5,
		"20/s burst 30 depth 40": 100,
		"1000/s depth 100":       400,
	} {
		t.Run(text, func(t *testing.T) {
			info := newLimitsInfo(limitsOf(t, text))
			s := capacityFor(info, burst)
			require.GreaterOrEqual(t, s.perSecond(), 3*info.rate)
			require.GreaterOrEqual(t, s.workers, info.atOnce+1)
			meanwhile := s.perSecond() * burstSpan(burst, s).Seconds()
			require.Greater(t, float64(burst), float64(s.workers)+meanwhile)
		})
	}
	require.Positive(t, capacityFor(newLimitsInfo(limitsOf(t, "inf")), 10).workers)
	require.Positive(t, capacityFor(newLimitsInfo(limitsOf(t, "1000000000/s burst 1000000000")), 10).workers)
	require.Zero(t, burstSpan(3, capacity{workers: 10, serviceTime: time.Second}))
}

func TestImpatientClientsAreSpreadOverTheBurst(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "50/s depth 100"))
	for percent, want := range map[int]int{0: 0, 1: 1, 33: 49, 50: 75, 100: 150} {
		all := chooseImpatient(150, percent, info)
		require.Len(t, all, want)
		uploads, within := 0, 0
		for i, c := range all {
			if c.upload {
				uploads++
			}
			if i < 75 {
				within++
			}
			require.GreaterOrEqual(t, c.patiencePerPlace, 2*time.Millisecond)
			require.LessOrEqual(t, c.patiencePerPlace, 8*time.Millisecond)
		}
		require.Equal(t, want/2, uploads)
		require.InDelta(t, want/2, within, 1, "in the first half")
	}
}

// trials returns a direct and a shaped trial at 20/s. 12 requests arrive at 0 ms
// and 6 at 100 ms; 15 of them leave, one every 50 ms. Of these, two in three reach
// the upstream 8 ms early or late.
func trials() (direct, shaped trial) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for i := range 18 {
		r := &requestLog{arrived: at(i / 12 * 100)}
		switch {
		case i == 0:
			r.departed = at(1)
		case i < 15:
			r.enqueued, r.departed = r.arrived, at(1+50*i)
		default:
			r.refused = r.arrived
		}
		shaped.requests = append(shaped.requests, r)
		shaped.arrived = append(shaped.arrived, r.arrived)
		if r.refused.IsZero() {
			shaped.reached = append(shaped.reached, r.departed.Add([]time.Duration{0, -8, 8}[i%3]*time.Millisecond))
		}
	}
	shaped.tally = tally{sent: 18, served: 15, refused: 3, longestWait: 701 * time.Millisecond}
	direct.arrived, direct.reached = shaped.arrived, shaped.arrived
	direct.tally = tally{sent: 18, served: 4, failed: 14}
	return direct, shaped
}

func plain() *terminal { return newTerminal(&bytes.Buffer{}, func(error) {}) }

// The two clumps of arrivals stand out. The departures look even, one in every
// second column, although each is up to 8 ms early or late.
func TestPicturesShowABurstAndEvenDepartures(t *testing.T) {
	direct, shaped := trials()
	info := newLimitsInfo(limitsOf(t, "20/s depth 14"))
	require.Equal(t, strings.TrimPrefix(`
  direct: 18 reach the upstream within 100 ms
    12 █
       █
       █       ▄
       █       █
       █       █
  shaped: 18 arrive at the proxy within 100 ms
    12 █
       █
       █       ▄
       █       █
       █       █
  shaped: 15 reach the upstream within 708 ms
     1 ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃   ▃
       ─┴───────────────┴───────────────┴───────────────┴───────
        0 ms            200 ms          400 ms          600 ms
  one column is 25 ms; the number is how many requests the highest bar counts
`, "\n"), burstChart(plain(), info, direct, shaped))

	require.Equal(t, strings.TrimPrefix(`
                                     direct     shaped
  sent                                   18         18
  served                                  4         15
  refused with 429                        0          3
  failed (5xx)                           14          0
  smallest gap at the upstream          0 s      42 ms
  median gap at the upstream            0 s      42 ms
  longest wait                            -     701 ms
`, "\n"), burstTable(plain(), info, direct, shaped))

	svg := burstSVG(info, shaped)
	require.NoError(t, xml.Unmarshal([]byte(svg), new(struct{})), "it is well formed")
	require.Contains(t, svg, `role="img" aria-label="With limits 20/s depth 14, a ragged burst of 18 requests`)
	require.Contains(t, svg, "prefers-color-scheme:dark")
	require.Equal(t, 18, strings.Count(svg, "h5"), "arrivals")
	require.Equal(t, 15, strings.Count(svg, "v-34"), "departures")
	require.Contains(t, svg, "3 do not fit, and are refused at once")
	require.Contains(t, svg, "one every 50 ms")
	for _, foreign := range []string{"<script", "@import", "url(", "href"} {
		require.NotContains(t, svg, foreign)
	}
}

func TestChartFitsTheScreen(t *testing.T) {
	for _, limits := range []string{"20/s depth 14", "7/s depth 9", "1/s depth 1", "1000000/s depth 3", "1 per 365d depth 4", "49.99/s depth 5", "inf"} {
		direct, shaped := trials()
		shown := burstChart(plain(), newLimitsInfo(limitsOf(t, limits)), direct, shaped)
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, len([]rune(line)), 81, "%s\n%s", limits, shown)
		}
	}
}

func TestJudgeOutbound(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "10/s depth 20 slack 10ms"))
	apart := []time.Time{time.UnixMilli(0), time.UnixMilli(95), time.UnixMilli(195)}
	together := []time.Time{time.UnixMilli(0), time.UnixMilli(100), time.UnixMilli(101)}
	for says, spoil := range map[string]func(direct, shaped *poolResult){
		"":                              func(_, _ *poolResult) {},
		"nothing to show":               func(direct, _ *poolResult) { direct.refused = 0 },
		"1 call was refused by the API": func(_, shaped *poolResult) { shaped.refused = 1 },
		"2 calls were refused by the API behind the shaper, because two reached it within 25 ms":                                                   func(_, shaped *poolResult) { shaped.refused, shaped.departed = 2, together },
		"two reached it within 25 ms that had left the shaper at least 95 ms apart, in both tries: this machine is too busy; try a slower -limits": func(_, shaped *poolResult) { shaped.refused, shaped.departed = 2, apart },
		"1 call failed":  func(direct, _ *poolResult) { direct.failed = 1 },
		"2 calls failed": func(_, shaped *poolResult) { shaped.other = 2 },
		"3 calls were served with the shaper, 3 without it": func(_, shaped *poolResult) { shaped.served = 3 },
		"32 calls were served in 3 s, but only 31 may":      func(_, shaped *poolResult) { shaped.served = 32 },
	} {
		direct, shaped := poolResult{tally: tally{served: 3, refused: 60}}, poolResult{tally: tally{served: 31}}
		spoil(&direct, &shaped)
		requireFault(t, says, judgeOutbound(info, 25*time.Millisecond, direct, shaped))
	}
	inBursts := newLimitsInfo(limitsOf(t, "10/s burst 5 depth 20"))
	requireFault(t, `within 25 ms: "10/s burst 5 depth 20" lets requests leave together`,
		judgeOutbound(inBursts, 25*time.Millisecond, poolResult{tally: tally{refused: 60}}, poolResult{tally: tally{served: 31, refused: 2}}))
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
		client := &http.Client{Transport: script{func() (int, string, error) {
			a := results[asked]
			require.Equal(t, a.at, time.Since(start), asked)
			asked++
			return a.status, a.after, a.err
		}}}
		var saw tally
		callAll(ctx, 1, client, "http://x/", saw.add)
		require.Equal(t, len(results), asked)
		require.Equal(t, tally{sent: 7, served: 1, refused: 3, rejected: 1, failed: 1, other: 1}, saw)
	})
}

// In virtual time the scene has the result that it is meant to show, and its picture is
// well-formed.
func TestTokensAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(t, tokensLimits)
		start := time.Now()
		direct, unsettled, settled, err := callForTokens(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, tokensSpan/tokensSpeed, time.Since(start))
		require.Empty(t, judgeTokens(direct, unsettled, settled))
		require.InDelta(t, 48, unsettled.perMinute(), 4)
		require.Greater(t, settled.perMinute(), 115.0)
		require.Greater(t, direct.refused, 100)

		picture := tokensSVG(l, unsettled, settled)
		require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})), "it is well formed")
		require.NotContains(t, picture, "NaN")
		require.Contains(t, tokensTable(newTerminal(io.Discard, nil), direct, unsettled, settled), "refused by the API")
	})
}

func TestJudgeTokens(t *testing.T) {
	for says, spoil := range map[string]func(direct, unsettled, settled *tokenRun){
		"":                              func(_, _, _ *tokenRun) {},
		"nothing to show":               func(direct, _, _ *tokenRun) { direct.refused = 0 },
		"1 call was refused by the API": func(_, unsettled, _ *tokenRun) { unsettled.refused = 1 },
		"79 calls were served":          func(_, _, settled *tokenRun) { settled.served = 79 },
	} {
		direct, unsettled, settled := tokenRun{refused: 9}, tokenRun{served: 40}, tokenRun{served: 80}
		spoil(&direct, &unsettled, &settled)
		faults := judgeTokens(direct, unsettled, settled)
		requireFault(t, says, faults)
	}
}

// In virtual time the scene shows what it is there for, and its picture is well-formed.
func TestPeopleGetTheirTurnBesideABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(t, fairLimits)
		start := time.Now()
		plain, fair, err := callBesideABurst(t.Context(), l)
		require.NoError(t, err)
		require.Empty(t, judgeFair(plain, fair))
		require.Equal(t, plain.end(), fair.end(), "no slot is lost")
		require.Equal(t, plain.end(), time.Since(start)*fairSpeed)

		const slot = time.Second / 50
		inOneLine, longestInOneLine := plain.waits(true)
		byTurns, longestByTurns := fair.waits(true)
		t.Log(inOneLine, longestInOneLine, byTurns, longestByTurns, plain.end())
		require.InDelta(t, 10, inOneLine.Seconds(), 1)
		require.Greater(t, longestInOneLine, 19*time.Second)
		require.LessOrEqual(t, byTurns, 2*slot)
		require.LessOrEqual(t, longestByTurns, 2*slot, "the second departure at the latest: no two people come within a slot")
		_, alone := plain.waits(false)
		_, shared := fair.waits(false)
		require.Equal(t, (fairBurst-1)*slot, alone)
		require.Equal(t, (fairBurst-1+fairPeople*fairCalls)*slot, shared)

		picture := fairSVG(l, plain, fair)
		require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})), "it is well formed")
		require.NotContains(t, picture, "NaN")
		require.Regexp(t, `longest wait of the burst +20 s +21 s`, fairTable(newTerminal(io.Discard, nil), plain, fair))
	})
}

func TestJudgeFair(t *testing.T) {
	begin := time.Now()
	for says, spoil := range map[string]func(plain, fair *fairRun){
		"":                       func(_, _ *fairRun) {},
		"1 call was refused":     func(_, fair *fairRun) { fair.refused = 1 },
		"2 calls were refused":   func(plain, _ *fairRun) { plain.refused = 2 },
		"on average":             func(_, fair *fairRun) { fair.left[1].at = begin.Add(200 * time.Millisecond) },
		"more than the mean of ": func(_, fair *fairRun) { fair.left[1].at = begin.Add(2 * time.Second) },
	} {
		plain := fairRun{begin: begin, left: []departure{{burstKey, begin, begin}, {1, begin, begin.Add(time.Second)}}}
		fair := fairRun{begin: begin, left: []departure{{burstKey, begin, begin}, {1, begin, begin.Add(100 * time.Millisecond)}}}
		spoil(&plain, &fair)
		faults := judgeFair(plain, fair)
		if says == "" {
			require.Empty(t, faults)
			continue
		}
		require.Contains(t, strings.Join(faults, "\n"), says)
	}
}

func TestFairNeedsARate(t *testing.T) {
	p := start("-fair", "-limits", "inf depth 9")
	require.Equal(t, exitFailed, p.ends(t))
	require.Contains(t, p.stderr.String(), "-fair needs a rate")
}
