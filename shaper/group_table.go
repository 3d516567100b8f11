package shaper

import "golang.org/x/time/rate"

// insertLocked returns the bucket for a key that has none, and whose Limits are known: a new
// one, or one that it shares. The Group is not closed.
//
// A key that needs no bucket gets one too, which remembers its Limits until the next sweep.
// Such a bucket is always drained, so it does not count against maxKeys. If there are
// maxKeys of them, or the key is a NaN, the key gets unlimited.
func (g *Group[K]) insertLocked(key K, l Limits, now int64) (*keyedFlow[K], error) {
	switch {
	case !g.needsNoBucketLocked(l, g.usedLocked(key, l), now):
		return g.insertBucketLocked(key, l, now)
	case key != key || g.unlimitedKeys >= g.maxKeys:
		g.unlimitedBy = l
		return &g.unlimited, nil
	}
	kf := g.insertOwnLocked(key, l, nil, now)
	kf.unlimited = true
	g.unlimitedKeys++
	return kf, nil
}

// needsNoBucketLocked reports whether a key with these Limits that has no bucket of its
// own needs none, because there is nothing to remember of its calls but the Limits: it is
// at rate.Inf without a cap, and the bucket that it has been sharing, if any, is not held.
// That is used; nil: none.
func (g *Group[K]) needsNoBucketLocked(l Limits, used *keyedFlow[K], now int64) bool {
	return limitsNothing(l) && (used == nil || g.idleLocked(&used.flow, now))
}

// limitsNothing reports whether every request may leave at once, unless there is a hold.
func limitsNothing(l Limits) bool { return l.Rate == rate.Inf && l.InFlight == 0 }

// usedLocked returns the bucket that a key with these Limits has been sharing, or another
// key with the same home. It returns nil if there is none.
func (g *Group[K]) usedLocked(key K, l Limits) *keyedFlow[K] {
	if g.overflow.len == 0 {
		return nil // As nearly always: then neither Limits nor key need be hashed.
	}
	return g.overflow.used(g.overflow.homeOf(key), g.plans[l])
}

// insertBucketLocked returns a bucket for a key that has none: a new one of its own, or
// one that it shares.
func (g *Group[K]) insertBucketLocked(key K, l Limits, now int64) (*keyedFlow[K], error) {
	used := g.usedLocked(key, l)
	if g.sharesLocked(key, used) {
		return g.insertSharedLocked(key, l, now)
	}
	return g.insertOwnLocked(key, l, used, now), nil
}

// insertOwnLocked makes a bucket for a key. It goes on from where used is, the bucket that
// the key has been sharing; nil: none.
func (g *Group[K]) insertOwnLocked(key K, l Limits, used *keyedFlow[K], now int64) *keyedFlow[K] {
	kf := g.newFlowLocked(l, now)
	kf.key = key
	if used != nil {
		kf.flow.inheritFrom(&used.flow)
	}
	g.table[key] = kf
	g.peakKeys = max(g.peakKeys, len(g.table))
	kf.flow.bucket.idleUntil(now)
	return kf
}

// bucketToHoldLocked returns the bucket to hold for a key that has found kf. From now on
// there is something to remember of an unlimited key, so it gets a bucket like any other
// key: one that counts against maxKeys, or a shared one.
func (g *Group[K]) bucketToHoldLocked(key K, kf *keyedFlow[K], now int64) (*keyedFlow[K], error) {
	l := kf.flow.bucket.limits
	switch {
	case kf == &g.unlimited:
		l = g.unlimitedBy
	case kf.unlimited:
		g.deleteLocked(kf)
	default:
		return kf, nil
	}
	return g.insertBucketLocked(key, l, now)
}

// insertSharedLocked returns the bucket for a key that is to share one, and makes it if
// there is none.
func (g *Group[K]) insertSharedLocked(key K, l Limits, now int64) (*keyedFlow[K], error) {
	home := g.overflow.homeOf(key)
	kf, distance, full := g.overflow.find(home, g.plans[l])
	if full {
		return nil, noSharedBucket()
	}
	if kf == nil {
		kf = g.newFlowLocked(l, now)
		kf.home = home
		g.overflow.add(kf)
		g.blocks.exempt(&kf.flow)
	}
	kf.reach = max(kf.reach, distance)
	kf.flow.bucket.idleUntil(now)
	return kf, nil
}

// newFlowLocked makes a bucket with these Limits.
func (g *Group[K]) newFlowLocked(l Limits, now int64) *keyedFlow[K] {
	kf := &keyedFlow[K]{flow: flow{bucket: bucket{plan: g.planLocked(l)}, entered: -1}, home: ownBucket}
	g.watchLocked(kf, now, now) // It is drained until it is used.
	return kf
}

