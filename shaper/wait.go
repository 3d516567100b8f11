package shaper

import (
	"context"
	"time"
)

// sleep waits until a waiter in the line of a flow has its slot, is refused, or
// has a context that is done, and says what has become of it.
func (d *dispatcher) block(ctx context.Context, f *flow, w *waiter, done <-chan struct{}, key any) (seat, error) {
	// A goroutine begins with 2 KiB of stack, and one that needs a little more
	// has 4: while it waits, there is but this frame and what the runtime needs.
	if done == nil { // It never ends. A receive needs less than a select.
		<-w.ready
		return d.finish(ctx, f, w, true, key)
	}
	woken := false
	select {
	case <-w.ready:
		woken = true
	case <-done:
	}
	return d.finish(ctx, f, w, woken, key)
}

// announce tells the hook of a waiter that has entered a line in which, with it,
// so many wait, and returns what it has to look at beside its own channel. The
// lock is not held.
func (d *dispatcher) announceEntry(ctx context.Context, f *flow, w *waiter, waiting int, key any) (done <-chan struct{}) {
	settled := false
	defer d.abandonUnless(&settled, f, w)
	runHook(d.trace.Enqueued, ctx, Event{Name: d.name, Key: key, Cost: int(w.cost), Waiting: waiting, At: d.timeOf(w.admitted)})
	done = ctx.Done()
	settled = true
	return done
}

// finish says what has become of a waiter that sleeps no more, as it was told
// that its state has changed or its context has ended. The lock is not held.
//
//go:noinline
func (d *dispatcher) finish(ctx context.Context, f *flow, w *waiter, woken bool, key any) (seat, error) {
	settled := false
	defer d.abandonUnless(&settled, f, w)
	// Asked once, outside the lock, and it has the last word: a slot that came
	// before this moment is handed on, so that none is spent on a request
	// whose caller has gone. What ends the context after it, the caller may
	// take for an end after Wait had returned.
	err := ctx.Err()
	if err == nil && !woken {
		err = context.Canceled // A context that breaks its contract has ended all the same.
	}
	settled = true
	if err != nil {
		ev := d.abandon(f, w, err)
		ev.Key = key
		runHook(d.trace.Abandoned, ctx, ev)
		return seat{}, err
	}
	ev, held := d.takeOutcome(f, w)
	ev.Key = key
	if ev.Err != nil {
		runHook(d.trace.Refused, ctx, ev)
		return held, ev.Err
	}
	d.tellDeparted(ctx, f, ev, held)
	return held, nil
}

// abandonUnless is for the end of a function that runs code of the caller's, as
// hooks and contexts are: if that panics, the waiter must not stay in line with
// nobody to receive its slot.
func (d *dispatcher) abandonUnless(settled *bool, f *flow, w *waiter) {
	if !*settled {
		d.abandon(f, w, context.Canceled)
	}
}

// tellDeparted tells the hook of a departure. If that panics, the place of the
// request is given back, as nobody else could do it.
func (d *dispatcher) tellDeparted(ctx context.Context, f *flow, ev Event, held seat) {
	if d.trace.Departed == nil {
		return
	}
	ran := false
	defer func() {
		if !ran {
			d.releaseSeat(f, held)
		}
	}()
	d.trace.Departed(ctx, ev)
	ran = true
}

// conclude counts a waiter that has received its slot, or been refused by
// Close, and gives the waiter back. The lock is not held.
func (d *dispatcher) takeOutcome(f *flow, w *waiter) (ev Event, held seat) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ev = d.eventOf(w, w.slot, int(w.waiting))
	if w.state == departed {
		if f.capped() {
			held = d.takeSeatLocked(f, w.departureNo, w.slot)
		}
		d.countDepartureLocked(f, w.admitted, w.slot-w.admitted)
	} else {
		ev.Err = &RejectError{Reason: ErrClosed}
		d.countRefusalLocked(f, w.admitted, refusedClosed)
	}
	d.waiters.keep(w)
	return ev, held
}

// abandon takes a waiter whose context has ended out of the line; if it had
// its slot already, the slot goes to the next waiter or back to the bucket.
// The lock is not held.
func (d *dispatcher) abandon(f *flow, w *waiter, err error) Event {
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
			f.line.since = nanos{whole: now}
		}
	case departed:
		// Its slot came first, but the end of its context was seen before the
		// call returned, and wins.
		f.bucket.giveBack(w.departureNo, w.cost)
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
	d.waiters.keep(w)
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
	return ev
}

// eventOf is the end of a waiter's wait at an instant.
func (d *dispatcher) eventOf(w *waiter, at int64, waiting int) Event {
	return Event{
		Name: d.name, Cost: int(w.cost), Waiting: waiting, At: d.timeOf(at), Waited: time.Duration(at - w.admitted),
	}
}
