package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// A view is the state of a flow as far as it decides about newcomers: how long one would
// wait, and why it is refused.
type view struct {
	*plan
	empty, hold exact.Nanos // as in the bucket
	ahead       int64       // the cost of all in line, saturating
	seatTime    int64       // as in cold
	waiting     int32
	seatsTaken  int32
	room        placed // with whose departure there is room for a newcomer; zero: there is some, or none ever, or nobody has asked
}

// placed is a request in line.
type placed struct {
	place       int   // in the line, from 1
	ahead, cost int64 // of those ahead of it, and its own
}

// view returns the view of a flow, without room.
func (f *flow) view() view {
	b, ln := &f.bucket, f.lineOrNone()
	c := b.coldOrNone()
	return view{
		plan: b.plan, empty: b.empty, hold: c.hold, ahead: ln.cost.total(), seatTime: c.seatTime,
		waiting: ln.len, seatsTaken: ln.seatsTaken,
	}
}

// findRoom finds the request with whose departure there is room for a newcomer that may wait.
// In a line that is longer than the Depth, as that has become smaller, it walks to it.
func (v *view) findRoom(ln *line) {
	if k := int(v.waiting) - v.limits.Depth + 1; k > 0 && v.limits.Depth > 0 {
		v.room = ln.placed(k)
	}
}

// placed returns the k-th request in line, from 1.
func (q *queue) placed(k int) placed {
	w, ahead := q.ahead(k)
	return placed{k, ahead, w.cost}
}

// wait is bucket.wait.
func (v *view) wait(now, ahead, n int64) time.Duration {
	return v.waitFrom(v.empty, v.hold, now, ahead, n)
}
