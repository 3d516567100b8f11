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
func (s *Shaper) judge(now, n int64, left time.Duration, depth int) (wait time.Duration, r rejection) {
	if s.phase != open {
		return 0, rejection{reason: refusedClosed, retryAfter: s.emptyIn(now)}
	}
	if s.tooCostly(n) {
		return 0, rejection{reason: refusedCostly}
	}
	wait = s.bucket.wait(now, s.line.cost.total(), n)
	if wait == 0 && !(s.line.len == 0 && s.hasRoom()) {
		wait = 1 // Nobody knows when a place becomes free; but not now.
	}
	longest := time.Duration(s.limits.maxWait())
	late := left < forever && wait >= left
	switch {
	case wait > 0 && s.line.len >= depth:
		r.reason = refusedFull
	case late || wait > longest:
		r.reason, r.deadline = refusedLate, late
	default:
		return wait, r
	}
	r.retryAfter = s.retryAfter(now, wait, left, longest, depth)
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
func (s *Shaper) judgeAs(as entry, now, n int64, left time.Duration) (wait time.Duration, r rejection) {
	if as == asNewcomer {
		return s.judge(now, n, left, s.limits.Depth)
	}
	if s.phase == closed {
		return 0, rejection{reason: refusedClosed}
	}
	wait = s.bucket.wait(now, s.line.againCost.total(), n)
	if wait == 0 && !(s.line.len == 0 && s.hasRoom()) {
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
func (s *Shaper) tooCostly(n int64) bool {
	if s.bucket.interval.none() {
		return false
	}
	return s.limits.Depth == 0 && n > s.bucket.burst || s.bucket.interval.times(n).beyond(horizon)
}

// retryAfter is the time until the same call, with the same time left to its
// deadline, would be admitted if those in line stay and nobody else comes.
//
// Later than its own departure, wait from now, it need not come: then it would
// leave at once. Before that it must find a place in the line, a wait of at
// most longest, and a slot before its deadline; all three only get better with
// time, each from one instant on.
func (s *Shaper) retryAfter(now int64, wait, left, longest time.Duration, depth int) time.Duration {
	if depth == 0 {
		return wait
	}
	after := max(0, wait-longest, wait-left+1)
	if k := s.line.len - depth + 1; k > 0 {
		after = max(after, s.leavesIn(now, k))
	}
	return min(wait, after)
}

// leavesIn is how long the k-th in line, from 1, has still to wait.
func (s *Shaper) leavesIn(now int64, k int) time.Duration {
	w, ahead := s.line.ahead(k)
	return max(s.bucket.wait(now, ahead, w.cost), 1) // As it has not left yet.
}

// emptyIn is how long it takes until the last in line has left.
func (s *Shaper) emptyIn(now int64) time.Duration {
	if s.line.len == 0 {
		return 0
	}
	return s.leavesIn(now, s.line.len)
}

// pass lets a request that may leave at once do so, and unlocks.
func (s *Shaper) pass(ctx context.Context, now int64, n int) place {
	s.bucket.pass(now, int64(n))
	var p place
	if s.places.capped {
		s.places.taken++
		p = s.places.claim()
	}
	s.totals.departed++
	s.totals.enter(now)
	waiting := s.line.len
	s.unlock()
	if s.trace.Departed != nil {
		s.tellDeparted(ctx, Event{Name: s.name, Cost: n, Waiting: waiting, At: s.at(now)}, p)
	}
	return p
}

// refuse refuses a request at entry, and unlocks.
func (s *Shaper) refuse(ctx context.Context, now int64, n int, r rejection) error {
	var err *RejectError
	if last := len(s.blank) - 1; last >= 0 {
		err, s.blank = &s.blank[last], s.blank[:last]
	}
	waiting := s.deny(now, r)
	if err == nil {
		err = s.refill()
	}
	*err = r.value()
	if s.trace.Refused != nil {
		s.trace.Refused(ctx, Event{Name: s.name, Cost: n, Waiting: waiting, At: s.at(now), Err: err})
	}
	return err
}

// refill makes blank errors, 16 in one allocation, as one by one they are a fifth
// of what a refusal takes. It keeps 15 and returns one. The lock is not held.
func (s *Shaper) refill() *RejectError {
	blank := make([]RejectError, 16)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blank = blank[1:]
	return &blank[0]
}

// deny counts a refusal at entry, and unlocks. It returns how many wait.
func (s *Shaper) deny(now int64, r rejection) (waiting int) {
	s.totals.refused[r.reason]++
	s.totals.enter(now)
	waiting = s.line.len
	s.unlock()
	return waiting
}
