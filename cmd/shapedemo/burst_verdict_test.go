package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
//	t  a request is refused because it would leave too late
//	v  the client of the first in line that has not disconnected disconnects
//	V  the client of the last in line disconnects
//	a  the first request whose client has disconnected is abandoned
func history(timeline string) (requests []*requestLog) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var line []*requestLog
	for i, what := range timeline {
		at := begin.Add(time.Duration(i) * time.Millisecond)
		r := &requestLog{arrived: at}
		switch what {
		case 'e':
			line = append(line, r)
			r.enqueued, r.waiting = at, len(line)
		case 'l':
			line[0].departed = at
			line = line[1:]
			continue
		case 'v', 'V':
			i := slices.IndexFunc(line, func(r *requestLog) bool { return r.disconnected.IsZero() })
			if what == 'V' {
				i = len(line) - 1
			}
			line[i].disconnected = at
			continue
		case 'a':
			i := slices.IndexFunc(line, func(r *requestLog) bool { return !r.disconnected.IsZero() })
			line[i].abandoned = at
			line = slices.Delete(line, i, i+1)
			continue
		case 'p':
			r.departed = at
		case 'f':
			r.refused, r.reason, r.waiting = at, &shaper.RejectError{Reason: shaper.ErrQueueFull}, len(line)
		case 't':
			r.refused, r.reason, r.waiting = at, &shaper.RejectError{Reason: shaper.ErrTooLate}, len(line)
		default:
			continue
		}
		requests = append(requests, r)
	}
	return requests
}

func TestAWrongRefusalOrAdmissionIsAFault(t *testing.T) {
	refused := func(reason error, waiting int) *requestLog {
		return &requestLog{refused: time.Unix(1, 0), reason: &shaper.RejectError{Reason: reason}, waiting: waiting}
	}
	for name, c := range map[string]struct {
		limits  string
		request *requestLog
		faults  int
	}{
		"a full line refuses":      {"100/s depth 2", refused(shaper.ErrQueueFull, 2), 0},
		"refused with a place":     {"100/s depth 2", refused(shaper.ErrQueueFull, 1), 1},
		"one too many waits":       {"100/s depth 2", &requestLog{enqueued: time.Unix(1, 0), waiting: 3}, 1},
		"without a line":           {"100/s burst 2", refused(shaper.ErrQueueFull, 0), 0},
		"too late for MaxWait":     {"100/s depth 9 wait 10ms", refused(shaper.ErrTooLate, 1), 0},
		"not too late for MaxWait": {"100/s depth 9 wait 30ms", refused(shaper.ErrTooLate, 1), 1},
		"no MaxWait":               {"100/s depth 9", refused(shaper.ErrTooLate, 8), 1},
	} {
		require.Len(t, misjudged(newLimitsInfo(limitsOf(t, c.limits)), []*requestLog{c.request}), c.faults, name)
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

func TestJudge(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "100/s depth 2"))
	s := capacity{workers: 3, serviceTime: 10 * time.Millisecond}
	good := func() (direct, shaped trial) {
		shaped.requests = history("peeff     l         l")
		for _, r := range shaped.requests {
			shaped.arrived = append(shaped.arrived, r.arrived)
			if r.refused.IsZero() {
				shaped.reached = append(shaped.reached, r.departed)
			}
		}
		shaped.tally = tally{sent: 5, served: 3, refused: 2}
		direct.tally = tally{sent: 5, served: 3, failed: 2}
		return direct, shaped
	}
	direct, shaped := good()
	require.Empty(t, judgeBurst(info, s, direct, shaped))
	minimum, maximum := bounds(info, shaped)
	require.Equal(t, 3, minimum)
	// 1 at once, 2 wait, and 3 more may leave in the 2 ms up to the last
	// admission and the 20 ms of slack.
	require.Equal(t, 5, maximum)

	for says, spoil := range map[string]func(direct, shaped *trial){
		"the upstream served the burst of 5":      func(direct, _ *trial) { direct.tally = tally{sent: 5, served: 5} },
		"the burst of 2 fits into the upstream's": func(direct, _ *trial) { direct.tally = tally{sent: 2, served: 2} },
		"1 request failed behind the shaper":      func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, failed: 1, refused: 2} },
		"got no response, or one that this":       func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, other: 1, refused: 2} },
		"5 were sent through the shaper, but 4":   func(_, shaped *trial) { shaped.refused = 1 },
		"3 were served behind the shaper, but 2":  func(_, shaped *trial) { shaped.reached = shaped.reached[:2] },
		"2 were admitted by the shaper, but from": func(_, shaped *trial) { shaped.served, shaped.refused = 2, 3 },
		"a request was refused":                   func(_, shaped *trial) { shaped.requests[3].waiting = 1 },
	} {
		t.Run(says, func(t *testing.T) {
			direct, shaped := good()
			spoil(&direct, &shaped)
			faults := judgeBurst(info, s, direct, shaped)
			require.NotEmpty(t, faults)
			text := burstVerdict(plain(), info, direct, shaped, faults)
			require.Contains(t, text, says)
			require.Contains(t, text, "✗")
		})
	}
}

