package shaper

import (
	"fmt"
	"time"

	"example.com/leakybucket/internal/exact"
)

// Limits returns the limits in force, as they were given. With a [shared.Bucket] another process may have set Rate
// and Burst ([shared.Options.RateVersion]).
func (s *Shaper) Limits() Limits {
	s.mustBeMade()
	s.lockAndAdvance()
	defer s.unlockAndArm()
	return s.flow.bucket.limits
}

// SetLimits puts l in force at once, also for requests that wait: they are re-timed in their order, from the present
// level. A smaller [Limits.Depth] refuses newcomers and drops no request that waits. Across a change guarantee 1
// holds with the larger Burst, and with each rate for its time. If l is invalid ([Limits.Validate]), or would change
// [Limits.InFlight] from or to 0, SetLimits returns an error and changes nothing. It works on a closed Shaper.
func (s *Shaper) SetLimits(l Limits) error {
	s.mustBeMade()
	_, err := s.setLimits(l, nil)
	return err
}

// UpdateLimits is SetLimits with what a function makes of the [Limits] that are in force, so that of two changes at
// the same time none is lost: if others have been put in force while it ran, it is called again. It runs outside any
// lock, and must not itself change the Limits of the Shaper.
//
//	err := s.UpdateLimits(func(l shaper.Limits) shaper.Limits {
//		l.Rate = 20
//		return l
//	})
func (s *Shaper) UpdateLimits(change func(Limits) Limits) error {
	for {
		from := s.Limits()
		if done, err := s.setLimits(change(from), &from); done {
			return err
		}
	}
}

// setLimits is SetLimits. With a from that is not nil it changes nothing unless these Limits are still
// in force, and reports whether they were.
func (s *Shaper) setLimits(l Limits, from *Limits) (done bool, err error) {
	var to *plan
	if err = s.validate(l); err == nil {
		to = s.planOf(l)
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	if from != nil && *from != s.flow.bucket.limits {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if err := s.flow.checkChange(to); err != nil {
		return true, err
	}
	s.changesLocked()
	s.changeLocked(&s.flow, to, now)
	return true, nil
}

// checkChange returns why a flow can't have other limits; nil if it can.
func (f *flow) checkChange(to *plan) error {
	from := f.bucket.limits.InFlight
	if to.cap == grantedCap || (from > 0) == (to.limits.InFlight > 0) {
		return nil
	}
	return fmt.Errorf("shaper: Limits.InFlight is %d and can't become %d while the shaper is in use: "+
		"with a cap requests say when they end, and without they don't", from, to.limits.InFlight)
}

// Hold lets no request leave for a time d from now, up to 365 days, for example because the upstream has asked for a
// pause. Requests can still enter the line and give up, and predictions take the hold into account. Of several holds
// the one that ends last counts. Hold(0) ends them all; a negative d changes nothing. The bucket leaks during a
// hold: when it ends, the first request leaves at once, and the others as from a bucket that has not been used
// since. With a [shared.Bucket] a hold is of all processes, for a day at most, and Hold(0) ends what this process
// holds; when it ends, requests leave at the rate, without a burst.
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
	if lv := f.remote(); lv != nil {
		span = lv.hold(now, span)
	}
	if span > 0 {
		d.holdUntilLocked(f, now, exact.Sum(now, int64(min(span, horizon))))
		return
	}
	if hold := f.bucket.coldOrNone().hold; hold.Whole() > now {
		// The hold has kept the head until now, so the head is not late.
		f.notBefore(now)
		f.bucket.cold.hold = exact.Nanos{}
	}
	d.advanceLocked(now, headFirst)
}

// holdUntilLocked lets no request of a flow leave before an instant.
func (d *dispatcher) holdUntilLocked(f *flow, now, until int64) {
	c := f.bucket.coldOrNew()
	c.hold = exact.Later(c.hold, exact.At(until))
	if f.line != nil {
		f.line.refuseBeforeLocked(d, now, c.hold.Ceil())
	}
}

// changeLocked puts other limits in force for a flow.
func (d *dispatcher) changeLocked(f *flow, to *plan, now int64) {
	if lv := f.remote(); lv != nil {
		lv.change(to)
		if to.interval.IsZero() {
			f.letIn()
		}
		d.markDirtyLocked(f)
		d.advanceLocked(now, headFirst)
		return
	}
	leftAt := f.bucket.lastLeftAt(now)
	f.bucket.change(to, now)
	f.bucket.noteLeftAt(leftAt)
	if to.interval.IsZero() {
		f.letIn() // There is nothing to keep them out for.
	}
	if f.line != nil {
		// A head that the new limits would have let leave sooner leaves now.
		f.line.beginHead(now)
		d.watcher.rescheduled(f.line) // The next spacing would be one of two rates.
	}
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
	d.ticker.look(now)
}

// changesLocked is called before other limits are put in force.
func (d *dispatcher) changesLocked() {
	if d.levels != nil {
		d.levels.changes()
	}
}

// validate returns why limits are not for the flows of a dispatcher; nil: they are.
func (d *dispatcher) validate(l Limits) error {
	if err := l.Validate(); err != nil || d.levels == nil {
		return err
	}
	return d.levels.check(l)
}

// planOf returns a new plan of [Limits] for the flows of a dispatcher.
func (d *dispatcher) planOf(l Limits) *plan {
	p := planOf(l)
	if d.letsAllThrough() {
		p.cap = noCap // It is unknown when a request would have ended that had left later.
	}
	p.inLine = d.lineTimeout.of(l)
	p.several = d.further != nil
	if d.levels != nil {
		d.levels.plan(p)
	}
	return p
}

// change puts other limits in force from now on. It keeps the level exactly: empty
// moves so that the level now is the same at the new rate. At [rate.Inf] the level is
// always 0, so a change to rate.Inf and back empties the bucket.
func (b *bucket) change(to *plan, now int64) {
	old, next, at := b.interval, to.interval, exact.At(now)
	switch {
	case next == old:
		b.plan = to
		return
	case !b.empty.After(at) || old.IsZero() || next.IsZero():
		b.plan = to
		b.setEmpty(at, nil)
		if l := b.ledger(); l != nil {
			l.emptied()
		}
		return
	}
	b.plan = to
	b.setEmpty(old.Rescale(b.empty, b.roundedUpBy(), now, next))
	if l := b.ledger(); l != nil {
		l.rescaled(b, old)
	}
}

// letIn ends the time for which the gate keeps newcomers out.
func (f *flow) letIn() {
	if f.keptOutUntil() != 0 && f.keptOutUntil() != never {
		f.keepOut(0)
	}
}
