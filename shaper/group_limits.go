package shaper

import (
	"context"
	"errors"

	"example.com/leakybucket/shaper/internal/keyed"
	"example.com/leakybucket/shaper/internal/serverconn"
)

// A limitsCall is one call of the limits function for a new key. Further requests with
// that key wait for its result, as in x/sync/singleflight.
type limitsCall struct {
	done    chan struct{} // closed when the call has ended; nil until a request waits for its end
	limits  Limits
	err     error
	reloads int // number of Reloads begun before the call ended

	overridden bool // SetLimits has given the limits
}

// errNoResult is the error of a limitsCall in which the function panicked, or that was
// pending when the [Group] was closed: requests that wait for the call try again.
var errNoResult = errors.New("shaper: no result")

// A bucketKind says which bucket of a key is wanted. Its bits may be combined.
type bucketKind uint8

const (
	anyBucket    bucketKind = 0
	bucketToHold bucketKind = 1 << (iota - 1) // one that remembers more than the Limits

	// bucketInDrain is one that is made even during a Shutdown: for a request that enters a
	// line once more, and for a hold, which such a request is to heed.
	bucketInDrain
)

// bucketFor returns which bucket a request wants.
func bucketFor(r *request) bucketKind {
	if r.kind == reentry {
		return bucketInDrain
	}
	return anyBucket
}

// withFlowOrNew calls do with the bucket of a key, and makes the bucket if there is none. in
// is the shard that has the bucket; its lock and the lock of s are held. If withFlowOrNew returns
// an error, do has not been called.
func (s *keyShard[K]) withFlowOrNew(ctx context.Context, key K, kind bucketKind, do func(in *keyShard[K], kf *keyedFlow[K], now int64)) error {
	bucketKey, err := s.bucketKey(key)
	if err != nil {
		s.mu.Lock()
		s.limitErrors++
		s.mu.Unlock()
		return err
	}
	l := limitsLookup[K]{s: s, key: key, kind: kind}
	overflow := s.group.overflow
	for {
		l.hasOverflow = overflow == s
		lockedOverflow := !l.hasOverflow && (l.needsOverflow || l.known && s.mayOverflow(key))
		if lockedOverflow {
			overflow.lockAndAdvance()
			l.hasOverflow = true
		}
		l.needsOverflow = false
		in, kf, err := l.foundOrNewLocked(s.lockAndAdvance())
		if kf != nil {
			if in.levels != nil {
				in.leaseLocked(kf, bucketKey)
			}
			do(in, kf, in.clock)
		}
		s.unlockAndArm()
		if lockedOverflow {
			overflow.unlockAndArm()
		}
		switch {
		case kf != nil || err != nil:
			return err
		case l.needsOverflow: // And so it does next.
		case l.known:
			l.plan = s.planFor(l.limits)
		default:
			l.lookUpLimits(ctx)
		}
	}
}

// A limitsLookup is the state of a request that needs the [Limits] of a key.
type limitsLookup[K comparable] struct {
	s   *keyShard[K]
	key K

	call    *limitsCall // the call, made by another request, for which it waits; nil: none
	calls   bool        // it calls the function itself
	known   bool        // the lookup has ended: limits, gone or err is set
	kind    bucketKind
	limits  Limits
	plan    *plan // the plan of limits; nil: not needed so far
	reloads int   // number of Reloads begun before the function was called
	gone    error // the error of the request's context, which ended during the lookup
	err     error // the error that the function returned

	overridden    bool // SetLimits has given the limits
	hasOverflow   bool // the lock of overflow is held
	needsOverflow bool // the lock of overflow is needed, and was not held: the key shares a bucket, or has shared one
}

// foundLocked returns the bucket that a key has of its own. If there is none it returns nil
// as long as one of that kind may be made, and otherwise closedFlow.
func (s *keyShard[K]) foundLocked(key K, now int64, kind bucketKind) *keyedFlow[K] {
	kf := s.table.Get(key)
	switch {
	case kf != nil:
		kf.Value.bucket.idleUntil(now)
	case s.phase == closed, s.phase == draining && kind&bucketInDrain == 0:
		kf = s.endlessLocked(&s.closedFlow)
	}
	return kf
}

