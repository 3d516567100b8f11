package shaper

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Chain returns a [Limiter] that asks several Limiters, one after the other: for
// example the tenant's bucket, then the site's. A request that all of them admit costs
// each of them.
//
// If a later Limiter refuses a request, or its context ends there, what it has cost the
// earlier ones is spent; so put the Limiter first that refuses most. The error is that
// of the Limiter that refused. After its RetryAfter a later one may refuse the request.
// The time that a request waits in a later line counts as in flight for an earlier cap.
//
// A Chain has the methods Acquire (the caps of all, released together), Forecast (the
// longest of the waits, or the first refusal) and Hold (of all that have one), so
// [Middleware] and [Transport] use it as they use a [Shaper], and a dry run in it leaves
// its [Verdict]. Two things are missing: there are no RateLimit fields, as there is no
// one bucket whose state they could tell, and a request that a Transport sends again
// enters as a newcomer. Forecast and Hold leave out a Limiter that lacks them, such as
// x/time's, and Forecast leaves out dry runs, which let nobody wait.
//
// A Chain of no Limiters admits every request whose context has not ended. If one of the
// Limiters is nil, every call returns an error that says which, and Hold does nothing. A
// nil pointer, for example a nil *Shaper, is not a nil Limiter, because a type may work
// with one: its methods are called and may panic. Chain itself panics for a nil *Shaper.
func Chain(ls ...Limiter) Limiter {
	c := chain{links: slices.Clone(ls), acquirers: make([]acquirer, len(ls))}
	for i, l := range ls {
		if l == nil {
			return brokenChain{fmt.Errorf("shaper: Chain: Limiter %d is nil", i)}
		}
		c.acquirers[i] = acquirerOf(l)
	}
	return c
}

type chain struct {
	links     []Limiter
	acquirers []acquirer // for each link: itself if it has a cap, else nil
}

func (c chain) WaitN(ctx context.Context, n int) error {
	if err := called(ctx, n); err != nil || n == 0 {
		return err
	}
	for i, l := range c.links {
		if err := l.WaitN(ctx, n); err != nil {
			return err
		}
		if i < len(c.links)-1 {
			if err := ctx.Err(); err != nil { // Not every Limiter looks after its wait.
				return err
			}
		}
	}
	return nil
}

// Acquire returns a release that is never nil.
func (c chain) Acquire(ctx context.Context, n int) (release func(), err error) {
	if release, err = c.placed(ctx, n); release == nil {
		release = nothing
	}
	return release, err
}

// placed is Acquire, except that release is nil if there is nothing to release.
func (c chain) placed(ctx context.Context, n int) (release func(), err error) {
	if err := called(ctx, n); err != nil || n == 0 {
		return nil, err
	}
	var releases []func()
	all := func() {
		for _, release := range releases {
			defer release() // The last one first, and each of them even if another panics.
		}
	}
	done := false
	defer func() {
		if !done { // A refusal, or a panic of a foreign Limiter.
			all()
		}
	}()
	for i, l := range c.links {
		release, err := enter(ctx, l, c.acquirers[i], n)
		if err != nil {
			return nil, err
		}
		if release != nil {
			releases = append(releases, release)
		}
	}
	done = true
	if releases == nil {
		return nil, nil
	}
	return sync.OnceFunc(all), nil // A foreign release may not bear a second call.
}

// called checks the cost and the context before any Limiter is asked, because not all
// of them do. The order of the checks is that of a Shaper.
func called(ctx context.Context, n int) error {
	if n < 0 {
		return ErrNegativeCost
	}
	return ctx.Err()
}

// Forecast returns the longest of the waits, or the first refusal.
func (c chain) Forecast(n int) (wait time.Duration, err error) {
	if n < 0 {
		return 0, ErrNegativeCost
	}
	for _, l := range c.links {
		f, ok := l.(forecaster)
		if !ok || neverWaits(l) {
			continue
		}
		one, err := f.Forecast(n)
		if err != nil {
			return 0, err
		}
		wait = max(wait, one)
	}
	return wait, nil
}

// Hold holds the lines of all Limiters that have a Hold.
func (c chain) Hold(d time.Duration) {
	for _, l := range c.links {
		if h, ok := l.(holder); ok {
			h.Hold(d)
		}
	}
}

func (c chain) rehearses() bool { return slices.ContainsFunc(c.links, rehearses) }

// A brokenChain is a Chain with a nil Limiter in it: every call returns err. It has all
// methods of a Chain, so that a caller that looks for one of them learns what is wrong.
type brokenChain struct{ err error }

func (b brokenChain) WaitN(context.Context, int) error { return b.err }

// Acquire returns a release that is never nil.
func (b brokenChain) Acquire(context.Context, int) (release func(), err error) {
	return nothing, b.err
}

func (b brokenChain) Forecast(int) (wait time.Duration, err error) { return 0, b.err }

// Hold does nothing, because it has no error to return.
func (brokenChain) Hold(time.Duration) {}
