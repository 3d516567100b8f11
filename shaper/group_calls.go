package shaper

import (
	"context"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// Wait is shorthand for WaitN(ctx, key, 1).
func (g *Group[K]) Wait(ctx context.Context, key K) error { return g.WaitN(ctx, key, 1) }

// WaitN blocks until a request of cost n with that key may leave, and returns nil.
// It is Shaper.WaitN on the bucket of the key, and may return the error of the
// function that says the key's Limits, in which errors.Is sees that function's.
func (g *Group[K]) WaitN(ctx context.Context, key K, n int) error {
	_, err := g.wait(key, &request{ctx: ctx, cost: int64(n)})
	return err
}

// Acquire is [Shaper.Acquire] on the bucket of a key.
func (g *Group[K]) Acquire(ctx context.Context, key K, n int) (release func(), err error) {
	if release, err = g.placed(ctx, key, n); release == nil {
		release = nothing
	}
	return release, err
}

// placed is Acquire with nil for a release that does nothing.
func (g *Group[K]) placed(ctx context.Context, key K, n int) (release func(), err error) {
	r := &request{ctx: ctx, cost: int64(n), releases: true}
	c, err := g.wait(key, r)
	held := r.seat
	if held == (seat{}) {
		return nil, err
	}
	return func() { g.releaseSeat(&c.flow, held) }, nil
}

// Do is [Shaper.Do] on the bucket of a key.
func (g *Group[K]) Do(ctx context.Context, key K, n int, f func(context.Context) error) error {
	r := &request{ctx: ctx, cost: int64(n), releases: true}
	c, err := g.wait(key, r)
	if err != nil {
		return err
	}
	if r.seat != (seat{}) {
		defer g.releaseSeat(&c.flow, r.seat)
	}
	return f(ctx)
}

// wait is WaitN, and returns the bucket that the request has found; nil if none.
func (g *Group[K]) wait(key K, r *request) (*keyedFlow[K], error) {
	g.mustBeMade()
	c, dec := g.enter(key, r)
	if dec.waiter == nil {
		return c, dec.err
	}
	err := g.finish(&c.flow, r, dec.waiter, r.await(dec.waiter))
	if err != nil {
		g.rescheduleAfter(c)
		g.logClosed(key, r, err)
	}
	return c, err
}

// enter lets a request leave at once, refuses it, or puts it into the line of its key, and
// runs the hook of that. c is the bucket that it has found; nil if none.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (g *Group[K]) enter(key K, r *request) (c *keyedFlow[K], dec decision) {
	if r.kind != allow {
		if err := g.checkCall(r); err != nil || r.cost == 0 {
			return nil, decision{err: err}
		}
	}
	mustBeComparable(key)
	if g.hasHooks {
		r.key = key
	}
	now := g.lockAndAdvance()
	if c = g.foundLocked(key, now); c == nil {
		g.unlockAndArm()
		return g.enterNew(key, r)
	}
	dec = g.decideLocked(&c.flow, now, r)
	if dec.event >= refusedEvent || g.recorded { // Of those that leave at once there is nothing to note.
		g.noteLocked(key, now, r, dec)
	}
	g.unlockAndArm()
	g.noteLimited(key, r, dec)
	if g.hasHooks || dec.event >= enqueuedEvent {
		if dec.event == askEvent {
			return c, g.settle(key, c, r)
		}
		g.announce(&c.flow, now, r, dec)
	}
	return c, dec
}

// enterNew is enter for a key that has no bucket.
func (g *Group[K]) enterNew(key K, r *request) (c *keyedFlow[K], dec decision) {
	var now int64
	err := g.withFlowOrNew(r.ctx, key, func(found *keyedFlow[K], at int64) {
		c, now = found, at
		if c.home != ownBucket {
			g.overflowed++
		}
		dec = g.decideLocked(&c.flow, now, r)
		g.noteLocked(key, now, r, dec)
	})
	if err != nil {
		return nil, g.failed(key, r, err)
	}
	g.noteLimited(key, r, dec)
	if g.hasHooks || dec.event >= enqueuedEvent {
		if dec.event == askEvent {
			return c, g.settle(key, c, r)
		}
		g.announce(&c.flow, now, r, dec)
	}
	return c, dec
}

// settle asks the Bucket what becomes of a request, and runs the hook of that.
//
// It is not inlined, so that its frame is there only if a Bucket is asked.
//
//go:noinline
func (g *Group[K]) settle(key K, c *keyedFlow[K], r *request) decision {
	dec, now := g.ask(&c.flow, r, func(now int64, dec decision) { g.noteLocked(key, now, r, dec) })
	g.noteLimited(key, r, dec)
	g.announce(&c.flow, now, r, dec)
	return dec
}

// noteLocked notes the key of a request that has been refused, and the request, if its key
// is recorded.
func (g *Group[K]) noteLocked(key K, now int64, r *request, dec decision) {
	if dec.event == refusedEvent || r.verdict != nil && r.verdict.Err != nil {
		g.logRefusedKeyLocked(key)
	}
	if g.recorded {
		g.recordLocked(g.recordingsOf[key], now, r, dec)
	}
}

