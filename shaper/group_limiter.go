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
} = keyLimiter[string]{}

// Limiter returns the bucket of a key as a Limiter, for a Transport, a Chain or a
// Middleware. It has the methods Acquire, Forecast, Hold and Stats too. It takes no
// memory in the Group, and works whether the bucket is there or not.
func (g *Group[K]) Limiter(key K) Limiter {
	g.mustBeMade()
	return keyLimiter[K]{g, key}
}

// keyed is the bucket of one key of a Group.
type keyLimiter[K comparable] struct {
	group *Group[K]
	key   K
}

func (k keyLimiter[K]) WaitN(ctx context.Context, n int) error { return k.group.WaitN(ctx, k.key, n) }

func (k keyLimiter[K]) Acquire(ctx context.Context, n int) (release func(), err error) {
	return k.group.Acquire(ctx, k.key, n)
}

func (k keyLimiter[K]) Forecast(n int) (time.Duration, error) { return k.group.Forecast(k.key, n) }

func (k keyLimiter[K]) Hold(d time.Duration) { k.group.Hold(k.key, d) }

// Stats are those of the bucket, or of a new one, or, if the Limits of the key
// can't be had, nothing.
func (k keyLimiter[K]) Stats() (st Stats) {
	g := k.group
	err := g.withFlow(k.key, func(f *flow, now int64) { st = g.statsLocked(f, now) })
	if err != nil {
		return Stats{Name: g.name}
	}
	return st
}

// peek is Stats, if the key has a bucket of its own.
func (k keyLimiter[K]) peek() (st Stats, ok bool) {
	g := k.group
	ok = g.withOwnFlow(k.key, func(f *flow, now int64) { st = g.statsLocked(f, now) })
	return st, ok
}

// placed is Acquire with nil for a release that does nothing.
func (k keyLimiter[K]) placed(ctx context.Context, n int) (release func(), err error) {
	return k.group.placed(ctx, k.key, n)
}

func (k keyLimiter[K]) rehearses() bool { return k.group.dryRun }

func (k keyLimiter[K]) neverWaits() bool { return k.group.dryRun }

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
	h := handler{mayDryRun: g.dryRun, middlewareOptions: newMiddlewareOptions(opts)}
	h.limiterFor = func(h handler, r *http.Request) (handler, error) {
		k, err := key(r)
		switch {
		case err != nil && g.dryRun:
			h.limiter = keyless[K]{g, &keyError{err}}
			return h, nil
		case err != nil:
			return h, &keyError{err}
		}
		bucket := keyLimiter[K]{g, k}
		h.limiter, h.acquirer = bucket, bucket
		return h, nil
	}
	return h.wrap
}
