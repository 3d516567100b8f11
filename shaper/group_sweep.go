package shaper

import (
	"maps"
	"time"
)

// watch sees to it that a bucket is looked at when it is drained.
func (g *Group[K]) watchLocked(c *keyedFlow[K], now, drained int64) {
	at := g.wheel.add(c, now, drained)
	if at < g.sweepTimer.next {
		g.sweepTimer.next = at
		g.rearm = true
	}
}

// replace is watch for a bucket that may be drained sooner than it was to be. One
// that has been deleted is watched no more.
func (g *Group[K]) rescheduleLocked(c *keyedFlow[K]) {
	if c.next == nil || g.phase == closed {
		return
	}
	g.wheel.remove(c)
	g.watchLocked(c, g.clock, c.flow.drains(g.clock))
}

// settleSooner is for the end of a call that may have given back what it took. The
// lock is not held.
func (g *Group[K]) rescheduleAfter(c *keyedFlow[K]) {
	g.lockAndAdvance()
	defer g.unlockAndArm()
	g.rescheduleLocked(c)
}

// sweep deletes the buckets that are drained, when the time has come to look.
func (g *Group[K]) sweep() {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	g.sweepTimer.at = forever // It has gone off.
	g.rearm = true
	if now >= g.sweepTimer.next {
		g.sweepDrainedLocked(now)
	}
}

// sweepDrained is sweep while the lock is held.
func (g *Group[K]) sweepDrainedLocked(now int64) {
	for range sweptAtOnce {
		c := g.wheel.take(now)
		if c == nil {
			break
		}
		drained := c.flow.drains(now)
		if drained > now {
			g.wheel.add(c, now, drained)
			continue
		}
		g.forgetLocked(c)
	}
	g.table, g.peakKeys = shrunk(g.table, g.peakKeys)
	g.plans, g.peakPlans = shrunk(g.plans, g.peakPlans)
	g.sweepTimer.next = g.wheel.next()
}

// shrunk returns m, and how many entries it has had at most. If few of many are left
// it returns a copy instead, because a map keeps the memory for all entries that it
// ever had. Copying so few takes less than half a millisecond.
func shrunk[K comparable, V any](m map[K]V, peak int) (map[K]V, int) {
	n := len(m)
	if peak < 1024 || n > min(peak/16, 4096) {
		return m, peak
	}
	small := make(map[K]V, n)
	maps.Copy(small, m)
	return small, n
}

// forget deletes a bucket, which is in the wheel no more.
func (g *Group[K]) forgetLocked(c *keyedFlow[K]) {
	if c.home == ownBucket {
		delete(g.table, c.key)
	} else {
		g.overflow.remove(c)
	}
	g.releasePlanLocked(c.flow.bucket.plan)
}

// dropAll deletes all buckets, and lets those go on who wait for Limits.
func (g *Group[K]) dropAllLocked() {
	for _, q := range g.limitsCalls {
		q.err = errNoResult
		if q.done != nil {
			close(q.done)
		}
	}
	g.table, g.peakKeys = make(map[K]*keyedFlow[K]), 0
	g.limitsCalls, g.peakCalls = make(map[K]*limitsCall), 0
	g.plans, g.peakPlans, g.unused = make(map[Limits]*plan), 0, nil
	g.overflow.rings, g.overflow.len = nil, 0
	g.wheel = wheel[K]{}
	g.sweepTimer.next = forever
}

// A sweepTimer is the timer by which a Group comes to delete its drained buckets. It is no
// goroutine, so that a Group may be forgotten, and at the end of a testing/synctest
// bubble holds nothing up. The lock of the dispatcher guards it.
type sweepTimer struct {
	sweep func() // what it calls, in a goroutine of its own
	timer *time.Timer
	at    int64 // when it goes off; forever: it does not
	next  int64 // when it should
}

// arm sets the timer to when it should go off.
func (b *sweepTimer) arm(now int64) {
	if b.at == b.next {
		return
	}
	b.at = b.next
	switch d := time.Duration(b.next - now); {
	case b.next == forever:
		b.timer.Stop()
	case b.timer == nil:
		b.timer = time.AfterFunc(d, b.sweep)
	default:
		b.timer.Reset(d)
	}
}
