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
	now := s.lock()
	defer s.unlock()
	s.changed = true
	if d > 0 {
		until := nanos{whole: sum(now, int64(min(d, horizon)))}
		s.bucket.hold = later(s.bucket.hold, until)
		return
	}
	if s.bucket.hold.whole > now {
		// A head that the hold has kept could not leave before now.
		s.bucket.since = later(s.bucket.since, nanos{whole: now})
	}
	s.bucket.hold = nanos{}
	s.advance(now, goesOn)
}
