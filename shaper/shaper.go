package shaper

import (
	"context"
	"fmt"
	"math"
	"sync"
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
	// The fields above mu do not change after New. Those below it are guarded
	// by it; unexported methods need it held unless they say otherwise.
	name  string
	trace Trace
	epoch time.Time // when the shaper was made; its instants count from here
	run   func()    // s.tick, made once, so that starting it allocates nothing

	mu      sync.Mutex
	clock   int64 // the latest instant seen
	limits  Limits
	bucket  bucket
	line    queue
	changed bool // the line or its slots have, since the ticker was told
	phase   phase
	drained chan struct{} // made by who waits for the end of a drain
	ticker  ticker
	places  places
	totals  totals
	blank   []RejectError // made, and not handed out yet
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
	s := &Shaper{name: o.name, trace: o.trace, epoch: time.Now(), limits: l, bucket: newBucket(l)}
	s.run = s.tick
	s.ticker.coarse = o.coarse
	s.places.capped = l.InFlight > 0
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
	if s.places.capped {
		return errUseAcquire
	}
	w, done, _, err := s.enter(ctx, n, asNewcomer)
	if w == nil {
		return err
	}
	_, err = s.sleep(ctx, w, done)
	return err
}

// wait is WaitN with the place that the request has taken, if it left and there
// is a cap on them.
func (s *Shaper) wait(ctx context.Context, n int, as entry) (place, error) {
	w, done, p, err := s.enter(ctx, n, as)
	if w == nil {
		return p, err
	}
	return s.sleep(ctx, w, done)
}

// sleep waits until a waiter has its slot, is refused, or has a context that is
// done, and says what has become of it.
func (s *Shaper) sleep(ctx context.Context, w *waiter, done <-chan struct{}) (place, error) {
	// A goroutine begins with 2 KiB of stack, and one that needs a little more
	// has 4: while it waits, there is but this frame and what the runtime needs.
	if done == nil { // It never ends. A receive needs less than a select.
		<-w.ready
		return s.finish(ctx, w, true)
	}
	told := false
	select {
	case <-w.ready:
		told = true
	case <-done:
	}
	return s.finish(ctx, w, told)
}

// enter lets a request leave at once, refuses it, or puts it into the line:
// then it returns the waiter, and the Done channel of its context.
//
//go:noinline
func (s *Shaper) enter(ctx context.Context, n int, as entry) (w *waiter, done <-chan struct{}, p place, err error) {
	if n < 0 {
		return nil, nil, p, ErrNegativeCost
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, p, err
	}
	if n == 0 {
		return nil, nil, p, nil
	}
	ends := int64(forever)
	if deadline, timed := ctx.Deadline(); timed {
		ends = s.since(deadline)
	}

	now := s.lock()
	left := time.Duration(forever)
	if ends < forever {
		left = time.Duration(max(0, sum(ends, -now)))
	}
	wait, refusal := s.judgeAs(as, now, int64(n), left)
	switch {
	case refusal.reason != notRefused:
		return nil, nil, p, s.refuse(ctx, now, n, refusal)
	case wait == 0:
		return nil, nil, s.pass(ctx, now, n), nil
	}
	if as == asNewcomer {
		w = s.line.push(int64(n), now)
	} else {
		w = s.line.pushAgain(int64(n), now)
	}
	if s.line.head == w {
		s.bucket.since = nanos{whole: now}
	}
	s.changed = true
	waiting := s.line.len
	s.unlock()
	return w, s.announce(ctx, w, waiting), p, nil
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
	if s.places.capped {
		return false
	}
	now := s.lock()
	// With a depth of 0 whoever would have to wait meets a full line.
	_, refusal := s.judge(now, int64(n), forever, 0)
	switch {
	case refusal.reason == notRefused:
	case s.trace.Refused == nil:
		s.deny(now, refusal) // Nobody wants the error, so none is made.
		return false
	default:
		_ = s.refuse(context.Background(), now, n, refusal)
		return false
	}
	s.pass(context.Background(), now, n)
	return true
}