// foundOrNewLocked returns the bucket of a key, and the shard that has it. If there is none,
// it makes one as soon as the lookup has the [Limits] and their plan. If it returns neither a
// bucket nor an error, the caller is to call it again: with the lock of overflow held if
// l.needsOverflow is set, and otherwise after planFor if the Limits are known, and after
// lookUpLimits if not.
func (l *limitsLookup[K]) foundOrNewLocked(now int64) (*keyShard[K], *keyedFlow[K], error) {
	s, key := l.s, l.key
	// Limits that were returned before a Reload may be those that it was called to replace. An
	// error of the limits function does not matter to a key that has Limits by SetLimits now.
	stale := l.err == nil && l.reloads != s.reloads || l.known && l.gone == nil && s.overrides.Differs(key, l.limits, l.overridden)
	if l.known && !stale && l.err == nil && l.gone == nil && l.plan == nil && l.lacksPlanLocked() {
		return nil, nil, nil // The limitsCall of this request, if there is one, goes on until the plan is made.
	}
	if l.calls && l.known {
		if stale {
			l.known, l.gone, l.plan, l.reloads = false, nil, nil, s.reloads
			l.overridden, l.err = false, nil
			return nil, nil, nil
		}
		l.calls = false
		l.s.finishCallLocked(l.key, l.limits, l.err)
		if l.err != nil {
			s.limitErrors++
		}
	}
	switch {
	case l.err != nil && !stale:
		return nil, nil, l.err
	case l.gone != nil:
		if l.kind&bucketToHold == 0 {
			s.totals.abandoned++
		}
		return nil, nil, l.gone
	}
	if kf := s.foundLocked(key, now, l.kind); kf != nil {
		return l.ofKindLocked(s, kf)
	}
	if l.known && !stale {
		in, kf, err := l.insertLocked(now)
		if kf == nil {
			return nil, nil, err
		}
		return l.ofKindLocked(in, kf)
	}
	*l = limitsLookup[K]{s: s, key: key, reloads: s.reloads, kind: l.kind, hasOverflow: l.hasOverflow}
	if l.limits, l.overridden = s.overrides.Get(key); l.overridden {
		l.known = true // A call of the limits function that is pending for the key need not be waited for.
		return nil, nil, nil
	}
	l.call = s.limitsCalls[key]
	switch {
	case l.call == nil:
		l.calls = true
		if key == key { // A NaN would never be found again in a map.
			s.limitsCalls[key] = new(limitsCall)
			s.peakCalls = max(s.peakCalls, len(s.limitsCalls))
		}
	case l.call.done == nil:
		l.call.done = make(chan struct{})
	}
	return nil, nil, nil
}

// lookUpLimits calls the limits function for a key, or waits for the call of another
// request. The lock is not held.
func (l *limitsLookup[K]) lookUpLimits(ctx context.Context) {
	s := l.s
	switch {
	case !l.calls:
		l.join(ctx)
		return
	case l.kind&bucketInDrain != 0 && ctx.Done() != nil:
		l.lookUpApart(ctx)
		return
	}
	defer func() {
		if !l.known { // The function has panicked, or a method of the context.
			s.mu.Lock()
			l.s.finishCallLocked(l.key, Limits{}, errNoResult)
			s.mu.Unlock()
		}
	}()
	if l.limits, l.overridden = l.s.overrideOf(l.key); !l.overridden {
		l.limits, l.err = l.s.callLimitsFunction(l.key)
	}
	if l.err == nil {
		l.gone = ctx.Err() // The function may have taken long.
	}
	l.known = true
}

// lookUpApart is lookUpLimits for a [Transport] whose request has been answered: it waits for the
// limits function until its context ends at most. So the function is called in a goroutine, whose
// result is for all requests with the key that wait for it.
//
// A panic of the function reaches the goroutine that waits. If that has gone the panic is dropped:
// the next call with the key calls the function again.
func (l *limitsLookup[K]) lookUpApart(ctx context.Context) {
	s, key := l.s, l.key // So that l need not be on the heap for the goroutine.
	s.mu.Lock()
	call, isNaN := s.limitsCalls[key], key != key
	if isNaN {
		call = new(limitsCall) // It is found by this request only.
	}
	if call != nil && call.done == nil {
		call.done = make(chan struct{})
	}
	s.mu.Unlock()
	l.calls = false
	if call == nil {
		return // The Group has been closed.
	}
	panics := make(chan any, 1) // Room for the only one, as nobody may wait for it any more.
	begun := l.reloads
	go func() {
		limits, err := Limits{}, error(&limitsError{errEndedGoroutine})
		defer func() {
			if p := recover(); p != nil {
				panics <- p
				err = errNoResult
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case err != nil && err != errNoResult:
				s.limitErrors++
			case begun != s.reloads:
				err = errNoResult // The Limits may be those that the Reload was called to replace.
			}
			switch {
			case isNaN:
				call.limits, call.err, call.reloads = limits, err, begun
				close(call.done)
			case s.limitsCalls[key] == call:
				s.finishCallLocked(key, limits, err)
			}
		}()
		limits, err = s.callLimits(key)
	}()
	l.call = call
	l.join(ctx)
	if l.gone != nil {
		return
	}
	select {
	case p := <-panics:
		panic(p)
	default:
	}
}

// errEndedGoroutine is for a limits function that calls [runtime.Goexit].
var errEndedGoroutine = errors.New("the function that returns them has ended its goroutine")

