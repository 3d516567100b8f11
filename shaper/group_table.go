package shaper

// settleIn returns the bucket for a key whose Limits are known, made if there is
// none. With an error it has unlocked.
func (g *Group[K]) insert(key K, l Limits, now int64) (*keyedFlow[K], error) {
	c := g.table[key]
	switch {
	case g.phase != open:
		return &g.closedFlow, nil
	case c != nil:
	case len(g.table) < g.maxKeys:
		c = g.newFlowLocked(l, now)
		c.key = key
		if shared, _ := g.overflowLocked(key, l); shared != nil {
			c.flow.inheritFrom(&shared.flow)
		}
		g.table[key] = c
		g.peakKeys = max(g.peakKeys, len(g.table))
	default:
		return g.insertShared(key, l, now)
	}
	c.flow.bucket.idleUntil(now)
	return c, nil
}

// share returns a bucket for a key that is to share one. With an error it has
// unlocked.
func (g *Group[K]) insertShared(key K, l Limits, now int64) (*keyedFlow[K], error) {
	if g.phase != open {
		return &g.closedFlow, nil
	}
	g.overflowed++
	p := g.planLocked(l)
	c, index, probes := g.overflow.find(key, p)
	if index < 0 {
		g.releasePlanLocked(p)
		g.totals.refused.count(refusedFull)
		g.unlockAndArm()
		return nil, noPlace()
	}
	if c == nil {
		c = g.newFlowLocked(l, now)
		c.index = int16(index)
		g.overflow.flows[index] = c
	}
	g.overflow.noteProbes(c, probes)
	g.releasePlanLocked(p)
	c.flow.bucket.idleUntil(now)
	return c, nil
}

// newCell makes a bucket with those Limits.
func (g *Group[K]) newFlowLocked(l Limits, now int64) *keyedFlow[K] {
	c := &keyedFlow[K]{flow: flow{bucket: bucket{plan: g.planLocked(l)}, entered: -1}, index: ownBucket}
	g.watchLocked(c, now, now) // It is drained until it is used.
	return c
}

// plan returns the plan of Limits, and counts one more that uses it.
func (g *Group[K]) planLocked(l Limits) *plan {
	p := g.plans[l]
	if p == nil {
		p = planOf(l)
		g.plans[l] = p
	}
	p.users++
	return p
}

// release counts one less that uses a plan. One that nobody uses any more is kept,
// as the next key is likely to want it.
func (g *Group[K]) releasePlanLocked(p *plan) {
	if p.users--; p.users > 0 {
		return
	}
	if old := g.unused; old != nil && old != p && old.users == 0 {
		delete(g.plans, old.limits)
	}
	g.unused = p
}

// look lets f see the bucket of a key, without making one: for a key that has none,
// one that is as it would be.
func (g *Group[K]) withFlow(key K, see func(f *flow, now int64)) error {
	if g.withOwnFlow(key, see) {
		return nil
	}
	limits, err := g.callLimits(key)
	if err != nil {
		g.mu.Lock()
		g.limitErrors++
		g.mu.Unlock()
		return err
	}
	if g.withOwnFlow(key, see) {
		return nil
	}
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	f := &flow{bucket: newBucket(limits), entered: -1}
	shared, none := g.overflowLocked(key, limits)
	switch {
	case g.sharesLocked(key) && none:
		return noPlace()
	case g.sharesLocked(key) && shared != nil:
		f = &shared.flow
	case shared != nil:
		f.inheritFrom(&shared.flow)
	}
	f.bucket.idleUntil(now)
	see(f, now)
	return nil
}

// lookUp lets f see the bucket of a key if it has one, or if there will be no more.
func (g *Group[K]) withOwnFlow(key K, see func(f *flow, now int64)) bool {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	c := g.table[key]
	switch {
	case c != nil:
	case g.phase != open:
		c = &g.closedFlow
	default:
		return false
	}
	c.flow.bucket.idleUntil(now)
	see(&c.flow, now)
	return true
}

// overflowing is the bucket that a key with these Limits shares with others while it
// has none of its own, if there is one; none says that there is no place for one.
func (g *Group[K]) overflowLocked(key K, l Limits) (c *keyedFlow[K], none bool) {
	if g.overflow.flows == nil {
		return nil, false
	}
	c, index, _ := g.overflow.find(key, g.plans[l])
	return c, index < 0
}

// shares says whether a call of a key that has no bucket would share one.
func (g *Group[K]) sharesLocked(key K) bool { return key != key || len(g.table) >= g.maxKeys }

// noPlace is the refusal of a key for which there is no place in the overflow.
func noPlace() *RejectError { return &RejectError{Reason: ErrQueueFull, RetryAfter: spokeTime} }

// A cell is a flow of a Group, with its key.
type keyedFlow[K comparable] struct {
	flow flow
	key  K // of an overflow bucket: none

	prev, next *keyedFlow[K] // in the wheel; nil: it is not in there any more
	spoke      uint8         // of the wheel
	index      int16         // of an overflow bucket; ownBucket: it is that of a key
	probes     int16         // of an overflow bucket: how far from their own places keys have found it
}

const ownBucket = -1
