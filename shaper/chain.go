package shaper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// A ChainLimiter asks several Limiters, one after the other. [Chain] makes one.
type ChainLimiter struct {
	chain chain
}

// WaitN waits for one [Limiter] after the other, until one refuses the request.
func (l *ChainLimiter) WaitN(ctx context.Context, n int) error { return l.chain.WaitN(ctx, n) }

// Acquire is WaitN for a request whose end matters. The release ends it for the caps of all
// Limiters, and is never nil.
func (l *ChainLimiter) Acquire(ctx context.Context, n int) (release func(), err error) {
	if release, err = l.chain.enter(ctx, n, newcomer); release == nil {
		release = nothing
	}
	return release, err
}

// Reserve is WaitN for a request whose cost is known only when it has ended: settle settles with all Limiters that
// have a method like [Shaper.Reserve], and releases the seats of all. If a later Limiter refuses the request, the
// earlier ones get back what has not drained meanwhile. (There is no AtMost: call it on the Limiter whose units the
// upstream reports.)
func (l *ChainLimiter) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := l.chain.reserve(ctx, estimate, newcomer)
	return settleOf(v), err
}

// Spend is [Shaper.Spend] with the Reserve of the Chain.
func (l *ChainLimiter) Spend(ctx context.Context, estimate int, f func(context.Context) (actual int, err error)) error {
	return spendBy(ctx, &l.chain, estimate, f)
}

// Forecast returns the longest of the waits, or the first refusal.
func (l *ChainLimiter) Forecast(n int) (wait time.Duration, err error) { return l.chain.forecast(n) }

// Hold holds the lines of all Limiters that have a Hold.
func (l *ChainLimiter) Hold(d time.Duration) { l.chain.hold(context.Background(), d) }

// mayDryRun is for a type that embeds a ChainLimiter; see foreign.
func (l *ChainLimiter) mayDryRun() bool { return l.chain.mayDryRun() }

// Chain returns a [Limiter] that asks several Limiters, one after the other: for example the tenant's bucket, then
// the site's. A request that all of them admit costs each of them; [Priced] gives one another cost. If a later one
// refuses a request, or the context ends there, the earlier ones do not get its cost back, so put the one first that
// refuses most. While a request waits in a later line, it counts as in flight for an earlier cap.
//
// [Middleware] and [Transport] use a Chain as they use a [Shaper], but without RateLimit fields, as there is no one
// bucket. Forecast and Hold leave out a Limiter that lacks them, such as x/time's, and Forecast dry runs. A Chain of
// no Limiters admits every request. If one of the Limiters is nil, every call returns an error that says which; for
// a nil [*Shaper] Chain itself panics.
func Chain(ls ...Limiter) *ChainLimiter {
	c := chain{links: make([]inner, len(ls))}
	for i, l := range ls {
		if l == nil {
			return &ChainLimiter{chain{broken: fmt.Errorf("shaper: Chain: Limiter %d is nil", i)}}
		}
		c.links[i] = innerOf(l)
		if err := brokenOf(c.links[i]); err != nil {
			return &ChainLimiter{chain{broken: err}}
		}
		c.pricesZero = c.pricesZero || pricesZero(c.links[i])
	}
	return &ChainLimiter{c}
}

// A chain is the inner of a [ChainLimiter].
type chain struct {
	links      []inner
	broken     error // not nil: a Limiter or a function is nil, here or in one of the Limiters, and every call returns this
	pricesZero bool  // a request of cost 0 may have another cost for one of the Limiters
}

func (c *chain) WaitN(ctx context.Context, n int) error {
	if err := c.checkCall(ctx, n); err != nil || n == 0 && !c.pricesZero {
		return err
	}
	for i, l := range c.links {
		if err := l.WaitN(ctx, n); err != nil {
			return err
		}
		if i < len(c.links)-1 {
			if err := ctx.Err(); err != nil { // Not every Limiter asks the context after the wait.
				return err
			}
		}
	}
	return nil
}

