package shaper

import (
	"context"
	"net/http"
	"time"
)

// The bucket of a key can do all that [Middleware], [Transport] and [Chain] want to know.
var _ inner = keyLimiter[string]{}

// Limiter returns the bucket of a key as a [Limiter], for a [Transport], a [Chain] or a
// [Middleware]. It also has the methods Acquire, Forecast, Hold and Stats of a
// [Shaper]. It takes no memory in the Group, and works whether the key has a bucket or
// not.
func (g *Group[K]) Limiter(key K) Limiter {
	g.mustBeMade()
	return keyLimiter[K]{g, key}
}

// A keyLimiter is the bucket of one key of a [Group].
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

// Stats returns the state of the key's bucket, or of a new one if the key has none. If
// the limits function returns an error, only the name is set.
func (k keyLimiter[K]) Stats() (st Stats) {
	g := k.group
	err := g.shardOf(k.key).withFlow(k.key, func(d *dispatcher, f *flow, now int64) { st = d.statsLocked(f, now) })
	if err != nil {
		return Stats{Name: g.over.name}
	}
	return st
}

func (k keyLimiter[K]) stats() (st Stats, ok bool) { return k.group.StatsOf(k.key) }

func (k keyLimiter[K]) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	return k.group.acquire(ctx, k.key, n, kind)
}

func (k keyLimiter[K]) forecast(n int) (wait time.Duration, err error) {
	if k.group.mayDryRun() {
		return 0, nil
	}
	return k.Forecast(n)
}

// hold reports false if the [Limits] of the key can't be had: then there is no line to hold.
func (k keyLimiter[K]) hold(ctx context.Context, d time.Duration) bool {
	return k.group.hold(ctx, k.key, d) && !k.group.mayDryRun()
}

func (k keyLimiter[K]) mayDryRun() bool { return k.group.mayDryRun() }

func (k keyLimiter[K]) asksDoneToWait() bool { return true }

// A keyless is the [Limiter] of a dry run for a request whose key function returned an
// error: it lets the request through, with the error in the [Verdict].
type keyless[K comparable] struct {
	group *Group[K]
	err   error
}

func (k keyless[K]) WaitN(ctx context.Context, n int) error {
	if err := checkCostAndContext(int64(n), ctx); err != nil {
		return err
	}
	d := &k.group.over.dispatcher
	d.letThrough(ctx, Event{Name: d.name, Cost: n, At: time.Now(), Verdict: &Verdict{Err: k.err}})
	return nil
}

// Middleware returns net/http middleware, as the function [Middleware] does, in which
// each request waits for the bucket of its key. If key returns an error, or the limits
// function does, the request is answered with status 500, and [WithLogger] logs the
// error. (A dry run lets such a request through, with the error in its [Verdict].) A
// request of cost 0 passes untouched, and key is not called for it.
func (g *Group[K]) Middleware(key func(*http.Request) (K, error), opts ...MiddlewareOption) func(http.Handler) http.Handler {
	g.mustBeMade()
	if key == nil {
		panic("shaper: Group.Middleware needs a function that tells the key of a request")
	}
	h := newHandler(g.mayDryRun(), opts)
	h.limiterFor = func(r *http.Request) (inner, error) {
		k, err := key(r)
		switch {
		case err != nil && g.mayDryRun():
			return innerOf(keyless[K]{g, &keyError{err}}), nil
		case err != nil:
			return nil, &keyError{err}
		}
		return keyLimiter[K]{g, k}, nil
	}
	return h.wrap
}
