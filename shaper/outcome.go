package shaper

import (
	"context"
	"time"
)

// announce tells the hook of a waiter that has entered a line in which, with it,
// so many wait, and returns what it has to look at beside its own channel. The
// lock is not held.
func (s *Shaper) announce(ctx context.Context, w *waiter, waiting int) (done <-chan struct{}) {
	settled := false
	defer s.abandonUnless(&settled, w)
	tell(s.trace.Enqueued, ctx, Event{Name: s.name, Cost: int(w.cost), Waiting: waiting, At: s.at(w.admitted)})
	done = ctx.Done()
	settled = true
	return done
}

// finish says what has become of a waiter that sleeps no more, as it was told
// that its state has changed or its context has ended. The lock is not held.
//
//go:noinline
func (s *Shaper) finish(ctx context.Context, w *waiter, told bool) (place, error) {
	settled := false
	defer s.abandonUnless(&settled, w)
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
		tell(s.trace.Abandoned, ctx, s.abandon(w, err))
		return place{}, err
	}
	e, p := s.conclude(w)
	if e.Err != nil {
		tell(s.trace.Refused, ctx, e)
		return p, e.Err
	}
	s.tellDeparted(ctx, e, p)
	return p, nil
}

// abandonUnless is for the end of a function that runs code of the caller's, as
// hooks and contexts are: if that panics, the waiter must not stay in line with
// nobody to receive its slot.
func (s *Shaper) abandonUnless(settled *bool, w *waiter) {
	if !*settled {
		s.abandon(w, context.Canceled)
	}
}

// tellDeparted tells the hook of a departure. If that panics, the place of the
// request is given back, as nobody else could do it.
func (s *Shaper) tellDeparted(ctx context.Context, e Event, p place) {
	if s.trace.Departed == nil {
		return
	}
	told := false
	defer func() {
		if !told {
			s.giveBack(p)
		}
	}()
	s.trace.Departed(ctx, e)
	told = true
}

// conclude counts a waiter that has received its slot, or been refused by
// Close, and gives the waiter back. The lock is not held.
func (s *Shaper) conclude(w *waiter) (e Event, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.eventOf(w, w.slot, int(w.waiting))
	s.totals.enter(w.admitted)
	if w.state == departed {
		if s.places.capped {
			p = s.places.claim()
		}
		s.totals.departed++
		s.totals.wait = sum(s.totals.wait, int64(e.Waited))
	} else {
		e.Err = &RejectError{Reason: ErrClosed}
		s.totals.refused[refusedClosed]++
	}
	s.line.recycle(w)
	return e, p
}

// abandon takes a waiter whose context has ended out of the line; if it had
// its slot already, the slot goes to the next waiter or back to the bucket.
// The lock is not held.
func (s *Shaper) abandon(w *waiter, err error) Event {
	now := s.lock()
	defer s.unlock()
	switch w.state {
	case queued:
		head := s.line.head == w
		s.line.remove(w, abandoned)
		if head {
			// The next one may be due already, if it costs less. It could not
			// leave before now.
			s.bucket.since = nanos{whole: now}
		}
	case departed:
		// Its slot came first, but the end of its context was seen before the
		// call returned, and wins.
		s.bucket.giveBack(w.left, w.cost)
		if s.places.capped {
			s.vacate(now)
		}
	}
	select {
	case <-w.ready: // The news was sent, and not received, while the context ended.
	default:
	}
	s.totals.enter(w.admitted)
	s.totals.abandoned++
	e := s.eventOf(w, now, s.line.len)
	e.Err = err
	s.line.recycle(w)
	s.changed = true
	s.advance(now, goesOn)
	return e
}

// eventOf is the end of a waiter's wait at an instant.
func (s *Shaper) eventOf(w *waiter, at int64, waiting int) Event {
	return Event{
		Name: s.name, Cost: int(w.cost), Waiting: waiting, At: s.at(at), Waited: time.Duration(at - w.admitted),
	}
}
