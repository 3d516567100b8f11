package shaper

import (
	"context"
	"time"
)

// decideSharedLocked is decideLocked for a request whose level is in a [Bucket]. handled is
// false if the request is to be decided upon by the flow's own bucket: in a fallback.
func (d *dispatcher) decideSharedLocked(ls *lease, now int64, r *request) (dec decision, handled bool) {
	f := ls.f
	ls.checkFallbackLocked(now)
	asks := r.kind == allow || r.kind == newcomer && f.bucket.limits.Depth == 0
	switch {
	case d.phase != open:
		return dec, false // The order of what refuses is the same.
	case ls.tooCostly(r.cost):
		return d.refuseLocked(f, now, r, rejection{reason: refusedCostly}), true
	case r.kind != reentry && r.deadline > now && d.blocks.end(f) <= now && f.waiting() == 0 && f.hasSeat() && ls.covers(r.cost, now) &&
		max(ls.due(r.cost), f.bucket.coldOrNone().hold.Ceil()) <= now:
		ls.use(r.cost)
		dec = d.passLocked(f, now, r)
		ls.noteUse()
		return dec, true
	case ls.fallback && ls.has() == 0:
		return dec, false
	case r.kind != reentry && d.refusesUnavailable(ls, now):
		return d.refuseUnavailableLocked(ls, now, r), true
	case asks && (f.waiting() > 0 || !f.hasSeat() || f.bucket.coldOrNone().hold.Whole() > now || d.blocks.end(f) > now):
		// Asking would not help: the request may not overtake, or not leave.
		wait, _ := d.judgeReentryLocked(f, now, r)
		return d.refuseFullLocked(f, now, r, max(wait, f.expected(wait), shortestSeatWait)), true
	case asks:
		if f.capped() {
			d.lineOfLocked(f).seatsTaken++ // It is given back if the Bucket refuses.
		}
		ls.asking++
		return decision{event: askEvent}, true
	}
	// The wait is an estimate, even one of 0: nobody leaves without units of the Bucket.
	var refusal rejection
	if r.kind == reentry {
		_, refusal = d.judgeReentryLocked(f, now, r)
	} else {
		_, refusal = d.judgeLocked(f, now, r)
	}
	if refusal.reason != notRefused {
		d.blockAfterLocked(f, now, refusal)
		return d.refuseLocked(f, now, r, refusal), true
	}
	w := d.enqueueLocked(f, now, r)
	return decision{waiter: w, waiting: f.line.len, event: enqueuedEvent}, true
}

// refuseFullLocked refuses a request as the level is too high, for a time after at least.
func (d *dispatcher) refuseFullLocked(f *flow, now int64, r *request, after time.Duration) decision {
	why := rejection{reason: refusedFull, retryAfter: after}
	if d.blocks != nil && d.blocks.end(f) != never {
		d.blockAfterLocked(f, now, why)
		why.retryAfter = max(after, time.Duration(d.blocks.end(f)-now))
	}
	return d.refuseLocked(f, now, r, why)
}

// tooCostly is flow.tooCostly, at the rate of the Bucket.
func (ls *lease) tooCostly(n int64) bool {
	return ls.given.limits.Depth == 0 && n > ls.plan.burst || ls.plan.interval.Times(n).Exceeds(horizon)
}

// refusesUnavailable reports whether newcomers are refused because the Bucket can't be asked.
// When it is time to ask it again, one request may try.
func (d *dispatcher) refusesUnavailable(ls *lease, now int64) bool {
	if !ls.shard.open || ls.fallback {
		return false
	}
	_, ok := ls.shard.mayAsk(now)
	return !ok || ls.f.waiting() > 0
}

// refuseUnavailableLocked refuses a request with ErrUnavailable.
func (d *dispatcher) refuseUnavailableLocked(ls *lease, now int64, r *request) decision {
	f := ls.f
	ls.unavailable++
	d.shared.unavailable++
	f.entered = now
	after := time.Duration(max(ls.shard.probeAt-now, int64(shortestSeatWait)))
	d.logRefusalLocked(now, r.cost, rejection{reason: refusedUnavailable, retryAfter: after})
	err := &RejectError{Reason: ErrUnavailable, RetryAfter: after}
	if slow, ok := ls.shard.err.(tooSlowError); ok {
		err.Reason = unavailableError{slow}
	}
	return decision{err: err, waiting: int32(f.waiting()), event: refusedEvent}
}

// ask is the meter: it asks the Bucket whether a request may leave now, and calls note with
// what has been decided, under the lock. It is called without the lock.
func (d *dispatcher) ask(f *flow, r *request, note func(now int64, dec decision)) (dec decision, now int64) {
	ctx, cancel := context.WithTimeout(r.ctx, callTimeout)
	defer cancel()
	for {
		now := d.lockFlow(f)
		ls := d.shared.leases[f]
		t := ls.question(r.cost)
		ls.shard.asks(now)
		d.unlockAndArm()
		var a answer
		a.taken, a.sent, a.received, a.err = d.askBucket(ctx, t)
		now = d.lockFlow(f)
		dec, done := d.answeredLocked(ls, r, t, a)
		if done {
			note(now, dec)
		}
		d.unlockAndArm()
		if done {
			return dec, now
		}
	}
}

// An answer is what a call of Take has returned, and between which instants it was made.
type answer struct {
	taken          Taken
	sent, received int64
	err            error
}

// answeredLocked decides upon a request with the answer to its question. done is false if it is
// to be asked again, as another rate is in force.
func (d *dispatcher) answeredLocked(ls *lease, r *request, t Take, a answer) (dec decision, done bool) {
	f, now := ls.f, d.clock
	gone := a.err != nil && r.ctx.Err() != nil
	usable := false
	if gone {
		ls.shard.probing = false // That says nothing about the Bucket.
	} else {
		usable = ls.noteAnswerLocked(t, a.taken, a.sent, a.received, a.err)
	}
	if usable && a.taken.Other != nil && r.ctx.Err() == nil {
		return dec, false
	}
	ls.asking--
	if f.capped() {
		f.line.seatsTaken-- // passLocked takes it again.
		d.markDirtyLocked(f)
	}
	switch {
	case gone:
		d.countAbandonmentLocked(f, now)
		return decision{err: r.ctx.Err(), event: abandonedEvent, waiting: int32(f.waiting())}, true
	case usable && a.taken.OK:
		ls.counts.leased += uint64(r.cost)
		d.shared.counts.leased += uint64(r.cost)
		ls.high = laterInstant(ls.high, t.Rate.plus(a.taken.Empty, t.Rise()))
		dec = d.passLocked(f, now, r)
		ls.since = f.bucket.departures // It has used no units of the lease.
		return dec, true
	case usable && a.taken.Other == nil:
		first := t.Rate.nanosOf(t.Rate.minus(a.taken.Empty, t.Room())).Ceil() - a.taken.Now*1000
		return d.refuseFullLocked(f, now, r, time.Duration(max(first, 1))), true
	}
	ls.checkFallbackLocked(now)
	if ls.fallback {
		return d.decideBlockLocked(f, now, r), true
	}
	return d.refuseUnavailableLocked(ls, now, r), true
}
