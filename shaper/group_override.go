package shaper

import (
	"errors"
	"fmt"
)

// maxOverrides is how many keys may have limits of their own by [Group.SetLimits] at once,
// which bounds the memory that they take.
const maxOverrides = 1000

// errNaNKey is for a key that could never be found again.
var errNaNKey = errors.New("shaper: a key that does not equal itself, such as NaN, can't have limits of its own")

// SetLimits gives a key limits in place of those that the limits function returns for it,
// until [Group.ResetLimits]. They are put in force at once, also for requests that wait, as
// [Shaper.SetLimits] does. They are kept while the bucket of the key is deleted and made
// anew, and over a [Group.Reload]. For a key that shares a bucket they hold from its next
// call on, as after a Reload.
//
// The errors are those of Shaper.SetLimits: that of [Limits.Validate], and one if l would
// change [Limits.InFlight] from or to 0 while the bucket is in use. At most 1,000 keys may
// have such limits at once; for one more there is an error, and for a key that does not
// equal itself, such as NaN. With an error nothing changes.
func (g *Group[K]) SetLimits(key K, l Limits) error {
	g.mustBeMade()
	s := g.shardOf(key)
	if err := l.Validate(); err != nil {
		return err
	}
	if key != key {
		return errNaNKey
	}
	return s.override(key, s.planFor(l))
}

// LimitsOf returns the [Limits] that are in force for a key: those of its bucket, if that is in
// use, and otherwise those that its next call gets. For these the limits function is called,
// unless [Group.SetLimits] has given the key its limits. An error of that function is returned.
func (g *Group[K]) LimitsOf(key K) (Limits, error) {
	g.mustBeMade()
	s := g.shardOf(key)
	if st, inUse := s.statsOf(key); inUse {
		return st.Limits, nil
	}
	return s.callLimits(key)
}

// Override returns the [Limits] that [Group.SetLimits] gave a key; ok reports whether there are
// such.
func (g *Group[K]) Override(key K) (l Limits, ok bool) {
	g.mustBeMade()
	return g.shardOf(key).overrideOf(key)
}

// override is [Group.SetLimits].
func (s *keyShard[K]) override(key K, p *plan) (err error) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	s.newVersionLocked()
	_, again := s.overrides[key]
	if !again && !takeBelow(&s.group.overridden, maxOverrides) {
		return fmt.Errorf("shaper: %d keys have limits of their own by Group.SetLimits, which is the most; ResetLimits ends one", maxOverrides)
	}
	if err := s.putInForceLocked(key, p, now); err != nil {
		if !again {
			s.group.overridden.Add(-1)
		}
		return err
	}
	if s.overrides == nil {
		s.overrides = make(map[K]Limits)
	}
	s.overrides[key] = p.limits
	return nil
}

// ResetLimits ends SetLimits for a key: the [Limits] that the limits function returns for it
// are put in force again. It does nothing if SetLimits was not called for the key. If the
// bucket of the key is in use, the limits function is called; if that returns an error or
// invalid Limits, or if they would change [Limits.InFlight] from or to 0, ResetLimits
// returns an error, and nothing changes.
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
	s.forgetOverrideLocked(key)
	return true
}

// resetFrom puts the [Limits] that the limits function has returned for a key in force. done
// is false if those that it has by [Group.SetLimits] are not from any more, or if a Reload
// has begun since there were so many reloads: what was returned before may be what the
// Reload replaces. The lock is not held.
func (s *keyShard[K]) resetFrom(key K, from Limits, to *plan, reloads int) (done bool, err error) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	if l, overridden := s.overrides[key]; !overridden || l != from || s.reloads != reloads {
		return false, nil
	}
	if err = s.putInForceLocked(key, to, now); err == nil {
		s.forgetOverrideLocked(key)
	}
	return true, err
}

// forgetOverrideLocked forgets the [Limits] that [Group.SetLimits] gave a key.
func (s *keyShard[K]) forgetOverrideLocked(key K) {
	if _, overridden := s.overrides[key]; overridden {
		delete(s.overrides, key)
		s.group.overridden.Add(-1)
	}
}

// overrideChangedLocked reports whether [Limits] that were looked up for a key are stale,
// because of [Group.SetLimits] or [Group.ResetLimits]. overridden says that SetLimits had
// given them.
func (s *keyShard[K]) overrideChangedLocked(key K, l Limits, overridden bool) bool {
	if !overridden && len(s.overrides) == 0 {
		return false
	}
	now, ok := s.overrides[key]
	return ok != overridden || ok && now != l
}

// ownInUseLocked reports whether a key has a bucket of its own whose limits matter: one that
// is not drained.
func (s *keyShard[K]) ownInUseLocked(key K, now int64) bool {
	kf := s.table[key]
	return kf != nil && !kf.unlimited && !s.idleLocked(&kf.flow, now)
}

// deleteOwnLocked deletes the bucket of a key, if there is one.
func (s *keyShard[K]) deleteOwnLocked(key K) {
	if kf := s.table[key]; kf != nil {
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
	kf := s.table[key]
	if err := kf.flow.checkChange(p.limits); err != nil {
		return err
	}
	to := s.usePlanLocked(p)
	s.releasePlanLocked(s.planOfLocked(kf))
	kf.flow.bucket.idleUntil(now)
	s.changeLocked(&kf.flow, to, now)
	s.rescheduleLocked(kf)
	return nil
}

// overrideOf returns the [Limits] that [Group.SetLimits] gave a key. The lock is not held.
func (s *keyShard[K]) overrideOf(key K) (l Limits, ok bool) {
	if s.group.overridden.Load() == 0 {
		return l, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok = s.overrides[key]
	return l, ok
}
