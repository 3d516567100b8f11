package shaper

import "math"

// A view is the state of a flow as far as it decides about newcomers: how long one would
// wait, and why it is refused.
type view struct {
	*plan
	bucketInstants
	ahead      int64 // the cost of all in line, saturating
	seatTime   int64 // as in cold
	waiting    int32
	seatsTaken int32
	placeless  int32 // how many of those that wait have no place, as it counts for this newcomer; see placelessLocked
	roomPlace  int32 // of the request with whose departure there is room for a newcomer; 0: there is some, or none ever, or findRoom was not called
	roomLeaves int64 // when that request leaves, as placed.leaves
}

// placed is a request in line.
type placed struct {
	place  int   // in the line, from 1
	leaves int64 // the instant at which it is to leave, if it has a seat by then
}

// view returns the view of a flow, without room.
func (f *flow) view() view {
	b, ln := &f.bucket, f.lineOrNone()
	c := b.coldOrNone()
	return view{
		plan: b.plan, bucketInstants: bucketInstants{b.empty, c.hold}, ahead: ln.cost.total(), seatTime: c.seatTime,
		waiting: ln.len, seatsTaken: ln.seatsTaken,
	}
}

// findRoom finds the request with whose departure there is room for a newcomer that may wait.
// In a line that is longer than the Depth, as that has become smaller, it walks to it.
func (v *view) findRoom(ln *line) {
	if k := int(v.waiting) - v.limits.Depth + 1; k > int(v.placeless) && v.limits.Depth > 0 {
		v.roomPlace, v.roomLeaves = int32(k), v.placed(ln, k).leaves
	}
}

// placed returns the k-th request in line, from 1.
func (v *view) placed(ln *line, k int) placed {
	w, ahead := ln.ahead(k)
	return placed{k, v.leavesAfter(v.bucketInstants, ahead, w.cost)}
}

// neverFits stands for the instant at which a request would leave that can never fit.
const neverFits = math.MinInt64

// leaves returns the instant from which on a newcomer of cost n may leave, if it has a seat by
// then, or neverFits. The instant may be past. It depends neither on the clock nor on the kind of
// the request.
func (v *view) leaves(n int64) int64 {
	if v.tooCostly(n) {
		return neverFits
	}
	return v.leavesAfter(v.bucketInstants, v.ahead, n)
}