// lacksPlanLocked reports whether a bucket would be made for a key with these Limits, and
// the Group has no plan of them.
func (g *Group[K]) lacksPlanLocked(key K, l Limits) bool {
	if g.plans[l] != nil {
		return false
	}
	// No bucket has these Limits, so there is none that the key could share.
	return limitsNothing(l) || !g.sharesLocked(key, nil) || g.overflow.len < maxShared
}

// planFor returns the plan of Limits, which it makes if the Group has none. Making one takes
// much longer than a call. So that nobody who can influence the Limits of a key delays all
// the others, the lock is not held.
func (g *Group[K]) planFor(l Limits) *plan {
	g.mu.Lock()
	p := g.plans[l]
	g.mu.Unlock()
	if p == nil {
		p = g.planOf(l)
	}
	return p
}

// offerPlanLocked adds a plan that planFor has returned, if the Group has none of its
// Limits. Until a bucket uses the plan it is the unused one. A nil p is none.
func (g *Group[K]) offerPlanLocked(p *plan) {
	if p == nil || g.plans[p.limits] != nil {
		return
	}
	g.plans[p.limits] = p
	g.peakPlans = max(g.peakPlans, len(g.plans))
	p.users++
	g.releasePlanLocked(p)
}

// planLocked returns the plan of Limits, which has been offered if no bucket has it, and
// counts one more user of it.
func (g *Group[K]) planLocked(l Limits) *plan {
	p := g.plans[l]
	p.users++
	return p
}

// releasePlanLocked counts one user less of a plan. The last plan that has lost all its
// users is kept, because the next key is likely to need it.
func (g *Group[K]) releasePlanLocked(p *plan) {
	if p.users--; p.users > 0 {
		return
	}
	if old := g.unused; old != nil && old != p && old.users == 0 {
		delete(g.plans, old.limits)
	}
	g.unused = p
}

// withFlow calls see, under the lock, with the bucket of a key. It makes no bucket: if the
// key has none, see gets one that is as the key's new bucket would be.
func (g *Group[K]) withFlow(key K, see func(f *flow, now int64)) error {
	if g.withOwnFlow(key, see) {
		return nil
	}
	limits, err := g.callLimits(key)
	if err != nil {
		g.mu.Lock()
		g.limitErrors++
		g.mu.Unlock()
		return err
	}
	if g.withOwnFlow(key, see) {
		return nil
	}
	p := g.planFor(limits)
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	f := &flow{bucket: bucket{plan: p}, entered: -1}
	used := g.usedLocked(key, limits)
	switch {
	case g.needsNoBucketLocked(limits, used, now):
	case g.sharesLocked(key, used):
		shared, _, full := g.overflow.find(g.overflow.homeOf(key), g.plans[limits])
		if full {
			return noSharedBucket()
		}
		if shared != nil {
			f = &shared.flow
		}
	case used != nil:
		f.inheritFrom(&used.flow)
	}
	f.bucket.idleUntil(now)
	see(f, now)
	return nil
}

// withOwnFlow calls see, under the lock, with the bucket of a key, if the key has one of its
// own, and reports whether it has. On a closed Group every key has: closedFlow.
func (g *Group[K]) withOwnFlow(key K, see func(f *flow, now int64)) bool {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	kf := g.table[key]
	switch {
	case kf != nil:
	case g.phase != open:
		kf = &g.closedFlow
	default:
		return false
	}
	kf.flow.bucket.idleUntil(now)
	see(&kf.flow, now)
	return true
}

// sharesLocked reports whether a call of a key that has no bucket of its own shares
// one. used is the bucket that the key has been sharing, or nil.
//
// While requests are in flight there, or wait to be, the key goes on sharing it even if
// the table has room: a bucket of its own would not know of them, and the key could
// have more in flight than its cap allows. (The level and a hold are carried over, but
// which of the keys has a seat is not known.)
func (g *Group[K]) sharesLocked(key K, used *keyedFlow[K]) bool {
	return key != key || len(g.table)-g.unlimitedKeys >= g.maxKeys || used != nil && used.flow.seatsInUse()
}

// noSharedBucket returns the refusal of a key for which no shared bucket can be made. There
// may be room for one after the next sweep.
func noSharedBucket() *RejectError {
	return &RejectError{Reason: ErrQueueFull, RetryAfter: sweepInterval}
}

// A keyedFlow is a flow of a Group, with its key.
type keyedFlow[K comparable] struct {
	flow flow
	key  K // the zero key for a shared bucket

	prev, next *keyedFlow[K] // in the wheel; nil: it has been deleted
	spoke      uint8         // of the wheel
	unlimited  bool          // it counts in unlimitedKeys; see insertLocked
	home       int16         // of a shared bucket: its point on the ring; ownBucket: it is not shared
	reach      int16         // of a shared bucket: it serves the keys whose homes are up to so many points before its own
}

// ownBucket is the home of a bucket that is not shared.
const ownBucket = -1
