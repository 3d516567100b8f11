package shaper

// Reload asks for the Limits of all keys that have a bucket again, one after the
// other, and puts them in force at once, for those who wait too, as SetLimits does
// for a Shaper. A key whose Limits can't be had, are not valid, or would change
// InFlight from or to 0 while its bucket is in use, keeps those that it has;
// GroupStats.LimitErrors counts it.
//
// Keys that share a bucket are asked for at each call anyway, and with other Limits
// go to another shared one, which may be new; who waits in the old one leaves as it
// was.
//
// Keys that are new meanwhile get their Limits from a question that was asked after
// Reload was called. It returns when all keys have been asked for, and copies them
// first, under the lock: 20 ms for a million. It must not be called by the function
// that it asks.
func (g *Group[K]) Reload() {
	g.mustBeMade()
	g.reloading <- struct{}{}
	defer func() { <-g.reloading }()
	g.lockAndAdvance()
	g.reloads++
	g.unlockAndArm()
	for _, key := range g.keys() {
		l, err := g.callLimits(key)
		g.reload(key, l, err)
	}
}

// reload puts the Limits of a key in force, if it still has a bucket.
func (g *Group[K]) reload(key K, l Limits, err error) {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	if err != nil {
		g.limitErrors++
		return
	}
	c := g.table[key]
	if c == nil {
		return
	}
	if c.flow.drained(now) {
		g.wheel.remove(c) // Whoever comes next will ask.
		g.forgetLocked(c)
		return
	}
	if c.flow.checkChange(l) != nil {
		g.limitErrors++
		return
	}
	to := g.planLocked(l)
	g.releasePlanLocked(c.flow.bucket.plan)
	c.flow.bucket.idleUntil(now)
	g.changeLocked(&c.flow, to, now)
	g.rescheduleLocked(c)
}
