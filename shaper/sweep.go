package shaper

import "maps"

// watch sees to it that a bucket is looked at when it is drained.
func (g *Group[K]) watch(c *cell[K], now, drained int64) {
	at := g.wheel.add(c, now, drained)
	if at < g.broom.next {
		g.broom.next = at
		g.changed = true
	}
}

// replace is watch for a bucket that may be drained sooner than it was to be. One
// that has been deleted is watched no more.
func (g *Group[K]) replace(c *cell[K]) {
	if c.next == nil || g.phase == closed {
		return
	}
	g.wheel.remove(c)
	g.watch(c, g.clock, c.lane.drains(g.clock))
}

// settleSooner is for the end of a call that may have given back what it took. The
// lock is not held.
func (g *Group[K]) settleSooner(c *cell[K]) {
	g.lock()
	defer g.unlock()
	g.replace(c)
}

// sweep deletes the buckets that are drained, when the time has come to look.
func (g *Group[K]) sweep() {
	now := g.lock()
	defer g.unlock()
	g.broom.at = forever // It has gone off.
	g.changed = true
	if now >= g.broom.next {
		g.sweepDrained(now)
	}
}

// sweepDrained is sweep while the lock is held.
func (g *Group[K]) sweepDrained(now int64) {
	for range sweptAtOnce {
		c := g.wheel.take(now)
		if c == nil {
			break
		}
		drained := c.lane.drains(now)
		if drained <= now && c.place != ownBucket && g.overflow.passed(int(c.place), now) {
			drained = forever // In a gap a key would find no trace of its bucket behind it.
		}
		if drained > now {
			g.wheel.add(c, now, drained)
			continue
		}
		g.forget(c)
	}
	if n := len(g.table); g.most >= 1024 && n <= min(g.most/16, 4096) {
		// A map keeps the room of all that it ever held. To copy so few takes less
		// than half a millisecond.
		table := make(map[K]*cell[K], n)
		maps.Copy(table, g.table)
		g.table, g.most = table, n
	}
	g.broom.next = g.wheel.next()
}

// forget deletes a bucket, which is in the wheel no more.
func (g *Group[K]) forget(c *cell[K]) {
	g.release(c.lane.bucket.plan)
	if c.place == ownBucket {
		delete(g.table, c.key)
	} else {
		g.overflow.cells[c.place] = nil
	}
}

// dropAll deletes all buckets, and lets those go on who wait for Limits.
func (g *Group[K]) dropAll() {
	for _, q := range g.asking {
		q.err = errUnanswered
		if q.done != nil {
			close(q.done)
		}
	}
	g.table, g.most = make(map[K]*cell[K]), 0
	g.asking, g.mostAsking = make(map[K]*question), 0
	g.plans, g.unused = make(map[Limits]*plan), nil
	g.overflow.cells = nil
	g.wheel = wheel[K]{}
	g.broom.next = forever
}