func TestJudgeOfImpatientClients(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "100/s depth 3 slack 1ms"))
	s := capacity{workers: 3, serviceTime: 10 * time.Millisecond}
	direct := trial{tally: tally{sent: 4, served: 3, failed: 1}}
	with := func(timeline string, shaped tally) trial {
		got := trial{tally: shaped, impatient: 2, requests: history(timeline)}
		for _, r := range got.requests {
			got.arrived = append(got.arrived, r.arrived)
			if !r.departed.IsZero() {
				got.reached = append(got.reached, r.departed)
			}
		}
		return got
	}
	for name, c := range map[string]struct {
		shaped trial
		says   string // "": nothing
	}{
		"at its turn, handed on":  {with("peee va    l         l", tally{sent: 4, served: 3, disconnected: 1}), ""},
		"one slot may be lost":    {with("peee v     l         l         l", tally{sent: 4, served: 3, disconnected: 1}), ""},
		"two slots were spent":    {with("peee vv    l         l         l", tally{sent: 4, served: 2, disconnected: 2}), "2 slots were given to clients that had d"},
		"two slots went by":       {with("peee va                        l         l", tally{sent: 4, served: 3, disconnected: 1}), "2 slots were given to clients that had d"},
		"none disconnected":       {with("peee       l         l         l", tally{sent: 4, served: 4}), "none of 2 impatient clients"},
		"a response is missing":   {with("peee va    l         l", tally{sent: 4, served: 2, disconnected: 1}), "4 were sent through the shaper, but 3"},
		"fewer were admitted":     {with("peee va    l         l", tally{sent: 4, served: 2, disconnected: 1, refused: 1}), "3 were admitted by the shaper, but from 4"},
		"the patient are refused": {with("peeeff va  l         l", tally{sent: 6, served: 3, disconnected: 1, refused: 2}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			faults := judgeBurst(info, s, direct, c.shaped)
			if c.says == "" {
				require.Empty(t, faults)
				return
			}
			require.Contains(t, burstVerdict(plain(), info, direct, c.shaped, faults), c.says)
		})
	}
}

func TestRaggedSendsEachOnceInOrder(t *testing.T) {
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
			require.GreaterOrEqual(t, s.workers, int64(info.atOnce)+1)
			meanwhile := s.perSecond() * burstSpan(burst, s).Seconds()
			require.Greater(t, float64(burst), float64(s.workers)+meanwhile)
		})
	}
	require.Positive(t, capacityFor(newLimitsInfo(limitsOf(t, "inf")), 10).workers)
	require.Positive(t, capacityFor(newLimitsInfo(limitsOf(t, "1000000000/s burst 1000000000")), 10).workers)
	require.Zero(t, burstSpan(3, capacity{workers: 10, serviceTime: time.Second}))
}

// elements parses an SVG to its end, and counts its elements.
func elements(t *testing.T, text string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
		}
	}
}

func TestDrawingHasAMarkForEachRequest(t *testing.T) {
	_, shaped := trials()
	svg := burstSVG(newLimitsInfo(limitsOf(t, "20/s depth 14")), shaped)
	require.Equal(t, 1, elements(t, svg)["svg"])
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

func TestSVGFlagDrawsTheRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "burst.svg")
	p := start("-svg", file, "-limits", "60/s depth 5", "-burst", "120")
	require.Equal(t, exitOK, p.ends(t), "%s%s", &p.stdout, &p.stderr)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 120, strings.Count(string(text), "h5"))
	require.NotContains(t, p.stdout.String(), "Serving")
}

