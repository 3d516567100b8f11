package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// A gap between departures is a lost slot if a request was waiting, unless the shaper itself reports
// that the machine was that late.
func TestWastedSlots(t *testing.T) {
	type departure struct{ at, waited time.Duration } // in milliseconds
	for name, c := range map[string]struct {
		limits     string
		missed     float64
		departures []departure
		wasted     int
	}{
		"one every interval":         {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {10, 9}, {20, 18}}, 0},
		"late within the slack":      {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {11, 10}, {21, 19}}, 0},
		"one slot lost":              {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {20, 19}, {30, 28}}, 1},
		"two slots lost":             {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {30, 29}}, 2},
		"late, and owned up to":      {"100/s depth 9 slack 1ms", 0.9, []departure{{0, 0}, {20, 19}, {30, 28}}, 0},
		"none was waiting":           {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {20, 0}}, 0},
		"none was waiting until now": {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {10, 2}}, 0},
		"kept waiting alone":         {"100/s depth 9 slack 1ms", 0, []departure{{0, 0}, {28, 10}}, 1},
		"the default slack":          {"100/s depth 9", 0, []departure{{0, 0}, {30, 28}, {40, 37}}, 0},
		"more than that":             {"100/s depth 9", 0, []departure{{0, 0}, {31, 29}, {41, 38}}, 1},
		"no interval to lose":        {"inf", 0, []departure{{0, 0}, {15, 0}}, 0},
	} {
		begin := time.Now()
		visits := []*visit{{left: begin}} // It gave up, and cost no slot.
		for _, d := range c.departures {
			visits = append(visits, &visit{departed: begin.Add(d.at * time.Millisecond), waited: d.waited * time.Millisecond})
		}
		info := newLimitsInfo(limitsOf(t, c.limits))
		require.Equal(t, c.wasted, wastedSlots(info, visits, c.missed), name)
		visits[1].left = begin
		require.Equal(t, c.wasted+1, wastedSlots(info, visits, c.missed), "%s, and a slot for a client that had disconnected", name)
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
	const late, limits = "20/s depth 13 wait 700ms", "20/s depth 13"
	tooLate := func(v *visit, waiting int) {
		v.refused, v.waiting = &shaper.RejectError{Reason: shaper.ErrTooLate}, waiting
	}
	for name, c := range map[string]struct {
		limits string
		spoil  func(direct, shaped *trial)
		says   string // "": nothing
	}{
		"all is well":         {limits, func(_, _ *trial) {}, ""},
		"direct did not fail": {limits, func(direct, _ *trial) { direct.failed = 0 }, "the upstream served the burst of 18"},
		"too small a burst":   {limits, func(direct, _ *trial) { direct.failed, direct.sent = 0, 3 }, "the burst of 3 fits into the upstream's"},
		"one failed":          {limits, func(_, shaped *trial) { shaped.failed = 1 }, "1 request failed behind the shaper"},
		"one got nothing":     {limits, func(_, shaped *trial) { shaped.other = 1 }, "1 request got no response"},
		"one never arrived":   {limits, func(_, shaped *trial) { shaped.served = 16 }, "16 were served behind the shaper, but 15"},
		"one too many came":   {limits, func(_, shaped *trial) { shaped.served = 14 }, "14 were served behind the shaper, but 15"},
		"refused with room":   {limits, func(_, shaped *trial) { shaped.visits[17].waiting = 12 }, "with 12 in a line of 13"},
		"one too many waits":  {limits, func(_, shaped *trial) { shaped.visits[14].waiting = 14 }, "14 waited in a line of 13"},
		"too late":            {late, func(_, shaped *trial) { tooLate(shaped.visits[17], 13) }, ""},
		"not too late":        {late, func(_, shaped *trial) { tooLate(shaped.visits[17], 12) }, "with 12 in a line of 13"},
		"no MaxWait":          {limits, func(_, shaped *trial) { tooLate(shaped.visits[17], 13) }, "a request was refused"},
		"a slot passed":       {limits, func(_, shaped *trial) { shaped.wasted = 1 }, "1 slot passed unused"},
		"none disconnected":   {limits, func(_, shaped *trial) { shaped.impatient = 2 }, "none of 2 impatient clients"},
		"two slots were spent": {limits, func(_, shaped *trial) { shaped.impatient, shaped.left, shaped.wasted = 2, 1, 2 },
			"2 slots were given to clients that had d"},
		"at its turn, a client disconnects": {limits, func(_, shaped *trial) {
			shaped.visits[3].left = shaped.visits[3].departed
			shaped.impatient, shaped.left, shaped.served, shaped.wasted = 2, 1, 14, 1
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			direct, shaped := trials()
			c.spoil(&direct, &shaped)
			requireFault(t, c.says, judgeBurst(newLimitsInfo(limitsOf(t, c.limits)), capacity{workers: 3}, direct, shaped))
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
		impatient, uploads, within := 0, 0, 0
		for i, v := range newVisits(150, percent, info) {
			if !v.impatient {
				require.False(t, v.upload)
				continue
			}
			impatient++
			if v.upload {
				uploads++
			}
			if i < 75 {
				within++
			}
			require.GreaterOrEqual(t, v.patiencePerPlace, 2*time.Millisecond)
			require.LessOrEqual(t, v.patiencePerPlace, 8*time.Millisecond)
		}
		require.Equal(t, want, impatient)
		require.Equal(t, want/2, uploads)
		require.InDelta(t, want/2, within, 1, "in the first half")
	}
}

// A client whose turn has come does not wait any more: its patience must not run out while it is being served.
func TestAnImpatientClientWhoseTurnComesStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for stays, turn := range map[bool]time.Duration{true: 3*time.Second - 1, false: 3*time.Second + 1} {
			disconnected := false
			v := &visit{impatient: true, patiencePerPlace: time.Second, disconnect: func() { disconnected = true }}
			ctx, begin := context.WithValue(t.Context(), visitKey{}, v), time.Now()
			traceVisits().Enqueued(ctx, shaper.Event{Waiting: 3})
			time.Sleep(turn)
			traceVisits().Departed(ctx, shaper.Event{})
			time.Sleep(time.Minute)
			require.Equal(t, 3, v.waiting)
			require.Equal(t, stays, v.leftAt().IsZero())
			require.Equal(t, stays, !disconnected)
			if !stays {
				require.Equal(t, 3*time.Second, v.leftAt().Sub(begin))
			}
		}
	})
}

