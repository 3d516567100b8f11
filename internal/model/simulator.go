package model

import (
	"math"
	"math/big"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A model is the shaper as doc.go states it, slow and obvious: a simulator
// with exact fractions for its instants and a slice for its line. It uses
// nothing of the package but Limits, so that it can't repeat a mistake of the
// code that it judges.
//
// Its time is virtual and starts at 0. A departure is due at an exact fraction
// of a nanosecond and is seen at the first whole one that is not earlier; the
// level goes by the fraction, which is why 7/s does not drift.
//
// Where guarantees leave two outcomes open (two things fall on one instant),
// the model says so in open, and nothing that follows may be compared.
type model struct {
	limits   shaper.Limits
	interval *big.Rat  // nanoseconds per cost unit; 0 at rate.Inf
	empty    *big.Rat  // the instant at which the level reaches 0
	since    *big.Rat  // the instant since which the head is the head, and there is a place for it
	hold     *big.Rat  // the instant until which nobody leaves
	upstream []*waiter // those who have left and not ended, if there is a cap
	line     []*waiter
	stopping []*waiter // calls of Shutdown that have not returned
	now      time.Duration
	closed   bool

	answers []answer
	totals  totals
	last    time.Duration // entry of the last counted call; -1: none yet
	open    string        // why the outcome is open; "": it is not

	lateAt, endAt time.Duration // of the last late cancel and timed end; -1: none yet

	mistake mistake
	frozen  *big.Rat // see noRetime
	ghosts  int      // see placeFreedLate
	blind   bool     // see capIgnored
}

// A waiter is a call that has not returned: its operation, and when it came.
type waiter struct {
	*op
	index int // of the operation and its answer
	came  time.Duration
}

// gone reports that only its Err tells that the context has ended.
func (w *waiter) gone(now time.Duration) bool { return w.late != 0 && w.late <= now }

func newModel(l shaper.Limits) *model {
	return &model{
		limits:   l,
		interval: intervalOf(l.Rate),
		empty:    new(big.Rat),
		since:    new(big.Rat),
		hold:     new(big.Rat),
		last:     -1,
		lateAt:   -1,
		endAt:    -1,
	}
}

// take is the time for which n units hold the bucket.
func (m *model) take(n int) *big.Rat {
	return new(big.Rat).Mul(new(big.Rat).SetInt64(int64(n)), m.interval)
}

func (m *model) burst() int { return max(m.limits.Burst, 1) }

// allowed is the instant from which the level of a bucket that is empty at
// the instant given lets cost n leave.
func (m *model) allowed(empty *big.Rat, n int) *big.Rat {
	return new(big.Rat).Sub(empty, m.take(max(0, m.burst()-n)))
}

// due is the instant at which the head leaves.
func (m *model) due() *big.Rat {
	if m.frozen != nil {
		return m.frozen
	}
	return later(m.hold, later(m.since, m.allowed(m.empty, m.line[0].n)))
}

// capped says whether those who leave take a place, until they end.
func (m *model) capped() bool { return m.limits.InFlight > 0 }

// hasRoom says whether there is a place for one more.
func (m *model) hasRoom() bool {
	return !m.capped() || m.blind || len(m.upstream) < m.limits.InFlight
}

// leaves says whether the head leaves by an instant.
func (m *model) leaves(by time.Duration) bool {
	return len(m.line) > 0 && m.hasRoom() && m.due().Cmp(instant(by)) <= 0
}

// free takes one who is not upstream any more off those who are. If all places
// were taken the head could not leave before.
func (m *model) free(w *waiter) {
	if !m.hasRoom() && m.mistake != blockedIsLate {
		m.since = later(m.since, instant(m.now))
	}
	m.upstream = slices.DeleteFunc(slices.Clone(m.upstream), func(other *waiter) bool { return other == w })
}

// level is the level of the bucket.
func (m *model) level() *big.Rat {
	rest := new(big.Rat).Sub(m.empty, instant(m.now))
	if rest.Sign() <= 0 || m.interval.Sign() == 0 {
		return new(big.Rat)
	}
	return rest.Quo(rest, m.interval)
}

// waits are the times until those in line leave, if they stay and nobody else
// comes, and last that of a newcomer of cost n. If there is a cap, they are the
// times for which each waits at least: as if places became free at once, but
// only just after now.
func (m *model) waits(n int) []time.Duration {
	var waits []time.Duration
	empty, since := m.empty, later(later(m.since, m.hold), instant(m.now))
	if m.overtakes(n) {
		since = instant(m.now)
	}
	blocked := !m.hasRoom()
	for i := range len(m.line) + 1 {
		cost := n
		if i < len(m.line) {
			cost = m.line[i].n
		}
		at := later(since, m.allowed(empty, cost))
		wait := m.until(at)
		if len(m.line) > 0 || blocked {
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

// until is the time from now to the instant at which r is seen. What does not
// fit is the longest duration.
func (m *model) until(r *big.Rat) time.Duration {
	d := seen(r)
	return saturated(d.Sub(d, big.NewInt(int64(m.now))))
}

// judge is the answer to a newcomer: how long it waits, or why it is refused
// and when it may come again.
func (m *model) judge(o *op) (wait time.Duration, refusal answer) {
	line := m.waits(o.n)
	wait, line = line[len(m.line)], line[:len(m.line)]

	longest := m.limits.MaxWait
	if longest == 0 || longest > year {
		longest = year
	}
	again := wait - longest
	missed := false
	if o.deadline != 0 {
		rest := o.deadline - m.now
		missed = wait >= rest
		again = max(again, wait-max(rest, 1)+1)
	}

	depth := m.limits.Depth
	if o.kind == opAllow {
		depth = 0
	}
	if m.mistake == depthOffByOne && depth > 0 {
		depth++
	}
	bounded := wait
	if m.mistake == holdUnbounded {
		unheld := *m
		unheld.hold = new(big.Rat)
		bounded = unheld.waits(o.n)[len(m.line)]
	}
	switch {
	case m.closed:
		refusal.result = resultClosed
		if len(line) > 0 {
			refusal.retry = line[len(line)-1]
		}
	case m.tooCostly(o.n):
		refusal.result = resultTooCostly
	case wait > 0 && len(line)+m.ghosts >= depth:
		refusal.result = resultQueueFull
		if depth == 0 {
			again = wait
		} else if k := len(line) - depth + 1; k > 0 {
			again = max(again, line[k-1])
		}
		refusal.retry = min(again, wait)
	case bounded > longest || missed:
		refusal.result, refusal.missed = resultTooLate, missed
		refusal.retry = min(again, wait)
	}
	return wait, refusal
}

// tooCostly reports that cost n can never fit.
func (m *model) tooCostly(n int) bool {
	if m.limits.Rate == rate.Inf {
		return false
	}
	return m.limits.Depth == 0 && n > m.burst() || m.take(n).Cmp(instant(year)) > 0
}

// advance lets everything happen that is due up to instant t.
func (m *model) advance(t time.Duration) {
	for {
		next := t + 1
		if m.leaves(t) {
			// Someone who is head since an earlier instant may be due in the
			// past only by a mistake.
			next = max(m.now, saturated(seen(m.due())))
		}
		for _, w := range slices.Concat(m.line, m.stopping) {
			if w.deadline != 0 && !w.deaf {
				next = min(next, w.deadline)
			}
		}
		if next > t {
			m.now = max(m.now, t)
			return
		}
		m.now = next
		m.settle()
		m.expire()
	}
}

// settle lets everybody leave who is due now. A call that then finds its
// context done hands its slot on, if nobody has left after it.
func (m *model) settle() {
	for again := true; again; {
		again = false
		var last *waiter
		var late []*waiter
		var before *big.Rat // the instant empty, as if last had not left
		for m.leaves(m.now) {
			before = m.empty
			last = m.depart()
			switch {
			case last.gone(m.now):
				late = append(late, last)
			case last.deadline == m.now && !last.deaf && last.came < m.now:
				m.leaveOpen("a deadline falls on the departure")
				fallthrough
			default:
				m.departed(last)
			}
		}
		m.blind = false
		for _, w := range late {
			m.lateAt = m.now
			m.abandoned(w, resultGone)
			if m.capped() && m.mistake != placeLost {
				m.free(w)
				m.blind, again = m.mistake == capIgnored, true
			}
			if w == last && m.mistake != lateStillLeft {
				m.empty, again = before, true
				if m.mistake == handedTwice {
					m.empty = new(big.Rat).Sub(before, m.take(last.n))
				}
			}
		}
		if len(late) > 1 && (m.interval.Sign() > 0 || m.capped()) {
			m.leaveOpen("two late cancels in one wake-up")
		}
	}
	if len(m.line) == 0 {
		for _, w := range m.stopping {
			if w.deadline == m.now && w.came < m.now {
				m.leaveOpen("the end of a Shutdown falls on that of the line")
			}
			m.finish(w, resultLeft)
		}
		m.stopping = nil
	}
}

// depart lets the head leave.
func (m *model) depart() *waiter {
	w, at := m.line[0], m.due()
	m.line, m.frozen, m.ghosts = m.line[1:], nil, 0
	if m.mistake == droppedRemainder {
		at = new(big.Rat).SetInt(seen(at))
	}
	from := at
	if m.mistake == idleTick {
		from = new(big.Rat).Sub(at, m.interval)
	}
	m.emptyAt(new(big.Rat).Add(later(m.empty, from), m.take(w.n)))
	m.since = at
	if m.capped() {
		m.upstream = append(slices.Clone(m.upstream), w)
	}
	return w
}

// emptyAt sets the instant at which the level reaches 0. Go's time ends 292
// years from now, and what is beyond saturates.
func (m *model) emptyAt(at *big.Rat) {
	m.empty = at
	if at.Cmp(instant(290*year)) > 0 {
		m.leaveOpen("the level reaches beyond what a Duration can tell")
	}
}

func (m *model) departed(w *waiter) {
	m.totals.departed++
	if m.totals.wait += m.now - w.came; m.totals.wait < 0 {
		m.totals.wait = math.MaxInt64
	}
	m.finish(w, resultLeft)
	m.ended(w, "departed", "")
}

// expire ends the calls whose contexts end by a deadline that is now.
func (m *model) expire() {
	ends := 0
	for _, w := range slices.Clone(m.line) {
		if w.deadline == m.now && !w.deaf && slices.Contains(m.line, w) {
			ends++
			m.abandon(w, resultExceeded)
		}
	}
	m.stopping = slices.DeleteFunc(m.stopping, func(w *waiter) bool {
		if w.deadline != m.now {
			return false
		}
		ends++
		m.finish(w, resultExceeded)
		return true
	})
	if ends > 0 {
		m.endAt = m.now
	}
	if ends > 1 || ends > 0 && m.lateAt == m.now {
		m.leaveOpen("two contexts end at one instant")
	}
}

// abandon takes a waiter whose context has ended out of the line.
func (m *model) abandon(w *waiter, why string) {
	i := slices.Index(m.line, w)
	m.line = slices.Delete(slices.Clone(m.line), i, i+1)
	if i == 0 {
		m.since, m.frozen = instant(m.now), nil
	}
	if m.mistake == placeFreedLate && len(m.line) > 0 {
		m.ghosts++
	}
	if m.mistake == refundWithLine && len(m.line) > 0 {
		m.empty = new(big.Rat).Sub(m.empty, m.take(w.n))
	}
	if w.gone(m.now) {
		why = resultGone
	}
	m.abandoned(w, why)
	m.settle()
}

func (m *model) abandoned(w *waiter, why string) {
	m.totals.abandoned++
	m.finish(w, why)
	m.ended(w, "abandoned", why)
}
