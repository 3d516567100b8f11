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
// without waiting, f is refused as the line is full, t as too late. The client of
// the first in line vanishes with v, that of the last with V, and a abandons the
// first who has vanished.
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
		case 'v', 'V':
			i := slices.IndexFunc(line, func(p *passage) bool { return p.vanished.IsZero() })
			if what == 'V' {
				i = len(line) - 1
			}
			line[i].vanished = at
			continue
		case 'a':
			i := slices.IndexFunc(line, func(p *passage) bool { return !p.vanished.IsZero() })
			line[i].abandoned = at
			line = slices.Delete(line, i, i+1)
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
		"an abandoned place is given":   {"100/s depth 2", "peevaef   l         l", 0},
		"refused after an abandonment":  {"100/s depth 2", "peevaf    l", 1},
		"the vanished still waits":      {"100/s depth 2", "peevf     a         l", 0},
		"the vanished was passed over":  {"100/s depth 2", "peeve     a         l         l", 0},
		"one only was passed over":      {"100/s depth 2", "peevee    a         l         l         l", 1},
		"only a head is passed over":    {"100/s depth 2", "peeVe     a         l         l", 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, replay(meaningOf(limitsOf(t, c.limits)), history(c.timeline)), c.faults)
		})
	}
}

// The shaper's own instants tell a slot that nobody got from a machine that was
// late, if the shaper owns up to the lateness.
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
		"nobody was there":           {"100/s depth 9 slack 1ms", "p                   p", 0, 0},
		"nobody was there until now": {"100/s depth 9 slack 1ms", "p       e l", 0, 0},
		"kept waiting alone":         {"100/s depth 9 slack 1ms", "p                 e         l", 0, 1},
		"the default slack":          {"100/s depth 9", "pee                           l         l", 0, 0},
		"more than that":             {"100/s depth 9", "pee                            l         l", 0, 1},
		"no interval to lose":        {"inf", "p              p", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			shaped := trial{passages: history(c.timeline), missed: c.missed}
			require.Equal(t, c.lost, lost(meaningOf(limitsOf(t, c.limits)), shaped))
		})
	}
}
