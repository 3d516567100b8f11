package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// Hold lets nobody leave for a time d from now, up to 365 days, as when the
// upstream has said so. The line stays as it is, in its order; it can be joined
// and left, and Forecast, RetryAfter and MaxWait count the hold. Of several holds
// the one that ends last counts. Hold(0) ends them all; a negative d is none and
// changes nothing.
//
// The bucket leaks meanwhile: when the hold is over requests leave as from a
// bucket that nobody has used since, the first at once.
func (s *Shaper) Hold(d time.Duration) {
	s.mustBeMade()
	if d < 0 {
		return
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	s.holdLocked(&s.flow, now, d)
}

// hold is Hold for a flow.
func (d *dispatcher) holdLocked(f *flow, now int64, span time.Duration) {
	d.markDirtyLocked(f)
	if span > 0 {
		r := f.bucket.coldOrNew()
		r.hold = exact.Later(r.hold, exact.At(exact.Sum(now, int64(min(span, horizon)))))
		return
	}
	if hold := f.bucket.coldOrNone().hold; hold.Whole() > now {
		// A head that the hold has kept could not leave before now.
		f.notBefore(now)
		f.bucket.cold.hold = exact.Nanos{}
	}
	d.advanceLocked(now, headFirst)
}
