package shaper

import (
	"context"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// await waits until the request, which is in a line, has been given its slot, has been
// refused by Close, or has a context that is done. It reports whether its waiter has been
// woken. Then finish is to be called.
//
// A goroutine begins with 2 KiB of stack, and one that needs a little more gets 4. The runtime
// needs most of it when it allocates what a goroutine needs to wait. So await is inlined: a
// request whose context never ends waits in the frame of its caller. A receive needs less
// than a select.
func (r *request) await(w *waiter) (woken bool) {
	if r.done == nil {
		<-w.ready
		return true
	}
	return w.readyBefore(r.done)
}

// readyBefore waits until the waiter is woken or done is closed, and reports whether it has been
// woken.
//
// It is not inlined, so that await needs no frame.
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

// announceEntry runs the hook of a request that has entered a line, and returns the Done
// channel of its context. The lock is not held.
func (d *dispatcher) announceEntry(f *flow, r *request, dec decision) (done <-chan struct{}) {
	w, settled := dec.waiter, false
	defer d.abandonUnless(&settled, f, r, w)
	r.ahead = dec.waiting - 1
	runHook(d.trace.Enqueued, r.ctx, Event{Name: d.name, Key: r.key, Cost: int(w.cost), Waiting: int(dec.waiting), Ahead: int(r.ahead), At: d.timeOf(w.admitted)})
	done = r.ctx.Done()
	settled = true
	return done
}

// finish returns what the call of a waiter that is awake again returns, and sets the seat of
// the request. woken reports that its state has changed; else its context has ended. The lock
// is not held.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (d *dispatcher) finish(f *flow, r *request, w *waiter, woken bool) error {
	settled := false
	defer d.abandonUnless(&settled, f, r, w)
	// The context is asked once, outside the lock, and its answer is final. If it has
	// ended, a slot that came before is handed on, so that no slot is spent on a request
	// whose caller has gone. If it ends later, that looks to the caller as if it had
	// ended after Wait returned.
	err := r.ctx.Err()
	if err == nil && !woken {
		err = context.Canceled // A context that breaks its contract has ended all the same.
	}
	settled = true
	if err != nil {
		ev := d.abandon(f, r, w, err)
		ev.Key, ev.Ahead = r.key, int(r.ahead)
		runHook(d.trace.Abandoned, r.ctx, ev)
		return err
	}
	ev, held := d.takeOutcome(f, r, w)
	ev.Key, ev.Ahead = r.key, int(r.ahead)
	if ev.Err != nil {
		runHook(d.trace.Refused, r.ctx, ev)
		return ev.Err
	}
	r.seat = held
	d.tellDeparted(f, r, ev)
	return nil
}

// abandonUnless abandons a waiter unless it is settled. It is deferred by functions that
// run code of the caller's, as hooks and contexts are: if that panics, the waiter must not
// stay in line with nobody to receive its slot.
func (d *dispatcher) abandonUnless(settled *bool, f *flow, r *request, w *waiter) {
	if !*settled {
		d.abandon(f, r, w, context.Canceled)
	}
}

// tellDeparted runs the hook of a departure. If that panics, the seat of the request is
// released, as nobody else could do it.
func (d *dispatcher) tellDeparted(f *flow, r *request, ev Event) {
	if d.trace.Departed == nil {
		return
	}
	ran := false
	defer func() {
		if !ran {
			d.releaseSeat(f, r.seat)
		}
	}()
	d.trace.Departed(r.ctx, ev)
	ran = true
}

// takeOutcome counts a waiter that has received its slot, or been refused by Close, and
// returns it to the pool. The lock is not held.
func (d *dispatcher) takeOutcome(f *flow, r *request, w *waiter) (ev Event, held seat) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ev = d.eventOf(w, w.slot, int(w.waiting))
	if w.state == departed {
		if f.capped() {
			held = d.takeSeatLocked(f, w.departureNo, w.slot)
		}
		d.countDepartureLocked(f, w.admitted, w.slot-w.admitted)
		d.measureWaitLocked(w.slot - w.admitted)
	} else {
		ev.Err = &RejectError{Reason: ErrClosed}
		d.countRefusalLocked(f, w.admitted, refusedClosed)
		if !d.keyed { // A Group knows the key, and logs it itself.
			d.logRefusalLocked(w.slot, w.cost, rejection{reason: refusedClosed})
		}
	}
	r.settleLocked(w.slot-w.admitted, ev.Err)
	d.waiters.keep(w)
	return ev, held
}

// abandon takes a waiter whose context has ended out of the line; if it had its slot
// already, the slot goes to the next waiter or back to the bucket. err is what its call
// returns.
// The lock is not held.
func (d *dispatcher) abandon(f *flow, r *request, w *waiter, err error) Event {
	now := d.lockFlow(f)
	defer d.unlockAndArm()
	switch w.state {
	case queued:
		head := f.line.head == w
		f.line.remove(w, abandoned)
		d.waiting--
		if head {
			// The next one may be due already, if it costs less. It could not
			// leave before now.
			f.line.since = exact.At(now)
			f.line.noteNewHead(now)
		}
	case departed:
		// Its slot came first, but the end of its context was seen before the
		// call returned, and wins.
		if ls := d.leaseOf(f); ls != nil {
			ls.unuse(w.departureNo, w.cost)
		}
		if f.bucket.giveBack(w.departureNo, w.cost); f.line != nil {
			f.line.left = unknown
		}
		if f.capped() {
			f.freeSeat(now)
		}
	}
	select {
	case <-w.ready: // The news was sent, and not received, while the context ended.
	default:
	}
	d.countAbandonmentLocked(f, w.admitted)
	ev := d.eventOf(w, now, f.waiting())
	ev.Err = err
	r.settleLocked(now-w.admitted, err)
	d.waiters.keep(w)
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
	return ev
}

// eventOf returns the Event of the end of a waiter's wait at an instant.
func (d *dispatcher) eventOf(w *waiter, at int64, waiting int) Event {
	return Event{
		Name: d.name, Cost: int(w.cost), Waiting: waiting, At: d.timeOf(at), Waited: time.Duration(at - w.admitted),
	}
}