func TestImpatientClientsAreSpreadOverTheBurst(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "50/s depth 100"))
	for percent, want := range map[int]int{0: 0, 1: 1, 33: 49, 50: 75, 67: 100, 100: 150} {
		all := chooseImpatient(150, percent, info, nil)
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

// filled returns a proxy with a full bucket, which records its requests.
func filled(t *testing.T, limits string, serviceTime time.Duration) *proxy {
	t.Helper()
	f, err := startFragileUpstream(capacity{workers: 9, serviceTime: serviceTime})
	require.NoError(t, err)
	t.Cleanup(f.close)
	front, err := listenFront(config{addr: "127.0.0.1:0"})
	require.NoError(t, err)
	p, err := startProxy(front.listener, limitsOf(t, limits), f.url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	p.requests.startRecording()
	require.True(t, p.shaper.Allow())
	return p
}

// A client whose turn has come does not wait any more: its patience must not run
// out while it is being served. Its turn comes once it is in line. On a busy machine that
// may be too late for it: then a client with more patience, which is served for longer in
// turn, tries again.
func TestAnImpatientClientWhoseTurnComesStays(t *testing.T) {
	t.Parallel()
	soon := limitsOf(t, "1000/s depth 2")
	for patience := 300 * time.Millisecond; ; patience *= 2 {
		p := filled(t, "6/h depth 2", 2*patience)
		go func() {
			for p.shaper.Stats().Waiting == 0 && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			_ = p.shaper.SetLimits(soon)
		}()
		c := &impatientClient{log: &p.requests, upload: true, patiencePerPlace: patience}
		got := c.send(t.Context(), p.url)
		requests := p.requests.stopRecording()
		if got.disconnected && patience < 3*time.Second {
			continue
		}
		require.Equal(t, http.StatusOK, got.status)
		require.False(t, got.disconnected)
		require.Len(t, requests, 1)
		require.Same(t, c, requests[0].client)
		require.NotZero(t, requests[0].enqueued)
		require.Zero(t, requests[0].disconnected)
		return
	}
}

func TestAnImpatientClientLeavesTheLine(t *testing.T) {
	for name, upload := range map[string]bool{"download": false, "upload": true} {
		t.Run(name, func(t *testing.T) {
			p := filled(t, "6/h depth 2", 0)
			c := &impatientClient{log: &p.requests, upload: upload, patiencePerPlace: 10 * time.Millisecond}
			require.Equal(t, result{disconnected: true}, c.send(t.Context(), p.url))
			requests := p.requests.stopRecording() // It returns when the shaper, too, has noticed.
			require.Len(t, requests, 1)
			require.Equal(t, c.disconnectedAt(), requests[0].disconnected)
			require.Less(t, requests[0].abandoned.Sub(requests[0].disconnected), time.Minute)
			require.Zero(t, requests[0].departed)
			require.Zero(t, p.shaper.Stats().Waiting)
		})
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
func TestChartShowsABurstAndEvenDepartures(t *testing.T) {
	direct, shaped := trials()
	got := burstChart(plain(), newLimitsInfo(limitsOf(t, "20/s depth 14")), direct, shaped)
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
       ┴───────────────┴───────────────┴───────────────┴────────
       0 ms            200 ms          400 ms          600 ms
  one column is 25 ms; the number is how many requests the highest bar counts
`, "\n"), got)
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

func TestTable(t *testing.T) {
	direct, shaped := trials()
	require.Equal(t, strings.TrimPrefix(`
                                     direct     shaped
  sent                                   18         18
  served                                  4         15
  refused with 429                        0          3
  failed (5xx)                           14          0
  smallest gap at the upstream          0 s      42 ms
  median gap at the upstream            0 s      42 ms
  longest wait                            -     701 ms
`, "\n"), burstTable(plain(), newLimitsInfo(limitsOf(t, "20/s depth 14")), direct, shaped))
}

// The status line is only shown on a terminal, and leaves nothing behind.
func TestStatusIsWrittenOver(t *testing.T) {
	var b bytes.Buffer
	screen := newTerminal(&b, func(error) {})
	screen.status("unseen")
	require.Empty(t, b.String())

	screen.live = true
	screen.status("abc")
	screen.status("d")
	screen.say("e")
	require.Equal(t, "abc"+"\r   \r"+"d"+"\r \r"+"e\n", b.String())
}
