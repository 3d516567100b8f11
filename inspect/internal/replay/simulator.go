package replay

import (
	"container/list"
	"math"
	"math/big"
	"time"

	"example.com/leakybucket/shaper"
)

// horizon is the longest that anything may take: what package shaper calls so.
const horizon = 365 * 24 * time.Hour

// A simulator is one bucket in virtual time.
//
// Instants and spans that are a *big.Int count in parts of a nanosecond: den of them are
// one. The interval is a whole number of parts, so all sums are exact, and no instant is
// too far away.
type simulator struct {
	limits   shaper.Limits
	longest  time.Duration // MaxWait, or its default
	interval *big.Int      // of one cost unit; 0 at rate.Inf
	den      *big.Int

	requests []Request
	arrived  int       // how many of them have
	seeded   []Request // the line at the start; request −1 is the first of them, −2 the second
	fates    []Fate
	places   []*list.Element // of the requests in line, by index
	leaving  []patience      // callers that have not given up yet, the next first

	line  *list.List // of int: the index of a request, or below 0 of a seeded one
	ahead *big.Int   // the time that the costs in line take
	empty *big.Int   // the instant at which the level reaches 0
	since *big.Int   // no request leaves before: when the line was empty last, or its head gave up
}

func newSimulator(l shaper.Limits, start Start, requests []Request) *simulator {
	s := &simulator{
		limits:   l,
		longest:  min(l.MaxWait, horizon),
		requests: requests,
		seeded:   start.Line,
		fates:    make([]Fate, len(requests)),
		places:   make([]*list.Element, len(requests)),
		leaving:  patienceOf(requests),
		line:     list.New(),
		ahead:    new(big.Int),
		since:    new(big.Int),
	}
	if l.MaxWait == 0 {
		s.longest = horizon
	}
	s.interval, s.den = intervalOf(l.Rate)
	s.empty = s.drain(start.Level)
	for i, r := range start.Line {
		s.line.PushBack(-1 - i)
		s.ahead = sum(s.ahead, s.take(r.Cost))
	}
	return s
}

// drain returns the time that a level takes to drain, to the nearest part.
func (s *simulator) drain(level float64) *big.Int {
	if math.IsNaN(level) || math.IsInf(level, 0) || level <= 0 {
		return new(big.Int)
	}
	exact := new(big.Rat).SetFloat64(level)
	exact.Mul(exact, new(big.Rat).SetInt(s.interval))
	exact.Add(exact, big.NewRat(1, 2))
	return new(big.Int).Quo(exact.Num(), exact.Denom())
}

// arrive is the arrival of a request. Everything that is due by then has happened.
func (s *simulator) arrive(i int) {
	r := s.requests[i]
	s.arrived = i + 1
	if why := s.judge(r); why != Waiting {
		s.fates[i].Result = why
		return
	}
	now := s.instant(r.At)
	if s.line.Len() == 0 {
		s.since = now
	}
	s.places[i] = s.line.PushBack(i)
	s.ahead = sum(s.ahead, s.take(r.Cost))
	s.settle(r.At)
}

// judge returns why a request is refused, or Waiting if it enters the line, perhaps to
// leave at once. The order of the checks is that of package shaper.
func (s *simulator) judge(r Request) Result {
	depth := s.limits.Depth
	if r.Allow {
		depth = 0
	}
	wait := s.wait(r)
	switch {
	case s.tooCostly(r.Cost):
		return TooCostly
	case wait > 0 && s.line.Len() >= depth:
		return QueueFull
	case wait > s.longest || r.Deadline != Never && wait >= r.Deadline-r.At:
		return TooLate
	}
	return Waiting
}

// tooCostly reports whether a cost can never fit.
func (s *simulator) tooCostly(n int) bool {
	if s.interval.Sign() == 0 {
		return false
	}
	return s.limits.Depth == 0 && n > s.burst() || s.take(n).Cmp(s.instant(horizon)) > 0
}

// wait returns how long a newcomer would wait if all in line stay: above 0 if any do. It
// need not walk the line: the level does not reach 0 before a request leaves that waits,
// so each departure puts off the next by its cost exactly.
func (s *simulator) wait(r Request) time.Duration {
	due := sum(s.allowed(r.Cost), s.ahead)
	due.Sub(s.ceil(due), bigOf(r.At))
	wait := time.Duration(math.MaxInt64)
	if due.IsInt64() {
		wait = max(0, time.Duration(due.Int64()))
	}
	return wait
}

// allowed returns the instant from which the level lets a request of cost n leave.
func (s *simulator) allowed(n int) *big.Int {
	return new(big.Int).Sub(s.empty, s.take(max(0, s.burst()-n)))
}

// advance lets everything happen that is due up to an instant.
func (s *simulator) advance(to time.Duration) {
	for len(s.leaving) > 0 && s.leaving[0].until <= to {
		p := s.leaving[0]
		if p.index >= s.arrived {
			break // It gives up at the instant of its arrival, which is yet to come.
		}
		s.leaving = s.leaving[1:]
		s.settle(p.until)
		s.giveUp(p)
	}
	s.settle(to)
}

// giveUp takes a request out of the line, if it still waits.
func (s *simulator) giveUp(p patience) {
	place := s.places[p.index]
	if place == nil {
		return
	}
	if s.line.Front() == place {
		s.since = s.instant(p.until) // The next could not leave before.
	}
	s.line.Remove(place)
	s.places[p.index] = nil
	s.ahead = new(big.Int).Sub(s.ahead, s.take(s.requests[p.index].Cost))
	s.fates[p.index] = Fate{Abandoned, p.until - s.requests[p.index].At}
	s.settle(p.until)
}

// settle lets all leave whose slots have come by an instant.
func (s *simulator) settle(by time.Duration) {
	until := s.instant(by)
	for s.line.Len() > 0 {
		i := s.line.Front().Value.(int)
		r := s.request(i)
		slot := later(s.allowed(r.Cost), s.since)
		if slot.Cmp(until) > 0 {
			return
		}
		s.line.Remove(s.line.Front())
		s.ahead = new(big.Int).Sub(s.ahead, s.take(r.Cost))
		s.empty = sum(later(s.empty, slot), s.take(r.Cost))
		if i >= 0 {
			s.places[i] = nil
			s.fates[i] = Fate{Departed, time.Duration(s.ceil(slot).Int64()) - r.At}
		}
	}
}

// request returns the request that a place in the line is of.
func (s *simulator) request(i int) Request {
	if i < 0 {
		return s.seeded[-1-i]
	}
	return s.requests[i]
}

func (s *simulator) burst() int { return max(s.limits.Burst, 1) }

// take returns the time that n cost units take.
func (s *simulator) take(n int) *big.Int { return new(big.Int).Mul(bigOf(n), s.interval) }

// instant returns an instant or a span in parts of a nanosecond.
func (s *simulator) instant(d time.Duration) *big.Int { return new(big.Int).Mul(bigOf(d), s.den) }

// ceil returns the first whole nanosecond that is not before an instant.
func (s *simulator) ceil(at *big.Int) *big.Int {
	up := new(big.Int).Add(at, s.den)
	up.Sub(up, bigOf(1))
	return up.Div(up, s.den)
}

// later returns the later of two instants.
func later(a, b *big.Int) *big.Int {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

func sum(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }
