package shaper

import (
	"context"
	"errors"
	"time"
)

// decideSharedLocked is decideLocked for a request whose level is in a [Bucket]. handled is
// false if the request is to be decided upon by the flow's own bucket: in a fallback.
func (d *dispatcher) decideSharedLocked(ls *lease, now int64, r *request) (dec decision, handled bool) {
	f := ls.f
	ls.checkFallbackLocked(now)
	asks := r.kind == allow || r.kind == newcomer && f.bucket.limits.Depth == 0
	switch {
	case d.phase == closed, d.phase == draining && r.kind != reentry:
		return dec, false // The order of what refuses is the same.
	case r.kind != reentry && ls.tooCostlyLocked(r.cost):
		return d.refuseLocked(f, now, r, rejection{reason: refusedCostly}), true
	case r.kind != reentry && r.deadline > now && d.blocks.end(f) <= now && f.waiting() == 0 && f.hasSeat() &&
		max(ls.unitsDueLocked(r.cost), f.bucket.coldOrNone().hold.Ceil()) <= now:
		ls.useLocked(r.cost)
		dec = d.passLocked(f, now, r)
		ls.noteUseLocked()
		return dec, true
	case ls.usesOwnLevelLocked():
		ls.probeLocked(now)
		return dec, false
	case r.kind != reentry && d.isUnavailableLocked(ls, now):
		return d.refuseUnavailableLocked(ls, now, r), true
	case asks && (f.waiting() > 0 || !f.hasSeat() || f.bucket.coldOrNone().hold.Whole() > now || d.blocks.end(f) > now || ls.fallback):
		// Asking would not help: the request may not overtake, or not leave.
		v := f.view()
		wait := v.expected(f.bucket.wait(now, v.ahead, r.cost))
		return d.refuseFullLocked(f, now, r, max(wait, shortestSeatWait)), true
	case asks:
		if f.capped() {
			d.lineOfLocked(f).seatsTaken++ // It is given back if the Bucket refuses.
		}
		ls.asking++
		ls.backend.asks(now)
		return decision{event: askEvent}, true
	}
	needsNone := ls.needsNoPlaceLocked(now, r.cost)
	j := d.judgeLocked(f, now, r)
	j.wait = max(j.wait, 1) // It is an estimate, even if it is 0: no request leaves without units of the Bucket.
	dec = d.admitLocked(f, now, r, j)
	if dec.waiter != nil && needsNone && r.kind != reentry {
		ls.placeless++
	}
	return dec, true
}

// refuseFullLocked refuses a request as the level is too high, for a time after at least.
func (d *dispatcher) refuseFullLocked(f *flow, now int64, r *request, after time.Duration) decision {
	why := d.blocks.judge(f, now, rejection{reason: refusedFull, retryAfter: after, also: withoutLine})
	return d.admitLocked(f, now, r, judgement{refusal: why})
}

// tooCostlyLocked is plan.tooCostly, at the rate of the [Bucket].
func (ls *lease) tooCostlyLocked(n int64) bool {
	return ls.given.limits.Depth == 0 && n > ls.plan.burst || ls.plan.interval.Times(n).Exceeds(horizon)
}

// isUnavailableLocked reports whether newcomers are refused because the [Bucket] can't be asked.
// When it is time to ask it again, one request may try.
func (d *dispatcher) isUnavailableLocked(ls *lease, now int64) bool {
	if !ls.backend.open || ls.fallback {
		return false
	}
	_, ok := ls.backend.mayAsk(now)
	return !ok || ls.f.waiting() > 0
}

// refuseUnavailableLocked refuses a request with [ErrUnavailable].
func (d *dispatcher) refuseUnavailableLocked(ls *lease, now int64, r *request) decision {
	err := d.rejectUnavailableLocked(ls.f, now, now)
	d.keepRefusalLocked(now, r.cost, rejection{reason: refusedUnavailable, retryAfter: err.RetryAfter})
	return decision{err: err, waiting: int32(ls.f.waiting()), event: refusedEvent}
}

// rejectUnavailableLocked counts a request that came at an instant and is refused at another, as
// the [Bucket] can't be asked, and returns its error.
func (d *dispatcher) rejectUnavailableLocked(f *flow, entered, at int64) *RejectError {
	d.countRefusalLocked(f, entered, at, refusedUnavailable)
	if ls := d.leaseEvenAtInfLocked(f); ls != nil {
		return ls.unavailableErrorLocked(at)
	}
	// It waited, and its key has been forgotten since, as by Close.
	return &RejectError{Reason: ErrUnavailable, RetryAfter: shortestSeatWait}
}

// unavailableErrorLocked returns the error of a request that is refused as the [Bucket] can't be
// asked.
func (ls *lease) unavailableErrorLocked(now int64) *RejectError {
	err := &RejectError{Reason: ErrUnavailable, RetryAfter: time.Duration(max(ls.backend.probeAt-now, int64(shortestSeatWait)))}
	if slow, ok := ls.backend.err.(tooSlowError); ok {
		err.also = &alsoError{slow, true}
	}
	return err
}

