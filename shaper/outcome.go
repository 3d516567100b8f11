package shaper

import (
	"context"
	"time"
)

// await waits for what becomes of a waiter, and returns it. The lock is not
// held.
func (s *Shaper) await(ctx context.Context, w *waiter, e Event) error {
	// The hook and the context are the caller's code: if one of them panics, the
	// waiter must not stay in line with nobody to receive its slot.
	settled := false
	defer func() {
		if !settled {
			s.abandon(w, e, context.Canceled)
		}
	}()
	tell(s.trace.Enqueued, ctx, e)

	told := false
	select {
	case <-w.ready:
		told = true
	case <-ctx.Done():
	}
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
		e = s.abandon(w, e, err)
		tell(s.trace.Abandoned, ctx, e)
		return err
	}
	e, err = s.conclude(w, e)
	if err != nil {
		tell(s.trace.Refused, ctx, e)
		return err
	}
	tell(s.trace.Departed, ctx, e)
	return nil
}

// conclude counts a waiter that has received its slot, or been refused by
// Close, and gives the waiter back. The lock is not held.
func (s *Shaper) conclude(w *waiter, e Event) (Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At, e.Waited, e.Waiting = s.at(w.slot), time.Duration(w.slot-w.admitted), w.waiting
	s.totals.enter(w.admitted)
	if w.state == departed {
		s.totals.departed++
		s.totals.wait = sum(s.totals.wait, int64(e.Waited))
	} else {
		e.Err = &RejectError{Reason: ErrClosed}
		s.totals.refused[refusedClosed]++
	}
	s.line.recycle(w)
	return e, e.Err
}

// abandon takes a waiter whose context has ended out of the line; if it had
// its slot already, the slot goes to the next waiter or back to the bucket.
// The lock is not held.
func (s *Shaper) abandon(w *waiter, e Event, err error) Event {
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
	}
	select {
	case <-w.ready: // The news was sent, and not received, while the context ended.
	default:
	}
	s.totals.enter(w.admitted)
	s.totals.abandoned++
	e.At, e.Waited, e.Waiting, e.Err = s.at(now), time.Duration(now-w.admitted), s.line.len, err
	s.line.recycle(w)
	s.changed = true
	s.advance(now, goesOn)
	return e
}
