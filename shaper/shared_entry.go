package shaper

import "time"

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
		d.shared.asksLocked(ls.backend, now)
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
