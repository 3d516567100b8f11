package shaper

import (
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
)

// While a flow leaves by its lease, its own bucket is an estimate: what the level of the
// Bucket looks like from here, where each request seems to raise it by as much as it and
// those of the other processes do together. So all that predicts a wait (Forecast,
// RetryAfter, MaxWait, deadlines, Line) is computed by the same functions as without a Bucket.

// estimateFromLocked makes the flow's bucket an estimate: its level reaches 0 at an instant, and
// each cost unit takes the interval.
func (ls *lease) estimateFromLocked(interval exact.Interval, empty int64) {
	if ls.fallback || ls.given.interval.IsZero() {
		return
	}
	b := &ls.f.bucket
	if b.plan == ls.given || b.interval != interval || b.limits != ls.inForceLocked().limits {
		p := *ls.inForceLocked()
		p.interval, p.burst = interval, ls.rate.Burst
		b.plan = &p
	}
	b.setEmpty(exact.At(max(empty, 0)), nil)
}

// inForceLocked returns the plan of the [Limits] that are in force: those of this process,
// or with the rate of another one that is newer.
func (ls *lease) inForceLocked() *plan {
	if ls.adopted != nil {
		return ls.adopted
	}
	return ls.given
}

// paceIntervalLocked returns the interval between departures of cost 1 from this process, as its
// share has been of late. It changes in steps of an eighth.
func (ls *lease) paceIntervalLocked() exact.Interval {
	steps := math.Round(8 * math.Log2(ls.pace))
	if steps <= 0 {
		return ls.plan.interval
	}
	ns := ls.plan.interval.Units(exact.At(int64(time.Second))) // units per second
	return exact.IntervalOfFraction(int64(min(1e9/ns*math.Exp2(steps/8), float64(horizon))), 0, 1)
}

// probeLocked makes the pump ask a backend that could not be asked, if it is time to. In the
// fallback requests may leave without a line, so that the pump does not run.
func (ls *lease) probeLocked(now int64) {
	if _, ok := ls.backend.mayAsk(now); ok && !ls.probes {
		ls.probes = true
		ls.kickLocked(now)
	}
}

// checkFallbackLocked begins or ends the fallback, as the backend demands it.
func (ls *lease) checkFallbackLocked(now int64) {
	switch n := int64(ls.d.shared.fallback); {
	case ls.backend.open == ls.fallback || n == 0 || ls.given.interval.IsZero():
	case ls.backend.open:
		ls.fallback = true
		p := *ls.inForceLocked()
		whole := ls.plan.interval
		p.interval = exact.IntervalOfFraction(whole.Times(n).Whole()+1, 0, 1) // A nanosecond longer rather than a part of one shorter.
		if n == 1 {
			p.interval = whole
		}
		p.burst = max(1, ls.rate.Burst/n)
		start := max(ls.backend.openedAt, ls.endsAt) + ls.latenessLocked() // Whatever others have leased has passed by then.
		ls.f.bucket.plan = &p
		ls.f.bucket.setEmpty(p.interval.Plus(exact.At(start), p.interval.Times(p.burst-1)), nil)
		ls.f.notBefore(now) // A request is not late because none could leave.
		ls.d.markDirtyLocked(ls.f)
	default:
		// What has left meanwhile is told to the Bucket as the level that it has made.
		own := ls.levelAsHighLocked(now)
		ls.high = ls.high.Later(own)
		ls.level = max(ls.level, own.Micros*1000)
		ls.fallback = false
		ls.estimateFromLocked(ls.paceIntervalLocked(), now)
		ls.f.notBefore(now)
		ls.d.markDirtyLocked(ls.f)
	}
}

// levelAsHighLocked returns when the level would reach 0 on the [Bucket]'s clock, if it was
// that of the fallback; the zero [Instant] if nothing is known of that clock.
func (ls *lease) levelAsHighLocked(now int64) Instant {
	if !ls.clock.known {
		return Instant{}
	}
	level := int64(math.Ceil(ls.f.bucket.level(now)))
	return instantOf(exact.Sum(ls.clock.latest(now), ls.plan.interval.Times(level).Ceil()))
}