// mustBeComparable panics for a key that cannot be compared, such as an interface with a
// slice in it, as a map would: but while the lock is free. (key == key would not do: it may
// stop at a NaN before it comes to the slice.)
func mustBeComparable[K comparable](key K) { _ = map[K]struct{}(nil)[key] }

// noteLimited notes that a key has met its limits, if it has.
func (g *Group[K]) noteLimited(key K, r *request, dec decision) {
	switch dec.event {
	case enqueuedEvent:
		g.limited.waited(key)
	case refusedEvent:
		g.limited.refused(key)
	case verdictEvent:
		switch v := r.verdict; {
		case v.Err != nil:
			g.limited.refused(key)
		case v.Wait > 0:
			g.limited.waited(key)
		}
	}
}

// failed ends a call that got no bucket: with a refusal, if all shared buckets are taken;
// with an abandonment, if the context ended while the Limits were looked up; or with the
// error of the Limits, which is counted in [GroupStats.LimitErrors] only. The lock is not
// held.
func (g *Group[K]) failed(key K, r *request, err error) decision {
	ev := Event{Name: g.name, Key: r.key, Cost: int(r.cost), At: time.Now(), Err: err}
	_, refusal := err.(*RejectError)
	if refusal {
		g.mu.Lock()
		g.overflowed++
		g.totals.refused.count(refusedFull)
		g.mu.Unlock()
		g.limited.refused(key)
	}
	g.noteFailed(key, r, err)
	_, unlimited := err.(*limitsError)
	switch {
	case g.isDryRun() && (refusal || unlimited):
		ev.Err, ev.Verdict = nil, &Verdict{Err: err}
		g.letThrough(r.ctx, ev)
		return decision{event: verdictEvent}
	case refusal:
		runHook(g.trace.Refused, r.ctx, ev)
	case !unlimited:
		runHook(g.trace.Abandoned, r.ctx, ev)
	}
	return decision{err: err}
}

// Allow is shorthand for AllowN(key, 1).
func (g *Group[K]) Allow(key K) bool { return g.AllowN(key, 1) }

// AllowN is [Shaper.AllowN] on the bucket of a key. It is also false if the [Limits] of
// the key can't be had, which [GroupStats].LimitErrors counts. On a closed Group every
// call is refused with [ErrClosed] and counted, whatever the Limits of its key are.
func (g *Group[K]) AllowN(key K, n int) bool {
	g.mustBeMade()
	if n <= 0 {
		return n == 0
	}
	_, dec := g.enter(key, &request{ctx: context.Background(), cost: int64(n), deadline: exact.Forever, kind: allow})
	return dec.passed()
}

// Forecast is Shaper.Forecast on the bucket of a key. It makes none: for a key that
// has no bucket it asks for its Limits, and tells what a new one would say.
func (g *Group[K]) Forecast(key K, n int) (wait time.Duration, err error) {
	g.mustBeMade()
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if n == 0 {
		return 0, nil
	}
	unknown := g.withFlow(key, func(f *flow, now int64) { wait, err = g.forecastLocked(f, now, n) })
	if unknown != nil {
		return 0, unknown
	}
	return wait, err
}

// Hold is Shaper.Hold on the bucket of a key. If the Limits of the key can't be had
// there is nothing to hold.
func (g *Group[K]) Hold(key K, d time.Duration) { g.hold(key, d) }

// hold is Hold, and reports whether no request of the key leaves for that time.
func (g *Group[K]) hold(key K, d time.Duration) (held bool) {
	g.mustBeMade()
	if d < 0 {
		return false
	}
	if d == 0 {
		if g.endHold(func() *keyedFlow[K] { return g.table[key] }) {
			return false
		}
		if l, err := g.callLimits(key); err == nil { // They say which bucket it shares.
			g.endHold(func() *keyedFlow[K] { return g.usedLocked(key, l) })
		}
		return false
	}
	mustBeComparable(key)
	bucketKey, err := g.bucketKeyOf(key)
	if err != nil {
		return false
	}
	_ = g.withFlowOrNew(context.Background(), key, func(c *keyedFlow[K], now int64) {
		if c == &g.closedFlow {
			// There is no bucket to hold. But the key's next request is refused at once,
			// so no Transport need wait before it sends one.
			held = true
			return
		}
		if c, err := g.bucketToHoldLocked(key, c, now); err == nil {
			if g.shared != nil {
				g.leaseLocked(c, bucketKey)
			}
			g.holdLocked(&c.flow, now, d)
			held = true
		}
	})
	return held
}

// endHold is Hold(0) for a bucket, if there is one. It says whether that was all: if
// there is none, its key may share one, while any is shared.
func (g *Group[K]) endHold(find func() *keyedFlow[K]) (done bool) {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	c := find()
	if c == nil {
		return g.overflow.len == 0
	}
	c.flow.bucket.idleUntil(now)
	g.holdLocked(&c.flow, now, 0)
	g.rescheduleLocked(c)
	return true
}
