package model

import (
	"math"
	"math/big"
	"slices"
	"time"

	"example.com/leakybucket/shaper"
)

// A simulator is one bucket as shaper's doc.go states it, and the calls upon it. It has exact
// fractions for its instants and a slice for its line. Its fields say all there is to know at the
// instant now.
//
// Its time is virtual and starts at 0. A departure is due at an exact fraction
// of a nanosecond and is seen at the first whole nanosecond that is not earlier;
// the level goes by the fraction, which is why 7/s does not drift.
//
// Where the guarantees leave two outcomes open, because two things happen at one
// instant, the field open says why, and no later answer may be compared.
type simulator struct {
	bucket
	stopping []*waiter // calls of Shutdown that have not returned

	first     *big.Rat  // the first interval
	events    []past    // all that has raised the level or changed the rate, so far
	unsettled []*waiter // calls of Reserve that have returned, and whose settle has not been called

	answers []Answer
	totals  Totals
	last    time.Duration // entry of the last counted call; -1: none yet
	open    string        // why the outcome is open; "": it is not

	lateAt, endAt, boundAt time.Duration // of the last late cancel, timed end, and bound; -1: none yet
}

// A bucket is the state of a simulator from which all that is to come can be predicted.
type bucket struct {
	rule
	empty    *big.Rat      // the instant at which the level reaches 0
	since    *big.Rat      // the instant from which the head has been the head, and has had a free seat
	hold     *big.Rat      // the instant until which no request leaves
	upstream []*waiter     // requests that have left and not ended, if there is a cap
	left     int           // how many have left, without those whose slot was given back
	stay     time.Duration // how long seats are held, on average; see noteStay
	line     []*waiter     // in the order in which they leave
	turns    *turns        // the keys of those in line; nil: it is first in, first out
	more     []level       // further levels
	decided  int           // the level whose slot since is, if it is no whole nanosecond: from 0, the first one
	raises   int           // how often the first level has been raised, without what was given back
	saves    []save        // by OpSave
	now      time.Duration
	closed   bool

	mistake Mistake
	frozen  *big.Rat // see NoRetime
	ghosts  int      // see PlaceFreedLate
	blind   bool     // see CapIgnored
}

// A rule is the one rule of a bucket.
type rule struct {
	limits   shaper.Limits
	interval *big.Rat // nanoseconds per cost unit; 0 at rate.Inf
	bounded  bool     // WithLineTimeout is set
	timeout  time.Duration
	dryRun   bool // no request waits, and the line is of shadows
}

// A waiter is a call that has not returned: its operation, and when it came.
type waiter struct {
	*Op
	index int // of the operation and its answer
	came  time.Duration
	bound time.Duration // in line

	turn  int64  // what its key pays for it; 0: its cost
	undos []undo // of each level, if it has left

	number     int // of its departure
	left       time.Duration
	longBefore bool // seats were held for long when it left
}

// gone reports whether the context has ended in a way that only its Err shows.
func (w *waiter) gone(now time.Duration) bool { return w.Late != 0 && w.Late <= now }

func newSimulator(s Script, mistake Mistake) *simulator {
	l := s.Limits
	var t *turns
	if s.Fair {
		t = newTurns(mistake)
	}
	return &simulator{
		bucket: bucket{
			turns:   t,
			more:    levelsOf(s.Meters),
			rule:    rule{l, intervalOf(l.Rate), s.Bounded, s.Timeout, s.DryRun},
			empty:   new(big.Rat),
			since:   new(big.Rat),
			hold:    new(big.Rat),
			mistake: mistake,
		},
		first:   intervalOf(l.Rate),
		last:    -1,
		lateAt:  -1,
		endAt:   -1,
		boundAt: -1,
	}
}

// take returns the time that n units take to drain.
func (r *rule) take(n int) *big.Rat {
	return new(big.Rat).Mul(new(big.Rat).SetInt64(int64(n)), r.interval)
}

func (r *rule) burst() int { return max(r.limits.Burst, 1) }

