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

// A Plan is limits that are made ready for replays: the rule by which requests leave, as
// arithmetic. [NewPlan] makes one, for as many buckets as have these limits. It never
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

// waitFrom returns how long it is from at until an instant, rounded up to a nanosecond; 0
// if that has come.
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
// at the instant slot; empty is when it would have been 0 without that request.
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
