package shaper

import (
	"context"
	"slices"
	"time"
)

// An acquirer is a Limiter that wants to know when a request has ended. *Shaper
// is one. A nil release is taken for one that does nothing.
type acquirer interface {
	Acquire(ctx context.Context, n int) (release func(), err error)
}

// A holder is a Limiter that can hold its line. *Shaper is one.
type holder interface{ Hold(d time.Duration) }

// canHold says whether Hold of a Limiter does anything.
func canHold(l Limiter) bool {
	if neverWaits(l) { // A shadow holds nobody.
		return false
	}
	if c, ok := l.(chain); ok {
		return slices.ContainsFunc(c.links, canHold)
	}
	_, ok := l.(holder)
	return ok
}

// A placer is an acquirer that knows whether there is anything to give back: if not,
// release is nil. It has asked the context after its wait.
type placer interface {
	placed(ctx context.Context, n int) (release func(), err error)
}

// A forecaster is a Limiter that can tell what WaitN would meet. *Shaper is one.
type forecaster interface {
	Forecast(n int) (time.Duration, error)
}

// asksDoneToWait reports whether l asks for the Done channel of a context only
// when the request has to wait. Of a Limiter that is not ours nobody knows.
func asksDoneToWait(l Limiter) bool {
	switch l := l.(type) {
	case *Shaper:
		return true
	case chain:
		return !slices.ContainsFunc(l.links, func(l Limiter) bool { return !asksDoneToWait(l) })
	case placer:
		return true
	}
	return false
}

// acquirerOf returns l if it caps what is in flight, else nil. Whoever embeds a
// *Shaper without a cap, to do something of his own in WaitN, has its Acquire
// too; but also its Limits, which say so. That can't change later. Of one who has
// no Limits Acquire alone says it.
func acquirerOf(l Limiter) acquirer {
	a, ok := l.(acquirer)
	if !ok {
		return nil
	}
	if limited, ok := l.(interface{ Limits() Limits }); ok && limited.Limits().InFlight == 0 {
		return nil
	}
	return a
}

// enter lets a request of cost n > 0 wait for l, of which places is the
// acquirerOf. release gives the request's place back, and must be called once at
// most, as not all are like a Shaper's; it is nil if there is nothing to give back,
// and with an error.
func enter(ctx context.Context, l Limiter, places acquirer, n int) (release func(), err error) {
	var given func()
	switch p := places.(type) {
	case nil:
		err = l.WaitN(ctx, n)
	case placer: // One of ours, which has asked the context after the wait.
		return p.placed(ctx, n)
	default:
		given, err = p.Acquire(ctx, n)
	}
	if err != nil {
		return nil, err
	}
	if _, ours := l.(*Shaper); ours {
		return given, nil
	}
	// A Shaper has asked, too. Others have spent the slot by now, but what it was
	// for can be spared.
	kept := false
	defer func() {
		if given != nil && !kept {
			given()
		}
	}()
	if err = ctx.Err(); err != nil {
		return nil, err
	}
	kept = true
	return given, nil
}

// A Limiter blocks until the caller may spend n units. *Shaper is one, and so
// is x/time's *rate.Limiter.
type Limiter interface {
	WaitN(ctx context.Context, n int) error
}