// ask is the meter: it asks the [Bucket] whether a request may leave now, and calls note with
// what has been decided, under the lock. It is called without the lock.
func (d *dispatcher) ask(f *flow, r *request, note func(now int64, dec decision)) (dec decision) {
	ctx, cancel := context.WithTimeout(r.ctx, callTimeout)
	defer cancel()
	ended := false
	defer func() {
		if !ended { // The Bucket has panicked, or the context.
			d.mu.Lock()
			d.endAskLocked(d.shared.leases[f])
			d.unlockAndArm()
		}
	}()
	for {
		now := d.lockFlow(f)
		ls := d.shared.leases[f] // It stays while a call asks.
		t := ls.questionLocked(r.cost)
		ls.backend.asks(now)
		d.unlockAndArm()
		a := d.askBucket(ctx, t)
		a.gone = r.ctx.Err() // It is the caller's code, so the lock is not held.
		now = d.lockFlow(f)
		dec, ended = d.answeredLocked(ls, r, t, a)
		if ended {
			r.entered = now
			note(now, dec)
		}
		d.unlockAndArm()
		if ended {
			return dec
		}
	}
}

// endAskLocked ends the question of a call to the [Bucket], and releases the seat that was taken
// for it.
func (d *dispatcher) endAskLocked(ls *lease) {
	f := ls.f
	if ls.asking--; ls.asking == 0 && d.phase == closed && d.keyed {
		delete(d.shared.leases, f)
	}
	if f.capped() {
		f.freeSeat(d.clock)
		d.markDirtyLocked(f)
	}
}

// An answer is what a call of [Bucket.Take] has returned, and between which instants it was made.
type answer struct {
	taken          Taken
	sent, received int64
	err            error
	gone           error // of the context of the request that has asked for itself
}

// isLateLocked reports whether what was taken for a request can't be used any more: the answer took
// too long.
func (ls *lease) isLateLocked(t Take, taken Taken, now int64) bool {
	return ls.clock.latest(now)-ls.latenessLocked() > t.Rate.nanosOf(taken.Empty).Whole()
}

// answeredLocked decides upon a request with the answer to its question. done is false if it is
// to be asked again, as another rate is in force, or the answer came too late to be used.
func (d *dispatcher) answeredLocked(ls *lease, r *request, t Take, a answer) (dec decision, done bool) {
	f, now := ls.f, d.clock
	gone, answered := a.gone, false
	// That a caller has gone says nothing about the Bucket; unless its deadline has passed while
	// the Bucket took much longer than it usually does.
	silent := errors.Is(gone, context.DeadlineExceeded) && a.received-a.sent >= max(int64(callTimeout)/5, 4*ls.meanTrip)
	if gone == nil || a.err == nil || silent {
		answered = ls.noteAnswerLocked(t, a)
	}
	granted := answered && a.taken.OK // It leaves, even if another rate has come into force meanwhile.
	if granted {
		ls.countLeasedLocked(r.cost)
	}
	if granted && (gone != nil || d.phase == closed || ls.isLateLocked(t, a.taken, now)) {
		ls.dropLocked(r.cost)
		granted = false
	}
	if gone == nil && d.phase != closed && ls.given.interval.IsZero() { // There is no rate any more.
		if granted {
			ls.dropLocked(r.cost)
		}
		d.endAskLocked(ls)
		return d.admitLocked(f, now, r, d.judgeLocked(f, now, r)), true
	}
	if answered && !granted && gone == nil && d.phase != closed && (a.taken.OK || t.Rate != ls.rate) {
		return dec, false
	}
	d.endAskLocked(ls) // passLocked takes a seat again.
	if answered && t.Rate == ls.rate && a.taken.Other == nil && ls.leasedLocked() == 0 {
		ls.estimateFromLocked(ls.paceIntervalLocked(), ls.clock.reaches(t.Rate.nanosOf(a.taken.Empty).Ceil())) // passLocked adds the cost.
	}
	switch {
	case gone != nil:
		d.countAbandonmentLocked(f, now)
		return decision{err: gone, event: abandonedEvent, waiting: int32(f.waiting())}, true
	case d.phase == closed:
		return d.refuseLocked(f, now, r, rejection{reason: refusedClosed}), true
	case granted:
		if t.Rate == ls.rate {
			ls.high = laterInstant(ls.high, t.Rate.plus(a.taken.Empty, t.Rise()))
		}
		dec = d.passLocked(f, now, r)
		dec.waiting = int32(f.waiting()) // Requests may have entered the line while the Bucket was asked.
		ls.since = f.bucket.departures   // It has used no units of the lease.
		return dec, true
	case answered:
		// The Bucket counts in whole microseconds, so it says yes from the next one on.
		first := t.Rate.minus(a.taken.Empty, t.Room())
		if first.Part > 0 {
			first.Micros++
		}
		after := time.Duration(first.Micros-a.taken.Now) * time.Microsecond
		return d.refuseFullLocked(f, now, r, max(after, time.Microsecond)), true
	}
	ls.checkFallbackLocked(now)
	if ls.fallback {
		return d.admitLocked(f, now, r, d.judgeLocked(f, now, r)), true
	}
	return d.refuseUnavailableLocked(ls, now, r), true
}
