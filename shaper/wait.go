package shaper

import (
	"context"
)

// await waits until the request, which is in a line, has been given its slot, has been refused (as
// its state says), or has a context that is done. It reports whether its
// waiter has been woken. Then finish is to be called.
//
// A goroutine begins with 2 KiB of stack, and one that needs a little more gets 4. The runtime
// needs most of it when it allocates the records of a waiting goroutine, above all when it has to
// find new memory for them, which is one time in a hundred. So there are few frames below await,
// and every other allocation is made where there are few.
func (r *request) await(w *waiter) (woken bool) {
	switch {
	case r.peer != nil:
		return r.peer.Await(w.ready, r.done)
	case r.done != nil:
		return w.readyBefore(r.done)
	case w.ready == nil:
		if w.parker.L == nil {
			w.ownParker()
		}
		w.parker.Wait()
	default:
		<-w.ready
	}
	return true
}

// readyBefore waits until the waiter is woken or done is closed, and reports whether it has been
// woken.
//
// It is not inlined, so that await needs nearly no frame.
//
//go:noinline
func (w *waiter) readyBefore(done <-chan struct{}) bool {
	select {
	case <-w.ready:
		return true
	case <-done:
		return false
	}
}

// finish returns the result of the call of a waiter that is awake again, and the instant at which
// that was decided; and it sets the seat of the request. woken reports that its state has changed;
// else its context has ended. The lock is not held.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (r *request) finish(d *dispatcher, f *flow, w *waiter, woken bool) (at int64, err error) {
	handled := false
	defer r.abandonUnless(&handled, d, f, w)
	// The context is asked once, outside the lock, and its answer is final. If it has
	// ended, a slot that came before is handed on, so that no slot is spent on a request
	// whose caller has gone. If it ends later, that looks to the caller as if it had
	// ended after Wait returned.
	err = r.ctx.Err()
	if err == nil && !woken {
		err = context.Canceled // A context that breaks its contract has ended all the same.
	}
	handled = true
	var dec decision
	if err != nil {
		at, dec = r.abandon(d, f, w, err)
	} else {
		at, dec = r.takeOutcome(d, f, w)
	}
	if d.hasHooks {
		r.announceEnd(d, f, at, dec)
	}
	return at, dec.err
}

// abandonUnless abandons a waiter unless it is handled. It is deferred by functions that
// run code of the caller's, as hooks and contexts are: if that panics, the waiter must not
// stay in line with no call to receive its slot.
func (r *request) abandonUnless(handled *bool, d *dispatcher, f *flow, w *waiter) {
	if !*handled {
		r.abandon(d, f, w, context.Canceled)
	}
}

// takeOutcome counts a waiter that has received its slot, or been refused in line, and
// returns it to the pool. It returns how the wait ended, and when, and sets the seat of
// the request. The lock is not held.
func (r *request) takeOutcome(d *dispatcher, f *flow, w *waiter) (at int64, dec decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, dec.waiting = w.at, w.waiting
	if w.state == departed {
		dec.event = departedEvent
		if f.capped() {
			r.seat = d.seats.take(f, w.departureNo, at)
		}
		if w.is(accounted) {
			r.with.account.leave(w)
		}
	} else {
		dec.event, dec.err = refusedEvent, r.rejectInLineLocked(d, f, w)
	}
	d.endedLocked(f, r, at, &dec)
	d.waiters.keep(w)
	return at, dec
}

// endedLocked counts a request that has waited until an instant, and tells of its end. A refusal has been
// counted with its reason.
func (d *dispatcher) endedLocked(f *flow, r *request, at int64, dec *decision) {
	waited := at - r.entered
	switch dec.event {
	case departedEvent:
		f.countDeparture(d.totals, r.entered, waited)
		d.watcher.left(at, waited, r.cost, r.key)
	case abandonedEvent:
		f.countAbandonment(d.totals, r.entered)
	}
}

// rejectInLineLocked counts a request that was refused while it waited, and returns its error.
func (r *request) rejectInLineLocked(d *dispatcher, f *flow, w *waiter) error {
	why := rejection{reason: refusedClosed}
	switch w.state {
	case unavailable:
		why = rejection{reason: refusedUnavailable, retryAfter: shortestSeatWait} // The level is gone if the flow has been deleted since, as by Close.
		if lv := f.remote(); lv != nil {
			why = lv.waitedTooLong(w.at)
		}
	case overdue:
		why = r.rejectOverdueLocked(d, f)
	case pushedOut:
		why = rejection{reason: refusedFull, retryAfter: f.line.order.refusal(w)}
	}
	f.countRefusal(d.totals, r.entered, w.at, why.reason)
	if d.host == nil { // A host knows the key, and tells of it itself.
		_ = d.watcher.refused(w.at, r.cost, r.key, why, false)
	}
	err := why.value()
	return &err
}

// abandon takes a waiter whose context has ended out of the line; if it had its slot
// already, the slot goes to the next waiter or back to the bucket. err is what its call
// returns. The lock is not held.
func (r *request) abandon(d *dispatcher, f *flow, w *waiter, err error) (at int64, dec decision) {
	now := d.lockFlow(f)
	defer d.unlockAndArm()
	// A request that gives up behind the head does not change which head leaves next. But a
	// remote level may want less from now on.
	changed := w.state != queued || f.remote() != nil
	switch w.state {
	case queued:
		changed = f.line.giveUpLocked(d, w, now, abandoned) || changed
	case departed:
		// Its slot came first, but the end of its context was seen before the
		// call returned, and wins.
		if d.ordered && f.bucket.departures == w.departureNo && f.line.giveBack(r) {
			// The new head has had its slot, as its key has the turn. But it may have come since.
			f.notBefore(f.line.head.at)
		}
		if w.is(accounted) {
			f.bucket.ledger().givesUp(&f.bucket, w)
		}
		if lv := f.level(); lv != nil {
			lv.giveBack(w, r.with)
		} else {
			f.bucket.giveBack(w.departureNo, r.cost)
		}
		if f.line != nil {
			d.watcher.rescheduled(f.line)
		}
		if f.capped() {
			f.freeSeat(now)
		}
	case pushedOut:
		f.line.order.refusal(w)
	}
	select {
	case <-w.ready: // The news of the slot, or of the end of the context, was not received.
	default:
	}
	dec = decision{err: err, waiting: int32(f.waiting()), event: abandonedEvent}
	d.endedLocked(f, r, now, &dec)
	d.waiters.keep(w)
	if changed {
		d.markDirtyLocked(f)
		d.advanceLocked(now, headFirst)
	}
	return now, dec
}