// checkCall checks a call before any [Limiter] is asked. Some Limiters do not check the
// cost and the context, and some do so in another order than a [Shaper].
func (c *chain) checkCall(ctx context.Context, n int) error {
	if c.broken != nil {
		return c.broken
	}
	return checkCostAndContext(int64(n), ctx)
}

func (c *chain) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	if err := c.checkCall(ctx, n); err != nil || n == 0 && !c.pricesZero {
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
	for _, l := range c.links {
		release, err := l.enter(ctx, n, kind)
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
	var released atomic.Bool
	return func() {
		if !released.Swap(true) { // A foreign release may not bear a second call.
			all()
		}
	}, nil
}

func (c *chain) reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error) {
	if err := c.checkCall(ctx, estimate); err != nil {
		return nil, err
	}
	v := new(chainReservation)
	done := false
	defer func() {
		if !done { // A refusal, or a panic of a foreign Limiter.
			v.notSent()
		}
	}()
	for _, l := range c.links {
		one, err := l.reserve(ctx, estimate, kind)
		if err != nil {
			return nil, err
		}
		v.all = append(v.all, one)
	}
	done = true
	return v, nil
}

// A chainReservation is a request that all Limiters of a [Chain] have let leave.
type chainReservation struct{ all []unsettled }

// each calls a function for each of them: the last one first, and each even if another panics.
func (v *chainReservation) each(f func(unsettled)) {
	for _, one := range v.all {
		defer f(one)
	}
}

func (v *chainReservation) settle(actual int)     { v.each(func(u unsettled) { u.settle(actual) }) }
func (v *chainReservation) settleCost(actual int) { v.each(func(u unsettled) { u.settleCost(actual) }) }
func (v *chainReservation) releaseSeat()          { v.each(unsettled.releaseSeat) }
func (v *chainReservation) notSent()              { v.each(unsettled.notSent) }

func (c *chain) reserves() bool { return slices.ContainsFunc(c.links, inner.reserves) }

func (c *chain) forecast(n int) (wait time.Duration, err error) {
	switch {
	case c.broken != nil:
		return 0, c.broken
	case n < 0:
		return 0, ErrNegativeCost
	}
	for _, l := range c.links {
		one, err := l.forecast(n)
		if err != nil {
			return 0, err
		}
		wait = max(wait, one)
	}
	return wait, nil
}

// hold reports whether any of the lines is held.
func (c *chain) hold(ctx context.Context, d time.Duration) (held bool) {
	for _, l := range c.links {
		if l.hold(ctx, d) {
			held = true
		}
	}
	return held
}

// stats reports that there is no one bucket whose state it could return.
func (c *chain) stats() (st Stats, ok bool) { return Stats{}, false }

func (c *chain) mayDryRun() bool { return slices.ContainsFunc(c.links, inner.mayDryRun) }

func (c *chain) asksDoneToWait() bool {
	return !slices.ContainsFunc(c.links, func(l inner) bool { return !l.asksDoneToWait() })
}

// Priced returns l as a [Limiter] that is charged cost(n) for a request of cost n, for an API that allows 500
// requests and 200,000 tokens a minute:
//
//	perRequest := func(int) int { return 1 }
//	c := shaper.Chain(shaper.Priced(requests, perRequest), tokens)
//	err := c.WaitN(ctx, 1000) // charges 1 request and 1,000 tokens
//
// The function is called once in each call, also for an n of 0, outside any lock, and must be safe for concurrent
// use. A result of 0 lets the request pass l; a negative one is [ErrNegativeCost]. For [ChainLimiter.Reserve] it is
// called again with the actual cost; if it is negative then, the price is unknown. If l or cost is nil, every call
// returns an error that says so; for a nil [*Shaper] Priced itself panics.
func Priced(l Limiter, cost func(n int) int) Limiter {
	switch {
	case l == nil:
		return &ChainLimiter{chain{broken: errors.New("shaper: Priced: the Limiter is nil")}}
	case cost == nil:
		return &ChainLimiter{chain{broken: errors.New("shaper: Priced: cost is nil, must be a function")}}
	}
	p := &priced{innerOf(l), cost} // A pointer, so that two Limiters can be compared.
	if err := brokenOf(p.inner); err != nil {
		return &ChainLimiter{chain{broken: err}}
	}
	if s, ok := l.(interface{ Stats() Stats }); ok {
		return &pricedBucket{p, s.Stats}
	}
	return p
}

