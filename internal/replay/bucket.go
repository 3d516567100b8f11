// Package replay computes how requests that arrived at a bucket would have fared under
// other limits. It runs no Shaper: it is a function of the arrivals, in virtual time.
// A [Bucket] replays requests one after another as they come, however many; none gives up. A
// [FairBucket] does so for keys that share one rate.
//
// The replay obeys the one rule by which requests leave, with every instant exact:
//
//	A request of cost n leaves as soon as it is at the head of the line and
//	the level is at most max(0, Burst − n). Leaving raises the level by n.
//
// Events at one instant happen in this order: departures, arrivals. A replay has no holds, no
// changes of the limits, and no late wake-ups. It has no cap on requests in flight either: a
// request that leaves at another instant ends at an unknown one. Tests play the same requests to a
// real Shaper in a testing/synctest bubble.
package replay

import (
	"math"
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
func (p *Plan) judge(cost int, wait time.Duration, line int) Result {
	switch {
	case cost > 1 && p.tooCostly(cost):
		return TooCostly
	case wait > 0 && line >= p.depth:
		return QueueFull
	case wait > p.longest:
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

// A Bucket is a bucket in virtual time, at which requests arrive one after another. The zero
// Bucket is empty. Its methods take its Plan as an argument, so that many buckets may share
// one.
type Bucket struct {
	empty exact.Nanos // the instant at which the level reaches 0 if no request in line leaves
	ahead int64       // the costs in line

	// The costs of those in line, the head first, in a ring that grows. Its length is a power of two, or 0.
	ring       []int
	first, end int // counted without end
}

// Arrive returns the fate of a request of a cost, at least 1. It is certain on arrival, as no
// caller gives up. Instants must not be negative, and not decrease from one request to the next.
//
// It need not walk the line: the level does not reach 0 before a waiting request leaves, so
// each departure delays the next by exactly its cost.
func (b *Bucket) Arrive(p *Plan, at time.Duration, cost int) Fate {
	now := exact.At(int64(at))
	for ; b.first < b.end; b.first++ { // Those leave whose slots have come.
		head := *b.at(b.first)
		slot := p.allowed(b.empty, head)
		if slot.After(now) {
			break
		}
		b.ahead -= int64(head)
		b.empty = p.left(b.empty, slot, head)
	}
	wait := p.waitBehind(b.empty, at, b.ahead, cost)
	if why := p.judge(cost, wait, b.Line()); why != Waiting {
		return Fate{Result: why}
	}
	if wait == 0 {
		b.empty = p.left(b.empty, now, cost)
	} else {
		b.push(cost)
	}
	return Fate{Departed, wait}
}

// Line returns how many are in line after the latest arrival.
func (b *Bucket) Line() int { return b.end - b.first }

// push adds a request to the line.
func (b *Bucket) push(cost int) {
	if b.Line() == len(b.ring) {
		grown := make([]int, max(4, 2*len(b.ring)))
		for i := b.first; i < b.end; i++ {
			grown[i&(len(grown)-1)] = *b.at(i)
		}
		b.ring = grown
	}
	*b.at(b.end) = cost
	b.end++
	b.ahead = exact.Sum(b.ahead, int64(cost))
}

// at returns the place with a number, from first to end.
func (b *Bucket) at(number int) *int { return &b.ring[number&(len(b.ring)-1)] }

// Never is the instant that does not come.
const Never time.Duration = math.MaxInt64

// A Result is the fate of a request.
type Result int

// The zero Result is of a request that is in line.
const (
	Waiting Result = iota
	Departed
	QueueFull
	TooLate
	TooCostly
)

// A Fate is the Result of a request, and how long it waited for it.
type Fate struct {
	Result Result
	Waited time.Duration // 0: it did not wait
}
