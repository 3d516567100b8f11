package shaper

import (
	"errors"
	"fmt"
	"runtime"

	"example.com/leakybucket/shaper/internal/keyed"
)

// maxOverrides is how many keys may have limits of their own by [Group.SetLimits] at once,
// which bounds the memory that they take.
const maxOverrides = 1000

// keysAtATime is how many keys get new limits by [Group.Reload] before others may run.
const keysAtATime = 64

// errNaNKey is for a key that could never be found again.
var errNaNKey = errors.New("shaper: a key that does not equal itself, such as NaN, can't have limits of its own")

// SetLimits gives a key limits in place of those that the limits function returns for it, until [Group.ResetLimits],
// and puts them in force as [Shaper.SetLimits] does, with its errors. They are kept while the bucket of the key is
// deleted and made anew, and over a [Group.Reload]. For a key that shares a bucket they hold from its next call on.
// At most 1,000 keys may have such limits at once; one more is an error, and so is a key that does not equal itself,
// such as NaN.
func (g *Group[K]) SetLimits(key K, l Limits) error {
	g.mustBeMade()
	s := g.shardOf(key)
	if err := s.validate(l); err != nil {
		return err
	}
	if key != key {
		return errNaNKey
	}
	return s.override(key, s.planFor(l))
}

// LimitsOf returns the [Limits] that are in force for a key: those of its bucket, if that is in use, and otherwise
// those of its next call. For these the limits function may be called, whose error is returned.
func (g *Group[K]) LimitsOf(key K) (Limits, error) {
	g.mustBeMade()
	s := g.shardOf(key)
	if st, inUse := s.stats(key); inUse {
		return st.Limits, nil
	}
	return s.callLimits(key)
}

// Override returns the [Limits] that [Group.SetLimits] gave a key, if it did.
func (g *Group[K]) Override(key K) (l Limits, ok bool) {
	g.mustBeMade()
	return g.shardOf(key).overrideOf(key)
}

// override is [Group.SetLimits].
func (s *keyShard[K]) override(key K, p *plan) (err error) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	s.changesLocked()
	_, again := s.overrides.Get(key)
	if !again && !keyed.TakeBelow(&s.group.overridden, maxOverrides) {
		return fmt.Errorf("shaper: %d keys have limits of their own by Group.SetLimits, which is the most; ResetLimits ends one", maxOverrides)
	}
	if err := s.putInForceLocked(key, p, now); err != nil {
		if !again {
			s.group.overridden.Add(-1)
		}
		return err
	}
	s.overrides.Set(key, p.limits)
	return nil
}

// ResetLimits ends SetLimits for a key; it does nothing if there was none. If the bucket of the key is in use, the
// limits function is called for the Limits that take their place. If that returns an error or invalid Limits, or
// would change [Limits.InFlight] from or to 0, ResetLimits returns an error and changes nothing.
func (g *Group[K]) ResetLimits(key K) error {
	g.mustBeMade()
	s := g.shardOf(key)
	for {
		l, overridden := s.overrideOf(key)
		if !overridden || s.resetUnused(key) {
			return nil
		}
		s.mu.Lock()
		reloads := s.reloads
		s.mu.Unlock()
		to, err := s.callLimitsFunction(key)
		if err != nil {
			return err
		}
		if done, err := s.resetFrom(key, l, s.planFor(to), reloads); done {
			return err
		}
	}
}

// resetUnused is [Group.ResetLimits] for a key that has no bucket in use. It returns false
// if the key has one. The lock is not held.
func (s *keyShard[K]) resetUnused(key K) bool {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	if s.ownInUseLocked(key, now) {
		return false
	}
	s.deleteOwnLocked(key)
	s.overrides.Delete(key)
	return true
}

