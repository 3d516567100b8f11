package shaper

import (
	"strings"
	"time"

	"example.com/leakybucket/shaper/watch"
)

const (
	// keptDepartures is how many of the latest departures are kept. It is a power of 2.
	keptDepartures = 4096

	// askedWithin is for how long departures are kept after they were asked for last.
	askedWithin = time.Minute

	// maxDepartureKey is how many bytes of a key a departure keeps. Keys may come from clients, and what they have sent
	// must not stay in memory.
	maxDepartureKey = 256
)

// latestDepartures are the latest departures of a [Shaper] [WithFairQueue], while somebody asks for them. The lock of the
// dispatcher guards them.
type latestDepartures struct {
	d       *dispatcher
	latest  []departure // a ring of keptDepartures: the n-th of all is at n − begun, modulo keptDepartures
	begun   uint64      // how many there had been when the ring was begun
	count   uint64      // of all that have been kept
	askedAt int64
}

// A departure is a [watch.Departure].
type departure struct {
	at, cost int64
	key      string
}

// Departures returns the latest requests of a Shaper [WithFairQueue] that have left, without the first since ones,
// in the order in which their calls returned; and how many have left, which is the since of the next call. At most
// the latest 4,096 are kept, from a first call on, which returns none, until a minute has passed without a call;
// what leaves in between is not counted.
func (s *Shaper) Departures(since uint64) ([]watch.Departure, uint64) {
	s.mustBeMade()
	if !s.ordered {
		return nil, 0
	}
	now := s.lockAndAdvance()
	p := s.departures
	if p == nil {
		p = &latestDepartures{d: &s.dispatcher}
		s.departures = p
	}
	p.forgetUnasked(now)
	p.askedAt, s.watched = now, true
	kept, all := p.since(since), p.count
	s.unlockAndArm()

	left := make([]watch.Departure, len(kept))
	for i, d := range kept {
		left[i] = watch.Departure{At: s.timeOf(d.at), Key: d.key, Cost: int(d.cost)}
	}
	return left, all
}

// since returns the departures that are kept, without the first n of all.
func (p *latestDepartures) since(n uint64) (kept []departure) {
	first := max(n, p.count-uint64(len(p.latest)))
	if first >= p.count {
		return nil
	}
	kept = make([]departure, 0, p.count-first)
	for ; first < p.count; first++ {
		kept = append(kept, p.latest[(first-p.begun)%keptDepartures])
	}
	return kept
}

// forgetUnasked forgets all if it is long ago that somebody has asked.
func (p *latestDepartures) forgetUnasked(now int64) {
	if now-p.askedAt > int64(askedWithin) {
		p.latest, p.begun, p.d.watched = nil, p.count, false
	}
}

// add adds the departure of a request.
func (p *latestDepartures) add(at, cost int64, key any) {
	if p.forgetUnasked(at); !p.d.watched {
		return
	}
	name, _ := key.(string)
	if len(name) > maxDepartureKey {
		name = strings.Clone(name[:maxDepartureKey]) // Else all of it would stay in memory.
	}
	if left := (departure{at, cost, name}); len(p.latest) < keptDepartures {
		p.latest = append(p.latest, left)
	} else {
		p.latest[(p.count-p.begun)%keptDepartures] = left
	}
	p.count++
}
