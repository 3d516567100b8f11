package shaper

import (
	"context"
	"net/http"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/keyed"
)

// Wait is shorthand for WaitN(ctx, key, 1).
func (g *Group[K]) Wait(ctx context.Context, key K) error {
	_, _, err := g.wait(key, &request{ctx: ctx, cost: 1}) // WaitN would be one more frame on each waiter's stack.
	return err
}

// WaitN is [Shaper.WaitN] on the bucket of a key. It may return the error of the function that says the key's
// [Limits], in which [errors.Is] sees that function's. Whether the key has a cap is asked last.
func (g *Group[K]) WaitN(ctx context.Context, key K, n int) error {
	_, _, err := g.wait(key, &request{ctx: ctx, cost: int64(n)})
	return err
}

// Acquire is [Shaper.Acquire] on the bucket of a key.
func (g *Group[K]) Acquire(ctx context.Context, key K, n int) (release func(), err error) {
	if release, err = g.acquire(ctx, key, n, newcomer); release == nil {
		release = nothing
	}
	return release, err
}

// acquire is Acquire with nil for a release that does nothing.
func (g *Group[K]) acquire(ctx context.Context, key K, n int, kind entryKind) (release func(), err error) {
	r := &request{ctx: ctx, cost: int64(n), kind: kind, tellsEnd: true}
	in, kf, err := g.wait(key, r)
	held := r.seat // Without it the release would keep all of r.
	if held == nil {
		return nil, err
	}
	return func() { held.free(&in.dispatcher, &kf.Value) }, nil
}

// Do is [Shaper.Do] on the bucket of a key.
func (g *Group[K]) Do(ctx context.Context, key K, n int, f func(context.Context) error) error {
	r := &request{ctx: ctx, cost: int64(n), tellsEnd: true}
	in, kf, err := g.wait(key, r)
	if err != nil {
		return err
	}
	if r.seat != nil {
		defer r.seat.free(&in.dispatcher, &kf.Value)
	}
	return f(ctx)
}

// wait is WaitN, and returns the bucket that the request has found, and the shard that has
// it; nil if none.
func (g *Group[K]) wait(key K, r *request) (in *keyShard[K], kf *keyedFlow[K], err error) {
	g.mustBeMade()
	in, kf, dec := g.enter(key, r)
	if dec.waiter == nil {
		return in, kf, dec.err
	}
	at, err := r.finish(&in.dispatcher, &kf.Value, dec.waiter, r.await(dec.waiter))
	if err != nil {
		in.notLeft(key, kf, r, at, err)
	}
	return in, kf, err
}

// notLeft ends a wait that has ended with an error at an instant.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (s *keyShard[K]) notLeft(key K, kf *keyedFlow[K], r *request, at int64, err error) {
	s.rescheduleAfter(kf)
	s.keepRefusedInLine(key, r, at, err)
}

// enter lets a request leave at once, refuses it, or puts it into the line of its key, and
// runs the hook for this. kf is the bucket that it has found, and in the shard that has it;
// nil if none.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (g *Group[K]) enter(key K, r *request) (in *keyShard[K], kf *keyedFlow[K], dec decision) {
	if r.kind != allow {
		if err := r.checkCall(&g.overflow.dispatcher); err != nil || r.cost == 0 {
			return nil, nil, decision{err: err}
		}
	}
	s := g.shardOf(key)
	if s.hasHooks {
		r.key = key
	}
	now := s.lockAndAdvance()
	if kf = s.foundLocked(key, now, bucketFor(r)); kf != nil {
		dec = s.decideLocked(&kf.Value, now, r)
		if dec.event >= refusedEvent { // Of those that leave at once there is nothing to note.
			s.noteLocked(key, r, dec)
		}
		s.unlockAndArm()
	} else {
		s.unlockAndArm()
		if s, kf, dec = s.decideNew(key, r); kf == nil {
			return nil, nil, dec
		}
	}
	if dec.event >= refusedEvent {
		if dec.event == askEvent {
			dec = s.askBucketFor(key, kf, r)
		}
		s.noteLimited(key, r, dec)
	}
	if s.hasHooks || dec.event >= enqueuedEvent {
		r.announce(&s.dispatcher, &kf.Value, dec)
	}
	return s, kf, dec
}

