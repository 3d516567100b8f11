package shaper

import "time"

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
	now := s.lockLane(&s.lane)
	defer s.unlock()
	s.hold(&s.lane, now, d)
}

// hold is Hold for a lane.
func (e *lanes) hold(l *lane, now int64, d time.Duration) {
	e.touch(l)
	if d > 0 {
		r := l.bucket.uncommon()
		r.hold = later(r.hold, nanos{whole: sum(now, int64(min(d, horizon)))})
		return
	}
	if hold := l.bucket.heldUntil(); hold.whole > now {
		// A head that the hold has kept could not leave before now.
		l.notBefore(now)
		l.bucket.rare.hold = nanos{}
	}
	e.advance(now, goesOn)
}
