package shaper

import (
	"context"
	"time"

	"example.com/leakybucket/internal/exact"
)

// A Shaper is a leaky bucket used as a queue: requests wait in a bounded line, leave one by one at a fixed rate in
// the order in which they came, and are refused at once when the line is full. Make one with [New]; the zero Shaper
// is not usable, and its methods panic.
//
// Most callers want [Shaper.Do], or [Shaper.Acquire] if the request ends elsewhere. [Shaper.Wait] is for requests
// whose end does not matter, and [Shaper.Allow] never waits. A request that can't be admitted gets a [*RejectError]
// at once; one whose context ends while it waits returns exactly ctx.Err(). A Shaper is safe for concurrent use. One
// that is no longer used need not be closed.
type Shaper struct {
	dispatcher
	flow      flow
	ownTicker ticker
	observer  // the lock of the dispatcher guards it
}

// New makes a [Shaper] with limits l. The error comes from [Limits.Validate], or says which
// option is wrong, or does not go together with another.
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
	if err := o.validate(l); err != nil {
		return nil, err
	}
	s := &Shaper{flow: flow{bucket: bucket{cold: new(cold)}, entered: -1}}
	s.flow.lineOrNew().order = o.fair.newOrder()
	s.prepare(o, &s.ownTicker, &s.observer)
	if o.fair != nil {
		s.keysRefused = new([keptRefusals]any)
	}
	s.flow.bucket.plan = s.planOf(l)
	s.capped = s.flow.capped()
	if s.further != nil {
		s.further.attach(&s.flow)
	}
	if s.levels != nil {
		s.levels.add(&s.flow, s.levels.keyOf(o.shared.key))
	}
	return s, nil
}

// takesSeats reports whether there is a cap. A type that embeds a *Shaper has it, too.
func (s *Shaper) takesSeats() bool { return s.capped }

// Wait is shorthand for WaitN(ctx, 1).
func (s *Shaper) Wait(ctx context.Context) error { return s.WaitN(ctx, 1) }

// WaitN blocks until a request of cost n may leave, and returns nil. A cost of 0 returns nil at once and counts
// nothing. A negative n gives [ErrNegativeCost].
//
// It returns a [*RejectError], without having waited, if the line is full, if the predicted wait exceeds
// [Limits.MaxWait] (a wait of exactly MaxWait is admitted) or reaches the context's deadline, if n can never fit, or
// after [Shaper.Close] or [Shaper.Shutdown]. While it waits it may be refused by Close, at a bound
// ([WithLineTimeout]), and in an outage of a [shared.Bucket]. If the context is done before the call, or when the
// call is about to return, WaitN returns ctx.Err(). Its slot then goes to the next request that may leave, or the
// bucket is as if the request had not left. The slot is lost only if a later request has left since, or the level
// has been raised by a charge, [Shaper.AtMost] or [Shaper.Restore].
//
// With [Limits.InFlight] every call returns an error that says to use Acquire; only a dry run lets it through.
func (s *Shaper) WaitN(ctx context.Context, n int) error {
	s.mustBeMade()
	if s.capped {
		return errUseAcquire
	}
	r := &request{ctx: ctx, cost: int64(n)} // It is a pointer because the compiler would copy a plain variable.
	dec := s.enter(r)
	if dec.waiter == nil {
		return dec.err
	}
	_, err := r.finish(&s.dispatcher, &s.flow, dec.waiter, r.await(dec.waiter))
	return err
}

// Acquire is [Shaper.WaitN] for a request whose end matters: with [Limits.InFlight] it also blocks until a seat is
// free. The request is in flight until release is called, which gives its seat to the head of the line at once.
// release is never nil, does nothing when it is called again, with an error or without a cap, and may be called from
// any goroutine. A cost of 0 takes no seat.
func (s *Shaper) Acquire(ctx context.Context, n int) (release func(), err error) {
	held, err := s.acquire(ctx, n, newcomer)
	if held.by == nil {
		return nothing, err
	}
	return held.end, nil
}

func nothing() {}

// A heldSeat is a seat of a [Shaper], for a request that has left. It is zero for one that has
// none.
//
// Its method end is the release that Acquire returns. Acquire is just small enough for the
// compiler to inline it: then a caller that does not hand release on has it on its stack, and
// nothing is allocated for it (TestAcquireAllocatesItsReleaseAtMost).
type heldSeat struct {
	by   *Shaper
	seat *seat
}

func (h heldSeat) end() { h.seat.free(&h.by.dispatcher, &h.by.flow) }