// decideNew finds or makes the bucket of a key that had none, and decides upon a
// request. If there is no bucket for it, kf is nil, and the hook for its refusal has run.
func (s *keyShard[K]) decideNew(key K, r *request) (in *keyShard[K], kf *keyedFlow[K], dec decision) {
	err := s.withFlowOrNew(r.ctx, key, bucketFor(r), func(holder *keyShard[K], found *keyedFlow[K], now int64) {
		in, kf = holder, found
		if kf.Home != keyed.Own {
			in.overflowed++
		}
		dec = in.decideLocked(&kf.Value, now, r)
		in.noteLocked(key, r, dec)
	})
	if err != nil {
		return nil, nil, s.failed(key, r, err)
	}
	return in, kf, dec
}

// askBucketFor asks the [shared.Bucket] about a request.
//
// It is not inlined, so that its frame is there only if a Bucket is asked.
//
//go:noinline
func (s *keyShard[K]) askBucketFor(key K, kf *keyedFlow[K], r *request) decision {
	asked := *r // The level keeps it, and r is on the stack of its call.
	dec := kf.Value.remote().ask(&asked, func(_ int64, dec decision) { s.noteLocked(key, &asked, dec) })
	*r = asked
	return dec
}

// noteLocked notes the key of a request that has been refused. The lock is held.
func (s *keyShard[K]) noteLocked(key K, r *request, dec decision) {
	if dec.event == refusedEvent || r.verdict != nil && r.verdict.Err != nil {
		s.keepRefusedKeyLocked(key)
	}
}

// noteLimited notes that a key has met its limits, if it has.
//
// It is not inlined, so that its frame is not there while a request is decided upon.
//
//go:noinline
func (s *keyShard[K]) noteLimited(key K, r *request, dec decision) {
	g := s.group
	switch dec.event {
	case enqueuedEvent:
		g.limited.Waited(key)
	case refusedEvent:
		g.limited.Refused(key)
	case verdictEvent:
		switch v := r.verdict; {
		case v.Err != nil:
			g.limited.Refused(key)
		case v.Wait > 0:
			g.limited.Waited(key)
		}
	}
}

// failed ends a call that got no bucket: with a refusal, if all shared buckets are taken;
// with an abandonment, if the context ended while the [Limits] were looked up; or with the
// error of the Limits, which is counted in [GroupStats.LimitErrors] only. The lock is not
// held.
func (s *keyShard[K]) failed(key K, r *request, err error) decision {
	ev := Event{Name: s.name, Key: r.key, Cost: int(r.cost), At: time.Now(), Err: err}
	_, refusal := err.(*RejectError)
	if refusal {
		s.mu.Lock()
		s.overflowed++
		s.totals.refused.count(refusedFull)
		s.mu.Unlock()
		s.group.limited.Refused(key)
	}
	s.noteFailed(key, r, err)
	_, unlimited := err.(*limitsError)
	switch {
	case s.letsAllThrough() && (refusal || unlimited):
		ev.Err, ev.Verdict = nil, &Verdict{Err: err}
		s.gate.announce(r.ctx, s.trace, ev)
		return decision{event: verdictEvent}
	case refusal:
		runHook(s.trace.Refused, r.ctx, ev)
	case !unlimited:
		runHook(s.trace.Abandoned, r.ctx, ev)
	}
	return decision{err: err}
}

// Allow is shorthand for AllowN(key, 1).
func (g *Group[K]) Allow(key K) bool { return g.AllowN(key, 1) }

// AllowN is [Shaper.AllowN] on the bucket of a key. It is also false if the [Limits] of the key can't be had, which
// [GroupStats.LimitErrors] counts. On a closed Group every call is refused with [ErrClosed] and counted.
func (g *Group[K]) AllowN(key K, n int) bool {
	g.mustBeMade()
	if n <= 0 {
		return n == 0
	}
	_, _, dec := g.enter(key, &request{ctx: context.Background(), cost: int64(n), deadline: exact.Forever, kind: allow})
	return dec.passed()
}

