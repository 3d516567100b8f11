package shaper

// Reload calls the limits function again for every key that has a bucket of its own,
// one key after the other, and puts the [Limits] that it returns in force at once, also
// for requests that wait, as [Shaper.SetLimits] does. A key keeps the Limits that it
// has if the function returns an error or invalid Limits, or Limits that would change
// InFlight from or to 0 while its bucket is in use; [GroupStats].LimitErrors counts
// these keys.
//
// For a key at rate.Inf without a cap the function is called at the key's next call. For a
// key that shares a bucket it is called at each call anyway. When its Limits change, the
// key goes to another shared bucket, which may be a new one. Requests that wait or are in
// flight in the old one stay there, and do not count in the new one.
//
// A key that is new while Reload runs gets Limits for which the function was called
// after Reload began. Reload returns when it has done all keys. It copies them first, a
// thousand at a time under the lock. The limits function must not call Reload.
func (g *Group[K]) Reload() {
	g.mustBeMade()
	g.reloading <- struct{}{}
	defer func() { <-g.reloading }()
	g.lockAndAdvance()
	g.reloads++
	g.newVersionLocked()
	g.unlockAndArm()
	for _, key := range g.keys() {
		if g.forgetUnlimited(key) {
			continue
		}
		for !g.reload(key) {
		}
	}
}

// forgetUnlimited deletes the bucket of a key that needs none, and reports whether there was
// one. The lock is not held.
func (g *Group[K]) forgetUnlimited(key K) bool {
	g.lockAndAdvance()
	defer g.unlockAndArm()
	kf := g.table[key]
	if kf == nil || !kf.unlimited {
		return false
	}
	g.deleteLocked(kf)
	return true
}

// reload looks up the Limits of a key and puts them in force, if the key still has a bucket.
// It reports whether it has done so: else SetLimits or ResetLimits has changed the Limits of
// the key meanwhile.
func (g *Group[K]) reload(key K) (done bool) {
	l, overridden := g.overrideOf(key)
	var err error
	if !overridden {
		l, err = g.callLimitsFunction(key)
	}
	var p *plan
	if err == nil {
		p = g.planFor(l)
	}
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	if g.overrideChangedLocked(key, l, overridden) {
		return false
	}
	if err != nil || g.putInForceLocked(key, p, now) != nil {
		g.limitErrors++
	}
	return true
}