// join waits for the call of another request.
func (l *limitsLookup[K]) join(ctx context.Context) {
	done, stop := serverconn.DoneBeforeLine(withoutClaim(ctx))
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
func (s *keyShard[K]) finishCallLocked(key K, l Limits, err error) {
	call := s.limitsCalls[key]
	if call == nil { // The Group has been closed, or the key is a NaN.
		return
	}
	delete(s.limitsCalls, key)
	call.limits, call.err, call.reloads = l, err, s.reloads
	given, overridden := s.overrides.Get(key)
	call.overridden = overridden && given == l
	if call.done != nil {
		close(call.done)
	}
	if len(s.limitsCalls) == 0 && s.peakCalls >= s.fewEntries() {
		// A map keeps the memory for all entries that it ever had.
		s.limitsCalls, s.peakCalls = make(map[K]*limitsCall), 0
	}
}

// callLimits returns the [Limits] of a key: the ones that [Group.SetLimits] gave it, or the result
// of the limits function. The lock is not held.
func (s *keyShard[K]) callLimits(key K) (Limits, error) {
	if l, ok := s.overrideOf(key); ok {
		return l, nil
	}
	return s.callLimitsFunction(key)
}

// callLimitsFunction calls the limits function for a key. The lock is not held.
func (s *keyShard[K]) callLimitsFunction(key K) (Limits, error) {
	l, err := s.group.limits(key)
	if err == nil {
		s.mu.Lock()
		valid := s.plans.get(l) != nil // Some bucket has them, so they need not be checked again for each call.
		s.mu.Unlock()
		if !valid {
			err = l.Validate()
		}
	}
	if err != nil {
		return Limits{}, &limitsError{err}
	}
	return l, nil
}

// planFor returns the plan of [Limits], which it makes if the shard has none. Making one
// takes much longer than a call. So that a client that can influence the Limits of its key
// does not delay all other keys, the lock is not held.
func (s *keyShard[K]) planFor(l Limits) *plan {
	s.mu.Lock()
	p := s.plans.get(l)
	s.mu.Unlock()
	if p == nil {
		p = s.planOf(l)
	}
	return p
}

// lacksPlanLocked reports whether a bucket would be made for a key with the [Limits] of a
// lookup, and there is no plan of them.
func (l *limitsLookup[K]) lacksPlanLocked() bool {
	s, key := l.s, l.key
	g := s.group
	switch {
	case s.plans.get(l.limits) != nil:
		return false
	case !l.hasOverflow:
		return true // The key shares no bucket, so it gets one of its own.
	case g.overflow.plans.get(l.limits) != nil:
		return false
	}
	// No bucket has these Limits that the key could share.
	return s.limitsNothing(l.limits) || key == key && !g.tableFull() || g.rings.Len() < keyed.MaxShared
}

// planLocked returns the plan of [Limits] for one more bucket, which counts as its user: the
// shard's plan, or else the one of a lookup. A plan belongs to one shard, whose lock guards
// its count of users; so of a plan that another shard may have it takes a copy. It returns
// nil if there is none.
func (s *keyShard[K]) planLocked(limits Limits, l *limitsLookup[K]) *plan {
	overflow := s.group.overflow
	switch p := s.plans.get(limits); {
	case p != nil:
		return s.plans.use(p)
	case l.plan != nil && l.plan.limits == limits:
		if s == overflow && s != s.group.shards[0] {
			return s.plans.useCopy(l.plan)
		}
		return s.plans.use(l.plan)
	case l.hasOverflow && overflow.plans.get(limits) != nil:
		return s.plans.useCopy(overflow.plans.get(limits))
	}
	return nil
}

// plans has one plan of each value of [Limits] that buckets of a shard have, with the count of its
// users. The lock of the shard guards it.
type plans struct {
	of     keyed.SmallMap[Limits, *plan]
	unused *plan // the latest of them that lost its last user; it may have one again
}

// get returns the plan of [Limits]; nil if there is none.
func (c *plans) get(l Limits) *plan { return c.of.Get(l) }

// useCopy is use for a copy of a plan that may belong to another shard, whose lock is held, too.
func (c *plans) useCopy(of *plan) *plan {
	p := *of
	p.users = 0
	return c.use(&p)
}

// use returns the plan of the [Limits] of p for one more bucket: p, if there is none yet.
func (c *plans) use(p *plan) *plan {
	c.offer(p)
	p = c.get(p.limits)
	p.users++
	return p
}

// offer adds a plan that planFor has returned, if there is none of its [Limits]. Until a bucket
// uses the plan it is the unused one. A nil p is none.
func (c *plans) offer(p *plan) {
	if p == nil || c.get(p.limits) != nil {
		return
	}
	c.of.Add(p.limits, p)
	p.users++
	c.release(p)
}

// release counts one user less of a plan. The last plan that has lost all its users is kept,
// because the next key is likely to need it.
func (c *plans) release(p *plan) {
	if p.users--; p.users > 0 {
		return
	}
	if old := c.unused; old != nil && old != p && old.users == 0 {
		c.of.Delete(old.limits)
	}
	c.unused = p
}
