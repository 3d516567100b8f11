package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// Hold lets no request leave for a time d from now, up to 365 days, for example because
// the upstream has asked for a pause. The line keeps its order. Requests can still enter
// it and give up, and [Shaper.Forecast], [RejectError.RetryAfter] and [Limits.MaxWait]
// take the hold into account. Of several holds the one that ends last counts. Hold(0)
// ends them all; a negative d changes nothing.
//
// The bucket leaks during a hold. So when the hold ends, the first request leaves at
// once, and the others as from a bucket that has not been used since the hold began.
func (s *Shaper) Hold(d time.Duration) {
	s.mustBeMade()
	if d < 0 {
		return
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	s.holdLocked(&s.flow, now, d)
}

// holdLocked is Hold for a flow.
func (d *dispatcher) holdLocked(f *flow, now int64, span time.Duration) {
	d.markDirtyLocked(f)
	if span > 0 {
		r := f.bucket.coldOrNew()
		r.hold = exact.Later(r.hold, exact.At(exact.Sum(now, int64(min(span, horizon)))))
		return
	}
	if hold := f.bucket.coldOrNone().hold; hold.Whole() > now {
		// The hold has kept the head until now, so the head is not late.
		f.notBefore(now)
		f.bucket.cold.hold = exact.Nanos{}
	}
	d.advanceLocked(now, headFirst)
}
