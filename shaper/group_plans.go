package shaper

// planFor returns the plan of [Limits], which it makes if the shard has none. Making one
// takes much longer than a call. So that a client that can influence the Limits of its key
// does not delay all other keys, the lock is not held.
func (s *keyShard[K]) planFor(l Limits) *plan {
	s.mu.Lock()
	p := s.plans.of(l)
	s.mu.Unlock()
	if p == nil {
		p = s.planOf(l)
	}
	return p
}

// lacksPlanLocked reports whether a bucket would be made for a key with the [Limits] of a
// lookup, and there is no plan of them.
func (s *keyShard[K]) lacksPlanLocked(key K, l *limitsLookup) bool {
	g := s.group
	switch {
	case s.plans.of(l.limits) != nil:
		return false
	case !l.hasOver:
		return true // The key shares no bucket, so it gets one of its own.
	case g.over.plans.of(l.limits) != nil:
		return false
	}
	// No bucket has these Limits that the key could share.
	return limitsNothing(l.limits) || key == key && !g.full() || g.overflow.len.Load() < maxOverflow
}

// planLocked returns the plan of [Limits] for one more bucket, which counts as its user: that
// of the shard, or else the one of a lookup. A plan belongs to one shard, whose lock guards
// its count of users; so of a plan that another shard may have it takes a copy. It returns
// nil if there is none.
func (s *keyShard[K]) planLocked(limits Limits, l *limitsLookup) *plan {
	over := s.group.over
	switch p := s.plans.of(limits); {
	case p != nil:
		return s.usePlanLocked(p)
	case l.plan != nil && l.plan.limits == limits:
		if s == over && s != s.group.shards[0] {
			return s.copyPlanLocked(l.plan)
		}
		return s.usePlanLocked(l.plan)
	case l.hasOver && over.plans.of(limits) != nil:
		return s.copyPlanLocked(over.plans.of(limits))
	}
	return nil
}

// copyPlanLocked is usePlanLocked for a copy of a plan that may belong to another shard, whose
// lock is held, too.
func (s *keyShard[K]) copyPlanLocked(of *plan) *plan {
	p := *of
	p.users = 0
	return s.usePlanLocked(&p)
}

// usePlanLocked returns the plan of the [Limits] of p for one more bucket: p, if the shard
// has none.
func (s *keyShard[K]) usePlanLocked(p *plan) *plan {
	s.offerPlanLocked(p)
	p = s.plans.of(p.limits)
	p.users++
	return p
}

// offerPlanLocked adds a plan that planFor has returned, if the shard has none of its
// [Limits]. Until a bucket uses the plan it is the unused one. A nil p is none.
func (s *keyShard[K]) offerPlanLocked(p *plan) {
	if p == nil || s.plans.of(p.limits) != nil {
		return
	}
	s.plans.add(p)
	p.users++
	s.releasePlanLocked(p)
}

// releasePlanLocked counts one user less of a plan. The last plan that has lost all its
// users is kept, because the next key is likely to need it.
func (s *keyShard[K]) releasePlanLocked(p *plan) {
	if p.users--; p.users > 0 {
		return
	}
	if old := s.unused; old != nil && old != p && old.users == 0 {
		s.plans.remove(old)
	}
	s.unused = p
}
