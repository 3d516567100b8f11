package shaper

import (
	"maps"
	"time"

	"example.com/leakybucket/internal/exact"
)

// watchLocked puts a bucket into the wheel, so that the sweep looks at it when it is
// drained.
func (s *keyShard[K]) watchLocked(kf *keyedFlow[K], now, drained int64) {
	at := s.wheel.add(kf, now, drained)
	if at < s.sweepTimer.next {
		s.sweepTimer.next = at
		s.rearm = true
	}
}

// endsLocked returns the instant from which on a bucket will be as a new one, if the requests
// in line stay and no other comes: when it is drained and not blocked any more. While its
// lease is in use, that is unknown.
func (s *keyShard[K]) endsLocked(f *flow, now int64) int64 {
	at := max(f.drains(now), s.blocks.end(f))
	if s.leaseBusyLocked(f) {
		at = max(at, now+int64(sweepInterval))
	}
	return at
}

// idleLocked reports whether a bucket is as a new one.
func (s *keyShard[K]) idleLocked(f *flow, now int64) bool {
	return f.drained(now) && s.blocks.end(f) <= now && !s.leaseBusyLocked(f)
}

// rescheduleLocked moves a bucket in the wheel that may be drained earlier than it was
// put there for. A deleted bucket is left alone.
func (s *keyShard[K]) rescheduleLocked(kf *keyedFlow[K]) {
	if kf.next == nil || s.phase == closed {
		return
	}
	s.wheel.remove(kf)
	s.watchLocked(kf, s.clock, s.endsLocked(&kf.flow, s.clock))
}

// rescheduleAfter is rescheduleLocked after a call that may have given back what it
// took. The lock is not held.
func (s *keyShard[K]) rescheduleAfter(kf *keyedFlow[K]) {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	s.rescheduleLocked(kf)
}

// sweep is called by the timer. It deletes the buckets that are drained.
func (s *keyShard[K]) sweep() {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	s.sweepTimer.at = exact.Forever // It has fired.
	s.rearm = true
	if now >= s.sweepTimer.next {
		s.sweepDrainedLocked(now)
	}
}

// sweepDrainedLocked looks at the buckets that may be drained by now, and deletes those
// that are.
func (s *keyShard[K]) sweepDrainedLocked(now int64) {
	for range sweptAtOnce {
		kf := s.wheel.take(now)
		if kf == nil {
			break
		}
		drained := s.endsLocked(&kf.flow, now)
		if drained > now {
			s.wheel.add(kf, now, drained)
			continue
		}
		s.forgetLocked(kf)
	}
	few := s.fewEntries()
	s.table, s.peakKeys = shrunk(s.table, s.peakKeys, few)
	s.plans.shrink(few)
	s.blocks.shrink(few)
	s.sweepTimer.next = s.wheel.next()
}

// fewEntries returns how many entries a map of the shard may have had without being worth
// shrinking: 256 in all shards together.
func (s *keyShard[K]) fewEntries() int { return 256 / len(s.group.shards) }

// shrunk returns m, and how many entries it has had at most. If few of many are left
// it returns a copy instead, because a map keeps the memory for all entries that it
// ever had. Copying so few takes less than half a millisecond. Maps that have never had more
// than few entries stay as they are.
func shrunk[K comparable, V any](m map[K]V, peak, few int) (map[K]V, int) {
	n := len(m)
	if peak < few || n > min(peak/16, 4096) {
		return m, peak
	}
	small := make(map[K]V, n)
	maps.Copy(small, m)
	return small, n
}

// deleteLocked deletes a bucket that is in the wheel.
func (s *keyShard[K]) deleteLocked(kf *keyedFlow[K]) {
	s.wheel.remove(kf)
	s.forgetLocked(kf)
}

// forgetLocked deletes a bucket that has been taken out of the wheel.
func (s *keyShard[K]) forgetLocked(kf *keyedFlow[K]) {
	switch {
	case kf.home != ownBucket:
		s.group.overflow.remove(kf, s.planOfLocked(kf))
	case kf.unlimited:
		delete(s.table, kf.key)
		s.unlimitedKeys--
		s.group.unlimitedKeys.Add(-1)
	default:
		delete(s.table, kf.key)
		s.group.ownKeys.Add(-1)
	}
	s.blocks.forget(&kf.flow)
	s.releasePlanLocked(s.planOfLocked(kf))
	s.forgetLeaseLocked(kf)
}

// dropClosedLocked is dropAllLocked for a [Group] that has been closed. It keeps the
// buckets for Snapshot.
func (s *keyShard[K]) dropClosedLocked() {
	s.lastTable = s.table
	s.group.ownKeys.Add(int64(s.unlimitedKeys - len(s.table)))
	s.group.unlimitedKeys.Add(int64(-s.unlimitedKeys))
	if s == s.group.over {
		s.group.overflow.rings = nil
		s.group.overflow.len.Store(0)
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
	s.table, s.peakKeys, s.unlimitedKeys = make(map[K]*keyedFlow[K]), 0, 0
	s.limitsCalls, s.peakCalls = make(map[K]*limitsCall), 0
	s.plans, s.unused = planSet{}, nil
	s.wheel = wheel[K]{}
	s.sweepTimer.next = exact.Forever
}

// A sweepTimer calls sweep when a bucket of a [Group] may be drained. It is a timer and
// not a goroutine, so that a Group can be forgotten without Close, and does not keep a
// testing/synctest bubble from ending. The lock of the dispatcher guards it.
type sweepTimer struct {
	sweep func() // what it calls, in a goroutine of its own
	timer *time.Timer
	at    int64 // when the timer fires; forever: never
	next  int64 // when it should fire
}

// arm sets the timer to the instant at which it should fire.
func (t *sweepTimer) arm(now int64) {
	if t.at == t.next {
		return
	}
	t.at = t.next
	// A sweep that goes on at once waits for 1 ns. In a testing/synctest bubble a timer that is
	// set to fire at once runs in the call that sets it, and go1.26.8 has crashed in that, with
	// the race detector.
	switch d := max(time.Duration(t.next-now), 1); {
	case t.next == exact.Forever:
		t.timer.Stop()
	case t.timer == nil:
		t.timer = time.AfterFunc(d, t.sweep)
	default:
		t.timer.Reset(d)
	}
}