// acquire is Acquire with a heldSeat in place of a function.
func (s *Shaper) acquire(ctx context.Context, n int, kind entryKind) (heldSeat, error) {
	s.mustBeMade()
	r := &request{ctx: ctx, cost: int64(n), kind: kind, tellsEnd: true}
	dec := s.enter(r)
	err := dec.err
	if dec.waiter != nil {
		_, err = r.finish(&s.dispatcher, &s.flow, dec.waiter, r.await(dec.waiter))
	}
	if r.seat == nil {
		return heldSeat{}, err
	}
	return heldSeat{s, r.seat}, nil
}

// wait is acquire for any request. (If acquire called it, Acquire would be too large to be inlined, or a
// waiting goroutine would have one more frame on its stack.)
func (s *Shaper) wait(r *request) (heldSeat, error) {
	s.mustBeMade()
	dec := s.enter(r)
	err := dec.err
	if dec.waiter != nil {
		_, err = r.finish(&s.dispatcher, &s.flow, dec.waiter, r.await(dec.waiter))
	}
	if r.seat == nil {
		return heldSeat{}, err
	}
	return heldSeat{s, r.seat}, nil
}

// Do runs f when a request of cost n may leave, and releases the seat of the request when
// f has returned or panicked. It returns the error of [Shaper.Acquire], or the error of f.
func (s *Shaper) Do(ctx context.Context, n int, f func(context.Context) error) error {
	held, err := s.acquire(ctx, n, newcomer)
	if err != nil {
		return err
	}
	if held.by != nil {
		defer held.end()
	}
	return f(ctx)
}

// enter lets a request leave at once, refuses it, or puts it into the line, and runs the
// hook for this.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (s *Shaper) enter(r *request) decision {
	if r.kind != allow { // AllowN has checked the cost, and has no context.
		if err := r.checkCall(&s.dispatcher); err != nil || r.cost == 0 && r.isFree() {
			return decision{err: err}
		}
	}
	if s.ordered {
		r.key, r.weight = s.flow.line.order.weigh(r.key)
	}
	now := int64(time.Since(s.epoch))
	if p := s.published.Load(); p != nil {
		if dec := p.refuse(s, now, r); dec.event == refusedEvent {
			return dec
		}
	}
	now = s.lockAt(now, headFirst) // These two lines do what lockFlow does, and save a call.
	s.flow.bucket.idleUntil(now)
	dec := s.decideLocked(&s.flow, now, r)
	if dec.event == refusedEvent {
		s.publishAfterLocked(now, r.cost)
	} else {
		s.inRow = 0
	}
	if s.watched && dec.event == departedEvent {
		s.watcher.left(now, 0, r.cost, r.key)
	}
	s.unlockAndArm()
	if s.hasHooks || dec.event >= enqueuedEvent {
		if dec.event == askEvent {
			return s.askAndAnnounce(r)
		}
		r.announce(&s.dispatcher, &s.flow, dec)
	}
	return dec
}

// askAndAnnounce asks the level about a request, and runs the hook of the answer.
//
// It is not inlined, so that its frame is there only if a level is asked. If it left announce
// to enter, a call with hooks would take 2 % longer.
//
//go:noinline
func (s *Shaper) askAndAnnounce(r *request) decision {
	asked := *r // The level keeps it, and r is on the stack of its call.
	dec := s.flow.remote().ask(&asked, func(now int64, dec decision) {
		if s.watched && dec.event == departedEvent {
			s.watcher.left(now, 0, asked.cost, asked.key)
		}
	})
	*r = asked
	r.announce(&s.dispatcher, &s.flow, dec)
	return dec
}

// Allow is shorthand for AllowN(1).
func (s *Shaper) Allow() bool { return s.AllowN(1) }

// AllowN lets a request of cost n leave now, or refuses it, and reports whether it has left. The request never waits
// for a slot and never overtakes the line. [Stats] counts one call, whatever n is. With a [shared.Bucket] the call
// may wait for its answer. AllowN(0) is true and a negative n gives false; neither is counted. With
// [Limits.InFlight] it is false and not counted, as its caller would not say when the request ends. In a dry run
// AllowN of a positive n is true.
func (s *Shaper) AllowN(n int) bool {
	s.mustBeMade()
	if n <= 0 {
		return n == 0
	}
	r := &request{ctx: context.Background(), cost: int64(n), deadline: exact.Forever, kind: allow}
	return s.enter(r).passed()
}

// mustBeMade panics unless [New] made s.
func (s *Shaper) mustBeMade() {
	if s == nil || s.ticker == nil {
		panic("shaper: this Shaper is nil or zero and can't be used; make one with shaper.New")
	}
}
