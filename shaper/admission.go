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
func (e *lanes) judge(l *lane, now, n int64, left time.Duration, depth int) (wait time.Duration, r rejection) {
	if e.phase != open {
		return 0, rejection{reason: refusedClosed, retryAfter: l.emptyIn(now)}
	}
	if l.tooCostly(n) {
		return 0, rejection{reason: refusedCostly}
	}
	waiting := l.waiting()
	wait = l.bucket.wait(now, l.ahead(), n)
	if wait == 0 && !(waiting == 0 && l.hasRoom()) {
		wait = 1 // Nobody knows when a place becomes free; but not now.
	}
	longest := time.Duration(l.bucket.limits.maxWait())
	late := left < forever && wait >= left
	switch {
	case wait > 0 && waiting >= depth:
		r.reason = refusedFull
	case late || wait > longest:
		r.reason, r.deadline = refusedLate, late
	default:
		return wait, r
	}
	r.retryAfter = l.retryAfter(now, wait, left, longest, depth)
	return wait, r
}

// entry is where in the line a request enters.
type entry uint8

const (
	asNewcomer entry = iota
	// again is for one that has left, was sent back by the upstream, and is to
	// leave once more: at the head, as it was admitted before all who wait, and
	// whatever the limits say of newcomers.
	again
)

// judgeAs is judge for a request that enters in one of the two ways.
func (e *lanes) judgeAs(as entry, l *lane, now, n int64, left time.Duration) (wait time.Duration, r rejection) {
	if as == asNewcomer {
		return e.judge(l, now, n, left, l.bucket.limits.Depth)
	}
	if e.phase == closed {
		return 0, rejection{reason: refusedClosed}
	}
	ahead := int64(0)
	if l.line != nil {
		ahead = l.line.againCost.total()
	}
	wait = l.bucket.wait(now, ahead, n)
	if wait == 0 && !(l.waiting() == 0 && l.hasRoom()) {
		wait = 1 // The line is at rest for a while, and so is this one.
	}
	if left < forever && wait >= left {
		return 0, rejection{reason: refusedLate, retryAfter: max(0, wait-left+1), deadline: true}
	}
	return wait, r
}

// tooCostly says whether a request of cost n can never fit: it would hold the
// bucket beyond the horizon, or nobody waits and it is above Burst. At
// rate.Inf nothing is.
func (l *lane) tooCostly(n int64) bool {
	b := &l.bucket
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
// time, each from one instant on.
func (l *lane) retryAfter(now int64, wait, left, longest time.Duration, depth int) time.Duration {
	if depth == 0 {
		return wait
	}
	after := max(0, wait-longest, wait-left+1)
	if k := l.waiting() - depth + 1; k > 0 {
		after = max(after, l.leavesIn(now, k))
	}
	return min(wait, after)
}

// leavesIn is how long the k-th in line, from 1, has still to wait.
func (l *lane) leavesIn(now int64, k int) time.Duration {
	w, ahead := l.line.ahead(k)
	return max(l.bucket.wait(now, ahead, w.cost), 1) // As it has not left yet.
}

// emptyIn is how long it takes until the last in line has left.
func (l *lane) emptyIn(now int64) time.Duration {
	if l.waiting() == 0 {
		return 0
	}
	return l.leavesIn(now, l.line.len)
}

// conforms says whether judge would let a request of cost n > 0 leave now. Most do,
// and so are spared the rest.
func (e *lanes) conforms(l *lane, now, n, ends int64) bool {
	return e.phase == open && ends > now && l.waiting() == 0 && l.hasRoom() && !l.tooCostly(n) && l.bucket.wait(now, 0, n) == 0
}

// admit lets a request of cost n > 0 leave a lane at once, refuses it, or puts it
// into the line: then it returns the waiter, and the Done channel of its context.
// It unlocks. Its key is told to hooks.
func (e *lanes) admit(ctx context.Context, l *lane, now int64, n int, as entry, ends int64, key any) (w *waiter, done <-chan struct{}, p place, err error) {
	wait, refusal := e.judgeAs(as, l, now, int64(n), untilDeadline(ends, now))
	switch {
	case refusal.reason != notRefused:
		return nil, nil, p, e.refuse(ctx, l, now, n, refusal, key)
	case wait == 0:
		return nil, nil, e.pass(ctx, l, now, n, key), nil
	}
	w = e.enqueue(l, now, n, as)
	waiting := l.line.len
	e.unlock()
	return w, e.announce(ctx, l, w, waiting, key), p, nil
}

// enqueue puts a request into the line of a lane.
func (e *lanes) enqueue(l *lane, now int64, n int, as entry) *waiter {
	ln := e.lineOf(l)
	w := e.spares.take(int64(n), now)
	if as == asNewcomer {
		ln.push(w)
	} else {
		ln.pushAgain(w)
	}
	if ln.head == w {
		ln.since = nanos{whole: now}
	}
	e.waiting++
	e.touch(l)
	return w
}

// pass lets a request that may leave at once do so, and unlocks.
func (e *lanes) pass(ctx context.Context, l *lane, now int64, n int, key any) place {
	l.bucket.pass(now, int64(n))
	var p place
	if l.capped() {
		e.lineOf(l).taken++
		p = e.claim()
	}
	e.countDeparture(l, now, 0)
	waiting := l.waiting()
	e.unlock()
	if e.trace.Departed != nil {
		e.tellDeparted(ctx, l, Event{Name: e.name, Key: key, Cost: n, Waiting: waiting, At: e.at(now)}, p)
	}
	return p
}

// refuse refuses a request at entry, and unlocks.
func (e *lanes) refuse(ctx context.Context, l *lane, now int64, n int, r rejection, key any) error {
	var err *RejectError
	if last := len(e.blank) - 1; last >= 0 {
		err, e.blank = &e.blank[last], e.blank[:last]
	}
	waiting := e.deny(l, now, r)
	if err == nil {
		err = e.refill()
	}
	*err = r.value()
	if e.trace.Refused != nil {
		e.trace.Refused(ctx, Event{Name: e.name, Key: key, Cost: n, Waiting: waiting, At: e.at(now), Err: err})
	}
	return err
}

// refill makes blank errors, 16 in one allocation, as one by one they are a fifth
// of what a refusal takes. It keeps 15 and returns one. The lock is not held.
func (e *lanes) refill() *RejectError {
	blank := make([]RejectError, 16)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.blank = blank[1:]
	return &blank[0]
}

// deny counts a refusal at entry, and unlocks. It returns how many wait.
func (e *lanes) deny(l *lane, now int64, r rejection) (waiting int) {
	e.countRefusal(l, now, r.reason)
	waiting = l.waiting()
	e.unlock()
	return waiting
}
