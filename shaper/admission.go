package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// A rejection is what a [RejectError] says, as a value: a request that is not refused in
// the end allocates nothing.
type rejection struct {
	reason     reason
	retryAfter time.Duration
	also       *alsoError // what the error is beside its reason; nil: nothing
}

func (r rejection) value() RejectError {
	return RejectError{Reason: reasonErrors[r.reason], RetryAfter: r.retryAfter, also: r.also}
}

// A judgement is what a request meets at entry.
type judgement struct {
	refusal rejection
	wait    time.Duration // if it is not refused: for how long at least; 0 only if it may leave at once
}

// judgeLocked judges a request.
func (d *dispatcher) judgeLocked(f *flow, now int64, r *request) (j judgement) {
	switch {
	case r.kind == reentry:
		return f.judgeReentry(now, r, d.phase)
	case d.phase != open:
		j.refusal = rejection{reason: refusedClosed, retryAfter: f.emptyIn(now)}
		return j
	}
	v := f.view()
	if sf := d.shared.flowOf(f); sf != nil {
		v.placeless = sf.placelessLocked(now, r.cost)
	}
	if r.kind != allow {
		v.findRoom(f.line)
	}
	j.wait, j.refusal = v.judge(now, v.leaves(r.cost), r)
	if d.mode&modeBlock != 0 {
		j.refusal = d.blocks.judge(f, now, j.refusal)
	}
	return j
}

// judge is judgeLocked for a newcomer, of which view.leaves is known, while the dispatcher is
// open and no block is to be heeded. The order of the checks is part of the contract.
func (v *view) judge(now, leaves int64, r *request) (wait time.Duration, why rejection) {
	if leaves == neverFits {
		return 0, rejection{reason: refusedCostly}
	}
	wait = timeUntil(leaves, now)
	if wait == 0 && !(v.waiting == 0 && v.hasSeat(v.seatsTaken)) {
		wait = 1 // It is unknown when a seat becomes free; but not now.
	}
	untilDeadline := r.untilDeadline(now)
	late := untilDeadline < exact.Forever && wait >= untilDeadline
	switch {
	case wait > 0 && int(v.waiting) >= v.depthFor(r):
		why.reason = refusedFull
		if v.depthFor(r) == 0 {
			why.also = withoutLine
		}
	case late:
		why.reason, why.also = refusedLate, missedDeadline
	case wait > v.maxWait():
		why.reason = refusedLate
	default:
		return wait, why
	}
	why.retryAfter = v.retryAfter(now, wait, r)
	return wait, why
}

// judgeReentry is judgeLocked for a reentry: only those like it are ahead of it, and only
// its deadline or Close refuses it. It was admitted before, so it neither heeds a block nor
// begins one.
func (f *flow) judgeReentry(now int64, r *request, p phase) (j judgement) {
	if p == closed {
		j.refusal.reason = refusedClosed
		return j
	}
	v := f.view()
	j.wait = timeUntil(v.leavesAfter(v.bucketInstants, f.lineOrNone().reentryCost.total(), r.cost), now)
	if j.wait == 0 && !(f.waiting() == 0 && f.hasSeat()) {
		j.wait = 1 // The line is at rest for a while, and so is this one.
	}
	if untilDeadline := r.untilDeadline(now); untilDeadline < exact.Forever && j.wait >= untilDeadline {
		j.refusal = rejection{reason: refusedLate, retryAfter: max(j.wait-untilDeadline+1, v.seatIn(1)), also: missedDeadline}
	}
	return j
}

// maxWait returns [Limits.MaxWait], or its default, at most horizon.
func (p *plan) maxWait() time.Duration {
	if p.limits.MaxWait == 0 {
		return horizon
	}
	return min(p.limits.MaxWait, horizon)
}

// depthFor returns how many may wait for a request to enter the line behind them.
func (v *view) depthFor(r *request) int {
	if r.kind == allow {
		return 0
	}
	return v.limits.Depth + int(v.placeless)
}

// tooCostly reports whether a request of cost n can never fit: it would hold the bucket
// beyond the horizon, or it is above Burst and nothing may wait, as Depth is 0. At
// rate.Inf nothing is too costly.
func (p *plan) tooCostly(n int64) bool {
	if p.interval.IsZero() {
		return false
	}
	return p.limits.Depth == 0 && n > p.burst || p.interval.Times(n).Exceeds(horizon)
}

// retryAfter returns the time after which the same call, with the same time left to its
// deadline, would be admitted if those in line stay and no other request comes. The call
// would have to wait for at least bound.
//
// It need not come later than its own departure would be: then it would leave at once.
// Before that it needs a place in the line, a wait within [Limits.MaxWait], and a slot before its
// deadline; all three only get better with time, each from one instant on. While all
// seats are taken nothing moves, so then the result is an estimate, no shorter than that
// for the next seat.
func (v *view) retryAfter(now int64, bound time.Duration, r *request) time.Duration {
	if v.depthFor(r) == 0 {
		return v.expected(bound)
	}
	timeLeft := max(r.untilDeadline(now), 1) // It may be 0, but to come later than at bound would not help.
	wait, after := bound, max(0, bound-v.maxWait(), bound-timeLeft+1)
	if v.roomPlace > 0 {
		after = max(after, timeUntil(v.roomLeaves, now), 1) // As leavesIn, but for the seat.
	}
	if v.capped() {
		wait, after = v.expected(bound), max(after, v.seatIn(max(int(v.roomPlace), 1)))
	}
	return min(wait, after)
}

// leavesIn returns how long a request in line has still to wait.
func (v *view) leavesIn(now int64, w placed) time.Duration {
	return max(timeUntil(w.leaves, now), v.seatIn(w.place), 1) // As it has not left yet.
}

// expected returns for how long a newcomer is expected to wait which has to wait for
// at least bound: as much longer as it is expected to wait for a seat.
func (v *view) expected(bound time.Duration) time.Duration {
	return max(bound, v.seatIn(int(v.waiting)+1))
}

// emptyIn returns the time until the last in line has left.
func (f *flow) emptyIn(now int64) time.Duration {
	if f.waiting() == 0 {
		return 0
	}
	v := f.view()
	return v.leavesIn(now, v.placed(f.line, f.waiting()))
}
