package shaper

import (
	"sync/atomic"

	"golang.org/x/time/rate"
)

// insertLocked returns the bucket for a key that has none, and whose [Limits] are known: a
// new one, or one that it shares; and the shard that has it. The [Group] is not closed. If
// it returns neither a bucket nor an error, something is missing that foundOrNewLocked
// tells of.
//
// A key that needs no bucket gets one too, which remembers its Limits until the next sweep.
// Such a bucket is always drained, so it does not count against maxKeys. If there are
// maxKeys of them, or the key is a NaN, the key gets unlimited.
func (s *keyShard[K]) insertLocked(key K, l *limitsLookup, now int64) (*keyShard[K], *keyedFlow[K], error) {
	if l.lacksOver(s.group.mayOverflow(key)) {
		return nil, nil, nil
	}
	switch {
	case !s.needsNoBucketLocked(l.limits, s.usedByLocked(key, l.limits, l)):
		return s.insertBucketLocked(key, l.limits, now, l)
	case key != key || !takeBelow(&s.group.unlimitedKeys, s.group.maxKeys):
		s.offerPlanLocked(l.plan)
		s.unlimitedBy = l.limits
		return s, s.endlessLocked(&s.unlimited), nil
	}
	p := s.planLocked(l.limits, l)
	if p == nil {
		s.group.unlimitedKeys.Add(-1)
		return nil, nil, nil
	}
	kf := s.insertOwnLocked(key, p, nil, now)
	kf.unlimited = true
	s.unlimitedKeys++
	return s, kf, nil
}

// lacksOver reports whether the lock of over is needed and not held, and notes that.
func (l *limitsLookup) lacksOver(needed bool) bool {
	l.needsOver = needed && !l.hasOver
	return l.needsOver
}

// mayOverflow reports whether a key that has no bucket may have been sharing one, or is to
// share one now. The lock of over says for certain.
func (g *Group[K]) mayOverflow(key K) bool {
	return key != key || g.overflow.len.Load() > 0 || g.full()
}

// needsNoBucketLocked reports whether a key with these [Limits] that has no bucket of its
// own needs none, because there is nothing to remember of its calls but the Limits: it is
// at rate.Inf without a cap, and the bucket that it has been sharing, if any, is not held.
// That bucket is used, and in over; nil: none.
func (s *keyShard[K]) needsNoBucketLocked(l Limits, used *keyedFlow[K]) bool {
	over := s.group.over
	return limitsNothing(l) && (used == nil || over.idleLocked(&used.flow, over.clock))
}

// limitsNothing reports whether every request may leave at once, unless there is a hold.
func limitsNothing(l Limits) bool { return l.Rate == rate.Inf && l.InFlight == 0 }

// usedLocked returns the bucket that a key with these [Limits] has been sharing, or another
// key with the same home. It returns nil if there is none. s is over.
func (s *keyShard[K]) usedLocked(key K, l Limits) *keyedFlow[K] {
	if s.group.overflow.len.Load() == 0 {
		return nil // As nearly always: then neither Limits nor key need be hashed.
	}
	return s.group.overflow.used(s.group.homeOf(key), s.plans.of(l))
}

// usedByLocked is usedLocked of over, for a request that need not have its lock: then there
// is none.
func (s *keyShard[K]) usedByLocked(key K, limits Limits, l *limitsLookup) *keyedFlow[K] {
	if !l.hasOver {
		return nil
	}
	return s.group.over.usedLocked(key, limits)
}

// insertBucketLocked is insertLocked for a key with these [Limits] that needs a bucket.
func (s *keyShard[K]) insertBucketLocked(key K, limits Limits, now int64, l *limitsLookup) (*keyShard[K], *keyedFlow[K], error) {
	used := s.usedByLocked(key, limits, l)
	if key != key || staysInOverflow(used) || isAheadIn(used, l.kind) || !takeBelow(&s.group.ownKeys, s.group.maxKeys) {
		if l.lacksOver(true) {
			return nil, nil, nil // The table has become full just now.
		}
		return s.insertOverflowLocked(key, limits, l)
	}
	p := s.planLocked(limits, l)
	if p == nil {
		s.group.ownKeys.Add(-1)
		return nil, nil, nil
	}
	return s, s.insertOwnLocked(key, p, used, now), nil
}

