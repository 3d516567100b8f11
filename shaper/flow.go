package shaper

import "time"

// A flow is a line in front of a bucket: all that a Shaper has of its own, and
// all that there is of a key in a Group. Lanes that belong together share a
// lock, a clock and a ticker, which are in flows. Methods of a flow need the lock
// held, unless they say otherwise.
//
// A Group has many of which nobody has ever waited for, so a flow is small, and
// what few need is elsewhere: line and rare.
type flow struct {
	bucket bucket
	line   *line // nil: nobody waits, nor has a place

	// What it has counted, beside what is in rare. (The flows together have
	// totals of their own, which outlive it.)
	departed uint64
	wait     int64 // of those that departed, in nanoseconds
	entered  int64 // the latest entry of a call that was counted; -1: none was
}

// A line is the queue of a flow, with what a flow needs while somebody waits or
// has a place.
type line struct {
	queue
	flow       *flow
	since      nanos // since when the head may leave, but for its slot
	seatsTaken int   // places, if there is a cap: by those who have left and not ended
	slot       int64 // when its head is to leave; forever: when a place becomes free
	index      int   // in departures; -1: it is not in there, as nobody waits
}

// next is when the head of the line is to leave; forever if nobody knows, as all
// places are taken: whoever gives one back looks for the head.
func (f *flow) next() int64 {
	if !f.hasSeat() {
		return forever
	}
	return f.bucket.slot(f.line.since, f.line.head.cost).ceil()
}

// notBefore notes that the head of the line, if there is one, could not leave
// before an instant.
func (f *flow) notBefore(at int64) {
	if f.line != nil {
		f.line.since = later(f.line.since, nanos{whole: at})
	}
}

// waiting is how many are in line.
func (f *flow) waiting() int {
	if f.line == nil {
		return 0
	}
	return f.line.len
}

// ahead is the cost of all in line, saturating.
func (f *flow) ahead() int64 {
	if f.line == nil {
		return 0
	}
	return f.line.cost.total()
}

// capped says whether there is a cap on what is in flight, which never changes:
// the lock need not be held, if the limits don't change meanwhile.
func (f *flow) capped() bool { return f.bucket.limits.InFlight > 0 }

// hasRoom says whether the cap on what is in flight lets one more leave.
func (f *flow) hasSeat() bool { return !f.capped() || f.seatsTaken() < f.bucket.limits.InFlight }

// taken is how many have a place, if there is a cap.
func (f *flow) seatsTaken() int {
	if f.line == nil {
		return 0
	}
	return f.line.seatsTaken
}

// succeed makes a new flow go on from where its key has been sharing another: behind
// those who wait there.
func (f *flow) inheritFrom(shared *flow) {
	b := &shared.bucket
	f.bucket.empty = b.interval.plus(b.empty, b.interval.times(shared.ahead()))
	if hold := b.heldUntil(); hold.whole > 0 {
		f.bucket.coldOrNew().hold = hold
	}
}

// drains is when the flow will be drained, if those in line stay and nobody else
// comes: forever if nobody knows, as the end of a request is not known.
func (f *flow) drains(now int64) int64 {
	switch {
	case f.seatsTaken() > 0:
		return forever
	case f.waiting() > 0:
		// Behind them all, whatever the burst.
		return sum(now, int64(max(f.bucket.wait(now, f.ahead(), f.bucket.burst), 1)))
	}
	return f.drainedAt()
}

// drained says whether the flow is as if it had never been used.
func (f *flow) drained(now int64) bool { return f.drainedAt() <= now }

// drainedAt is the instant from which on the flow will be as if it had never
// been used, if it is left alone; forever if somebody waits or has a place.
func (f *flow) drainedAt() int64 {
	if f.waiting() > 0 || f.seatsTaken() > 0 {
		return forever
	}
	return later(f.bucket.empty, f.bucket.heldUntil()).ceil()
}

// stats is what the flow knows of itself.
func (f *flow) stats(now int64) Stats {
	b := &f.bucket
	st := Stats{
		Limits:    b.limits,
		Waiting:   f.waiting(),
		InFlight:  f.seatsTaken(),
		Level:     b.level(now),
		Departed:  f.departed,
		TotalWait: time.Duration(f.wait),
	}
	if r := b.cold; r != nil {
		st.Abandoned, st.Missed = r.abandoned, r.missed
		st.setRefusals(&r.refused)
	}
	if f.line != nil && f.line.head != nil {
		st.OldestWait = time.Duration(now - f.line.head.admitted)
	}
	return st
}