// allowed returns the instant from which the level lets a request of cost n leave, for
// a bucket whose level reaches 0 at the instant empty.
func (r *rule) allowed(empty *big.Rat, n int) *big.Rat {
	return new(big.Rat).Sub(empty, r.take(max(0, r.burst()-n)))
}

// due returns the instant at which the head leaves.
func (b *bucket) due() *big.Rat {
	at, _ := b.slot()
	return at
}

// capped reports whether a request that leaves takes a seat until it ends.
func (r *rule) capped() bool { return r.limits.InFlight > 0 && !r.dryRun }

// hasRoom reports whether there is a seat for one more.
func (b *bucket) hasRoom() bool {
	return !b.capped() || b.blind || len(b.upstream) < b.limits.InFlight
}

// leaves reports whether the head leaves at an instant or before.
func (b *bucket) leaves(by time.Duration) bool {
	return len(b.line) > 0 && b.hasRoom() && b.due().Cmp(instant(by)) <= 0
}

// free gives back the seat of a request that is no longer upstream. If all seats
// were taken, the head could not have left before.
func (b *bucket) free(w *waiter) {
	if !b.hasRoom() && b.mistake != BlockedIsLate {
		b.since = later(b.since, instant(b.now))
	}
	b.upstream = slices.DeleteFunc(slices.Clone(b.upstream), func(other *waiter) bool { return other == w })
}

// level returns the level of the bucket.
func (b *bucket) level() *big.Rat { return b.levelAt(instant(b.now)) }

// levelAt returns the level at an instant since which it has not been raised.
func (b *bucket) levelAt(at *big.Rat) *big.Rat {
	rest := new(big.Rat).Sub(b.empty, at)
	if rest.Sign() <= 0 || b.interval.Sign() == 0 {
		return new(big.Rat)
	}
	return rest.Quo(rest, b.interval)
}

// advance lets everything happen that is due up to the instant t.
func (m *simulator) advance(t time.Duration) {
	for {
		next := t + 1
		if m.leaves(t) {
			// A request that has been the head since an earlier instant may
			// be due in the past only by a mistake.
			next = max(m.now, saturated(seen(m.due())))
		}
		for _, w := range slices.Concat(m.line, m.stopping) {
			if w.Deadline != 0 && !w.Deaf {
				next = min(next, w.Deadline)
			}
		}
		bound := m.nextBound()
		if bound != nil {
			next = min(next, max(m.now, bound.bound))
		}
		if next > t {
			m.now = max(m.now, t)
			return
		}
		m.now = next
		if m.mistake == BoundFirst {
			m.overdue(m.now + 1)
		}
		m.settle()
		m.overdue(m.now + 1)
		m.expire()
	}
}

// settle lets all requests leave that are due now. If a call then finds that its context
// has ended, and no other request has left after it, its slot goes to the next.
func (m *simulator) settle() {
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
			case last.Deadline == m.now && !last.Deaf && last.came < m.now:
				m.leaveOpen("a deadline falls on the departure")
				fallthrough
			default:
				m.departed(last)
			}
		}
		m.blind = false
		for _, w := range late {
			m.lateAt = m.now
			m.abandoned(w, Gone)
			if m.capped() && m.mistake != SeatLost {
				m.free(w)
				m.blind, again = m.mistake == CapIgnored, true
			}
			switch {
			case m.mistake == LateStillLeft:
			case len(m.more) > 0:
				m.undo(w, w == last)
				again = true
			case w == last:
				m.empty, again = before, true
				m.events = m.events[:len(m.events)-1]
				m.left--
				if m.turns != nil {
					m.turns.giveBack(w)
					m.arrangeAfter()
				}
				if m.mistake == HandedTwice {
					m.empty = new(big.Rat).Sub(before, m.take(last.N))
				}
			}
		}
		if len(late) > 1 && (m.interval.Sign() > 0 || m.capped() || len(m.more) > 0) {
			m.leaveOpen("two late cancels in one wake-up")
		}
	}
	if len(m.line) == 0 {
		for _, w := range m.stopping {
			if w.Deadline == m.now && w.came < m.now {
				m.leaveOpen("the end of a Shutdown falls on that of the line")
			}
			m.finish(w, Left)
		}
		m.stopping = nil
	}
}