// trials returns a direct and a shaped trial at 20/s. 12 requests arrive at 0 ms
// and 6 at 100 ms; 15 of them leave, one every 50 ms. Of these, two in three reach
// the upstream 8 ms early or late.
func trials() (direct, shaped trial) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	var visits []*visit
	var reached []time.Time
	for i := range 18 {
		v := &visit{arrived: at(i / 12 * 100), waiting: min(i-i/12, 13)}
		if i < 15 {
			v.got.status, v.departed = http.StatusOK, at(1+50*i)
			v.waited = v.departed.Sub(v.arrived)
			reached = append(reached, v.departed.Add([]time.Duration{0, -8, 8}[i%3]*time.Millisecond))
		} else {
			v.got.status, v.refused = http.StatusTooManyRequests, &shaper.RejectError{Reason: shaper.ErrQueueFull}
		}
		visits = append(visits, v)
	}
	shaped = newTrial(visits, reached)
	return trial{tally: tally{sent: 18, served: 4, failed: 14}, reached: shaped.arrived}, shaped
}

func plain() *terminal { return newTerminal(io.Discard, nil) }

// The two clumps of arrivals stand out. The departures look even, one in every
// second column, although each is up to 8 ms early or late.
func TestPicturesShowABurstAndEvenDepartures(t *testing.T) {
	direct, shaped := trials()
	info := newLimitsInfo(limitsOf(t, "20/s depth 13"))
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
  longest wait                            -     601 ms
`, "\n"), burstTable(plain(), direct, shaped))

	svg := burstSVG(info, shaped)
	require.NoError(t, xml.Unmarshal([]byte(svg), new(struct{})), "it is well formed")
	require.Contains(t, svg, `role="img" aria-label="With limits 20/s depth 13, a ragged burst of 18 requests`)
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
	for _, limits := range []string{"20/s depth 13", "7/s depth 9", "1/s depth 1", "1000000/s depth 3", "1 per 365d depth 4", "49.99/s depth 5", "inf"} {
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

// A transport answers the calls of a client.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestCallersWaitForAsLongAsTheyAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []struct {
			at     time.Duration // when it is asked for
			status int           // 0: none before the caller has gone
			after  string
			err    error
		}{
			{0, 200, "", nil},
			{0, 429, "3", nil},
			{3 * time.Second, 429, "soon", nil},
			{4 * time.Second, 429, "0", nil},
			{5 * time.Second, 0, "", &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: 2 * time.Second}},
			{7 * time.Second, 502, "", nil},
			{7100 * time.Millisecond, 0, "", errors.New("broken")},
			{7200 * time.Millisecond, 0, "", nil},
		}
		start, asked := time.Now(), 0
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			a := answers[asked]
			require.Equal(t, a.at, time.Since(start), asked)
			asked++
			if a.status == 0 && a.err == nil {
				<-r.Context().Done()
				a.err = r.Context().Err()
			}
			if a.err != nil {
				return nil, a.err
			}
			return &http.Response{StatusCode: a.status, Body: http.NoBody, Header: http.Header{"Retry-After": {a.after}}}, nil
		})}
		var saw tally
		callAll(ctx, 1, client, "http://x/", saw.add)
		require.Equal(t, len(answers), asked)
		require.Equal(t, tally{sent: 7, served: 1, refused: 3, rejected: 1, failed: 1, other: 1}, saw)
	})
}

