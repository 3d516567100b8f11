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
	c, p, err := g.wait(ctx, key, n, true)
	if p == (place{}) {
		return nil, err
	}
	return func() { g.giveBack(&c.lane, p) }, nil
}

// Do is Shaper.Do on the bucket of a key.
func (g *Group[K]) Do(ctx context.Context, key K, n int, f func(context.Context) error) error {
	c, p, err := g.wait(ctx, key, n, true)
	if err != nil {
		return err
	}
	if p != (place{}) {
		defer g.giveBack(&c.lane, p)
	}
	return f(ctx)
}

// wait is WaitN with the place that the request has taken, if it left and there
// is a cap on them. gives says whether the caller will give it back.
func (g *Group[K]) wait(ctx context.Context, key K, n int, gives bool) (*cell[K], place, error) {
	c, w, done, p, err := g.enter(ctx, key, n, gives)
	if w == nil {
		return c, p, err
	}
	if p, err = g.sleep(ctx, &c.lane, w, done, g.named(key)); err != nil {
		g.settleSooner(c)
	}
	return c, p, err
}

// enter lets a request leave at once, refuses it, or puts it into the line of its
// key: then it returns the waiter, and the Done channel of its context.
//
//go:noinline
func (g *Group[K]) enter(ctx context.Context, key K, n int, gives bool) (c *cell[K], w *waiter, done <-chan struct{}, p place, err error) {
	g.mustBeMade()
	ends, err := g.call(ctx, n)
	if err != nil || n == 0 {
		return nil, nil, nil, p, err
	}
	c, now, err := g.seek(ctx, key)
	switch {
	case err != nil:
		return nil, nil, nil, p, g.unsettled(ctx, key, n, err)
	case g.dry:
		depth := c.lane.bucket.limits.Depth
		g.note(key, g.rehearse(ctx, &c.lane, now, n, untilDeadline(ends, now), depth, g.named(key)))
		return c, nil, nil, p, nil
	case !gives && c.lane.capped():
		g.unlock()
		return nil, nil, nil, p, errUseAcquire
	}
	if g.conforms(&c.lane, now, int64(n), ends) {
		return c, nil, nil, g.pass(ctx, &c.lane, now, n, g.named(key)), nil
	}
	w, done, p, err = g.admit(ctx, &c.lane, now, n, asNewcomer, ends, g.named(key))
	switch {
	case w != nil:
		g.noted.waited(key)
	case err != nil:
		g.noted.refused(key)
	}
	return c, w, done, p, err
}

// note notes the verdict of a dry run.
func (g *Group[K]) note(key K, v Verdict) {
	switch {
	case v.Err != nil:
		g.noted.refused(key)
	case v.Wait > 0:
		g.noted.waited(key)
	}
}

// unsettled is the end of a call that has come to no bucket: refused, for there is no
// room in those that keys share; abandoned while it waited for its Limits; or without
// any, which is not counted as a call. It returns what the call is to return. The
// lock is not held.
func (g *Group[K]) unsettled(ctx context.Context, key K, n int, err error) error {
	ev := Event{Name: g.name, Key: g.named(key), Cost: n, At: time.Now(), Err: err}
	_, refusal := err.(*RejectError)
	if refusal {
		g.noted.refused(key)
	}
	_, unlimited := err.(*limitsError)
	switch {
	case g.dry && (refusal || unlimited):
		ev.Err, ev.Verdict = nil, &Verdict{Err: err}
		g.letThrough(ctx, ev)
		return nil
	case refusal:
		tell(g.trace.Refused, ctx, ev)
	case !unlimited:
		tell(g.trace.Abandoned, ctx, ev)
	}
	return err
}

// named is the key as hooks are told of it.
func (g *Group[K]) named(key K) any {
	if !g.told {
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
	c, now, err := g.seek(context.Background(), key)
	switch {
	case err != nil:
		return g.unsettled(context.Background(), key, n, err) == nil
	case !g.dry && c.lane.capped():
		g.unlock()
		return false
	}
	if g.dry {
		g.note(key, g.rehearse(context.Background(), &c.lane, now, n, forever, 0, g.named(key)))
		return true
	}
	if g.allow(&c.lane, now, n, g.named(key)) {
		return true
	}
	g.noted.refused(key)
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
	unknown := g.look(key, func(l *lane, now int64) { wait, err = g.forecast(l, now, n) })
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
		if g.endHold(func() *cell[K] { return g.table[key] }) {
			return
		}
		if l, err := g.ask(key); err == nil { // They say which bucket it shares.
			g.endHold(func() (c *cell[K]) {
				if g.shares(key) {
					c, _ = g.overflowing(key, l)
				}
				return c
			})
		}
		return
	}
	c, now, err := g.seek(context.Background(), key)
	if err != nil {
		return
	}
	g.hold(&c.lane, now, d)
	g.unlock()
}

// endHold is Hold(0) for a bucket, if there is one. It says whether that was all: if
// there is none, its key may share one, while any is shared.
func (g *Group[K]) endHold(find func() *cell[K]) (done bool) {
	now := g.lock()
	defer g.unlock()
	c := find()
	if c == nil {
		return g.overflow.cells == nil
	}
	c.lane.bucket.rest(now)
	g.hold(&c.lane, now, 0)
	g.replace(c)
	return true
}