// resetFrom puts the [Limits] that the limits function has returned for a key in force. done
// is false if those that it has by [Group.SetLimits] are not from any more, or if a Reload
// has begun since there were so many reloads: earlier results may be the ones that
// the Reload replaces. The lock is not held.
func (s *keyShard[K]) resetFrom(key K, from Limits, to *plan, reloads int) (done bool, err error) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	if l, overridden := s.overrides.Get(key); !overridden || l != from || s.reloads != reloads {
		return false, nil
	}
	if err = s.putInForceLocked(key, to, now); err == nil {
		s.overrides.Delete(key)
	}
	return true, err
}

// ownInUseLocked reports whether a key has a bucket of its own whose limits matter: one that
// is not drained.
func (s *keyShard[K]) ownInUseLocked(key K, now int64) bool {
	kf := s.table.Get(key)
	return kf != nil && !kf.Light && !s.idleLocked(&kf.Value, now)
}

// deleteOwnLocked deletes the bucket of a key, if there is one.
func (s *keyShard[K]) deleteOwnLocked(key K) {
	if kf := s.table.Get(key); kf != nil {
		s.deleteLocked(kf)
	}
}

// putInForceLocked puts the [Limits] of a key in force, if the key has a bucket of its own. A
// bucket that is not in use is deleted: the next call makes one with the new Limits.
func (s *keyShard[K]) putInForceLocked(key K, p *plan, now int64) error {
	if !s.ownInUseLocked(key, now) {
		s.deleteOwnLocked(key)
		return nil
	}
	kf := s.table.Get(key)
	if err := kf.Value.checkChange(p); err != nil {
		return err
	}
	to := s.plans.use(p)
	s.plans.release(kf.Value.givenPlan())
	kf.Value.bucket.idleUntil(now)
	s.changeLocked(&kf.Value, to, now)
	s.rescheduleLocked(kf)
	return nil
}

// overrideOf returns the [Limits] that [Group.SetLimits] gave a key. The lock is not held.
func (s *keyShard[K]) overrideOf(key K) (l Limits, ok bool) {
	if !s.overrides.Any() {
		return l, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok = s.overrides.Get(key)
	return l, ok
}

// Reload calls the limits function again for every key that has a bucket of its own, one after the other, and puts
// the [Limits] that it returns in force, as [Shaper.SetLimits] does; all others get theirs at their next call. A key
// keeps its Limits if the function returns an error or invalid ones, or would change [Limits.InFlight] from or to 0
// while the bucket is in use, which [GroupStats.LimitErrors] counts. Reload returns when it has done all keys. The
// limits function must not call it.
func (g *Group[K]) Reload() {
	g.mustBeMade()
	g.reloading <- struct{}{}
	defer func() { <-g.reloading }()
	for _, s := range g.shards {
		s.beginReload()
	}
	for i, key := range g.shards.keys() {
		if i%keysAtATime == 0 {
			// On a single processor calls would wait for the end of a time slice.
			runtime.Gosched()
		}
		s := g.shardOf(key)
		if s.forgetUnlimited(key) {
			continue
		}
		for !s.reload(key) {
		}
	}
}

// beginReload notes that earlier results of the limits function are stale.
func (s *keyShard[K]) beginReload() {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	s.reloads++
	s.changesLocked()
}

// forgetUnlimited deletes the bucket of a key that needs none, and reports whether there was
// one. The lock is not held.
func (s *keyShard[K]) forgetUnlimited(key K) bool {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.table.Get(key)
	if kf == nil || !kf.Light {
		return false
	}
	s.deleteLocked(kf)
	return true
}

// reload looks up the [Limits] of a key and puts them in force, if the key still has a
// bucket. It reports whether it has done so: else [Group.SetLimits] or [Group.ResetLimits]
// has changed the Limits of the key meanwhile.
func (s *keyShard[K]) reload(key K) (done bool) {
	l, overridden := s.overrideOf(key)
	var err error
	if !overridden {
		l, err = s.callLimitsFunction(key)
	}
	var p *plan
	if err == nil {
		p = s.planFor(l)
	}
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	if s.overrides.Differs(key, l, overridden) {
		return false
	}
	if err != nil || s.putInForceLocked(key, p, now) != nil {
		s.limitErrors++
	}
	return true
}
