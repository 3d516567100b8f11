package shaper

import "time"

// A lane is a line in front of a bucket: all that a Shaper has of its own, and
// all that there is of a key in a Group. Lanes that belong together share a
// lock, a clock and a ticker, which are in lanes. Methods of a lane need the lock
// held, unless they say otherwise.
//
// A Group has many of which nobody has ever waited for, so a lane is small, and
// what few need is elsewhere: line and rare.
type lane struct {
	bucket bucket
	line   *line // nil: nobody waits, nor has a place

	// What it has counted, beside what is in rare. (The lanes together have
	// totals of their own, which outlive it.)
	departed uint64
	wait     int64 // of those that departed, in nanoseconds
	entered  int64 // the latest entry of a call that was counted; -1: none was
}

// A line is the queue of a lane, with what a lane needs while somebody waits or
// has a place.
type line struct {
	queue
	lane  *lane
	since nanos // since when the head may leave, but for its slot
	taken int   // places, if there is a cap: by those who have left and not ended
	slot  int64 // when its head is to leave; forever: when a place becomes free
	index int   // in departures; -1: it is not in there, as nobody waits
}

// next is when the head of the line is to leave; forever if nobody knows, as all
// places are taken: whoever gives one back looks for the head.
func (l *lane) next() int64 {
	if !l.hasRoom() {
		return forever
	}
	return l.bucket.slot(l.line.since, l.line.head.cost).ceil()
}

// notBefore notes that the head of the line, if there is one, could not leave
// before an instant.
func (l *lane) notBefore(at int64) {
	if l.line != nil {
		l.line.since = later(l.line.since, nanos{whole: at})
	}
}

// waiting is how many are in line.
func (l *lane) waiting() int {
	if l.line == nil {
		return 0
	}
	return l.line.len
}

// ahead is the cost of all in line, saturating.
func (l *lane) ahead() int64 {
	if l.line == nil {
		return 0
	}
	return l.line.cost.total()
}

// capped says whether there is a cap on what is in flight, which never changes:
// the lock need not be held, if the limits don't change meanwhile.
func (l *lane) capped() bool { return l.bucket.limits.InFlight > 0 }

// hasRoom says whether the cap on what is in flight lets one more leave.
func (l *lane) hasRoom() bool { return !l.capped() || l.taken() < l.bucket.limits.InFlight }

// taken is how many have a place, if there is a cap.
func (l *lane) taken() int {
	if l.line == nil {
		return 0
	}
	return l.line.taken
}

// succeed makes a new lane go on from where its key has been sharing another: behind
// those who wait there.
func (l *lane) succeed(shared *lane) {
	b := &shared.bucket
	l.bucket.empty = b.interval.plus(b.empty, b.interval.times(shared.ahead()))
	if hold := b.heldUntil(); hold.whole > 0 {
		l.bucket.uncommon().hold = hold
	}
}

// drains is when the lane will be drained, if those in line stay and nobody else
// comes: forever if nobody knows, as the end of a request is not known.
func (l *lane) drains(now int64) int64 {
	switch {
	case l.taken() > 0:
		return forever
	case l.waiting() > 0:
		// Behind them all, whatever the burst.
		return sum(now, int64(max(l.bucket.wait(now, l.ahead(), l.bucket.burst), 1)))
	}
	return l.drainedAt()
}

// drained says whether the lane is as if it had never been used.
func (l *lane) drained(now int64) bool { return l.drainedAt() <= now }

// drainedAt is the instant from which on the lane will be as if it had never
// been used, if it is left alone; forever if somebody waits or has a place.
func (l *lane) drainedAt() int64 {
	if l.waiting() > 0 || l.taken() > 0 {
		return forever
	}
	return later(l.bucket.empty, l.bucket.heldUntil()).ceil()
}

// stats is what the lane knows of itself.
func (l *lane) stats(now int64) Stats {
	b := &l.bucket
	st := Stats{
		Limits:    b.limits,
		Waiting:   l.waiting(),
		InFlight:  l.taken(),
		Level:     b.level(now),
		Departed:  l.departed,
		TotalWait: time.Duration(l.wait),
	}
	if r := b.rare; r != nil {
		st.Abandoned, st.Missed = r.abandoned, r.missed
		st.refusals(&r.refused)
	}
	if l.line != nil && l.line.head != nil {
		st.OldestWait = time.Duration(now - l.line.head.admitted)
	}
	return st
}
