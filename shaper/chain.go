package shaper

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Chain returns a Limiter that asks several, one after the other: the tenant's
// bucket, then the site's. A request that all have let go costs each of them.
//
// What an earlier one has let go is spent when a later one refuses the request, or
// its context ends: so put the one first that refuses most. The error is that of the
// one which refused, with its RetryAfter, after which a later one may refuse. The
// time that a request waits in a later line counts as in flight for an earlier cap.
//
// A Chain has the methods Acquire (the places of all, given back together),
// Forecast (the longest of the waits, or the first refusal) and Hold (of all that
// have one), so that Middleware and Transport use a Chain as they use a Shaper; and a
// dry run in it leaves its verdict. What they do without: there are no RateLimit
// fields, as there is no one bucket to tell of, and a request that a Transport sends
// again enters as a newcomer. A Limiter without Forecast or Hold, as x/time's, is
// left out of them, and a dry run out of Forecast, as it keeps nobody waiting.
//
// A Chain of none lets every request pass whose context has not ended. With a nil
// Limiter in it every call returns an error that says which, and Hold does nothing. A
// nil pointer, as of type *Shaper, is not a nil Limiter: its methods are called, and
// panic if they do so for nil. For a nil *Shaper Chain does that itself.
func Chain(ls ...Limiter) Limiter {
	c := chain{links: slices.Clone(ls), places: make([]acquirer, len(ls))}
	for i, l := range ls {
		if l == nil {
			return brokenChain{fmt.Errorf("shaper: Chain: Limiter %d is nil", i)}
		}
		c.places[i] = acquirerOf(l)
	}
	return c
}

type chain struct {
	links  []Limiter
	places []acquirer // of each, if it caps what is in flight; else nil
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
			if err := ctx.Err(); err != nil { // Not every Limiter asks after its wait.
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

// placed is Acquire with nil for a release that does nothing.
func (c chain) placed(ctx context.Context, n int) (release func(), err error) {
	if err := called(ctx, n); err != nil || n == 0 {
		return nil, err
	}
	var releases []func()
	all := func() {
		for _, release := range releases {
			defer release() // The last first, and each even if somebody else's panics.
		}
	}
	done := false
	defer func() {
		if !done { // Refused, or somebody else's Limiter has panicked.
			all()
		}
	}()
	for i, l := range c.links {
		release, err := enter(ctx, l, c.places[i], n)
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
	return sync.OnceFunc(all), nil // Not all are like a Shaper's.
}

// called looks at a call before any Limiter is asked, as not all do, in the order
// in which a Shaper looks.
func called(ctx context.Context, n int) error {
	if n < 0 {
		return ErrNegativeCost
	}
	return ctx.Err()
}

// Forecast tells the longest of the waits, or the first refusal.
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

// Hold holds the lines of all that can be held.
func (c chain) Hold(d time.Duration) {
	for _, l := range c.links {
		if h, ok := l.(holder); ok {
			h.Hold(d)
		}
	}
}

func (c chain) rehearses() bool { return slices.ContainsFunc(c.links, rehearses) }

// A brokenChain is a Chain with a nil Limiter in it: every call returns err. It has
// all methods of a Chain, so that whoever looks for one of them finds it and is told
// what is wrong.
type brokenChain struct{ err error }

func (b brokenChain) WaitN(context.Context, int) error { return b.err }

// Acquire returns a release that is never nil.
func (b brokenChain) Acquire(context.Context, int) (release func(), err error) {
	return nothing, b.err
}

func (b brokenChain) Forecast(int) (wait time.Duration, err error) { return 0, b.err }

// Hold does nothing, as there is no error to return.
func (brokenChain) Hold(time.Duration) {}
