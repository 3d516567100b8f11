package shaper

import (
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/keyed"
)

// insertLocked returns the bucket for a key that has none, and whose [Limits] are known: a
// new one, or one that it shares; and the shard that has it. The [Group] is not closed. If
// it returns neither a bucket nor an error, something is missing that foundOrNewLocked
// tells of.
//
// A key that needs no bucket gets one too, which remembers its Limits until the next sweep.
// Such a bucket is always drained, so it does not count against maxKeys. If there are
// maxKeys of them, or the key is a NaN, the key gets unlimited.
func (l *limitsLookup[K]) insertLocked(now int64) (*keyShard[K], *keyedFlow[K], error) {
	s, key := l.s, l.key
	if l.lacksOverflow(l.s.mayOverflow(l.key)) {
		return nil, nil, nil
	}
	switch {
	case !s.needsNoBucketLocked(l.limits, l.usedByLocked(l.limits)):
		return l.insertBucketLocked(l.limits, now)
	case key != key || !keyed.TakeBelow(&s.group.counts.Light, s.group.maxKeys):
		s.plans.offer(l.plan)
		s.unlimitedBy = l.limits
		return s, s.endlessLocked(&s.unlimited), nil
	}
	p := s.planLocked(l.limits, l)
	if p == nil {
		s.group.counts.Light.Add(-1)
		return nil, nil, nil
	}
	return s, s.insertOwnLocked(key, p, nil, true, now), nil
}

// lacksOverflow reports whether the lock of overflow is needed and not held, and notes that.
func (l *limitsLookup[K]) lacksOverflow(needed bool) bool {
	l.needsOverflow = needed && !l.hasOverflow
	return l.needsOverflow
}

// mayOverflow reports whether a key that has no bucket may have been sharing one, or is to
// share one now. The lock of overflow says for certain.
func (s *keyShard[K]) mayOverflow(key K) bool {
	g := s.group
	return key != key || g.rings.Len() > 0 || g.tableFull()
}

// needsNoBucketLocked reports whether a key with these [Limits] that has no bucket of its
// own needs none, because there is nothing to remember of its calls but the Limits: it is
// at rate.Inf without a cap, and the bucket that it has been sharing, if any, is not held.
// That bucket is used, and in overflow; nil: none.
func (s *keyShard[K]) needsNoBucketLocked(l Limits, used *keyedFlow[K]) bool {
	overflow := s.group.overflow
	return s.limitsNothing(l) && (used == nil || overflow.idleLocked(&used.Value, overflow.clock))
}

// limitsNothing reports whether every request may leave at once, unless there is a hold.
func (s *keyShard[K]) limitsNothing(l Limits) bool {
	return l.Rate == rate.Inf && l.InFlight == 0 && (s.levels == nil || !s.levels.grantSeats())
}

// usedLocked returns the bucket that a key with these [Limits] has been sharing, or another
// key with the same home. It returns nil if there is none. s is overflow.
func (s *keyShard[K]) usedLocked(key K, l Limits) *keyedFlow[K] {
	if s.group.rings.Len() == 0 {
		return nil // As nearly always: then neither Limits nor key need be hashed.
	}
	return s.group.rings.Used(s.group.homeOf(key), s.plans.get(l))
}

// usedByLocked is usedLocked of overflow, for a request that need not have its lock: then there
// is none.
func (l *limitsLookup[K]) usedByLocked(limits Limits) *keyedFlow[K] {
	s, key := l.s, l.key
	if !l.hasOverflow {
		return nil
	}
	return s.group.overflow.usedLocked(key, limits)
}

// insertBucketLocked is insertLocked for a key with these [Limits] that needs a bucket.
func (l *limitsLookup[K]) insertBucketLocked(limits Limits, now int64) (*keyShard[K], *keyedFlow[K], error) {
	s, key := l.s, l.key
	used := l.usedByLocked(limits)
	if key != key || staysInOverflow(used) || isAheadIn(used, l.kind) || !keyed.TakeBelow(&s.group.counts.Heavy, s.group.maxKeys) {
		if l.lacksOverflow(true) {
			return nil, nil, nil // The table has become full just now.
		}
		return l.insertOverflowLocked(limits)
	}
	p := s.planLocked(limits, l)
	if p == nil {
		s.group.counts.Heavy.Add(-1)
		return nil, nil, nil
	}
	return s, s.insertOwnLocked(key, p, used, false, now), nil
}