// takeBelow counts one more, and returns false if there are as many as there may be.
func takeBelow(count *atomic.Int64, most int64) bool {
	for {
		n := count.Load()
		if n >= most {
			return false
		}
		if count.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// insertOwnLocked makes a bucket for a key, which is counted already. It goes on from where
// used is, the bucket that the key has been sharing; nil: none.
func (s *keyShard[K]) insertOwnLocked(key K, p *plan, used *keyedFlow[K], now int64) *keyedFlow[K] {
	kf := s.newFlowLocked(p, now)
	kf.key = key
	if used != nil {
		kf.flow.inheritFrom(&used.flow)
	}
	s.table[key] = kf
	s.peakKeys = max(s.peakKeys, len(s.table))
	kf.flow.bucket.idleUntil(now)
	return kf
}

// ofKindLocked returns the bucket of the kind that a request wants, for a key that has found
// kf in a shard. From now on there is something to remember of an unlimited key that is to be
// held, so it gets a bucket like any other key: one that counts against maxKeys, or an overflow
// one. If ofKindLocked returns neither a bucket nor an error, the lock of over is missing.
func (s *keyShard[K]) ofKindLocked(in *keyShard[K], key K, kf *keyedFlow[K], l *limitsLookup) (*keyShard[K], *keyedFlow[K], error) {
	if l.kind&bucketToHold == 0 || kf != s.unlimited && !kf.unlimited {
		return in, kf, nil
	}
	if l.lacksOver(s.group.mayOverflow(key)) {
		return nil, nil, nil
	}
	limits := s.unlimitedBy
	if kf.unlimited {
		limits = kf.flow.bucket.limits
		s.deleteLocked(kf)
	}
	return s.insertBucketLocked(key, limits, s.clock, l)
}

// insertOverflowLocked returns the bucket for a key that is to share one, and makes it if
// there is none. The lock of over is held.
func (s *keyShard[K]) insertOverflowLocked(key K, limits Limits, l *limitsLookup) (*keyShard[K], *keyedFlow[K], error) {
	g, over := s.group, s.group.over
	home := g.homeOf(key)
	kf, distance, full := g.overflow.find(home, over.plans.of(limits))
	if full {
		return nil, nil, noOverflowBucket()
	}
	if kf == nil {
		p := over.planLocked(limits, l)
		if p == nil && over != s && s.plans.of(limits) != nil {
			p = over.copyPlanLocked(s.plans.of(limits))
		}
		if p == nil {
			return nil, nil, nil
		}
		kf = over.newFlowLocked(p, over.clock)
		kf.home = home
		g.overflow.add(kf)
		over.blocks.exempt(&kf.flow)
	}
	kf.reach = max(kf.reach, distance)
	kf.flow.bucket.idleUntil(over.clock)
	return over, kf, nil
}

// newFlowLocked makes a bucket with a plan, which counts it as a user already.
func (s *keyShard[K]) newFlowLocked(p *plan, now int64) *keyedFlow[K] {
	kf := &keyedFlow[K]{flow: flow{bucket: bucket{plan: p}, entered: -1}, home: ownBucket}
	s.watchLocked(kf, now, now) // It is drained until it is used.
	return kf
}

// withFlow calls see, under the lock of a dispatcher, with the bucket of a key. It makes no
// bucket: if the key has none, see gets one that is as the key's new bucket would be.
func (s *keyShard[K]) withFlow(key K, see func(d *dispatcher, f *flow, now int64)) error {
	if s.withOwnFlow(key, see) {
		return nil
	}
	bucketKey, err := s.group.bucketKeyOf(key)
	var limits Limits
	if err == nil {
		limits, err = s.callLimits(key)
	}
	if err != nil {
		s.mu.Lock()
		s.limitErrors++
		s.mu.Unlock()
		return err
	}
	if s.withOwnFlow(key, see) {
		return nil
	}
	p := s.planFor(limits)
	over := s.group.over
	now := over.lockAndAdvance()
	defer over.unlockAndArm()
	kf := &keyedFlow[K]{flow: flow{bucket: bucket{plan: p}, entered: -1}, home: ownBucket}
	used := over.usedLocked(key, limits)
	switch {
	case s.needsNoBucketLocked(limits, used):
	case key != key || staysInOverflow(used) || s.group.full():
		found, _, full := s.group.overflow.find(s.group.homeOf(key), over.plans.of(limits))
		if full {
			return noOverflowBucket()
		}
		if kf.home = s.group.homeOf(key); found != nil {
			kf = found
		}
	case used != nil:
		kf.flow.inheritFrom(&used.flow)
	}
	if over.shared != nil && over.shared.leases[&kf.flow] == nil {
		over.leaseLocked(kf, bucketKey)
		defer over.forgetLeaseLocked(kf)
	}
	kf.flow.bucket.idleUntil(now)
	see(&over.dispatcher, &kf.flow, now)
	return nil
}

// withOwnFlow calls see, under the lock, with the bucket of a key, if the key has one of its
// own, and reports whether it has. On a closed [Group] every key has: closedFlow.
func (s *keyShard[K]) withOwnFlow(key K, see func(d *dispatcher, f *flow, now int64)) bool {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.foundLocked(key, now, anyBucket)
	if kf == nil {
		return false
	}
	kf.flow.bucket.idleUntil(now)
	see(&s.dispatcher, &kf.flow, now)
	return true
}

// staysInOverflow reports whether a key has to go on sharing the bucket that it has been
// sharing, or nil, even if the table has room: while requests are in flight there, or wait to
// be. A bucket of its own would not know of them, and the key could have more in flight than
// its cap allows. (The level and a hold are carried over, but which of the keys has a seat is
// not known.)
func staysInOverflow[K comparable](used *keyedFlow[K]) bool {
	return used != nil && used.flow.seatsInUse()
}

// isAheadIn reports whether a request of that kind is to leave before the line of the bucket that
// its key has been sharing, or nil. In a bucket of its own it would leave behind that line.
func isAheadIn[K comparable](used *keyedFlow[K], kind bucketKind) bool {
	return kind&bucketInDrain != 0 && used != nil && used.flow.waiting() > 0
}

// noOverflowBucket returns the refusal of a key for which no overflow bucket can be made. There
// may be room for one after the next sweep.
func noOverflowBucket() *RejectError {
	return &RejectError{Reason: ErrQueueFull, RetryAfter: sweepInterval}
}

// A keyedFlow is a flow of a [Group], with its key.
type keyedFlow[K comparable] struct {
	flow flow
	key  K // the zero key for an overflow bucket

	prev, next *keyedFlow[K] // in the wheel; nil: it has been deleted
	spoke      uint8         // of the wheel
	unlimited  bool          // it counts in unlimitedKeys; see insertLocked
	home       int16         // of an overflow bucket: its point on the ring; ownBucket: it is none
	reach      int16         // of an overflow bucket: it serves the keys whose homes are up to so many points before its own
}

// ownBucket is the home of a bucket that is no overflow bucket.
const ownBucket = -1
