package shaper

import (
	"context"
	"net/http"
	"time"
)

// The bucket of a key is used wherever a Shaper is.
var _ interface {
	acquirer
	holder
	placer
	rehearser
} = keyed[string]{}

// Limiter returns the bucket of a key as a Limiter, for a Transport, a Chain or a
// Middleware. It has the methods Acquire, Forecast, Hold and Stats too. It takes no
// memory in the Group, and works whether the bucket is there or not.
func (g *Group[K]) Limiter(key K) Limiter {
	g.mustBeMade()
	return keyed[K]{g, key}
}

// keyed is the bucket of one key of a Group.
type keyed[K comparable] struct {
	group *Group[K]
	key   K
}

func (k keyed[K]) WaitN(ctx context.Context, n int) error { return k.group.WaitN(ctx, k.key, n) }

func (k keyed[K]) Acquire(ctx context.Context, n int) (release func(), err error) {
	return k.group.Acquire(ctx, k.key, n)
}

func (k keyed[K]) Forecast(n int) (time.Duration, error) { return k.group.Forecast(k.key, n) }

func (k keyed[K]) Hold(d time.Duration) { k.group.Hold(k.key, d) }

// Stats are those of the bucket, or of a new one, or, if the Limits of the key
// can't be had, nothing.
func (k keyed[K]) Stats() (st Stats) {
	g := k.group
	err := g.look(k.key, func(l *lane, now int64) { st = g.stats(l, now) })
	if err != nil {
		return Stats{Name: g.name}
	}
	return st
}

// peek is Stats, if the key has a bucket of its own.
func (k keyed[K]) peek() (st Stats, ok bool) {
	g := k.group
	ok = g.lookUp(k.key, func(l *lane, now int64) { st = g.stats(l, now) })
	return st, ok
}

// placed is Acquire with nil for a release that does nothing.
func (k keyed[K]) placed(ctx context.Context, n int) (release func(), err error) {
	return k.group.placed(ctx, k.key, n)
}

func (k keyed[K]) rehearses() bool { return k.group.dry }

func (k keyed[K]) neverWaits() bool { return k.group.dry }

// keyless is what a dry run lets a request through by whose key can't be had.
type keyless[K comparable] struct {
	group *Group[K]
	err   error
}

func (k keyless[K]) WaitN(ctx context.Context, n int) error {
	if err := called(ctx, n); err != nil {
		return err
	}
	g := k.group
	g.letThrough(ctx, Event{Name: g.name, Cost: n, At: time.Now(), Verdict: &Verdict{Err: k.err}})
	return nil
}

func (k keyless[K]) neverWaits() bool { return true }

// Middleware returns net/http middleware as the function Middleware does, in which
// each request waits for the bucket of its key. An error of key is answered with
// status 500, as is one of the Limits of the key; WithLogger logs both. (A dry run
// lets both through, and says so in its Verdict.) A request of cost 0 passes
// untouched, without asking for its key.
func (g *Group[K]) Middleware(key func(*http.Request) (K, error), opts ...MiddlewareOption) func(http.Handler) http.Handler {
	g.mustBeMade()
	if key == nil {
		panic("shaper: Group.Middleware needs a function that tells the key of a request")
	}
	h := handler{mayDryRun: g.dry, middlewareOptions: newMiddlewareOptions(opts)}
	h.limiterFor = func(h handler, r *http.Request) (handler, error) {
		k, err := key(r)
		switch {
		case err != nil && g.dry:
			h.limiter = keyless[K]{g, &keyError{err}}
			return h, nil
		case err != nil:
			return h, &keyError{err}
		}
		bucket := keyed[K]{g, k}
		h.limiter, h.acquirer = bucket, bucket
		return h, nil
	}
	return h.wrap
}