// A caller that the shaper refuses comes back when its call has a chance. If it asked again at once, the time of the
// bubble would stand still. In a line with room for all, the longest wait is 44 s; of callers that come back, some wait
// far longer. So the second limits tell whether their 10 s are 10 s of the scene: nobody would be refused with 300.
func TestCallersThatAreRefusedComeBack(t *testing.T) {
	for _, limits := range []string{"1500/s burst 24000 depth 5", "1500/s burst 24000 depth 1000 wait 10s"} {
		synctest.Test(t, func(t *testing.T) {
			direct, unsettled, settled, err := callForTokens(t.Context(), limitsOf(t, limits))
			require.NoError(t, err)
			require.Empty(t, judgeTokens(direct, unsettled, settled))
			require.Greater(t, settled.longest, time.Minute)
		})
	}
}

// In virtual time the scene has the result that it is meant to show, also under a cap, and its picture is
// well-formed.
func TestTokensAreSettled(t *testing.T) {
	for _, limits := range []string{tokensLimits, tokensLimits + " inflight 100"} {
		synctest.Test(t, func(t *testing.T) {
			l := limitsOf(t, limits)
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
			require.Contains(t, tokensTable(plain(), direct, unsettled, settled), "refused by the API")
		})
	}
}

func TestJudgeTokens(t *testing.T) {
	for says, spoil := range map[string]func(direct, unsettled, settled *tokenRun){
		"":                              func(_, _, _ *tokenRun) {},
		"nothing to show":               func(direct, _, _ *tokenRun) { direct.refused = 0 },
		"1 call was refused by the API": func(_, unsettled, _ *tokenRun) { unsettled.refused = 1 },
		"79 calls were served":          func(_, _, settled *tokenRun) { settled.served = 79 },
		"0 calls were served":           func(_, unsettled, settled *tokenRun) { unsettled.served, settled.served = 0, 0 },
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
		require.InDelta(t, 10, plain.people.mean().Seconds(), 1)
		require.Greater(t, plain.people.longest, 19*time.Second)
		require.LessOrEqual(t, fair.people.longest, 2*slot, "the second departure at the latest: no two people come within a slot")
		require.Equal(t, (fairBurst-1)*slot, plain.burst.longest)
		require.Equal(t, (fairBurst-1+fairPeople*fairCalls)*slot, fair.burst.longest)

		picture := fairSVG(l, plain, fair)
		require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})), "it is well formed")
		require.NotContains(t, picture, "NaN")
		require.Regexp(t, `longest wait of the burst +20 s +21 s`, fairTable(newTerminal(io.Discard, nil), plain, fair))
	})
}

