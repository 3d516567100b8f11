package main

import (
	"slices"
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

func TestVerdictSaysWhereTheBurstWent(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "50/s depth 100"))
	direct := trial{tally: tally{sent: 150, served: 63, failed: 87}}
	for says, shaped := range map[string]tally{
		"101 fitted at once, there was room for 13 more while the burst came in,\n  and the other 36 were refused at once, with 429.": {sent: 150, served: 114, refused: 36},
		"101 fitted, and the other 49 were refused at once, with 429.":                                                                {sent: 150, served: 101, refused: 49},
		"all were served, a little later": {sent: 90, served: 90},
		"66 disconnected while they waited and cost no slot;\n  70 were served, and the other 14 were refused at once, with 429.": {sent: 150, served: 70, refused: 14, disconnected: 66},
		"66 disconnected while they waited and cost no slot;\n  the other 84 were served.":                                        {sent: 150, served: 84, disconnected: 66},
	} {
		require.Contains(t, burstVerdict(plain(), info, direct, trial{tally: shaped}, nil), says)
	}
}
