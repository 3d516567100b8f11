package model

import (
	"math/big"
	"slices"
)

// This file is the model of Reserve, settle and AtMost. It keeps all that has ever raised the level or
// changed the rate, each departure with its present cost, and computes the level from the start when a cost
// becomes less.

// A past event raised the level, or changed the rate.
type past struct {
	at       *big.Rat
	cost     *big.Rat // in units
	interval *big.Rat // the new one; nil: the event raised the level
	of       int      // the operation that reserved; -1: none did
	before   *big.Rat // the level just before, as it was then; for mistakes
}

// raise notes that the level rises by units at an instant, as a request leaves, or none does.
func (m *simulator) raise(at, units *big.Rat, of int) {
	m.raises++
	m.events = append(slices.Clip(m.events), past{at: at, cost: units, of: of, before: m.levelAt(at)})
}

// recompute computes the level from the start.
func (m *simulator) recompute() { m.emptyAt(recomputed(m.first, m.events)) }

// recomputed returns the instant at which a level reaches 0 that all these events have made.
func recomputed(interval *big.Rat, events []past) (empty *big.Rat) {
	level, now := new(big.Rat), new(big.Rat)
	for _, e := range events {
		if interval.Sign() == 0 {
			level = new(big.Rat)
		} else {
			leaked := new(big.Rat).Sub(e.at, now)
			level = later(new(big.Rat), new(big.Rat).Sub(level, leaked.Quo(leaked, interval)))
		}
		now = e.at
		if e.interval == nil {
			level = new(big.Rat).Add(level, e.cost)
		} else if interval = e.interval; interval.Sign() == 0 {
			level = new(big.Rat)
		}
	}
	return new(big.Rat).Add(now, level.Mul(level, interval))
}

// reserved notes that a request of Reserve has left, and its call returned.
func (m *simulator) reserved(w *waiter) {
	m.unsettled = append(slices.Clone(m.unsettled), w)
	m.totals.Reserved += w.N
	m.answers[w.index].Settled.Reserved = w.N
	m.countReserved(w, 1)
}

// settled is a call of the settle function that an earlier call of Reserve has returned.
func (m *simulator) settled(w *waiter) {
	m.finish(w, Left)
	if w.Target < 0 {
		return
	}
	a := m.answers[w.Target]
	if w.Race && a.Returned && a.At == m.now {
		m.leaveOpen("a settle races with the return of its call")
	}
	of := func(other *waiter) bool { return other.index == w.Target }
	i := slices.IndexFunc(m.unsettled, of)
	if i < 0 {
		if k := slices.IndexFunc(m.events, func(e past) bool { return e.of == w.Target }); k >= 0 && m.mistake == SettledTwice {
			m.correct(w, w.N, a.Settled.Reserved)
			m.settle()
		}
		return
	}
	v := m.unsettled[i]
	m.unsettled = slices.DeleteFunc(slices.Clone(m.unsettled), of)
	m.totals.Reserved -= v.N
	m.answers[w.index].Settled.Reserved = -v.N
	actual := w.N
	if actual < 0 && m.mistake == UnknownIsZero {
		actual = 0
	}
	if actual >= 0 {
		m.correct(w, actual, v.N)
	}
	m.countReserved(v, -1)
	m.correctEach(w, v)
	if i := slices.IndexFunc(m.upstream, of); i >= 0 {
		m.noteStay(m.upstream[i])
		m.free(m.upstream[i])
	}
	m.settle()
}

// correct makes the cost of a request actual, for which so much was reserved.
func (m *simulator) correct(w *waiter, actual, estimate int) {
	if m.mistake == SettleNotRetimed && len(m.line) > 0 {
		m.frozen = m.due()
	}
	figures := &m.answers[w.index].Settled
	switch {
	case actual > estimate && m.mistake != ChargeForgotten:
		figures.Charged = uint64(actual - estimate)
		units := new(big.Rat).SetInt64(int64(actual - estimate))
		m.raise(instant(m.now), units, -1)
		m.emptyAt(new(big.Rat).Add(later(m.empty, instant(m.now)), m.take(actual-estimate)))
	case actual < estimate:
		before := m.level()
		m.lower(w.Target, estimate-actual)
		back := before.Sub(before, m.level())
		figures.GivenBack = new(big.Int).Quo(back.Num(), back.Denom()).Uint64()
		figures.Forfeited = uint64(estimate-actual) - figures.GivenBack
		m.since = later(m.since, instant(m.now)) // The head could not leave before.
	}
	m.totals.GivenBack += figures.GivenBack
	m.totals.Charged += figures.Charged
	m.totals.Forfeited += figures.Forfeited
}

// lower lowers the level, as a request of the past has cost less by over.
func (m *simulator) lower(of, over int) {
	k := slices.IndexFunc(m.events, func(e past) bool { return e.of == of })
	back := new(big.Rat).SetInt64(int64(over))
	least := func(units *big.Rat) {
		if units.Cmp(back) < 0 {
			back = units
		}
	}
	least(m.level())
	switch m.mistake {
	case NaiveRefund: // All that the level has.
	case DrainedRefund:
		for _, e := range m.events[k+1:] {
			if e.of >= 0 {
				least(e.before)
			}
		}
	case StaleRefund:
		for _, e := range m.events[k+1:] {
			if e.interval == nil {
				least(e.before)
			}
		}
	default:
		m.events = slices.Clone(m.events)
		m.events[k].cost = new(big.Rat).Sub(m.events[k].cost, back.SetInt64(int64(over)))
		m.recompute()
		return
	}
	m.emptyAt(new(big.Rat).Sub(later(m.empty, instant(m.now)), back.Mul(back, m.interval)))
}

// atMost is AtMost.
func (m *simulator) atMost(w *waiter) {
	m.finish(w, Left)
	room := m.burst() - max(w.N, 0)
	missing := new(big.Rat).SetInt64(int64(room))
	missing.Sub(missing, m.level())
	if room > 0 && m.interval.Sign() > 0 && missing.Sign() > 0 {
		m.raise(instant(m.now), missing, -1)
		m.emptyAt(new(big.Rat).Add(instant(m.now), m.take(room)))
	}
	m.atMostEach(w)
	m.settle()
}
