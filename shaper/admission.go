package shaper

import (
	"context"
	"time"
)

// A rejection is a *RejectError in the making, by value, so that what is not
// refused in the end allocates nothing.
type rejection struct {
	reason     reason
	retryAfter time.Duration
	deadline   bool
}

func (r rejection) value() RejectError {
	return RejectError{Reason: reasonErrors[r.reason], RetryAfter: r.retryAfter, deadline: r.deadline}
}

// judge says what a request of cost n > 0, with that much time left to its
// deadline (forever: it has none), meets now in front of a line of that depth:
// the wait until it leaves, which is 0 only if it may leave at once, or the
// reason to refuse it. The order of the checks is part of the contract.
func (d *dispatcher) judgeLocked(f *flow, now, n int64, left time.Duration, depth int) (wait time.Duration, r rejection) {
	if d.phase != open {
		return 0, rejection{reason: refusedClosed, retryAfter: f.emptyIn(now)}
	}
	if f.tooCostly(n) {
		return 0, rejection{reason: refusedCostly}
	}
	waiting := f.waiting()
	wait = f.bucket.wait(now, f.ahead(), n)
	if wait == 0 && !(waiting == 0 && f.hasSeat()) {
		wait = 1 // Nobody knows when a place becomes free; but not now.
	}
	longest := time.Duration(f.bucket.limits.maxWait())
	late := left < forever && wait >= left
	switch {
	case wait > 0 && waiting >= depth:
		r.reason = refusedFull
	case late || wait > longest:
		r.reason, r.deadline = refusedLate, late
	default:
		return wait, r
	}
	r.retryAfter = f.retryAfter(now, wait, left, longest, depth)
	return wait, r
}

// entry is where in the line a request enters.
type entryKind uint8

const (
	newcomer entryKind = iota
	// again is for one that has left, was sent back by the upstream, and is to
	// leave once more: at the head, as it was admitted before all who wait, and
	// whatever the limits say of newcomers.
	reentry
)

// judgeAs is judge for a request that enters in one of the two ways.
func (d *dispatcher) judgeAsLocked(kind entryKind, f *flow, now, n int64, left time.Duration) (wait time.Duration, r rejection) {
	if kind == newcomer {
		return d.judgeLocked(f, now, n, left, f.bucket.limits.Depth)
	}
	if d.phase == closed {
		return 0, rejection{reason: refusedClosed}
	}
	ahead := int64(0)
	if f.line != nil {
		ahead = f.line.reentryCost.total()
	}
	wait = f.bucket.wait(now, ahead, n)
	if wait == 0 && !(f.waiting() == 0 && f.hasSeat()) {
		wait = 1 // The line is at rest for a while, and so is this one.
	}
	if left < forever && wait >= left {
		return 0, rejection{reason: refusedLate, retryAfter: max(wait-left+1, f.seatIn(1)), deadline: true}
	}
	return wait, r
}

// tooCostly says whether a request of cost n can never fit: it would hold the
// bucket beyond the horizon, or nobody waits and it is above Burst. At
// rate.Inf nothing is.
func (f *flow) tooCostly(n int64) bool {
	b := &f.bucket
	if b.interval.none() {
		return false
	}
	return b.limits.Depth == 0 && n > b.burst || b.interval.times(n).beyond(horizon)
}

// retryAfter is the time until the same call, with the same time left to its
// deadline, would be admitted if those in line stay and nobody else comes.
//
// Later than its own departure, wait from now, it need not come: then it would
// leave at once. Before that it must find a place in the line, a wait of at
// most longest, and a slot before its deadline; all three only get better with
// time, each from one instant on. While all seats are taken nothing moves, so then
// the result is an estimate, no shorter than that for the next seat.
func (f *flow) retryAfter(now int64, bound, left, longest time.Duration, depth int) time.Duration {
	wait := f.expected(bound)
	if depth == 0 {
		return wait
	}
	after := max(f.seatIn(1), bound-longest, bound-left+1)
	if k := f.waiting() - depth + 1; k > 0 {
		after = max(after, f.leavesIn(now, k))
	}
	return min(wait, after)
}

// leavesIn is how long the k-th in line, from 1, has still to wait.
func (f *flow) leavesIn(now int64, k int) time.Duration {
	w, ahead := f.line.ahead(k)
	return max(f.bucket.wait(now, ahead, w.cost), f.seatIn(k), 1) // As it has not left yet.
}

