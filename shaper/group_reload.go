package shaper

// Reload calls the limits function again for every key that has a bucket of its own,
// one key after the other, and puts the [Limits] that it returns in force at once, also
// for requests that wait, as [Shaper.SetLimits] does. A key keeps the Limits that it
// has if the function returns an error or invalid Limits, or Limits that would change
// [Limits.InFlight] from or to 0 while its bucket is in use; [GroupStats.LimitErrors] counts
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
	for _, s := range g.shards {
		s.beginReload()
	}
	for _, key := range g.keys() {
		s := g.shardOf(key)
		if s.forgetUnlimited(key) {
			continue
		}
		for !s.reload(key) {
		}
	}
}

// beginReload notes that what the limits function has returned so far is stale.
func (s *keyShard[K]) beginReload() {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	s.reloads++
	s.newVersionLocked()
}

// forgetUnlimited deletes the bucket of a key that needs none, and reports whether there was
// one. The lock is not held.
func (s *keyShard[K]) forgetUnlimited(key K) bool {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.table[key]
	if kf == nil || !kf.unlimited {
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
	if s.overrideChangedLocked(key, l, overridden) {
		return false
	}
	if err != nil || s.putInForceLocked(key, p, now) != nil {
		s.limitErrors++
	}
	return true
}
