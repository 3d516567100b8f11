package shaper

import (
	"context"
	"fmt"
	"time"
)

// A Shaper is a leaky bucket used as a queue: requests wait in a bounded line,
// leave one by one at a fixed rate in the order in which they came, and are
// refused at once when the line is full.
//
// Make one with New; the zero Shaper is not usable, and its methods panic.
//
// Most callers want Do, which runs a function when its request may leave, or
// Acquire where the end of the request is elsewhere; for HTTP, Middleware and
// Transport call them. They work with Limits.InFlight and without. Wait blocks
// until a request may leave of whose end nobody needs to know. Allow never
// waits. Forecast tells what they would meet and takes nothing.
//
// A request that can't be admitted gets a *RejectError at once. One whose
// context ends while it waits gets exactly ctx.Err(), and its place and its
// slot are the next waiter's before the call has returned.
//
// A Shaper is safe for concurrent use, and costs nothing while nobody waits: a
// forgotten one needs no Close.
type Shaper struct {
	dispatcher // One of them.
	flow       flow

	capped bool // Limits.InFlight is above 0, which never changes
}

// New makes a Shaper with limits l, which must be valid: the error is that of
// l.Validate.
func New(l Limits, opts ...Option) (*Shaper, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	s := &Shaper{flow: flow{bucket: newBucket(l), entered: -1}}
	s.capped = l.InFlight > 0
	s.lineOfLocked(&s.flow)
	s.prepare(o)
	return s, nil
}

// Wait is shorthand for WaitN(ctx, 1).
func (s *Shaper) Wait(ctx context.Context) error { return s.WaitN(ctx, 1) }

// WaitN blocks until a request of cost n may leave, and returns nil. A cost of
// 0 returns nil at once and counts nothing.
//
// It returns a *RejectError, without having waited, if the line is full, if
// the predicted wait exceeds MaxWait or reaches the context's deadline, if n
// can never fit, or after Close or Shutdown; Close refuses those who wait too.
// If the context is done, before the call or by the time at which it would
// return, it returns ctx.Err(). A negative n gives ErrNegativeCost.
//
// With Limits.InFlight set it returns an error that says to use Acquire.
func (s *Shaper) WaitN(ctx context.Context, n int) error {
	s.mustBeMade()
	if s.capped && !s.dryRun {
		return errUseAcquire
	}
	w, done, _, err := s.enter(ctx, n, newcomer)
	if w == nil {
		return err
	}
	_, err = s.block(ctx, &s.flow, w, done, nil)
	return err
}

// wait is WaitN with the place that the request has taken, if it left and there
// is a cap on them.
func (s *Shaper) wait(ctx context.Context, n int, kind entryKind) (seat, error) {
	w, done, held, err := s.enter(ctx, n, kind)
	if w == nil {
		return held, err
	}
	return s.block(ctx, &s.flow, w, done, nil)
}

// enter lets a request leave at once, refuses it, or puts it into the line:
// then it returns the waiter, and the Done channel of its context.
//
//go:noinline
func (s *Shaper) enter(ctx context.Context, n int, kind entryKind) (w *waiter, done <-chan struct{}, held seat, err error) {
	ends, err := s.checkCall(ctx, n)
	if err != nil || n == 0 {
		return nil, nil, held, err
	}
	now := s.lockFlow(&s.flow)
	if s.dryRun {
		s.shadow(ctx, &s.flow, now, n, untilDeadline(ends, now), s.flow.bucket.limits.Depth, nil)
		return nil, nil, held, nil
	}
	if kind == newcomer && s.conformsLocked(&s.flow, now, int64(n), ends) {
		return nil, nil, s.pass(ctx, &s.flow, now, n, nil), nil
	}
	return s.admit(ctx, &s.flow, now, n, kind, ends, nil)
}

// call looks at a call before anything is locked: at the cost, at the context,
// and when that will end.
func (d *dispatcher) checkCall(ctx context.Context, n int) (ends int64, err error) {
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if deadline, timed := ctx.Deadline(); timed {
		return d.instantOf(deadline), nil
	}
	return forever, nil
}

