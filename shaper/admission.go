package shaper

import (
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// A rejection is what a [RejectError] says, as a value: a request that is not refused in
// the end allocates nothing.
type rejection struct {
	reason     reason
	retryAfter time.Duration
	deadline   bool
}

func (r rejection) value() RejectError {
	return RejectError{Reason: reasonErrors[r.reason], RetryAfter: r.retryAfter, deadline: r.deadline}
}

// judgeNewcomerLocked returns for how long a request, which is no reentry, would wait at
// least, or why it is refused. The wait is 0 only if it may leave at once. The order of
// the checks is part of the contract.
func (d *dispatcher) judgeNewcomerLocked(f *flow, now int64, r *request) (wait time.Duration, why rejection) {
	if d.phase != open {
		return 0, rejection{reason: refusedClosed, retryAfter: f.emptyIn(now)}
	}
	if f.tooCostly(r.cost) {
		return 0, rejection{reason: refusedCostly}
	}
	waiting := f.waiting()
	wait = f.bucket.wait(now, f.ahead(), r.cost)
	if wait == 0 && !(waiting == 0 && f.hasSeat()) {
		wait = 1 // Nobody knows when a seat becomes free; but not now.
	}
	untilDeadline := r.untilDeadline(now)
	late := untilDeadline < exact.Forever && wait >= untilDeadline
	switch {
	case wait > 0 && waiting >= f.depthFor(r):
		why.reason = refusedFull
	case late || wait > time.Duration(f.bucket.limits.maxWait()):
		why.reason, why.deadline = refusedLate, late
	default:
		return wait, why
	}
	why.retryAfter = f.retryAfter(now, wait, r)
	return wait, why
}

// judgeReentryLocked is judgeNewcomerLocked for a reentry: only those like it are ahead of it,
// and only its deadline or Close refuses it.
func (d *dispatcher) judgeReentryLocked(f *flow, now int64, r *request) (wait time.Duration, why rejection) {
	if d.phase == closed {
		return 0, rejection{reason: refusedClosed}
	}
	wait = f.bucket.wait(now, f.lineOrNone().reentryCost.total(), r.cost)
	if wait == 0 && !(f.waiting() == 0 && f.hasSeat()) {
		wait = 1 // The line is at rest for a while, and so is this one.
	}
	if untilDeadline := r.untilDeadline(now); untilDeadline < exact.Forever && wait >= untilDeadline {
		after := max(wait-untilDeadline+1, f.seatIn(1))
		return 0, rejection{reason: refusedLate, retryAfter: after, deadline: true}
	}
	return wait, why
}

// depthFor returns how many may wait for a request to enter the line behind them.
func (f *flow) depthFor(r *request) int {
	if r.kind == allow {
		return 0
	}
	return f.bucket.limits.Depth
}

// tooCostly reports whether a request of cost n can never fit: it would hold the bucket
// beyond the horizon, or it is above Burst and nothing may wait, as Depth is 0. At
// rate.Inf nothing is too costly.
func (f *flow) tooCostly(n int64) bool {
	b := &f.bucket
	if b.interval.IsZero() {
		return false
	}
	return b.limits.Depth == 0 && n > b.burst || b.interval.Times(n).Exceeds(horizon)
}

// retryAfter returns the time after which the same call, with the same time left to its
// deadline, would be admitted if those in line stay and nobody else comes. The call
// would have to wait for at least bound.
//
// It need not come later than its own departure would be: then it would leave at once.
// Before that it needs a place in the line, a wait within MaxWait, and a slot before its
// deadline; all three only get better with time, each from one instant on. While all
// seats are taken nothing moves, so then the result is an estimate, no shorter than that
// for the next seat.
func (f *flow) retryAfter(now int64, bound time.Duration, r *request) time.Duration {
	wait, depth := f.expected(bound), f.depthFor(r)
	if depth == 0 {
		return wait
	}
	timeLeft := max(r.untilDeadline(now), 1) // It may be 0, but to come later than at bound would not help.
	after := max(f.seatIn(1), bound-time.Duration(f.bucket.limits.maxWait()), bound-timeLeft+1)
	if k := f.waiting() - depth + 1; k > 0 {
		after = max(after, f.leavesIn(now, k))
	}
	return min(wait, after)
}

// leavesIn returns how long the k-th in line, from 1, has still to wait.
func (f *flow) leavesIn(now int64, k int) time.Duration {
	w, ahead := f.line.ahead(k)
	return max(f.bucket.wait(now, ahead, w.cost), f.seatIn(k), 1) // As it has not left yet.
}

// expected returns for how long a newcomer is expected to wait which has to wait for
// at least bound: as much longer as it is expected to wait for a seat.
func (f *flow) expected(bound time.Duration) time.Duration {
	return max(bound, f.seatIn(f.waiting()+1))
}

// emptyIn returns the time until the last in line has left.
func (f *flow) emptyIn(now int64) time.Duration {
	if f.waiting() == 0 {
		return 0
	}
	return f.leavesIn(now, f.waiting())
}