// hold is [KeyLimiter.Hold], and reports whether the key was held. It waits for the limits function until the
// context ends at most. Once the function has returned, the key is held for the rest of the
// time.
func (s *keyShard[K]) hold(ctx context.Context, key K, d time.Duration) (held bool) {
	switch {
	case d < 0:
		return false
	case d == 0:
		s.endHold(key)
		return false
	}
	return s.holdUntil(ctx, key, exact.Sum(int64(time.Since(s.epoch)), int64(min(d, horizon))))
}

// holdUntil is hold until an instant that is yet to come.
func (s *keyShard[K]) holdUntil(ctx context.Context, key K, until int64) (held bool) {
	err := s.withFlowOrNew(ctx, key, bucketToHold|bucketInDrain, func(in *keyShard[K], kf *keyedFlow[K], now int64) {
		held = true
		// On a closed Group there is no bucket to hold. But the key's next request is refused at
		// once, so no Transport need wait before it sends one.
		if kf != s.closedFlow && now < until {
			in.holdLocked(&kf.Value, now, timeUntil(until, now))
		}
	})
	if err != nil && ctx.Err() != nil {
		go func() {
			defer func() { _ = recover() }() // No call waits for a panic of the limits function; see lookUpApart.
			s.holdUntil(context.Background(), key, until)
		}()
	}
	return held
}

// endHold is Hold(0).
func (s *keyShard[K]) endHold(key K) {
	if s.endHoldOf(func() *keyedFlow[K] { return s.table.Get(key) }) || s.group.rings.Len() == 0 {
		return
	}
	if l, err := s.callLimits(key); err == nil { // They say which bucket it shares.
		overflow := s.group.overflow
		overflow.endHoldOf(func() *keyedFlow[K] { return overflow.usedLocked(key, l) })
	}
}

// endHoldOf is Hold(0) for a bucket, and reports whether there is one. find is called under
// the lock.
func (s *keyShard[K]) endHoldOf(find func() *keyedFlow[K]) (found bool) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := find()
	if kf == nil {
		return false
	}
	kf.Value.bucket.idleUntil(now)
	s.holdLocked(&kf.Value, now, 0)
	s.rescheduleLocked(kf)
	return true
}

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
	d := &k.group.overflow.dispatcher
	d.gate.announce(ctx, d.trace, Event{Name: d.name, Cost: n, At: time.Now(), Verdict: &Verdict{Err: k.err}})
	return nil
}

// Middleware is as the function [Middleware] says, with the bucket of each request's key as its Limiter. If key or
// the limits function returns an error, the request is answered with status 500; only a dry run lets it through,
// with the error in its [Verdict]. key is not called for a request of cost 0.
func (g *Group[K]) Middleware(key func(*http.Request) (K, error), opts ...MiddlewareOption) func(http.Handler) http.Handler {
	g.mustBeMade()
	if key == nil {
		panic("shaper: Group.Middleware needs a function that tells the key of a request")
	}
	h := newHandler(g.mayDryRun(), opts)
	if h.key != nil {
		panic("shaper: WithKey is for a Middleware in front of a Shaper WithFairQueue; Group.Middleware has the function for the key")
	}
	h.limiterFor = g.limiterFor(key)
	return h.wrap
}

// limiterFor returns the function that returns the [Limiter] of a request's key.
func (g *Group[K]) limiterFor(key func(*http.Request) (K, error)) func(*http.Request) (inner, error) {
	return func(r *http.Request) (inner, error) {
		k, err := key(r)
		switch {
		case err != nil && g.mayDryRun():
			return innerOf(keyless[K]{g, &keyError{err}}), nil
		case err != nil:
			return nil, &keyError{err}
		}
		return keyLimiter[K]{g, k}, nil
	}
}