// Forecast tells what WaitN(ctx, n) would meet now, if ctx had no deadline:
// how long it would wait, if everyone ahead stays and nothing changes, or the
// error with which it would be refused. It takes nothing and counts nothing.
//
// With Limits.InFlight it tells what Acquire(ctx, n) would meet, and the wait is
// a lower bound, as nobody knows when requests end.
func (s *Shaper) Forecast(n int) (wait time.Duration, err error) {
	s.mustBeMade()
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if n == 0 {
		return 0, nil
	}
	now := s.lock()
	defer s.unlock()
	wait, refusal := s.judge(now, int64(n), forever, s.limits.Depth)
	if refusal.reason != notRefused {
		err := refusal.value()
		return 0, &err
	}
	return wait, nil
}

// Limits returns the limits in force, as they were given.
func (s *Shaper) Limits() Limits {
	s.mustBeMade()
	s.lock()
	defer s.unlock()
	return s.limits
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
	now := s.lock()
	defer s.unlock()
	if s.places.capped != (l.InFlight > 0) {
		return fmt.Errorf("shaper: Limits.InFlight is %d and can't become %d while the shaper is in use: "+
			"with a cap requests say when they end, and without they don't", s.limits.InFlight, l.InFlight)
	}
	s.limits = l
	s.bucket.change(l, now)
	s.changed = true
	s.advance(now, goesOn)
	s.ticker.look(now)
	return nil
}

// mustBeMade panics if New has not made s.
func (s *Shaper) mustBeMade() {
	if s == nil || s.run == nil {
		panic("shaper: this Shaper is nil or zero and can't be used; make one with shaper.New")
	}
}

// maxClock keeps instants far from overflow. No process lives for 280 years.
const maxClock = math.MaxInt64 - int64(10*horizon)

// lock locks the shaper and brings it up to now: departures that are due come
// before whatever the caller wants at the same instant. Every entry point that
// looks at the line or the level begins with it, which also makes up for a
// ticker that is late.
func (s *Shaper) lock() (now int64) { return s.lockAnd(goesOn) }

// lockAnd is lock for a goroutine that does as it says after the unlocking. The
// clock is read before the lock is taken, so that nobody waits for that.
func (s *Shaper) lockAnd(next afterwards) (now int64) {
	now = int64(time.Since(s.epoch))
	s.mu.Lock()
	// A clock that stands still or goes back stands still.
	s.clock = min(max(s.clock, now), maxClock)
	if s.line.head != nil && s.clock >= s.ticker.armed { // Which is not after the head's slot.
		s.advance(s.clock, next)
	}
	s.bucket.rest(s.clock)
	return s.clock
}

// afterwards is what a goroutine does that has handed slots out.
type afterwards bool

const (
	goesOn afterwards = false
	parks  afterwards = true
)

// advance hands out the slots that have come, in the order of the line.
//
// Of several goroutines that one makes ready, the runtime runs the last as soon
// as that one parks, and the others after it in their order. So if it is about
// to park the first is told last. If it goes on, idle threads take the others
// meanwhile, and then their order is the right one (BenchmarkWakeOrder).
func (s *Shaper) advance(now int64, next afterwards) {
	var first *waiter
	for w := s.line.head; w != nil && s.hasRoom() && s.bucket.release(now, w.cost); w = s.line.head {
		s.line.remove(w, departed)
		s.places.leave()
		w.slot, w.left = now, s.bucket.left
		s.changed = true
		if next == parks && first == nil {
			first = w
			continue
		}
		w.tell()
	}
	if first != nil {
		first.tell()
	}
}

// hasRoom says whether the cap on what is in flight lets one more leave.
func (s *Shaper) hasRoom() bool { return s.places.room(s.limits.InFlight) }

// unlock tells those who need to know that the line has changed, and unlocks.
func (s *Shaper) unlock() {
	if s.changed {
		s.settle()
		s.changed = false
		s.arm()
	}
	s.mu.Unlock()
}

// since is a time as an instant of the shaper's clock. The lock need not be
// held.
func (s *Shaper) since(t time.Time) int64 {
	if t != t.Round(0) { // It has a reading of the monotonic clock, as we have.
		return int64(t.Sub(s.epoch))
	}
	// The wall clock may have been set since New: only how far off t is counts.
	now := time.Now()
	return sum(int64(t.Sub(now)), int64(now.Sub(s.epoch)))
}

// at is an instant of the shaper's clock as a time.
func (s *Shaper) at(ns int64) time.Time { return s.epoch.Add(time.Duration(ns)) }
