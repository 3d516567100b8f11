package shaper

import (
	"context"
	"errors"
)

// A limitsCall is one call of the limits function for a new key. Further requests with
// that key wait for its result, as in x/sync/singleflight.
type limitsCall struct {
	done    chan struct{} // closed when it is finished; made by who waits for that
	limits  Limits
	err     error
	reloads int // that there had been when it was finished
}

// errNoResult is of a limitsCall in which the function has panicked, or that was pending
// when the Group was closed: whoever waits for it tries again.
var errNoResult = errors.New("shaper: no answer")

// withFlowOrNew calls do under the lock with the bucket of a key, which is made if there is
// none. With an error there is none, and do is not called.
func (g *Group[K]) withFlowOrNew(ctx context.Context, key K, do func(c *keyedFlow[K], now int64)) error {
	var l limitsLookup
	for {
		now := g.lockAndAdvance()
		c, err := g.foundOrNewLocked(key, now, &l)
		if c != nil {
			do(c, now)
		}
		g.unlockAndArm()
		switch {
		case c != nil || err != nil:
			return err
		case l.known:
			l.plan = g.planFor(l.limits)
		default:
			g.lookUpLimits(ctx, key, &l)
		}
	}
}

// A limitsLookup is how far a call has come that needs the Limits of a key.
type limitsLookup struct {
	call    *limitsCall // made by another request: it waits for that; nil: there is none
	calls   bool        // it calls the function itself
	known   bool        // limits are those of the key, or gone or err is set
	limits  Limits
	plan    *plan // of limits; nil: not needed so far
	reloads int   // that there had been before the function was called
	gone    error // of its context, which ended meanwhile
	err     error // of the function
}

// foundLocked returns the bucket that a key has; that of the closed Group, if it is closed;
// or nil.
func (g *Group[K]) foundLocked(key K, now int64) *keyedFlow[K] {
	c := g.table[key]
	switch {
	case c != nil:
		c.flow.bucket.idleUntil(now)
	case g.phase != open:
		c = &g.closedFlow
	}
	return c
}

// foundOrNewLocked returns the bucket of a key, made if there is none and the lookup has
// found the Limits. With neither a bucket nor an error, planFor comes next if the Limits are
// known, and lookUpLimits otherwise.
func (g *Group[K]) foundOrNewLocked(key K, now int64, l *limitsLookup) (*keyedFlow[K], error) {
	// Limits that were said before a Reload may be those that it was called to replace.
	stale := l.err == nil && l.reloads != g.reloads
	if l.known && !stale && l.err == nil && l.gone == nil && l.plan == nil && g.lacksPlanLocked(key, l.limits) {
		return nil, nil // Requests that wait for this one to call the function go on waiting.
	}
	if l.calls && l.known {
		if stale {
			l.known, l.gone, l.plan, l.reloads = false, nil, nil, g.reloads
			return nil, nil
		}
		l.calls = false
		g.finishCallLocked(key, l.limits, l.err)
		if l.err != nil {
			g.limitErrors++
		}
	}
	switch {
	case l.err != nil:
		return nil, l.err
	case l.gone != nil:
		g.totals.abandoned++
		return nil, l.gone
	}
	if c := g.foundLocked(key, now); c != nil {
		return c, nil
	}
	if l.known && !stale {
		g.offerPlanLocked(l.plan)
		return g.insertLocked(key, l.limits, now)
	}
	*l = limitsLookup{reloads: g.reloads, call: g.limitsCalls[key]}
	switch {
	case l.call == nil:
		l.calls = true
		if key == key { // A NaN would never be found again in a map.
			g.limitsCalls[key] = new(limitsCall)
			g.peakCalls = max(g.peakCalls, len(g.limitsCalls))
		}
	case l.call.done == nil:
		l.call.done = make(chan struct{})
	}
	return nil, nil
}

// lookUpLimits calls the limits function for a key, or waits for the call of another
// request. The lock is not held.
func (g *Group[K]) lookUpLimits(ctx context.Context, key K, l *limitsLookup) {
	if !l.calls {
		l.join(ctx)
		return
	}
	defer func() {
		if !l.known { // The function has panicked, or the context has.
			g.mu.Lock()
			g.finishCallLocked(key, Limits{}, errNoResult)
			g.mu.Unlock()
		}
	}()
	if l.limits, l.err = g.callLimits(key); l.err == nil {
		l.gone = ctx.Err() // The function may have taken long.
	}
	l.known = true
}

// join waits for the call of another request.
func (l *limitsLookup) join(ctx context.Context) {
	select {
	case <-l.call.done:
		l.gone = ctx.Err()
	case <-ctx.Done():
		l.gone = errorOf(ctx)
	}
	switch {
	case l.gone != nil:
		l.known = true
	case l.call.err != errNoResult:
		l.limits, l.err, l.reloads, l.known = l.call.limits, l.call.err, l.call.reloads, true
	}
}

// finishCallLocked lets those go on that wait for a call.
func (g *Group[K]) finishCallLocked(key K, l Limits, err error) {
	call := g.limitsCalls[key]
	if call == nil { // The Group has been closed, or the key is a NaN.
		return
	}
	delete(g.limitsCalls, key)
	call.limits, call.err, call.reloads = l, err, g.reloads
	if call.done != nil {
		close(call.done)
	}
	if len(g.limitsCalls) == 0 && g.peakCalls >= 1024 {
		// A map keeps the room of all that it ever held.
		g.limitsCalls, g.peakCalls = make(map[K]*limitsCall), 0
	}
}

// inForce reports whether some bucket has these Limits: then they are valid, which need not
// be checked again for each call. The lock is not held.
func (g *Group[K]) inForce(l Limits) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plans[l] != nil
}

// callLimits calls the limits function for a key. The lock is not held.
func (g *Group[K]) callLimits(key K) (Limits, error) {
	l, err := g.limits(key)
	if err == nil && !g.inForce(l) {
		err = l.Validate()
	}
	if err != nil {
		return Limits{}, &limitsError{err}
	}
	return l, nil
}
