package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

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
	since      exact.Nanos // since when the head may leave, but for its slot
	seatsTaken int         // places, if there is a cap: by those who have left and not ended
	slot       int64       // when its head is to leave; forever: when a place becomes free
	index      int         // in departures; -1: it is not in there, as nobody waits
}

// noLine is the line of a flow that has none. It is only read.
var noLine line

// lineOrNone returns the line of a flow, to be read; noLine if it has none.
func (f *flow) lineOrNone() *line {
	if f.line == nil {
		return &noLine
	}
	return f.line
}

// waiting returns how many are in line.
func (f *flow) waiting() int { return f.lineOrNone().len }

// ahead returns the cost of all in line, saturating.
func (f *flow) ahead() int64 { return f.lineOrNone().cost.total() }

// seatsTaken returns how many requests have a seat; 0 without a cap.
func (f *flow) seatsTaken() int { return f.lineOrNone().seatsTaken }

// headMayLeave returns the instant from which on the head of the line may leave; forever
// if nobody can tell: whoever ends that then calls markDirtyLocked. Every reason that keeps
// a head from leaving is asked for here: the cap (inflight.go), and by bucket.slot its slot
// and a hold (hold.go).
func (f *flow) headMayLeave() int64 {
	if !f.hasSeat() {
		return exact.Forever
	}
	return f.bucket.slot(f.line.since, f.line.head.cost).Ceil()
}

// notBefore notes that the head of the line, if there is one, could not leave
// before an instant.
func (f *flow) notBefore(at int64) {
	if f.line != nil {
		f.line.since = exact.Later(f.line.since, exact.At(at))
	}
}

// succeed makes a new flow go on from where its key has been sharing another: behind
// those who wait there.
func (f *flow) inheritFrom(shared *flow) {
	b := &shared.bucket
	f.bucket.empty = b.interval.Plus(b.empty, b.interval.Times(shared.ahead()))
	if hold := b.coldOrNone().hold; hold.Whole() > 0 {
		f.bucket.coldOrNew().hold = hold
	}
}

// drains is when the flow will be drained, if those in line stay and nobody else
// comes: forever if nobody knows, as the end of a request is not known.
func (f *flow) drains(now int64) int64 {
	switch {
	case f.seatsTaken() > 0:
		return exact.Forever
	case f.waiting() > 0:
		// Behind them all, whatever the burst.
		return exact.Sum(now, int64(max(f.bucket.wait(now, f.ahead(), f.bucket.burst), 1)))
	}
	return f.drainedAt()
}

// drained says whether the flow is as if it had never been used.
func (f *flow) drained(now int64) bool { return f.drainedAt() <= now }

// drainedAt is the instant from which on the flow will be as if it had never
// been used, if it is left alone; forever if somebody waits or has a place.
func (f *flow) drainedAt() int64 {
	if f.waiting() > 0 || f.seatsTaken() > 0 {
		return exact.Forever
	}
	return exact.Later(f.bucket.empty, f.bucket.coldOrNone().hold).Ceil()
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
	c := b.coldOrNone()
	st.Abandoned, st.Missed = c.abandoned, c.missed
	st.setRefusals(&c.refused)
	if head := f.lineOrNone().head; head != nil {
		st.OldestWait = time.Duration(now - head.admitted)
	}
	return st
}
