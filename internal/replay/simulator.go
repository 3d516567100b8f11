package replay

import (
	"container/list"
	"math"
	"math/big"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper"
)

// A simulator is one bucket in virtual time, from whose line callers may leave.
type simulator struct {
	*Plan
	requests []Request
	arrived  int       // how many of them have
	seeded   []Request // the line at the start; request −1 is the first of them, −2 the second
	fates    []Fate
	places   []*list.Element // of the requests in line, by index
	leaving  []patience      // callers that have not given up yet, the next first

	line  *list.List  // of int: the index of a request, or below 0 of a seeded one
	ahead int64       // the costs in line
	empty exact.Nanos // the instant at which the level reaches 0
	since exact.Nanos // no request leaves before: when the line was empty last, or its head gave up
}

func newSimulator(l shaper.Limits, start Start, requests []Request) *simulator {
	s := &simulator{
		Plan:     NewPlan(l),
		requests: requests,
		seeded:   start.Line,
		fates:    make([]Fate, len(requests)),
		places:   make([]*list.Element, len(requests)),
		leaving:  patienceOf(requests),
		line:     list.New(),
	}
	s.empty = s.drain(start.Level)
	for i, r := range start.Line {
		s.line.PushBack(-1 - i)
		s.ahead = exact.Sum(s.ahead, int64(r.Cost))
	}
	return s
}

// drain returns the time that a level takes to drain.
func (s *simulator) drain(level float64) exact.Nanos {
	if math.IsNaN(level) || math.IsInf(level, 0) || level <= 0 {
		return exact.Nanos{}
	}
	// A float64 is rarely the level itself. InstantAfter rounds up, so the next float64 below leads
	// to the level of which this one is the nearest.
	at, _ := s.interval.InstantAfter(0, new(big.Rat).SetFloat64(math.Nextafter(level, 0)))
	return at
}

// arrive is the arrival of a request. Everything that is due by then has happened.
//
// How long it would wait if all in line stay is above 0 if any do. The line need not be
// walked for that: the level does not reach 0 before a request leaves that waits, so each
// departure puts off the next by its cost exactly.
func (s *simulator) arrive(i int) {
	r := s.requests[i]
	s.arrived = i + 1
	wait := s.waitFrom(r.At, s.interval.Plus(s.allowed(s.empty, r.Cost), s.interval.Times(s.ahead)))
	if why := s.judge(r, wait, s.line.Len()); why != Waiting {
		s.fates[i].Result = why
		return
	}
	now := exact.At(int64(r.At))
	if wait == 0 && s.line.Len() == 0 {
		s.empty = s.left(s.empty, now, r.Cost)
		s.fates[i] = Fate{Departed, 0}
		return
	}
	if s.line.Len() == 0 {
		s.since = now
	}
	s.places[i] = s.line.PushBack(i)
	s.ahead = exact.Sum(s.ahead, int64(r.Cost))
	s.settle(r.At)
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
		s.since = exact.At(int64(p.until)) // The next could not leave before.
	}
	s.line.Remove(place)
	s.places[p.index] = nil
	s.ahead -= int64(s.requests[p.index].Cost)
	s.fates[p.index] = Fate{Abandoned, p.until - s.requests[p.index].At}
	s.settle(p.until)
}

// settle lets all leave whose slots have come by an instant.
func (s *simulator) settle(by time.Duration) {
	until := exact.At(int64(by))
	for s.line.Len() > 0 {
		i := s.line.Front().Value.(int)
		r := s.request(i)
		slot := exact.Later(s.allowed(s.empty, r.Cost), s.since)
		if slot.After(until) {
			return
		}
		s.line.Remove(s.line.Front())
		s.ahead -= int64(r.Cost)
		s.empty = s.left(s.empty, slot, r.Cost)
		if i >= 0 {
			s.places[i] = nil
			s.fates[i] = Fate{Departed, time.Duration(slot.Ceil()) - r.At}
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
