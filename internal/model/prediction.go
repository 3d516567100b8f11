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
func (b *bucket) waits(n int) []time.Duration {
	var waits []time.Duration
	empty, since := b.empty, later(later(b.since, b.hold), instant(b.now))
	if b.overtakes(n) {
		since = instant(b.now)
	}
	for i := range len(b.line) + 1 {
		cost := n
		if i < len(b.line) {
			cost = b.line[i].N
		}
		at := later(since, b.allowed(empty, cost))
		wait := b.until(at)
		if len(b.line) > 0 || !b.hasRoom() {
			wait = max(wait, 1)
		}
		waits = append(waits, wait)
		empty, since = new(big.Rat).Add(later(empty, at), b.take(cost)), at
	}
	if b.overtakes(n) {
		waits[len(b.line)] = 0
	}
	return waits
}

// until returns the time from now to the instant at which r is seen, or the
// longest duration if that time is longer.
func (b *bucket) until(r *big.Rat) time.Duration {
	d := seen(r)
	return saturated(d.Sub(d, big.NewInt(int64(b.now))))
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
	late, missed, again := m.tooLate(o, wait, bounded)
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
	case late:
		refusal.Result, refusal.Missed = TooLate, missed
		refusal.Retry = min(again, told)
	}
	return wait, refusal
}

// tooLate reports whether a call that would have to wait so long misses its deadline, or MaxWait by the wait
// that MaxWait bounds, and after which time neither would keep it any more.
func (b *bucket) tooLate(o *Op, wait, bounded time.Duration) (late, missed bool, again time.Duration) {
	longest := b.limits.MaxWait
	if longest == 0 || longest > year {
		longest = year
	}
	if b.bounded && b.timeout > 0 && b.mistake != BoundIgnoredAtEntry {
		longest = min(longest, b.timeout)
	}
	again = max(wait-longest, b.seatWait(1))
	if o.Deadline != 0 {
		rest := o.Deadline - b.now
		missed = wait >= rest
		again = max(again, wait-max(rest, 1)+1)
	}
	return bounded > longest || missed, missed, again
}

// tooCostly reports whether cost n can never fit.
func (r *rule) tooCostly(n int) bool {
	if r.limits.Rate == rate.Inf {
		return false
	}
	return r.limits.Depth == 0 && n > r.burst() || r.take(n).Cmp(instant(year)) > 0
}
