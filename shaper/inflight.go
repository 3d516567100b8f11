package shaper

import (
	"context"
	"errors"
)

// errUseAcquire is for calls that would not say when they end.
var errUseAcquire = errors.New("shaper: Limits.InFlight is set: use Acquire or Do, which give the place back")

// Acquire is WaitN for requests of which it matters when they end: it blocks
// until a request of cost n may leave and, if Limits.InFlight caps them, until
// fewer than that have left and not ended. The caller says that its request has
// ended by release, which is never nil, does nothing the second time, and may be
// called from anywhere. A place that is given back is the head's of the line at
// once, if the bucket allows. Without a cap release does nothing.
//
// The errors are those of WaitN; then release does nothing. A cost of 0 takes no
// place. With a cap every prediction (RetryAfter, Forecast, what is too late) is
// a lower bound, as nobody knows when requests end.
func (s *Shaper) Acquire(ctx context.Context, n int) (release func(), err error) {
	s.mustBeMade()
	p, err := s.wait(ctx, n, asNewcomer)
	if p == (place{}) {
		return nothing, err
	}
	return func() { s.giveBack(&s.lane, p) }, nil
}

func nothing() {}

// Do runs f when a request of cost n may leave, and gives its place back when f
// has returned or panicked. It returns the error of Acquire, or that of f.
func (s *Shaper) Do(ctx context.Context, n int, f func(context.Context) error) error {
	s.mustBeMade()
	p, err := s.wait(ctx, n, asNewcomer)
	if err != nil {
		return err
	}
	defer s.giveBack(&s.lane, p)
	return f(ctx)
}

// giveBack gives a place back, if it has not been given back before. The lock
// is not held.
func (e *lanes) giveBack(l *lane, p place) {
	if p == (place{}) || e.endUnawaited(l, p) {
		return
	}
	now := e.lockLane(l)
	defer e.unlock()
	if !p.end() {
		return
	}
	l.vacate(now)
	e.touch(l)
	e.advance(now, goesOn)
}

// endUnawaited gives a place back if nobody is in line. Then it does not matter
// when, and to read the clock would be a third of what a release takes.
func (e *lanes) endUnawaited(l *lane, p place) bool {
	e.mu.Lock()
	unawaited := l.waiting() == 0
	if unawaited && p.end() {
		l.line.taken--
		if e.many {
			e.file(l)
		}
	}
	e.mu.Unlock()
	return unawaited
}

// vacate frees a place at an instant. If all were taken it is this that the head
// of the line has been waiting for: it could not leave before, and is not late.
func (l *lane) vacate(now int64) {
	if !l.hasRoom() {
		l.notBefore(now)
		l.bucket.rest(now) // What has just been given back may have emptied it before.
	}
	l.line.taken--
}

// A place says of one who has left a lane with a cap, and whose call has returned
// or is about to, whether he has not ended yet. So one that is given back twice is
// given back once. The zero place is none. The lock guards what it points to.
type place struct{ taken *bool }

// claim gives one who has left something to end by. They are made 64 at a time, as
// one by one they would cost as much as all the rest of a release.
func (e *lanes) claim() place {
	if len(e.places) == 0 {
		e.places = make([]bool, 64)
	}
	p := place{&e.places[0]}
	e.places = e.places[1:]
	*p.taken = true
	return p
}

// end says whether a place was still taken, and notes that it is not.
func (p place) end() (was bool) {
	was, *p.taken = *p.taken, false
	return was
}