// insertOwnLocked makes a bucket for a key, which is counted already, as a light one if it is. It
// goes on from where used is, the bucket that the key has been sharing; nil: none.
func (s *keyShard[K]) insertOwnLocked(key K, p *plan, used *keyedFlow[K], light bool, now int64) *keyedFlow[K] {
	kf := s.newFlowLocked(p, now)
	kf.Key, kf.Light = key, light
	if used != nil {
		kf.Value.inheritFrom(&used.Value)
	}
	s.table.Add(kf)
	kf.Value.bucket.idleUntil(now)
	return kf
}

// ofKindLocked returns the bucket of the kind that a request wants, for a key that has found
// kf in a shard. From now on there is something to remember of an unlimited key that is to be
// held, so it gets a bucket like any other key: one that counts against maxKeys, or an overflow
// one. If ofKindLocked returns neither a bucket nor an error, the lock of overflow is missing.
func (l *limitsLookup[K]) ofKindLocked(in *keyShard[K], kf *keyedFlow[K]) (*keyShard[K], *keyedFlow[K], error) {
	s := l.s
	if l.kind&bucketToHold == 0 || kf != s.unlimited && !kf.Light {
		return in, kf, nil
	}
	if l.lacksOverflow(l.s.mayOverflow(l.key)) {
		return nil, nil, nil
	}
	limits := s.unlimitedBy
	if kf.Light {
		limits = kf.Value.bucket.limits
		s.deleteLocked(kf)
	}
	return l.insertBucketLocked(limits, s.clock)
}

// insertOverflowLocked returns the bucket for a key that is to share one, and makes it if
// there is none. The lock of overflow is held.
func (l *limitsLookup[K]) insertOverflowLocked(limits Limits) (*keyShard[K], *keyedFlow[K], error) {
	s, key := l.s, l.key
	g, overflow := s.group, s.group.overflow
	home := g.homeOf(key)
	kf, distance, full := g.rings.Find(home, overflow.plans.get(limits))
	if full {
		return nil, nil, noOverflowBucket()
	}
	if kf == nil {
		p := overflow.planLocked(limits, l)
		if p == nil && overflow != s && s.plans.get(limits) != nil {
			p = overflow.plans.useCopy(s.plans.get(limits))
		}
		if p == nil {
			return nil, nil, nil
		}
		kf = overflow.newFlowLocked(p, overflow.clock)
		kf.Home = home
		g.rings.Add(kf, p)
		if overflow.gate != nil {
			kf.Value.keepOut(never)
		}
	}
	kf.Reach = max(kf.Reach, distance)
	kf.Value.bucket.idleUntil(overflow.clock)
	return overflow, kf, nil
}

// newFlowLocked makes a bucket with a plan, which counts it as a user already.
func (s *keyShard[K]) newFlowLocked(p *plan, now int64) *keyedFlow[K] {
	kf := &keyedFlow[K]{Value: flow{bucket: bucket{plan: p}, entered: -1}, Home: keyed.Own}
	s.watchLocked(kf, now, now) // It is drained until it is used.
	return kf
}

// withFlow calls see, under the lock of a dispatcher, with the bucket of a key. It makes no
// bucket: if the key has none, see gets one that is as the key's new bucket would be.
func (s *keyShard[K]) withFlow(key K, see func(d *dispatcher, f *flow, now int64)) error {
	if s.withOwnFlow(key, see) {
		return nil
	}
	bucketKey, err := s.bucketKey(key)
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
	overflow := s.group.overflow
	now := overflow.lockAndAdvance()
	defer overflow.unlockAndArm()
	kf := &keyedFlow[K]{Value: flow{bucket: bucket{plan: p}, entered: -1}, Home: keyed.Own}
	used := overflow.usedLocked(key, limits)
	switch {
	case s.needsNoBucketLocked(limits, used):
	case key != key || staysInOverflow(used) || s.group.tableFull():
		found, _, full := s.group.rings.Find(s.group.homeOf(key), overflow.plans.get(limits))
		if full {
			return noOverflowBucket()
		}
		if kf.Home = s.group.homeOf(key); found != nil {
			kf = found
		}
	case used != nil:
		kf.Value.inheritFrom(&used.Value)
	}
	if overflow.levels != nil && kf.Value.remote() == nil {
		overflow.leaseLocked(kf, bucketKey)
		defer overflow.levels.forget(&kf.Value)
	}
	kf.Value.bucket.idleUntil(now)
	see(&overflow.dispatcher, &kf.Value, now)
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
	kf.Value.bucket.idleUntil(now)
	see(&s.dispatcher, &kf.Value, now)
	return true
}

