package model

import (
	"math/big"
	"time"

	"golang.org/x/time/rate"
)

// waits returns how long each request of the line waits from now on, if all stay and
// no other comes, and as the last element how long a newcomer of cost n waits. Only the
// bucket and holds count: a seat that is missing now is taken to be free a nanosecond
// later. How long the wait for a seat is expected to be is seatWait.
func (m *simulator) waits(n int) []time.Duration {
	var waits []time.Duration
	empty, since := m.empty, later(later(m.since, m.hold), instant(m.now))
	if m.overtakes(n) {
		since = instant(m.now)
	}
	for i := range len(m.line) + 1 {
		cost := n
		if i < len(m.line) {
			cost = m.line[i].N
		}
		at := later(since, m.allowed(empty, cost))
		wait := m.until(at)
		if len(m.line) > 0 || !m.hasRoom() {
			wait = max(wait, 1)
		}
		waits = append(waits, wait)
		empty, since = new(big.Rat).Add(later(empty, at), m.take(cost)), at
	}
	if m.overtakes(n) {
		waits[len(m.line)] = 0
	}
	return waits
}

// until returns the time from now to the instant at which r is seen, or the
// longest duration if that time is longer.
func (m *simulator) until(r *big.Rat) time.Duration {
	d := seen(r)
	return saturated(d.Sub(d, big.NewInt(int64(m.now))))
}

// judge returns the answer to a newcomer: how long it waits, or why it is
// refused and when it may come again.
func (m *simulator) judge(o *Op) (wait time.Duration, refusal Answer) {
	if m.asksTurns(o) {
		wait, _, refusal = m.judgeTurn(o)
		return wait, refusal
	}
	line := m.waits(o.N)
	wait, line = line[len(m.line)], line[:len(m.line)]

	longest := m.limits.MaxWait
	if longest == 0 || longest > year {
		longest = year
	}
	again := wait - longest
	missed := false
	if o.Deadline != 0 {
		rest := o.Deadline - m.now
		missed = wait >= rest
		again = max(again, wait-max(rest, 1)+1)
	}
	again = max(again, m.seatWait(1))
	told := max(wait, m.seatWait(len(line)+1))

	depth := m.limits.Depth
	if o.Kind == OpAllow {
		depth = 0
	}
	if m.mistake == DepthOffByOne && depth > 0 {
		depth++
	}
	bounded := wait
	if m.mistake == HoldUnbounded {
		unheld := *m
		unheld.hold = new(big.Rat)
		bounded = unheld.waits(o.N)[len(m.line)]
	}
	switch {
	case m.closed:
		refusal.Result = Closed
		if len(line) > 0 {
			refusal.Retry = max(line[len(line)-1], m.seatWait(len(line)))
		}
	case m.tooCostly(o.N):
		refusal.Result = TooCostly
	case wait > 0 && len(line)+m.ghosts >= depth:
		refusal.Result = QueueFull
		if depth == 0 {
			again = told
		} else if k := len(line) - depth + 1; k > 0 {
			again = max(again, line[k-1], m.seatWait(k))
		}
		refusal.Retry = min(again, told)
	case bounded > longest || missed:
		refusal.Result, refusal.Missed = TooLate, missed
		refusal.Retry = min(again, told)
	}
	return wait, refusal
}

// tooCostly reports whether cost n can never fit.
func (r *rule) tooCostly(n int) bool {
	if r.limits.Rate == rate.Inf {
		return false
	}
	return r.limits.Depth == 0 && n > r.burst() || r.take(n).Cmp(instant(year)) > 0
}
