package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// history writes passages as a timeline: letters for what happened at each
// millisecond. e enters the line, l leaves it (first in, first out), p passes
// without waiting, f is refused as the line is full, t as too late.
func history(timeline string) (passages []*passage) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var line []*passage
	for i, what := range timeline {
		at := begin.Add(time.Duration(i) * time.Millisecond)
		p := &passage{arrived: at}
		switch what {
		case 'e':
			p.queued = at
			line = append(line, p)
		case 'l':
			line[0].left = at
			line = line[1:]
			continue
		case 'p':
			p.left = at
		case 'f':
			p.refused, p.reason = at, &shaper.RejectError{Reason: shaper.ErrQueueFull}
		case 't':
			p.refused, p.reason = at, &shaper.RejectError{Reason: shaper.ErrTooLate}
		default:
			continue
		}
		passages = append(passages, p)
	}
	return passages
}

func TestReplayFindsWhoWasWronglyRefusedOrAdmitted(t *testing.T) {
	for name, c := range map[string]struct {
		limits, timeline string
		faults           int
	}{
		"a full line refuses":           {"100/s depth 2", "peeff     l         l", 0},
		"a freed place is given":        {"100/s depth 2", "pee       lef       l         l", 0},
		"refused with a place free":     {"100/s depth 2", "pef       l", 1},
		"refused after a departure":     {"100/s depth 2", "pee       lf        l", 1},
		"one too many waits":            {"100/s depth 2", "peee      l         l         l", 1},
		"too late only with a MaxWait":  {"100/s depth 9", "pet       l", 1},
		"too late for MaxWait":          {"100/s depth 9 wait 10ms", "pett      l", 0},
		"not too late for MaxWait":      {"100/s depth 9 wait 30ms", "pet       l", 1},
		"without a line, level high":    {"100/s burst 2", "ppffff", 0},
		"without a line, level low":     {"100/s burst 2", "pf", 1},
		"without a line, after a while": {"100/s burst 2", "pp         f", 1},
		"without a line, just before":   {"100/s burst 2", "pp       fp", 0},
		"endless refuses nobody":        {"inf", "pf", 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, replay(meaningOf(limitsOf(t, c.limits)), history(c.timeline)), c.faults)
		})
	}
}

func TestJudge(t *testing.T) {
	m := meaningOf(limitsOf(t, "100/s depth 2"))
	s := size{workers: 3, service: 10 * time.Millisecond}
	good := func() (straight, shaped trial) {
		shaped.passages = history("peeff     l         l")
		for _, p := range shaped.passages {
			shaped.arrived = append(shaped.arrived, p.arrived)
			if p.refused.IsZero() {
				shaped.reached = append(shaped.reached, p.left)
			}
		}
		shaped.tally = tally{sent: 5, served: 3, refused: 2}
		straight.tally = tally{sent: 5, served: 3, failed: 2}
		return straight, shaped
	}
	straight, shaped := good()
	require.Empty(t, judge(m, s, straight, shaped))
	least, most := bounds(m, shaped)
	require.Equal(t, 3, least)
	// 1 at once, 2 wait, and 3 more may leave in the 2 ms up to the last
	// admission and the 20 ms of slack.
	require.Equal(t, 5, most)

	for says, spoil := range map[string]func(straight, shaped *trial){
		"the upstream stood the burst of 5":        func(straight, _ *trial) { straight.tally = tally{sent: 5, served: 5} },
		"the burst of 2 fits into the upstream's":  func(straight, _ *trial) { straight.tally = tally{sent: 2, served: 2} },
		"1 request failed behind the shaper":       func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, failed: 1, refused: 2} },
		"got no answer that this program expects":  func(_, shaped *trial) { shaped.tally = tally{sent: 5, served: 2, other: 1, refused: 2} },
		"5 were sent through the shaper, but 4":    func(_, shaped *trial) { shaped.refused = 1 },
		"3 were served behind the shaper, but 2":   func(_, shaped *trial) { shaped.reached = shaped.reached[:2] },
		"2 were served behind the shaper, but fro": func(_, shaped *trial) { shaped.served, shaped.refused = 2, 3 },
		"one was refused":                          func(_, shaped *trial) { shaped.passages = slices.Delete(shaped.passages, 1, 2) },
	} {
		t.Run(says, func(t *testing.T) {
			straight, shaped := good()
			spoil(&straight, &shaped)
			faults := judge(m, s, straight, shaped)
			require.NotEmpty(t, faults)
			text := verdict(plain(), m, straight, shaped, faults)
			require.Contains(t, text, says)
			require.Contains(t, text, "✗")
		})
	}
}

func TestVerdictSaysWhereTheBurstWent(t *testing.T) {
	m := meaningOf(limitsOf(t, "50/s depth 100"))
	straight := trial{tally: tally{sent: 150, served: 63, failed: 87}}
	for says, shaped := range map[string]tally{
		"101 fit at once, 13 left while\n  the burst came in, and the other 36 were told so": {sent: 150, served: 114, refused: 36},
		"101 fit, and the other 49\n  were told so":                                          {sent: 150, served: 101, refused: 49},
		"all were served, a little later":                                                    {sent: 90, served: 90},
	} {
		require.Contains(t, verdict(plain(), m, straight, trial{tally: shaped}, nil), says)
	}
}
