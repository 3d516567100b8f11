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
	held, err := s.wait(ctx, n, newcomer)
	if held == (seat{}) {
		return nothing, err
	}
	return func() { s.releaseSeat(&s.flow, held) }, nil
}

func nothing() {}

// Do runs f when a request of cost n may leave, and gives its place back when f
// has returned or panicked. It returns the error of Acquire, or that of f.
func (s *Shaper) Do(ctx context.Context, n int, f func(context.Context) error) error {
	s.mustBeMade()
	held, err := s.wait(ctx, n, newcomer)
	if err != nil {
		return err
	}
	defer s.releaseSeat(&s.flow, held)
	return f(ctx)
}

// giveBack gives a place back, if it has not been given back before. The lock
// is not held.
func (d *dispatcher) releaseSeat(f *flow, held seat) {
	if held == (seat{}) || d.releaseUnawaited(f, held) {
		return
	}
	now := d.lockFlow(f)
	defer d.unlockAndArm()
	if !held.release() {
		return
	}
	f.freeSeat(now)
	d.markDirtyLocked(f)
	d.advanceLocked(now, headFirst)
}

// endUnawaited gives a place back if nobody is in line. Then it does not matter
// when, and to read the clock would be a third of what a release takes.
func (d *dispatcher) releaseUnawaited(f *flow, held seat) bool {
	d.mu.Lock()
	unawaited := f.waiting() == 0
	if unawaited && held.release() {
		f.line.seatsTaken--
		if d.keyed {
			d.updateDepartureLocked(f)
		}
	}
	d.mu.Unlock()
	return unawaited
}

// vacate frees a place at an instant. If all were taken it is this that the head
// of the line has been waiting for: it could not leave before, and is not late.
func (f *flow) freeSeat(now int64) {
	if !f.hasSeat() {
		f.notBefore(now)
		f.bucket.idleUntil(now) // What has just been given back may have emptied it before.
	}
	f.line.seatsTaken--
}

// A place says of one who has left a flow with a cap, and whose call has returned
// or is about to, whether he has not ended yet. So one that is given back twice is
// given back once. The zero place is none. The lock guards what it points to.
type seat struct{ taken *bool }

// claim gives one who has left something to end by. They are made 64 at a time, as
// one by one they would cost as much as all the rest of a release.
func (d *dispatcher) takeSeat() seat {
	if len(d.spareSeats) == 0 {
		d.spareSeats = make([]bool, 64)
	}
	held := seat{&d.spareSeats[0]}
	d.spareSeats = d.spareSeats[1:]
	*held.taken = true
	return held
}

// end says whether a place was still taken, and notes that it is not.
func (held seat) release() (was bool) {
	was, *held.taken = *held.taken, false
	return was
}
