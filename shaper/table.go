package shaper

// settleIn returns the bucket for a key whose Limits are known, made if there is
// none. With an error it has unlocked.
func (g *Group[K]) settleIn(key K, l Limits, now int64) (*cell[K], error) {
	c := g.table[key]
	switch {
	case g.phase != open:
		return &g.none, nil
	case c != nil:
	case len(g.table) < g.maxKeys:
		c = g.newCell(l, now)
		c.key = key
		if shared, _ := g.overflowing(key, l); shared != nil {
			c.lane.succeed(&shared.lane)
		}
		g.table[key] = c
		g.most = max(g.most, len(g.table))
	default:
		return g.share(key, l, now)
	}
	c.lane.bucket.rest(now)
	return c, nil
}

// share returns a bucket for a key that is to share one. With an error it has
// unlocked.
func (g *Group[K]) share(key K, l Limits, now int64) (*cell[K], error) {
	if g.phase != open {
		return &g.none, nil
	}
	g.overflowed++
	p := g.plan(l)
	c, at, reach := g.overflow.of(key, p)
	if at < 0 {
		g.release(p)
		g.totals.refused[refusedFull]++
		g.unlock()
		return nil, noPlace()
	}
	if c == nil {
		c = g.newCell(l, now)
		c.place = int16(at)
		g.overflow.cells[at] = c
	}
	g.overflow.reached(c, reach)
	g.release(p)
	c.lane.bucket.rest(now)
	return c, nil
}

// newCell makes a bucket with those Limits.
func (g *Group[K]) newCell(l Limits, now int64) *cell[K] {
	c := &cell[K]{lane: lane{bucket: bucket{plan: g.plan(l)}, entered: -1}, place: ownBucket}
	g.watch(c, now, now) // It is drained until it is used.
	return c
}

// plan returns the plan of Limits, and counts one more that uses it.
func (g *Group[K]) plan(l Limits) *plan {
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
func (g *Group[K]) release(p *plan) {
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
func (g *Group[K]) look(key K, f func(l *lane, now int64)) error {
	if g.lookUp(key, f) {
		return nil
	}
	limits, err := g.ask(key)
	if err != nil {
		g.mu.Lock()
		g.limitErrors++
		g.mu.Unlock()
		return err
	}
	if g.lookUp(key, f) {
		return nil
	}
	now := g.lock()
	defer g.unlock()
	l := &lane{bucket: newBucket(limits), entered: -1}
	shared, none := g.overflowing(key, limits)
	switch {
	case g.shares(key) && none:
		return noPlace()
	case g.shares(key) && shared != nil:
		l = &shared.lane
	case shared != nil:
		l.succeed(&shared.lane)
	}
	l.bucket.rest(now)
	f(l, now)
	return nil
}

// lookUp lets f see the bucket of a key if it has one, or if there will be no more.
func (g *Group[K]) lookUp(key K, f func(l *lane, now int64)) bool {
	now := g.lock()
	defer g.unlock()
	c := g.table[key]
	switch {
	case c != nil:
	case g.phase != open:
		c = &g.none
	default:
		return false
	}
	c.lane.bucket.rest(now)
	f(&c.lane, now)
	return true
}

// overflowing is the bucket that a key with these Limits shares with others while it
// has none of its own, if there is one; none says that there is no place for one.
func (g *Group[K]) overflowing(key K, l Limits) (c *cell[K], none bool) {
	if g.overflow.cells == nil {
		return nil, false
	}
	c, at, _ := g.overflow.of(key, g.plans[l])
	return c, at < 0
}

// shares says whether a call of a key that has no bucket would share one.
func (g *Group[K]) shares(key K) bool { return key != key || len(g.table) >= g.maxKeys }

// noPlace is the refusal of a key for which there is no place in the overflow.
func noPlace() *RejectError { return &RejectError{Reason: ErrQueueFull, RetryAfter: spokeTime} }
