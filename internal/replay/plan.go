package replay

import (
	"time"

	"example.com/leakybucket/shaper"
)

// horizon is the longest that anything may take: what package shaper calls so.
const horizon = 365 * 24 * time.Hour

// A Plan is limits that are made ready for replays: the rule by which requests leave, as
// arithmetic. [NewPlan] makes one, for as many buckets as have these limits. It never
// changes.
//
// Instants and spans that are an int128 count in parts of a nanosecond: den of them are
// one. The interval is a whole number of parts, so all sums are exact.
type Plan struct {
	burst, depth int
	longest      time.Duration // MaxWait, or its default
	interval     int128        // of one cost unit; 0 at rate.Inf
	lead         int128        // so long before the level is 0 a request of cost 1 may leave
	den          uint64
}

// NewPlan returns the plan of limits, which must be valid. Their InFlight is left out.
func NewPlan(l shaper.Limits) *Plan {
	p := &Plan{burst: max(l.Burst, 1), depth: l.Depth, longest: min(l.MaxWait, horizon)}
	if l.MaxWait == 0 {
		p.longest = horizon
	}
	p.interval, p.den = intervalOf(l.Rate)
	p.lead = p.take(p.burst - 1)
	return p
}

// judge returns why a request is refused, or Waiting if it enters the line, perhaps to
// leave at once. The order of the checks is that of package shaper. wait is how long the
// request would wait, and line is how many are in line.
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
	if p.interval.isZero() {
		return false
	}
	return p.depth == 0 && n > p.burst || p.take(n).after(p.instant(horizon))
}

// allowed returns the instant from which the level lets a request of cost n leave, if the
// level reaches 0 at the instant empty.
func (p *Plan) allowed(empty int128, n int) int128 {
	if n == 1 {
		return empty.minus(p.lead)
	}
	return empty.minus(p.take(max(0, p.burst-n)))
}

// waitFrom returns how long it is from at until an instant, rounded up to a nanosecond; 0
// if that has come.
func (p *Plan) waitFrom(at time.Duration, until int128) time.Duration {
	if !until.after(p.instant(at)) {
		return 0
	}
	if end := until.ceil(p.den); end != Never {
		return end - at
	}
	return Never
}

// left returns the instant at which the level reaches 0 after a request of cost n has left
// at the instant slot; empty is when it would have been 0 without that request.
func (p *Plan) left(empty, slot int128, n int) int128 { return later(empty, slot).plus(p.take(n)) }

// take returns the time that n cost units take.
func (p *Plan) take(n int) int128 {
	if n == 1 {
		return p.interval
	}
	return p.interval.times(uint64(n))
}

// takeAll returns the time that a sum of costs takes.
func (p *Plan) takeAll(costs int128) int128 {
	if costs.high > 0 && !p.interval.isZero() {
		return forever
	}
	return p.interval.times(costs.low)
}

// instant returns an instant or a span, which is not negative, in parts of a nanosecond.
func (p *Plan) instant(d time.Duration) int128 { return int128{0, p.den}.times(uint64(d)) }
