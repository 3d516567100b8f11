package shaper

import (
	"context"
	"time"
)

// sleep waits until a waiter in the line of a lane has its slot, is refused, or
// has a context that is done, and says what has become of it.
func (e *lanes) sleep(ctx context.Context, l *lane, w *waiter, done <-chan struct{}, key any) (place, error) {
	// A goroutine begins with 2 KiB of stack, and one that needs a little more
	// has 4: while it waits, there is but this frame and what the runtime needs.
	if done == nil { // It never ends. A receive needs less than a select.
		<-w.ready
		return e.finish(ctx, l, w, true, key)
	}
	told := false
	select {
	case <-w.ready:
		told = true
	case <-done:
	}
	return e.finish(ctx, l, w, told, key)
}

// announce tells the hook of a waiter that has entered a line in which, with it,
// so many wait, and returns what it has to look at beside its own channel. The
// lock is not held.
func (e *lanes) announce(ctx context.Context, l *lane, w *waiter, waiting int, key any) (done <-chan struct{}) {
	settled := false
	defer e.abandonUnless(&settled, l, w)
	tell(e.trace.Enqueued, ctx, Event{Name: e.name, Key: key, Cost: int(w.cost), Waiting: waiting, At: e.at(w.admitted)})
	done = ctx.Done()
	settled = true
	return done
}

// finish says what has become of a waiter that sleeps no more, as it was told
// that its state has changed or its context has ended. The lock is not held.
//
//go:noinline
func (e *lanes) finish(ctx context.Context, l *lane, w *waiter, told bool, key any) (place, error) {
	settled := false
	defer e.abandonUnless(&settled, l, w)
	// Asked once, outside the lock, and it has the last word: a slot that came
	// before this moment is handed on, so that none is spent on a request
	// whose caller has gone. What ends the context after it, the caller may
	// take for an end after Wait had returned.
	err := ctx.Err()
	if err == nil && !told {
		err = context.Canceled // A context that breaks its contract has ended all the same.
	}
	settled = true
	if err != nil {
		ev := e.abandon(l, w, err)
		ev.Key = key
		tell(e.trace.Abandoned, ctx, ev)
		return place{}, err
	}
	ev, p := e.conclude(l, w)
	ev.Key = key
	if ev.Err != nil {
		tell(e.trace.Refused, ctx, ev)
		return p, ev.Err
	}
	e.tellDeparted(ctx, l, ev, p)
	return p, nil
}

// abandonUnless is for the end of a function that runs code of the caller's, as
// hooks and contexts are: if that panics, the waiter must not stay in line with
// nobody to receive its slot.
func (e *lanes) abandonUnless(settled *bool, l *lane, w *waiter) {
	if !*settled {
		e.abandon(l, w, context.Canceled)
	}
}

// tellDeparted tells the hook of a departure. If that panics, the place of the
// request is given back, as nobody else could do it.
func (e *lanes) tellDeparted(ctx context.Context, l *lane, ev Event, p place) {
	if e.trace.Departed == nil {
		return
	}
	told := false
	defer func() {
		if !told {
			e.giveBack(l, p)
		}
	}()
	e.trace.Departed(ctx, ev)
	told = true
}

// conclude counts a waiter that has received its slot, or been refused by
// Close, and gives the waiter back. The lock is not held.
func (e *lanes) conclude(l *lane, w *waiter) (ev Event, p place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ev = e.eventOf(w, w.slot, int(w.waiting))
	if w.state == departed {
		if l.capped() {
			p = e.claim()
		}
		e.countDeparture(l, w.admitted, w.slot-w.admitted)
	} else {
		ev.Err = &RejectError{Reason: ErrClosed}
		e.countRefusal(l, w.admitted, refusedClosed)
	}
	e.spares.keep(w)
	return ev, p
}

// abandon takes a waiter whose context has ended out of the line; if it had
// its slot already, the slot goes to the next waiter or back to the bucket.
// The lock is not held.
func (e *lanes) abandon(l *lane, w *waiter, err error) Event {
	now := e.lockLane(l)
	defer e.unlock()
	switch w.state {
	case queued:
		head := l.line.head == w
		l.line.remove(w, abandoned)
		e.waiting--
		if head {
			// The next one may be due already, if it costs less. It could not
			// leave before now.
			l.line.since = nanos{whole: now}
		}
	case departed:
		// Its slot came first, but the end of its context was seen before the
		// call returned, and wins.
		l.bucket.giveBack(w.left, w.cost)
		if l.capped() {
			l.vacate(now)
		}
	}
	select {
	case <-w.ready: // The news was sent, and not received, while the context ended.
	default:
	}
	e.countAbandonment(l, w.admitted)
	ev := e.eventOf(w, now, l.waiting())
	ev.Err = err
	e.spares.keep(w)
	e.touch(l)
	e.advance(now, goesOn)
	return ev
}

// eventOf is the end of a waiter's wait at an instant.
func (e *lanes) eventOf(w *waiter, at int64, waiting int) Event {
	return Event{
		Name: e.name, Cost: int(w.cost), Waiting: waiting, At: e.at(at), Waited: time.Duration(at - w.admitted),
	}
}