// depart lets the head leave.
func (m *simulator) depart() *waiter {
	w := m.line[0]
	at, decided := m.slot()
	if w.bound == m.now && m.lateAt == m.now {
		m.leaveOpen("a slot is handed on at a bound")
	}
	m.left++
	m.line, m.frozen, m.ghosts = m.line[1:], nil, 0
	if m.turns != nil {
		m.turns.depart(m.turns.keys[w.Key])
		m.line = m.turns.order()
	}
	if m.mistake == DroppedRemainder {
		at = new(big.Rat).SetInt(seen(at))
	}
	from := at
	if m.mistake == IdleTick {
		from = new(big.Rat).Sub(at, m.interval)
	}
	of := -1
	if w.Kind == OpReserve {
		of = w.index
	}
	if len(m.more) > 0 {
		m.departEach(w, at, decided, of)
	} else {
		m.raise(at, new(big.Rat).SetInt64(int64(w.N)), of)
		m.emptyAt(new(big.Rat).Add(later(m.empty, from), m.take(w.N)))
	}
	m.since, m.decided = at, decided
	if m.capped() {
		w.number, w.left, w.longBefore = m.left, m.now, m.stay >= 50*time.Microsecond
		m.upstream = append(slices.Clone(m.upstream), w)
	}
	return w
}

// emptyAt sets the instant at which the level reaches 0. A [time.Duration] holds up to
// 292 years, so a script whose level reaches beyond 290 years is not compared further.
func (m *simulator) emptyAt(at *big.Rat) {
	m.empty = at
	if at.Cmp(instant(290*year)) > 0 {
		m.leaveOpen("the level reaches beyond what a Duration can tell")
	}
}

func (m *simulator) departed(w *waiter) {
	m.totals.Departed++
	if m.totals.Wait += m.now - w.came; m.totals.Wait < 0 {
		m.totals.Wait = math.MaxInt64
	}
	if m.dryRun {
		m.last = max(m.last, w.came)
		return // Its call has returned.
	}
	m.finish(w, Left)
	m.told(w, HookDeparted, "")
	if w.Kind == OpReserve {
		m.reserved(w)
	}
}

// expire ends the calls whose contexts end by a deadline that is now.
func (m *simulator) expire() {
	ends := 0
	for _, w := range slices.Clone(m.line) {
		if w.Deadline == m.now && !w.Deaf && slices.Contains(m.line, w) {
			ends++
			m.abandon(w, Exceeded)
		}
	}
	m.stopping = slices.DeleteFunc(m.stopping, func(w *waiter) bool {
		if w.Deadline != m.now {
			return false
		}
		ends++
		m.finish(w, Exceeded)
		return true
	})
	if ends > 0 {
		m.endAt = m.now
	}
	if ends > 1 || ends > 0 && (m.lateAt == m.now || m.boundAt == m.now) {
		m.leaveOpen("two contexts end at one instant, or one and a bound")
	}
}

// leaveLine takes a waiter out of the line that does not leave by its slot.
func (m *simulator) leaveLine(w *waiter) {
	if m.turns != nil {
		m.turns.giveUp(w)
		m.arrange(instant(m.now))
	} else {
		i := slices.Index(m.line, w)
		m.line = slices.Delete(slices.Clone(m.line), i, i+1)
		if i == 0 {
			m.since, m.frozen = instant(m.now), nil
		}
	}
}

// abandon takes a waiter whose context has ended out of the line.
func (m *simulator) abandon(w *waiter, why string) {
	m.leaveLine(w)
	if m.mistake == PlaceFreedLate && len(m.line) > 0 {
		m.ghosts++
	}
	if m.mistake == RefundWithLine && len(m.line) > 0 {
		m.empty = new(big.Rat).Sub(m.empty, m.take(w.N))
	}
	if w.gone(m.now) {
		why = Gone
	}
	m.abandoned(w, why)
	m.settle()
}

func (m *simulator) abandoned(w *waiter, why string) {
	m.totals.Abandoned++
	m.finish(w, why)
	m.told(w, HookAbandoned, why)
}
