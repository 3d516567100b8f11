package shaper

import (
	"context"
	"time"
)

// Wait is shorthand for WaitN(ctx, key, 1).
func (g *Group[K]) Wait(ctx context.Context, key K) error { return g.WaitN(ctx, key, 1) }

// WaitN blocks until a request of cost n with that key may leave, and returns nil.
// It is Shaper.WaitN on the bucket of the key, and may return the error of the
// function that says the key's Limits, in which errors.Is sees that function's.
func (g *Group[K]) WaitN(ctx context.Context, key K, n int) error {
	_, _, err := g.wait(ctx, key, n, false)
	return err
}

// Acquire is Shaper.Acquire on the bucket of a key.
func (g *Group[K]) Acquire(ctx context.Context, key K, n int) (release func(), err error) {
	if release, err = g.placed(ctx, key, n); release == nil {
		release = nothing
	}
	return release, err
}

// placed is Acquire with nil for a release that does nothing.
func (g *Group[K]) placed(ctx context.Context, key K, n int) (release func(), err error) {
	c, held, err := g.wait(ctx, key, n, true)
	if held.taken == nil {
		return nil, err
	}
	return func() { g.releaseSeat(&c.flow, held) }, nil
}

// Do is Shaper.Do on the bucket of a key.
func (g *Group[K]) Do(ctx context.Context, key K, n int, f func(context.Context) error) error {
	c, held, err := g.wait(ctx, key, n, true)
	if err != nil {
		return err
	}
	if held.taken != nil {
		defer g.releaseSeat(&c.flow, held)
	}
	return f(ctx)
}

// wait is WaitN with the place that the request has taken, if it left and there
// is a cap on them. gives says whether the caller will give it back.
func (g *Group[K]) wait(ctx context.Context, key K, n int, gives bool) (*keyedFlow[K], seat, error) {
	c, w, done, held, err := g.enter(ctx, key, n, gives)
	if w == nil {
		return c, held, err
	}
	if held, err = g.block(ctx, &c.flow, w, done, g.hookKey(key)); err != nil {
		g.rescheduleAfter(c)
	}
	return c, held, err
}

// enter lets a request leave at once, refuses it, or puts it into the line of its
// key: then it returns the waiter, and the Done channel of its context.
//
//go:noinline
func (g *Group[K]) enter(ctx context.Context, key K, n int, gives bool) (c *keyedFlow[K], w *waiter, done <-chan struct{}, held seat, err error) {
	g.mustBeMade()
	ends, err := g.checkCall(ctx, n)
	if err != nil || n == 0 {
		return nil, nil, nil, held, err
	}
	c, now, err := g.lookupOrCreate(ctx, key)
	switch {
	case err != nil:
		return nil, nil, nil, held, g.failed(ctx, key, n, err)
	case g.dryRun:
		depth := c.flow.bucket.limits.Depth
		g.noteVerdict(key, g.shadow(ctx, &c.flow, now, n, untilDeadline(ends, now), depth, g.hookKey(key)))
		return c, nil, nil, held, nil
	case !gives && c.flow.capped():
		g.unlockAndArm()
		return nil, nil, nil, held, errUseAcquire
	}
	if g.conformsLocked(&c.flow, now, int64(n), ends) {
		return c, nil, nil, g.pass(ctx, &c.flow, now, n, g.hookKey(key)), nil
	}
	w, done, held, err = g.admit(ctx, &c.flow, now, n, newcomer, ends, g.hookKey(key))
	switch {
	case w != nil:
		g.limited.waited(key)
	case err != nil:
		g.limited.refused(key)
	}
	return c, w, done, held, err
}

// note notes the verdict of a dry run.
func (g *Group[K]) noteVerdict(key K, v Verdict) {
	switch {
	case v.Err != nil:
		g.limited.refused(key)
	case v.Wait > 0:
		g.limited.waited(key)
	}
}

// unsettled is the end of a call that has come to no bucket: refused, for there is no
// room in those that keys share; abandoned while it waited for its Limits; or without
// any, which is not counted as a call. It returns what the call is to return. The
// lock is not held.
func (g *Group[K]) failed(ctx context.Context, key K, n int, err error) error {
	ev := Event{Name: g.name, Key: g.hookKey(key), Cost: n, At: time.Now(), Err: err}
	_, refusal := err.(*RejectError)
	if refusal {
		g.limited.refused(key)
	}
	_, unlimited := err.(*limitsError)
	switch {
	case g.dryRun && (refusal || unlimited):
		ev.Err, ev.Verdict = nil, &Verdict{Err: err}
		g.letThrough(ctx, ev)
		return nil
	case refusal:
		runHook(g.trace.Refused, ctx, ev)
	case !unlimited:
		runHook(g.trace.Abandoned, ctx, ev)
	}
	return err
}

// named is the key as hooks are told of it.
func (g *Group[K]) hookKey(key K) any {
	if !g.hasHooks {
		return nil
	}
	return key
}

// Allow is shorthand for AllowN(key, 1).
func (g *Group[K]) Allow(key K) bool { return g.AllowN(key, 1) }

// AllowN is Shaper.AllowN on the bucket of a key. It is false, too, if the Limits
// of the key can't be had.
func (g *Group[K]) AllowN(key K, n int) bool {
	g.mustBeMade()
	if n <= 0 {
		return n == 0
	}
	c, now, err := g.lookupOrCreate(context.Background(), key)
	switch {
	case err != nil:
		return g.failed(context.Background(), key, n, err) == nil
	case !g.dryRun && c.flow.capped():
		g.unlockAndArm()
		return false
	}
	if g.dryRun {
		g.noteVerdict(key, g.shadow(context.Background(), &c.flow, now, n, forever, 0, g.hookKey(key)))
		return true
	}
	if g.allow(&c.flow, now, n, g.hookKey(key)) {
		return true
	}
	g.limited.refused(key)
	return false
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
func (g *Group[K]) Hold(key K, d time.Duration) {
	g.mustBeMade()
	if d < 0 {
		return
	}
	if d == 0 {
		if g.endHold(func() *keyedFlow[K] { return g.table[key] }) {
			return
		}
		if l, err := g.callLimits(key); err == nil { // They say which bucket it shares.
			g.endHold(func() (c *keyedFlow[K]) {
				if g.sharesLocked(key) {
					c, _ = g.overflowLocked(key, l)
				}
				return c
			})
		}
		return
	}
	c, now, err := g.lookupOrCreate(context.Background(), key)
	if err != nil {
		return
	}
	g.holdLocked(&c.flow, now, d)
	g.unlockAndArm()
}

// endHold is Hold(0) for a bucket, if there is one. It says whether that was all: if
// there is none, its key may share one, while any is shared.
func (g *Group[K]) endHold(find func() *keyedFlow[K]) (done bool) {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	c := find()
	if c == nil {
		return g.overflow.flows == nil
	}
	c.flow.bucket.idleUntil(now)
	g.holdLocked(&c.flow, now, 0)
	g.rescheduleLocked(c)
	return true
}
