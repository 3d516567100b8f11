package replay

import (
	"math"
	"math/big"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper"
)

// horizon is the longest time that anything may take, as in package shaper.
const horizon = 365 * 24 * time.Hour

// A Plan is a set of limits, prepared for replays: the rule by which requests leave, as
// arithmetic. [NewPlan] makes one, for any number of buckets with these limits. It never
// changes.
type Plan struct {
	burst, depth int
	longest      time.Duration // MaxWait, or its default
	interval     exact.Interval
	lead         exact.Nanos // so long before the level is 0 a request of cost 1 may leave
}

// NewPlan returns the plan of limits, which must be valid. Their InFlight is left out.
func NewPlan(l shaper.Limits) *Plan {
	p := &Plan{burst: max(l.Burst, 1), depth: l.Depth, longest: min(l.MaxWait, horizon)}
	if l.MaxWait == 0 {
		p.longest = horizon
	}
	p.interval = exact.IntervalOf(l.Rate)
	p.lead = p.interval.Times(int64(p.burst - 1))
	return p
}

// judge returns why a request is refused, or Waiting if it enters the line, perhaps to
// leave at once. The order of the checks is the same as in package shaper. wait is how
// long the request would wait, and line is how many are in line.
func (p *Plan) judge(r Request, wait time.Duration, line int) Result {
	depth := p.depth
	if r.Allow {
		depth = 0
	}
	switch {
	case r.Cost > 1 && p.tooCostly(r.Cost):
		return TooCostly
	case wait > 0 && line >= depth:
		return QueueFull
	case wait > p.longest || r.Deadline != Never && wait >= r.Deadline-r.At:
		return TooLate
	}
	return Waiting
}

// tooCostly reports whether a cost can never fit.
func (p *Plan) tooCostly(n int) bool {
	if p.interval.IsZero() {
		return false
	}
	return p.depth == 0 && n > p.burst || p.interval.Times(int64(n)).Exceeds(horizon)
}

// allowed returns the instant from which the level lets a request of cost n leave, if the
// level reaches 0 at the instant empty.
func (p *Plan) allowed(empty exact.Nanos, n int) exact.Nanos {
	if n == 1 {
		return p.interval.Minus(empty, p.lead)
	}
	return p.interval.Minus(empty, p.interval.Times(int64(max(0, p.burst-n))))
}

// waitBehind returns how long a request of a cost would wait from an instant on, behind requests of the cost ahead, if
// the level reaches 0 at the instant empty.
func (p *Plan) waitBehind(empty exact.Nanos, at time.Duration, ahead int64, cost int) time.Duration {
	slot := p.allowed(empty, cost)
	if ahead > 0 {
		slot = p.interval.Plus(slot, p.interval.Times(ahead))
	}
	return p.waitFrom(at, slot)
}

// waitFrom returns the time from at until an instant, rounded up to a nanosecond; 0
// if it has come.
func (p *Plan) waitFrom(at time.Duration, until exact.Nanos) time.Duration {
	if !until.After(exact.At(int64(at))) {
		return 0
	}
	if end := time.Duration(until.Ceil()); end != Never {
		return end - at
	}
	return Never
}

// left returns the instant at which the level reaches 0 after a request of cost n has left
// at the instant slot. Without that request it would reach 0 at the instant empty.
func (p *Plan) left(empty, slot exact.Nanos, n int) exact.Nanos {
	return p.interval.Plus(exact.Later(empty, slot), p.interval.Times(int64(n)))
}

// drain returns the time that a level takes to drain.
func (p *Plan) drain(level float64) exact.Nanos {
	if math.IsNaN(level) || math.IsInf(level, 0) || level <= 0 {
		return exact.Nanos{}
	}
	// A float64 is rarely the level itself. InstantAfter rounds up, so the next float64 below leads
	// to the level to which this one is the nearest.
	at, _ := p.interval.InstantAfter(0, new(big.Rat).SetFloat64(math.Nextafter(level, 0)))
	return at
}

// A Bucket is a bucket in virtual time, at which requests arrive one after another. The zero
// Bucket is empty. Its methods take its Plan as an argument, so that many buckets may share
// one.
type Bucket struct {
	empty exact.Nanos // the instant at which the level reaches 0 if no request in line leaves
	since exact.Nanos // no request in line leaves before: when the line was last empty, or its head gave up
	ahead int64       // the costs in line

	// The line, the head first, in a ring that grows. Its length is a power of two, or 0.
	ring       []place
	first, end int // counted without end
	waiting    int
}

// A place is the place of a request in line.
type place struct {
	cost  int // 0: its caller has given up
	index int // of the request, as the caller of enter has it
}

// Arrive returns the fate of a request of a cost, at least 1. It is certain on arrival, as no
// caller gives up. Instants must not be negative, and not decrease from one request to the next.
func (b *Bucket) Arrive(p *Plan, at time.Duration, cost int) Fate {
	b.settle(p, at, nil)
	return b.enter(p, Request{At: at, Cost: cost, Deadline: Never}, 0)
}

// Line returns how many are in line after the latest arrival.
func (b *Bucket) Line() int { return b.waiting }

// enter is the arrival of a request, after all events that are due by then. It returns the fate of
// the request if all in line stay.
//
// It need not walk the line: the level does not reach 0 before a waiting request leaves, so
// each departure delays the next by exactly its cost.
func (b *Bucket) enter(p *Plan, r Request, index int) Fate {
	wait := p.waitBehind(b.empty, r.At, b.ahead, r.Cost)
	if why := p.judge(r, wait, b.waiting); why != Waiting {
		return Fate{Result: why}
	}
	if now := exact.At(int64(r.At)); wait == 0 {
		b.empty = p.left(b.empty, now, r.Cost)
	} else {
		b.push(now, place{r.Cost, index})
	}
	return Fate{Departed, wait}
}

// push adds a request to the line.
func (b *Bucket) push(now exact.Nanos, request place) {
	if b.waiting == 0 {
		b.since = now
	}
	if b.end-b.first == len(b.ring) {
		grown := make([]place, max(4, 2*len(b.ring)))
		for i := b.first; i < b.end; i++ {
			grown[i&(len(grown)-1)] = *b.at(i)
		}
		b.ring = grown
	}
	*b.at(b.end) = request
	b.end++
	b.waiting++
	b.ahead = exact.Sum(b.ahead, int64(request.cost))
}

// at returns the place with a number, from first to end.
func (b *Bucket) at(number int) *place { return &b.ring[number&(len(b.ring)-1)] }

// settle lets all requests leave whose slots have come by an instant. left, if it is not nil, is
// called for each of them.
func (b *Bucket) settle(p *Plan, by time.Duration, left func(index int, slot exact.Nanos)) {
	for until := exact.At(int64(by)); b.first < b.end; b.first++ {
		head := *b.at(b.first)
		if head.cost == 0 {
			continue
		}
		slot := exact.Later(p.allowed(b.empty, head.cost), b.since)
		if slot.After(until) {
			return
		}
		b.waiting--
		b.ahead -= int64(head.cost)
		b.empty = p.left(b.empty, slot, head.cost)
		if left != nil {
			left(head.index, slot)
		}
	}
}

// giveUp takes the request with a number out of the line at an instant up to which the
// bucket is settled.
func (b *Bucket) giveUp(number int, at time.Duration) {
	gone := b.at(number)
	if number == b.first {
		b.since = exact.At(int64(at)) // The next could not leave before.
	}
	b.waiting--
	b.ahead -= int64(gone.cost)
	gone.cost = 0
}
