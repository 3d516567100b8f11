package shaper

import (
	"cmp"
	"slices"
	"time"
)

// A Refusal is a request that was refused.
type Refusal struct {
	At         time.Time
	Reason     error         // ErrQueueFull, ErrTooLate, ErrTooCostly, ErrClosed or ErrUnavailable
	RetryAfter time.Duration // as in the RejectError
	Cost       int
	Key        any // the request's key in a Group; nil in a Shaper
}

// keptRefusals is how many refusals are remembered. It is a power of 2.
const keptRefusals = 64

// Refusals returns the latest 64 refusals, in the order in which they were noted. The
// refusal of a request that waited is noted when its call returns, so a newcomer's may come before
// it. A dry run has refusals of the requests that would have been refused when they came; what Close ends in its shadow is counted in [Stats], and not shown here.
func (s *Shaper) Refusals() []Refusal {
	s.mustBeMade()
	var others []Refusal
	found := s.latestRefusals(func() { others = s.stripes.latest(&s.dispatcher) })
	found = append(found, others...)
	slices.SortStableFunc(found, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Key.(uint64), b.Key.(uint64)), a.At.Compare(b.At))
	})
	found = found[max(0, len(found)-keptRefusals):]
	for i := range found {
		found[i].Key = nil
	}
	return found
}

// Refusals is [Shaper.Refusals] for all keys together.
func (g *Group[K]) Refusals() []Refusal {
	g.mustBeMade()
	var all []Refusal
	for _, s := range g.all {
		var keys [keptRefusals]refusedKey[K]
		found := s.latestRefusals(func() {
			if s.refusedKeys != nil {
				keys = *s.refusedKeys
			}
		})
		for i := range found {
			found[i].Key = keys[found[i].Key.(uint64)%keptRefusals]
		}
		all = append(all, found...)
	}
	// The refusals of one shard are in their order already.
	slices.SortFunc(all, func(a, b Refusal) int { return cmp.Compare(a.Key.(refusedKey[K]).number, b.Key.(refusedKey[K]).number) })
	all = all[max(0, len(all)-keptRefusals):]
	for i := range all {
		all[i].Key = all[i].Key.(refusedKey[K]).key
	}
	return all
}

// A refusedKey is the key of a refusal, and the number of that among the refusals of all
// shards of a [Group].
type refusedKey[K comparable] struct {
	key    K
	number uint64
}

// keepRefusedKeyLocked notes the key of the latest refusal.
func (k ofKey[K]) keepRefusedKeyLocked() {
	s, key := k.s, k.key
	if s.refusedKeys == nil {
		s.refusedKeys = new([keptRefusals]refusedKey[K])
	}
	s.refusedKeys[(s.refusalRing.count-1)%keptRefusals] = refusedKey[K]{key, s.group.refusals.Add(1)}
}

// latestRefusals is Refusals for the refusals that the dispatcher has noted. also is called under
// the lock. The Key of each [Refusal] is its number, for the caller to replace it.
func (d *dispatcher) latestRefusals(also func()) []Refusal {
	var log refusalRing
	d.lockAndAdvance()
	if d.refusalRing != nil {
		log = *d.refusalRing
	}
	also()
	d.unlockAndArm()
	return log.refusals(d, func(i uint64) any { return i })
}

// keepRefusedInLine remembers the refusal, at an instant, of a request that waited. Any other error
// is none. The lock is not held.
func (k ofKey[K]) keepRefusedInLine(r *request, at int64, err error) {
	s := k.s
	if rejected, ok := err.(*RejectError); ok {
		s.lockAndAdvance()
		why := rejection{reason: refusedClosed, retryAfter: rejected.RetryAfter}
		if rejected.Reason == ErrUnavailable {
			why.reason = refusedUnavailable
		}
		s.keepRefusalLocked(at, r.cost, why)
		k.keepRefusedKeyLocked()
		s.unlockAndArm()
	}
}

// noteFailed remembers a call that got no bucket, with its error. The lock is not held.
func (k ofKey[K]) noteFailed(r *request, err error) {
	s, key := k.s, k.key
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	if rejected, ok := err.(*RejectError); ok {
		s.keepRefusalLocked(now, r.cost, rejection{reason: refusedFull, retryAfter: rejected.RetryAfter})
		k.keepRefusedKeyLocked()
	}
	if s.recorded {
		s.recordLocked(s.recordingsOf[key], now, r, decision{err: err, event: refusedEvent})
	}
}
