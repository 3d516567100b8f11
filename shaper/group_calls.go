package shaper

import (
	"context"
	"time"

	"example.com/leakybucket/internal/exact"
)

// Wait is shorthand for WaitN(ctx, key, 1).
func (g *Group[K]) Wait(ctx context.Context, key K) error { return g.WaitN(ctx, key, 1) }

// WaitN blocks until a request of cost n with that key may leave, and returns nil.
// It is [Shaper.WaitN] on the bucket of the key, and may return the error of the
// function that says the key's [Limits], in which errors.Is sees that function's. Whether the
// key has a cap is asked last: a cost of 0, a negative cost, a context that is done and a
// closed Group have the same result with a cap as without.
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
	r := &request{ctx: ctx, cost: int64(n), kind: kind, releases: true}
	in, kf, err := g.wait(key, r)
	held := r.seat // Without it the release would keep all of r.
	if held == nil {
		return nil, err
	}
	return func() { in.releaseSeat(&kf.flow, held) }, nil
}

// Do is [Shaper.Do] on the bucket of a key.
func (g *Group[K]) Do(ctx context.Context, key K, n int, f func(context.Context) error) error {
	r := &request{ctx: ctx, cost: int64(n), releases: true}
	in, kf, err := g.wait(key, r)
	if err != nil {
		return err
	}
	if r.seat != nil {
		defer in.releaseSeat(&kf.flow, r.seat)
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
	at, err := in.finish(&kf.flow, r, dec.waiter, r.await(dec.waiter))
	if err != nil {
		in.rescheduleAfter(kf)
		in.keepRefusedInLine(key, r, at, err)
	}
	return in, kf, err
}

// enter lets a request leave at once, refuses it, or puts it into the line of its key, and
// runs the hook of that. kf is the bucket that it has found, and in the shard that has it; nil
// if none.
//
// It is not inlined, so that its frame is not there while await waits.
//
//go:noinline
func (g *Group[K]) enter(key K, r *request) (in *keyShard[K], kf *keyedFlow[K], dec decision) {
	if r.kind != allow {
		if err := g.over.checkCall(r); err != nil || r.cost == 0 {
			return nil, nil, decision{err: err}
		}
	}
	s := g.shardOf(key)
	if s.hasHooks {
		r.key = key
	}
	now := s.lockAndAdvance()
	if kf = s.foundLocked(key, now, bucketFor(r)); kf != nil {
		dec = s.decideLocked(&kf.flow, now, r)
		if dec.event >= refusedEvent || s.recorded { // Of those that leave at once there is nothing to note.
			s.noteLocked(s, key, r, dec)
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
		g.noteLimited(key, r, dec)
	}
	if s.hasHooks || dec.event >= enqueuedEvent {
		s.announce(&kf.flow, r, dec)
	}
	return s, kf, dec
}

// decideNew finds or makes the bucket of a key that had none, and decides what becomes of a
// request. If there is no bucket for it, kf is nil, and the hook of that has run.
func (s *keyShard[K]) decideNew(key K, r *request) (in *keyShard[K], kf *keyedFlow[K], dec decision) {
	err := s.withFlowOrNew(r.ctx, key, bucketFor(r), func(holder *keyShard[K], found *keyedFlow[K], now int64) {
		in, kf = holder, found
		if kf.home != ownBucket {
			in.overflowed++
		}
		dec = in.decideLocked(&kf.flow, now, r)
		s.noteLocked(in, key, r, dec)
	})
	if err != nil {
		return nil, nil, s.failed(key, r, err)
	}
	return in, kf, dec
}

// askBucketFor asks the [Bucket] what becomes of a request.
//
// It is not inlined, so that its frame is there only if a Bucket is asked.
//
//go:noinline
func (s *keyShard[K]) askBucketFor(key K, kf *keyedFlow[K], r *request) decision {
	return s.ask(&kf.flow, r, func(_ int64, dec decision) { s.noteLocked(s, key, r, dec) })
}

// noteLocked notes the key of a request that has been refused, and the request, if its key
// is recorded. in is the shard that has the bucket; its lock and that of s are held.
func (s *keyShard[K]) noteLocked(in *keyShard[K], key K, r *request, dec decision) {
	if dec.event == refusedEvent || r.verdict != nil && r.verdict.Err != nil {
		in.keepRefusedKeyLocked(key)
	}
	if s.recorded {
		in.recordLocked(s.recordingsOf[key], in.clock, r, dec)
	}
}

// noteLimited notes that a key has met its limits, if it has.
func (g *Group[K]) noteLimited(key K, r *request, dec decision) {
	switch dec.event {
	case enqueuedEvent:
		g.limited.waited(key)
	case refusedEvent:
		g.limited.refused(key)
	case verdictEvent:
		switch v := r.verdict; {
		case v.Err != nil:
			g.limited.refused(key)
		case v.Wait > 0:
			g.limited.waited(key)
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
		s.group.limited.refused(key)
	}
	s.noteFailed(key, r, err)
	_, unlimited := err.(*limitsError)
	switch {
	case s.isDryRun() && (refusal || unlimited):
		ev.Err, ev.Verdict = nil, &Verdict{Err: err}
		s.letThrough(r.ctx, ev)
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

// AllowN is [Shaper.AllowN] on the bucket of a key. It is also false if the [Limits] of
// the key can't be had, which [GroupStats.LimitErrors] counts. On a closed Group every
// call is refused with [ErrClosed] and counted, whatever the Limits of its key are.
func (g *Group[K]) AllowN(key K, n int) bool {
	g.mustBeMade()
	if n <= 0 {
		return n == 0
	}
	_, _, dec := g.enter(key, &request{ctx: context.Background(), cost: int64(n), deadline: exact.Forever, kind: allow})
	return dec.passed()
}

// Forecast is [Shaper.Forecast] on the bucket of a key. It makes none: for a key that
// has no bucket it asks for its [Limits], and tells what a new one would say.
func (g *Group[K]) Forecast(key K, n int) (wait time.Duration, err error) {
	g.mustBeMade()
	if n < 0 {
		return 0, ErrNegativeCost
	}
	if n == 0 {
		return 0, nil
	}
	unknown := g.shardOf(key).withFlow(key, func(d *dispatcher, f *flow, now int64) { wait, err = d.forecastLocked(f, now, n) })
	if unknown != nil {
		return 0, unknown
	}
	return wait, err
}

// Hold is [Shaper.Hold] on the bucket of a key. If the [Limits] of the key can't be had
// there is nothing to hold.
func (g *Group[K]) Hold(key K, d time.Duration) { g.hold(context.Background(), key, d) }

// hold is Hold, and reports whether no request of the key leaves for that time. It waits for the
// limits function until the context ends at most. What is left of the time is then held when the
// function returns.
func (g *Group[K]) hold(ctx context.Context, key K, d time.Duration) (held bool) {
	g.mustBeMade()
	if d < 0 {
		return false
	}
	s := g.shardOf(key)
	if d == 0 {
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
			in.holdLocked(&kf.flow, now, timeUntil(until, now))
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
	if s.endHoldOf(func() *keyedFlow[K] { return s.table[key] }) || s.group.overflow.len.Load() == 0 {
		return
	}
	if l, err := s.callLimits(key); err == nil { // They say which bucket it shares.
		over := s.group.over
		over.endHoldOf(func() *keyedFlow[K] { return over.usedLocked(key, l) })
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
	kf.flow.bucket.idleUntil(now)
	s.holdLocked(&kf.flow, now, 0)
	s.rescheduleLocked(kf)
	return true
}