// staysInOverflow reports whether a key has to go on sharing the bucket that it has been
// sharing, or nil, even if the table has room: while requests are in flight there, or wait to
// be. A bucket of its own would not know of them, and the key could have more in flight than
// its cap allows. (The level and a hold are carried over, but which of the keys has a seat is
// not known.)
func staysInOverflow[K comparable](used *keyedFlow[K]) bool {
	return used != nil && used.Value.seatsInUse()
}

// isAheadIn reports whether a request of that kind is to leave before the line of the bucket that
// its key has been sharing, or nil. In a bucket of its own it would leave behind that line.
func isAheadIn[K comparable](used *keyedFlow[K], kind bucketKind) bool {
	return kind&bucketInDrain != 0 && used != nil && used.Value.waiting() > 0
}

// noOverflowBucket returns the refusal of a key for which no overflow bucket can be made. There
// may be room for one after the next sweep.
func noOverflowBucket() *RejectError {
	return &RejectError{Reason: ErrQueueFull, RetryAfter: keyed.Resolution}
}

// seatsInUse reports whether there is a cap, and requests are in flight or in line.
func (f *flow) seatsInUse() bool { return f.capped() && (f.seatsTaken() > 0 || f.waiting() > 0) }

// inheritFrom makes the new flow of a key continue from the flow that the key has shared:
// behind the requests that wait there.
func (f *flow) inheritFrom(from *flow) {
	b := &from.bucket
	f.bucket.leftAt = b.leftAt // Both have the same plan.
	f.bucket.empty = b.interval.Plus(b.empty, b.interval.Times(from.ahead()))
	if hold := b.coldOrNone().hold; hold.Whole() > 0 {
		f.bucket.coldOrNew().hold = hold
	}
}

// drains returns the instant at which the flow will be drained, if the requests in line
// stay and no other comes; forever while a seat is taken, as it is unknown when requests
// end.
func (f *flow) drains(now int64) int64 {
	switch {
	case f.seatsTaken() > 0:
		return exact.Forever
	case f.waiting() > 0:
		// When a request could leave that is behind them all and needs an empty bucket.
		return exact.Sum(now, int64(max(f.bucket.wait(now, f.ahead(), f.bucket.burst), 1)))
	}
	return f.drainedAt()
}

// drained reports whether the flow is as if it had never been used.
func (f *flow) drained(now int64) bool { return f.drainedAt() <= now }

// drainedAt returns the instant from which on the flow will be as if it had never been
// used, if no more requests come; forever if a request waits or has a seat.
func (f *flow) drainedAt() int64 {
	if f.waiting() > 0 || f.seatsTaken() > 0 {
		return exact.Forever
	}
	return exact.Later(f.bucket.empty, f.bucket.coldOrNone().hold).Ceil()
}

// givenPlan returns the plan that was given to the flow.
func (f *flow) givenPlan() *plan {
	if lv := f.remote(); lv != nil {
		return lv.given()
	}
	return f.bucket.plan
}

// sweptAtOnce is how many buckets one sweep looks at, which bounds for how long it holds the lock.
// The next sweep goes on from there.
const sweptAtOnce = 128

// watchLocked puts a bucket into the wheel, so that the sweep looks at it when it is
// drained.
func (s *keyShard[K]) watchLocked(kf *keyedFlow[K], now, drained int64) {
	at := s.wheel.Add(kf, now, drained)
	if s.sweepTimer.Earlier(at) {
		s.rearm = true
	}
}

