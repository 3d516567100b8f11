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
			r.enqueued = at
			line = append(line, r)
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
			r.refused, r.reason = at, &shaper.RejectError{Reason: shaper.ErrQueueFull}
		case 't':
			r.refused, r.reason = at, &shaper.RejectError{Reason: shaper.ErrTooLate}
		default:
			continue
		}
		requests = append(requests, r)
	}
	return requests
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
		"rate.Inf refuses none":         {"inf", "pf", 1},
		"an abandoned place is given":   {"100/s depth 2", "peevaef   l         l", 0},
		"refused after an abandonment":  {"100/s depth 2", "peevaf    l", 1},
		"the gone one still waits":      {"100/s depth 2", "peevf     a         l", 0},
		"the gone one was passed over":  {"100/s depth 2", "peeve     a         l         l", 0},
		"one only was passed over":      {"100/s depth 2", "peevee    a         l         l         l", 1},
		"gone only after its slot":      {"100/s depth 2", "pee       e v a         l         l", 0},
		"only a head is passed over":    {"100/s depth 2", "peeVe     a         l         l", 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, checkAgainstModel(newLimitsInfo(limitsOf(t, c.limits)), history(c.timeline)), c.faults)
		})
	}
}

// The shaper's clock never goes backwards, so on a busy machine many requests may have the same
// instant, in any order.
func TestReplayAllowsAnyOrderAtTheSameInstant(t *testing.T) {
	info := newLimitsInfo(limitsOf(t, "100/s depth 2"))
	at := func(requests []*requestLog, refusal, abandonment int) []*requestLog {
		requests[refusal].refused = requests[abandonment].abandoned
		return requests
	}
	require.Empty(t, checkAgainstModel(info, at(history("peevafl"), 3, 1)), "it was refused before the other gave up")
	require.Len(t, checkAgainstModel(info, at(history("pevaf"), 2, 1)), 1, "nor was the line full with that one")
	require.Len(t, checkAgainstModel(info, history("peevafl")), 1, "it was refused a millisecond later")
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
