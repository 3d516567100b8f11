package shaper

import (
	"errors"
	"fmt"
)

// maxOverrides is how many keys may have limits of their own by SetLimits at once, which
// bounds the memory that they take.
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
// change InFlight from or to 0 while the bucket is in use. At most 1,000 keys may have such
// limits at once; for one more there is an error, and for a key that does not equal itself, such
// as NaN. With an error nothing changes.
func (g *Group[K]) SetLimits(key K, l Limits) error {
	g.mustBeMade()
	mustBeComparable(key)
	if err := l.Validate(); err != nil {
		return err
	}
	if key != key {
		return errNaNKey
	}
	p := g.planFor(l)
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	g.newVersionLocked()
	if _, again := g.overrides[key]; !again && len(g.overrides) >= maxOverrides {
		return fmt.Errorf("shaper: %d keys have limits of their own by Group.SetLimits, which is the most; ResetLimits ends one", maxOverrides)
	}
	if err := g.putInForceLocked(key, p, now); err != nil {
		return err
	}
	if g.overrides == nil {
		g.overrides = make(map[K]Limits)
	}
	g.overrides[key] = l
	g.overridden.Store(true)
	return nil
}

// ResetLimits ends SetLimits for a key: the Limits that the limits function returns for it
// are put in force again. It does nothing if SetLimits was not called for the key. If the
// bucket of the key is in use, the limits function is called; if that returns an error or
// invalid Limits, or if they would change InFlight from or to 0, ResetLimits returns an
// error, and nothing changes.
func (g *Group[K]) ResetLimits(key K) error {
	g.mustBeMade()
	mustBeComparable(key)
	for {
		l, overridden := g.overrideOf(key)
		if !overridden || g.resetUnused(key) {
			return nil
		}
		g.mu.Lock()
		reloads := g.reloads
		g.mu.Unlock()
		to, err := g.callLimitsFunction(key)
		if err != nil {
			return err
		}
		if done, err := g.resetFrom(key, l, g.planFor(to), reloads); done {
			return err
		}
	}
}

// resetUnused is ResetLimits for a key that has no bucket in use. It returns false if the key
// has one. The lock is not held.
func (g *Group[K]) resetUnused(key K) bool {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	if g.ownInUseLocked(key, now) {
		return false
	}
	g.deleteOwnLocked(key)
	g.forgetOverrideLocked(key)
	return true
}

// resetFrom puts the Limits that the limits function has returned for a key in force. done
// is false if those that it has by SetLimits are not from any more, or if a Reload has begun
// since there were so many reloads: what was returned before may be what the Reload replaces.
// The lock is not held.
func (g *Group[K]) resetFrom(key K, from Limits, to *plan, reloads int) (done bool, err error) {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	if l, overridden := g.overrides[key]; !overridden || l != from || g.reloads != reloads {
		return false, nil
	}
	if err = g.putInForceLocked(key, to, now); err == nil {
		g.forgetOverrideLocked(key)
	}
	return true, err
}

// forgetOverrideLocked forgets the Limits that SetLimits gave a key.
func (g *Group[K]) forgetOverrideLocked(key K) {
	delete(g.overrides, key)
	g.overridden.Store(len(g.overrides) > 0)
}

// overrideChangedLocked reports whether Limits that were looked up for a key are stale,
// because of SetLimits or ResetLimits. overridden says that SetLimits had given them.
func (g *Group[K]) overrideChangedLocked(key K, l Limits, overridden bool) bool {
	if !overridden && len(g.overrides) == 0 {
		return false
	}
	now, ok := g.overrides[key]
	return ok != overridden || ok && now != l
}

// ownInUseLocked reports whether a key has a bucket of its own whose limits matter: one that
// is not drained.
func (g *Group[K]) ownInUseLocked(key K, now int64) bool {
	kf := g.table[key]
	return kf != nil && !kf.unlimited && !g.idleLocked(&kf.flow, now)
}

// deleteOwnLocked deletes the bucket of a key, if there is one.
func (g *Group[K]) deleteOwnLocked(key K) {
	if kf := g.table[key]; kf != nil {
		g.deleteLocked(kf)
	}
}

// putInForceLocked puts the Limits of a key in force, if the key has a bucket of its own. A
// bucket that is not in use is deleted: the next call makes one with the new Limits.
func (g *Group[K]) putInForceLocked(key K, p *plan, now int64) error {
	if !g.ownInUseLocked(key, now) {
		g.deleteOwnLocked(key)
		return nil
	}
	kf := g.table[key]
	if err := kf.flow.checkChange(p.limits); err != nil {
		return err
	}
	g.offerPlanLocked(p)
	to := g.planLocked(p.limits)
	g.releasePlanLocked(g.planOfLocked(kf))
	kf.flow.bucket.idleUntil(now)
	g.changeLocked(&kf.flow, to, now)
	g.rescheduleLocked(kf)
	return nil
}

// overrideOf returns the Limits that SetLimits gave a key. The lock is not held.
func (g *Group[K]) overrideOf(key K) (l Limits, ok bool) {
	if !g.overridden.Load() {
		return l, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok = g.overrides[key]
	return l, ok
}