// endsLocked returns the instant from which on a bucket will be as a new one, if the requests
// in line stay and no other comes: when it is drained and not blocked any more. While its
// lease is in use, that is unknown.
func (s *keyShard[K]) endsLocked(f *flow, now int64) int64 {
	at := max(f.drains(now), f.keptOutUntil())
	if lv := f.remote(); lv != nil && lv.busy(s.clock) {
		at = max(at, now+int64(keyed.Resolution))
	}
	return at
}

// idleLocked reports whether a bucket is as a new one.
func (s *keyShard[K]) idleLocked(f *flow, now int64) bool {
	lv := f.remote()
	return f.drained(now) && f.keptOutUntil() <= now && !(lv != nil && lv.busy(s.clock))
}

// rescheduleLocked moves a bucket in the wheel that may be drained earlier than it was
// put there for. A deleted bucket is left alone.
func (s *keyShard[K]) rescheduleLocked(kf *keyedFlow[K]) {
	if !kf.InWheel() || s.phase == closed {
		return
	}
	s.wheel.Remove(kf)
	s.watchLocked(kf, s.clock, s.endsLocked(&kf.Value, s.clock))
}

// rescheduleAfter is rescheduleLocked for a caller without the lock, after a call that may have
// given back its cost.
func (s *keyShard[K]) rescheduleAfter(kf *keyedFlow[K]) {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	s.rescheduleLocked(kf)
}

// arm is host.arm: it arms the timer of the sweep.
func (s *keyShard[K]) arm(now int64) { s.sweepTimer.Arm(now) }

// sweep is called by the timer. It deletes the buckets that are drained.
func (s *keyShard[K]) sweep() {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	s.rearm = true
	if s.sweepTimer.Fired(now) {
		s.sweepDrainedLocked(now)
	}
}

// sweepDrainedLocked looks at the buckets that may be drained by now, and deletes the
// drained ones.
func (s *keyShard[K]) sweepDrainedLocked(now int64) {
	for range sweptAtOnce {
		kf := s.wheel.Take(now)
		if kf == nil {
			break
		}
		drained := s.endsLocked(&kf.Value, now)
		if drained > now {
			s.wheel.Add(kf, now, drained)
			continue
		}
		s.forgetLocked(kf)
	}
	few := s.fewEntries()
	s.table.Shrink(few)
	s.plans.of.Shrink(few)
	s.sweepTimer.Next(s.wheel.Next())
}

// fewEntries returns how many entries a map of the shard may have had without being worth
// shrinking: 256 in all shards together.
func (s *keyShard[K]) fewEntries() int { return 256 / len(s.group.shards) }

// deleteLocked deletes a bucket that is in the wheel.
func (s *keyShard[K]) deleteLocked(kf *keyedFlow[K]) {
	s.wheel.Remove(kf)
	s.forgetLocked(kf)
}

// forgetLocked deletes a bucket that has been taken out of the wheel.
func (s *keyShard[K]) forgetLocked(kf *keyedFlow[K]) {
	if kf.Home != keyed.Own {
		s.group.rings.Remove(kf, kf.Value.givenPlan())
	} else {
		s.table.Delete(kf)
	}
	s.plans.release(kf.Value.givenPlan())
	if s.levels != nil {
		s.levels.forget(&kf.Value)
	}
}

// dropClosedLocked is dropAllLocked for a [Group] that has been closed. It keeps the
// buckets for Snapshot.
func (s *keyShard[K]) dropClosedLocked() {
	s.table.Close()
	if s == s.group.overflow {
		s.group.rings.Clear()
	}
	s.dropAllLocked()
}

// dropAllLocked deletes all buckets. Calls that wait for the limits function go on, and
// find the [Group] closed.
func (s *keyShard[K]) dropAllLocked() {
	for _, q := range s.limitsCalls {
		q.err = errNoResult
		if q.done != nil {
			close(q.done)
		}
	}
	s.limitsCalls, s.peakCalls = make(map[K]*limitsCall), 0
	s.plans = plans{}
	s.wheel = keyed.Wheel[K, flow]{}
	s.sweepTimer.Next(exact.Forever)
}
