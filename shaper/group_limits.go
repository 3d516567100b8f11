package shaper

import (
	"context"
	"errors"
)

// A question is asked of the function that says the Limits of keys, by one call
// for all that come with the same new key meanwhile.
type limitsCall struct {
	done    chan struct{} // closed when it is answered; made by who waits for that
	limits  Limits
	err     error
	reloads int // that there had been before it was asked
}

// errUnanswered is for a question on which the function has panicked, or that was
// pending when the Group was closed: ask again.
var errNoResult = errors.New("shaper: no answer")

// seek locks the Group and returns the bucket for a key, made if there is none.
// With an error it has not locked.
func (g *Group[K]) lookupOrCreate(ctx context.Context, key K) (c *keyedFlow[K], now int64, err error) {
	if key != key { // A NaN would never be found again in a map.
		return g.lookupShared(key)
	}
	for {
		now = g.lockAndAdvance()
		c = g.table[key]
		switch {
		case c != nil:
			c.flow.bucket.idleUntil(now)
			return c, now, nil
		case g.phase != open:
			return &g.closedFlow, now, nil
		}
		q := g.limitsCalls[key]
		if q == nil {
			g.limitsCalls[key] = new(limitsCall)
			g.peakCalls = max(g.peakCalls, len(g.limitsCalls))
			return g.callAndInsert(ctx, key)
		}
		if q.done == nil {
			q.done = make(chan struct{})
		}
		g.mu.Unlock()
		select {
		case <-q.done:
			err = ctx.Err()
		case <-ctx.Done():
			err = errorOf(ctx)
		}
		if err != nil {
			g.mu.Lock()
			g.totals.abandoned++
			g.mu.Unlock()
			return nil, 0, err
		}
		switch {
		case q.err == nil:
			now = g.lockAndAdvance()
			if q.reloads != g.reloads {
				g.unlockAndArm()
				continue // It was answered before a Reload, which has not seen this call.
			}
			c, err = g.insert(key, q.limits, now)
			return c, now, err
		case q.err != errNoResult:
			return nil, 0, q.err
		}
	}
}

// answer asks for the Limits of a key, and goes on as seek. It unlocks before it asks.
func (g *Group[K]) callAndInsert(ctx context.Context, key K) (_ *keyedFlow[K], now int64, err error) {
	reloads := g.reloads
	g.mu.Unlock()
	var l Limits
	err = errNoResult
	defer func() {
		if err == errNoResult { // It has panicked, or the context has.
			g.mu.Lock()
			g.finishCallLocked(key, l, err)
			g.mu.Unlock()
		}
	}()
	var gone error
	for {
		var failed error
		if l, failed = g.callLimits(key); failed == nil {
			gone = ctx.Err() // It may have taken long.
		}
		err = failed
		now = g.lockAndAdvance()
		if err != nil || reloads == g.reloads {
			break
		}
		// What was asked before a Reload may be what it was called to replace.
		reloads = g.reloads
		g.unlockAndArm()
		err = errNoResult
	}
	g.finishCallLocked(key, l, err)
	switch {
	case err != nil:
		g.limitErrors++
		g.unlockAndArm()
		return nil, 0, err
	case gone != nil:
		g.totals.abandoned++
		g.unlockAndArm()
		return nil, 0, gone
	}
	c, err := g.insert(key, l, now)
	return c, now, err
}

// answered lets those go on who wait for the answer.
func (g *Group[K]) finishCallLocked(key K, l Limits, err error) {
	q := g.limitsCalls[key]
	if q == nil { // The Group has been closed.
		return
	}
	delete(g.limitsCalls, key)
	q.limits, q.err, q.reloads = l, err, g.reloads
	if q.done != nil {
		close(q.done)
	}
	if len(g.limitsCalls) == 0 && g.peakCalls >= 1024 {
		// A map keeps the room of all that it ever held.
		g.limitsCalls, g.peakCalls = make(map[K]*limitsCall), 0
	}
}

// inForce says whether some bucket has these Limits: then they are valid, which is
// not to be found out again for each call. The lock is not held.
func (g *Group[K]) inForce(l Limits) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plans[l] != nil
}

// ask asks for the Limits of a key. The lock is not held.
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

// seekShared is seek for a key that can't have a bucket of its own.
func (g *Group[K]) lookupShared(key K) (c *keyedFlow[K], now int64, err error) {
	l, err := g.callLimits(key)
	now = g.lockAndAdvance()
	if err != nil {
		g.limitErrors++
		g.unlockAndArm()
		return nil, 0, err
	}
	c, err = g.insert(key, l, now)
	return c, now, err
}