// Allow is shorthand for AllowN(1).
func (s *Shaper) Allow() bool { return s.AllowN(1) }

// AllowN lets a request of cost n leave now, or not at all: it never waits and
// never overtakes the line. It counts as one call. AllowN(0) is true and a
// negative n gives false; neither is counted, nor is any call with
// Limits.InFlight set: it is false, as nobody would say when the request ends.
func (s *Shaper) AllowN(n int) bool {
	s.mustBeMade()
	if n <= 0 {
		return n == 0
	}
	if s.capped && !s.dryRun {
		return false
	}
	now := s.lockFlow(&s.flow)
	return s.allow(&s.flow, now, n, nil)
}

// allow is AllowN for a flow. It unlocks.
func (d *dispatcher) allow(f *flow, now int64, n int, key any) bool {
	ctx := context.Background()
	if d.dryRun {
		d.shadow(ctx, f, now, n, forever, 0, key)
		return true
	}
	// With a depth of 0 whoever would have to wait meets a full line.
	_, refusal := d.judgeLocked(f, now, int64(n), forever, 0)
	switch {
	case refusal.reason == notRefused:
		d.pass(ctx, f, now, n, key)
	case d.trace.Refused == nil:
		d.deny(f, now, refusal) // Nobody wants the error, so none is made.
		return false
	default:
		_ = d.refuse(ctx, f, now, n, refusal, key)
		return false
	}
	return true
}

// Forecast tells what WaitN(ctx, n) would meet now, if ctx had no deadline:
// how long it would wait, if everyone ahead stays and nothing changes, or the
// error with which it would be refused. It takes nothing and counts nothing.
//
// With [Limits.InFlight] it tells what Acquire(ctx, n) would meet. While all seats
// are taken the wait is an estimate, as nobody knows when requests end: at least the
// mean time for which they have been in flight of late, divided by InFlight, and at
// least 1 ms. [Limits.MaxWait] is not compared with that estimate, but with the wait
// as it would be if a seat became free at once.
func (s *Shaper) Forecast(n int) (wait time.Duration, err error) {
	s.mustBeMade()
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if n == 0 {
		return 0, nil
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	return s.forecastLocked(&s.flow, now, n)
}

// forecast is Forecast for a flow.
func (d *dispatcher) forecastLocked(f *flow, now int64, n int) (wait time.Duration, err error) {
	wait, refusal := d.judgeLocked(f, now, int64(n), forever, f.bucket.limits.Depth)
	if refusal.reason != notRefused {
		err := refusal.value()
		return 0, &err
	}
	return f.expected(wait), nil
}

// Limits returns the limits in force, as they were given.
func (s *Shaper) Limits() Limits {
	s.mustBeMade()
	s.lockAndAdvance()
	defer s.unlockAndArm()
	return s.flow.bucket.limits
}

// SetLimits puts l in force at once, for those who wait too: they are re-timed
// in their order, from the level as it is. A smaller Depth refuses newcomers
// and drops nobody. An invalid l changes nothing and is the error of
// l.Validate; so does one that changes InFlight from or to 0. SetLimits works on
// a closed Shaper.
func (s *Shaper) SetLimits(l Limits) error {
	s.mustBeMade()
	if err := l.Validate(); err != nil {
		return err
	}
	to := planOf(l)
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	if err := s.flow.checkChange(l); err != nil {
		return err
	}
	s.changeLocked(&s.flow, to, now)
	return nil
}

// refuses is why a flow can't have other limits, if it can't.
func (f *flow) checkChange(to Limits) error {
	from := f.bucket.limits
	if (from.InFlight > 0) == (to.InFlight > 0) {
		return nil
	}
	return fmt.Errorf("shaper: Limits.InFlight is %d and can't become %d while the shaper is in use: "+
		"with a cap requests say when they end, and without they don't", from.InFlight, to.InFlight)
}

// mustBeMade panics if New has not made s.
func (s *Shaper) mustBeMade() {
	if s == nil || s.run == nil {
		panic("shaper: this Shaper is nil or zero and can't be used; make one with shaper.New")
	}
}