// expected returns for how long a newcomer is expected to wait which has to wait for
// at least bound: as much longer as it is expected to wait for a seat.
func (f *flow) expected(bound time.Duration) time.Duration {
	return max(bound, f.seatIn(f.waiting()+1))
}

// emptyIn is how long it takes until the last in line has left.
func (f *flow) emptyIn(now int64) time.Duration {
	if f.waiting() == 0 {
		return 0
	}
	return f.leavesIn(now, f.line.len)
}

// conforms says whether judge would let a request of cost n > 0 leave now. Most do,
// and so are spared the rest.
func (d *dispatcher) conformsLocked(f *flow, now, n, ends int64) bool {
	return d.phase == open && ends > now && f.waiting() == 0 && f.hasSeat() && !f.tooCostly(n) && f.bucket.wait(now, 0, n) == 0
}

// admit lets a request of cost n > 0 leave a flow at once, refuses it, or puts it
// into the line: then it returns the waiter, and the Done channel of its context.
// It unlocks. Its key is told to hooks.
func (d *dispatcher) admit(ctx context.Context, f *flow, now int64, n int, kind entryKind, ends int64, key any) (w *waiter, done <-chan struct{}, held seat, err error) {
	wait, refusal := d.judgeAsLocked(kind, f, now, int64(n), untilDeadline(ends, now))
	switch {
	case refusal.reason != notRefused:
		return nil, nil, held, d.refuse(ctx, f, now, n, refusal, key)
	case wait == 0:
		return nil, nil, d.pass(ctx, f, now, n, key), nil
	}
	w = d.enqueueLocked(f, now, n, kind)
	waiting := f.line.len
	d.unlockAndArm()
	return w, d.announceEntry(ctx, f, w, waiting, key), held, nil
}

// enqueue puts a request into the line of a flow.
func (d *dispatcher) enqueueLocked(f *flow, now int64, n int, kind entryKind) *waiter {
	ln := d.lineOfLocked(f)
	w := d.waiters.take(int64(n), now)
	if kind == newcomer {
		ln.push(w)
	} else {
		ln.pushReentry(w)
	}
	if ln.head == w {
		ln.since = nanos{whole: now}
	}
	d.waiting++
	d.markDirtyLocked(f)
	return w
}

// pass lets a request that may leave at once do so, and unlocks.
func (d *dispatcher) pass(ctx context.Context, f *flow, now int64, n int, key any) seat {
	f.bucket.pass(now, int64(n))
	var held seat
	if f.capped() {
		d.lineOfLocked(f).seatsTaken++
		held = d.takeSeatLocked(f, f.bucket.departures, now)
	}
	d.countDepartureLocked(f, now, 0)
	waiting := f.waiting()
	d.unlockAndArm()
	if d.trace.Departed != nil {
		d.tellDeparted(ctx, f, Event{Name: d.name, Key: key, Cost: n, Waiting: waiting, At: d.timeOf(now)}, held)
	}
	return held
}

// refuse refuses a request at entry, and unlocks.
func (d *dispatcher) refuse(ctx context.Context, f *flow, now int64, n int, r rejection, key any) error {
	var err *RejectError
	if last := len(d.spareErrors) - 1; last >= 0 {
		err, d.spareErrors = &d.spareErrors[last], d.spareErrors[:last]
	}
	waiting := d.deny(f, now, r)
	if err == nil {
		err = d.newErrors()
	}
	*err = r.value()
	if d.trace.Refused != nil {
		d.trace.Refused(ctx, Event{Name: d.name, Key: key, Cost: n, Waiting: waiting, At: d.timeOf(now), Err: err})
	}
	return err
}

// refill makes blank errors, 16 in one allocation, as one by one they are a fifth
// of what a refusal takes. It keeps 15 and returns one. The lock is not held.
func (d *dispatcher) newErrors() *RejectError {
	blank := make([]RejectError, 16)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spareErrors = blank[1:]
	return &blank[0]
}

// deny counts a refusal at entry, and unlocks. It returns how many wait.
func (d *dispatcher) deny(f *flow, now int64, r rejection) (waiting int) {
	d.countRefusalLocked(f, now, r.reason)
	waiting = f.waiting()
	d.unlockAndArm()
	return waiting
}