func TestJudgeFair(t *testing.T) {
	for says, spoil := range map[string]func(plain, fair *fairRun){
		"":                                       func(_, _ *fairRun) {},
		"1 call was refused":                     func(_, fair *fairRun) { fair.refused = 1 },
		"2 calls were refused":                   func(plain, _ *fairRun) { plain.refused = 2 },
		"a person waited 101 ms on average with": func(_, fair *fairRun) { fair.people.total += 2 * time.Millisecond },
		"a person waited 1.01 s with fair":       func(_, fair *fairRun) { fair.people.longest = 1010 * time.Millisecond },
	} {
		plain := fairRun{people: waits{n: 2, total: 2 * time.Second, longest: 2 * time.Second}}
		fair := fairRun{people: waits{n: 2, total: 200 * time.Millisecond, longest: time.Second}}
		spoil(&plain, &fair)
		requireFault(t, says, judgeFair(plain, fair))
	}
}

// In virtual time the scene shows what it is there for, and its picture is well-formed.
func TestARateThatAdaptsFollowsTheUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitsOf(t, adaptLimits)
		start := time.Now()
		fixed, adaptive, err := callWhatFalls(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, adaptEnd, time.Since(start))
		require.Empty(t, judgeAdapt(l, fixed, adaptive))
		require.InDelta(t, 700, fixed.refused, 40, "70 of 100 in each of ten seconds, less a burst")
		require.InDelta(t, adaptBorne(100), fixed.served, 40)
		for i, slice := range fixed.slices[1 : len(fixed.slices)-1] {
			require.InDelta(t, 50, slice.served+slice.refused, 5, "%d", i)
		}
		low := adaptive.slices[(adaptRise-time.Second)/adaptSlice]
		require.InDelta(t, 30, low.rate, 15)
		require.Greater(t, adaptive.slices[len(adaptive.slices)-2].rate, 80.0)
		require.NotZero(t, adaptive.stats.Refused)

		picture := adaptSVG(l, fixed, adaptive)
		require.NoError(t, xml.Unmarshal([]byte(picture), new(struct{})), "it is well formed")
		require.NotContains(t, picture, "NaN")
		require.Regexp(t, `refused by it, with 429 +\d{3} +\d{1,2}\n`, adaptTable(plain(), l, fixed, adaptive))
	})
}

func TestJudgeAdapt(t *testing.T) {
	for says, spoil := range map[string]func(fixed, adaptive *adaptRun){
		"":                      func(_, _ *adaptRun) {},
		"nothing to show":       func(fixed, adaptive *adaptRun) { fixed.refused, adaptive.refused = 0, 0 },
		"71 calls were refused": func(_, adaptive *adaptRun) { adaptive.refused = 71 },
		"2599 calls were served at the rate that adapts": func(_, adaptive *adaptRun) { adaptive.served = 2599 },
		"3 calls failed": func(fixed, adaptive *adaptRun) { fixed.failed, adaptive.failed = 1, 2 },
	} {
		fixed, adaptive := adaptRun{served: 3300, refused: 700}, adaptRun{served: 2600, refused: 70}
		spoil(&fixed, &adaptive)
		requireFault(t, says, judgeAdapt(limitsOf(t, adaptLimits), fixed, adaptive))
	}
}

func TestTheSpanOfASlowBurstDoesNotOverflow(t *testing.T) {
	require.Equal(t, 20*time.Second, fairSpan(limitsOf(t, fairLimits)))
	require.Equal(t, 100*365*24*time.Hour, fairSpan(limitsOf(t, "1 per 365d")))
}

// The shortest wait in the time of a scene must not become none, which is no bound.
func TestHastenedLimitsKeepTheirBound(t *testing.T) {
	l := shaper.Limits{Rate: 50, Burst: 2, Depth: 9, MaxWait: 3}
	require.Equal(t, shaper.Limits{Rate: 250, Burst: 2, Depth: 9, MaxWait: 1}, hastened(l, 5))
	l.MaxWait = 0
	require.Equal(t, shaper.Limits{Rate: 250, Burst: 2, Depth: 9}, hastened(l, 5))
}