// A priced is the Limiter of [Priced]. It embeds the inner for all other methods.
type priced struct {
	inner
	costOf func(n int) int
}

// A pricedBucket is a priced whose [Limiter] has statistics.
type pricedBucket struct {
	*priced
	statsOf func() Stats
}

func (p *pricedBucket) Stats() Stats { return p.statsOf() }

// pricesZero reports whether a request of cost 0 may have another cost for a [Limiter].
func pricesZero(l inner) bool {
	switch l := l.(type) {
	case *priced, *pricedBucket:
		return true
	case *chain:
		return l.pricesZero
	}
	return false
}

// brokenOf returns the error that every call of a [Limiter] returns, as it was made of nothing;
// nil if it was not.
func brokenOf(l inner) error {
	if c, ok := l.(*chain); ok {
		return c.broken
	}
	return nil
}

// price returns the cost for the inner of a request of cost n.
func (p *priced) price(n int) (int, error) {
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if n = p.costOf(n); n < 0 {
		return 0, ErrNegativeCost
	}
	return n, nil
}

func (p *priced) WaitN(ctx context.Context, n int) error {
	n, err := p.price(n)
	switch {
	case err != nil:
		return err
	case n == 0:
		return ctx.Err()
	}
	return p.inner.WaitN(ctx, n)
}

// Acquire returns a release that is never nil.
func (p *priced) Acquire(ctx context.Context, n int) (release func(), err error) {
	if release, err = p.enter(ctx, n, newcomer); release == nil {
		release = nothing
	}
	return release, err
}

func (p *priced) enter(ctx context.Context, n int, kind entryKind) (release func(), err error) {
	n, err = p.price(n)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, ctx.Err()
	}
	return p.inner.enter(ctx, n, kind)
}

// Reserve returns a settle that is never nil.
func (p *priced) Reserve(ctx context.Context, estimate int) (settle func(actual int), err error) {
	v, err := p.reserve(ctx, estimate, newcomer)
	return settleOf(v), err
}

func (p *priced) reserve(ctx context.Context, estimate int, kind entryKind) (unsettled, error) {
	n, err := p.price(estimate)
	if err != nil {
		return nil, err
	}
	v, err := p.inner.reserve(ctx, n, kind)
	if err != nil {
		return nil, err
	}
	return pricedReservation{v, p}, nil
}

// A pricedReservation converts the actual cost of a request. A cost without a price counts as
// unknown.
type pricedReservation struct {
	unsettled
	by *priced
}

func (v pricedReservation) settle(actual int)     { v.with(actual, v.unsettled.settle) }
func (v pricedReservation) settleCost(actual int) { v.with(actual, v.unsettled.settleCost) }

// with calls a function with the price of a cost; with -1 if it has none.
func (v pricedReservation) with(actual int, settle func(int)) {
	cost := -1
	defer func() { settle(cost) }() // Even if the function panics.
	if n, err := v.by.price(actual); err == nil {
		cost = n
	}
}

func (p *priced) Forecast(n int) (time.Duration, error) { return p.forecast(n) }

func (p *priced) forecast(n int) (wait time.Duration, err error) {
	if n, err = p.price(n); err != nil || n == 0 {
		return 0, err
	}
	return p.inner.forecast(n)
}

// Hold holds the line, if there is one to hold.
func (p *priced) Hold(d time.Duration) { p.hold(context.Background(), d) }
