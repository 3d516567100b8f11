package shaper

import (
	"context"
	"errors"

	"example.com/leakybucket/shaper/internal/serverconn"
)

// A limitsCall is one call of the limits function for a new key. Further requests with
// that key wait for its result, as in x/sync/singleflight.
type limitsCall struct {
	done    chan struct{} // closed when the call has ended; nil until a request waits for that
	limits  Limits
	err     error
	reloads int // number of Reloads begun before the call ended

	overridden bool // SetLimits has given the limits
}

// errNoResult is the error of a limitsCall in which the function panicked, or that was
// pending when the Group was closed: requests that wait for the call try again.
var errNoResult = errors.New("shaper: no result")

// withFlowOrNew calls do, under the lock, with the bucket of a key, and makes the bucket if
// there is none. If it returns an error, do has not been called.
func (g *Group[K]) withFlowOrNew(ctx context.Context, key K, do func(kf *keyedFlow[K], now int64)) error {
	var l limitsLookup
	bucketKey, err := g.bucketKeyOf(key)
	if err != nil {
		g.mu.Lock()
		g.limitErrors++
		g.mu.Unlock()
		return err
	}
	for {
		now := g.lockAndAdvance()
		kf, err := g.foundOrNewLocked(key, now, &l)
		if kf != nil {
			if g.shared != nil {
				g.leaseLocked(kf, bucketKey)
			}
			do(kf, now)
		}
		g.unlockAndArm()
		switch {
		case kf != nil || err != nil:
			return err
		case l.known:
			l.plan = g.planFor(l.limits)
		default:
			g.lookUpLimits(ctx, key, &l)
		}
	}
}

// A limitsLookup is the state of a request that needs the [Limits] of a key.
type limitsLookup struct {
	call    *limitsCall // the call, made by another request, for which it waits; nil: none
	calls   bool        // it calls the function itself
	known   bool        // the lookup has ended: limits, gone or err is set
	limits  Limits
	plan    *plan // the plan of limits; nil: not needed so far
	reloads int   // number of Reloads begun before the function was called
	gone    error // the error of the request's context, which ended during the lookup
	err     error // the error that the function returned

	overridden bool // SetLimits has given the limits
}

// foundLocked returns the bucket that a key has of its own. If there is none it returns
// closedFlow on a closed Group, and otherwise nil.
func (g *Group[K]) foundLocked(key K, now int64) *keyedFlow[K] {
	kf := g.table[key]
	switch {
	case kf != nil:
		kf.flow.bucket.idleUntil(now)
	case g.phase != open:
		kf = &g.closedFlow
	}
	return kf
}

// foundOrNewLocked returns the bucket of a key. If there is none, it makes one as soon as
// the lookup has the Limits and their plan. If it returns neither a bucket nor an error,
// the caller is to call planFor next if the Limits are known, and otherwise lookUpLimits.
func (g *Group[K]) foundOrNewLocked(key K, now int64, l *limitsLookup) (*keyedFlow[K], error) {
	// Limits that were returned before a Reload may be those that it was called to replace. An
	// error of the limits function does not matter to a key that has Limits by SetLimits now.
	stale := l.err == nil && l.reloads != g.reloads || l.known && l.gone == nil && g.overrideChangedLocked(key, l.limits, l.overridden)
	if l.known && !stale && l.err == nil && l.gone == nil && l.plan == nil && g.lacksPlanLocked(key, l.limits) {
		return nil, nil // The limitsCall of this request, if there is one, goes on until the plan is made.
	}
	if l.calls && l.known {
		if stale {
			l.known, l.gone, l.plan, l.reloads = false, nil, nil, g.reloads
			l.overridden, l.err = false, nil
			return nil, nil
		}
		l.calls = false
		g.finishCallLocked(key, l.limits, l.err)
		if l.err != nil {
			g.limitErrors++
		}
	}
	switch {
	case l.err != nil && !stale:
		return nil, l.err
	case l.gone != nil:
		g.totals.abandoned++
		return nil, l.gone
	}
	if kf := g.foundLocked(key, now); kf != nil {
		return kf, nil
	}
	if l.known && !stale {
		g.offerPlanLocked(l.plan)
		return g.insertLocked(key, l.limits, now)
	}
	*l = limitsLookup{reloads: g.reloads}
	if l.limits, l.overridden = g.overrides[key]; l.overridden {
		l.known = true // A call of the limits function that is pending for the key need not be waited for.
		return nil, nil
	}
	l.call = g.limitsCalls[key]
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
		if !l.known { // The function has panicked, or a method of the context.
			g.mu.Lock()
			g.finishCallLocked(key, Limits{}, errNoResult)
			g.mu.Unlock()
		}
	}()
	if l.limits, l.overridden = g.overrideOf(key); !l.overridden {
		l.limits, l.err = g.callLimitsFunction(key)
	}
	if l.err == nil {
		l.gone = ctx.Err() // The function may have taken long.
	}
	l.known = true
}

// join waits for the call of another request.
func (l *limitsLookup) join(ctx context.Context) {
	done, stop := serverconn.DoneBeforeLine(ctx)
	defer stop()
	select {
	case <-l.call.done:
		l.gone = ctx.Err()
	case <-done:
		l.gone = errorOf(ctx)
	}
	switch {
	case l.gone != nil:
		l.known = true
	case l.call.err != errNoResult:
		l.limits, l.overridden, l.err, l.reloads, l.known = l.call.limits, l.call.overridden, l.call.err, l.call.reloads, true
	}
}

// finishCallLocked ends the limitsCall of a key, and wakes the requests that wait for it.
func (g *Group[K]) finishCallLocked(key K, l Limits, err error) {
	call := g.limitsCalls[key]
	if call == nil { // The Group has been closed, or the key is a NaN.
		return
	}
	delete(g.limitsCalls, key)
	call.limits, call.err, call.reloads = l, err, g.reloads
	given, overridden := g.overrides[key]
	call.overridden = overridden && given == l
	if call.done != nil {
		close(call.done)
	}
	if len(g.limitsCalls) == 0 && g.peakCalls >= 1024 {
		// A map keeps the memory for all entries that it ever had.
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

// callLimits returns the Limits of a key: those that SetLimits gave it, or those that the
// limits function returns. The lock is not held.
func (g *Group[K]) callLimits(key K) (Limits, error) {
	if l, ok := g.overrideOf(key); ok {
		return l, nil
	}
	return g.callLimitsFunction(key)
}

// callLimitsFunction calls the limits function for a key. The lock is not held.
func (g *Group[K]) callLimitsFunction(key K) (Limits, error) {
	l, err := g.limits(key)
	if err == nil && !g.inForce(l) {
		err = l.Validate()
	}
	if err != nil {
		return Limits{}, &limitsError{err}
	}
	return l, nil
}
