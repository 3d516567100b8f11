package shaper

import (
	"maps"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// watchLocked puts a bucket into the wheel, so that the sweep looks at it when it is
// drained.
func (g *Group[K]) watchLocked(kf *keyedFlow[K], now, drained int64) {
	at := g.wheel.add(kf, now, drained)
	if at < g.sweepTimer.next {
		g.sweepTimer.next = at
		g.rearm = true
	}
}

// endsLocked returns the instant from which on a bucket will be as a new one, if the requests
// in line stay and no other comes: when it is drained and not blocked any more. While its
// lease is in use, nobody knows.
func (g *Group[K]) endsLocked(f *flow, now int64) int64 {
	at := max(f.drains(now), g.blocks.end(f))
	if g.leaseBusyLocked(f) {
		at = max(at, now+int64(sweepInterval))
	}
	return at
}

// idleLocked reports whether a bucket is as a new one.
func (g *Group[K]) idleLocked(f *flow, now int64) bool {
	return f.drained(now) && g.blocks.end(f) <= now && !g.leaseBusyLocked(f)
}

// rescheduleLocked moves a bucket in the wheel that may be drained earlier than it was
// put there for. A deleted bucket is left alone.
func (g *Group[K]) rescheduleLocked(kf *keyedFlow[K]) {
	if kf.next == nil || g.phase == closed {
		return
	}
	g.wheel.remove(kf)
	g.watchLocked(kf, g.clock, g.endsLocked(&kf.flow, g.clock))
}

// rescheduleAfter is rescheduleLocked after a call that may have given back what it
// took. The lock is not held.
func (g *Group[K]) rescheduleAfter(kf *keyedFlow[K]) {
	g.lockAndAdvance()
	defer g.unlockAndArm()
	g.rescheduleLocked(kf)
}

// sweep is called by the timer. It deletes the buckets that are drained.
func (g *Group[K]) sweep() {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	g.sweepTimer.at = exact.Forever // It has fired.
	g.rearm = true
	if now >= g.sweepTimer.next {
		g.sweepDrainedLocked(now)
	}
}

// sweepDrainedLocked looks at the buckets that may be drained by now, and deletes those
// that are.
func (g *Group[K]) sweepDrainedLocked(now int64) {
	for range sweptAtOnce {
		kf := g.wheel.take(now)
		if kf == nil {
			break
		}
		drained := g.endsLocked(&kf.flow, now)
		if drained > now {
			g.wheel.add(kf, now, drained)
			continue
		}
		g.forgetLocked(kf)
	}
	g.table, g.peakKeys = shrunk(g.table, g.peakKeys)
	g.plans, g.peakPlans = shrunk(g.plans, g.peakPlans)
	g.blocks.shrink()
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

// deleteLocked deletes a bucket that is in the wheel.
func (g *Group[K]) deleteLocked(kf *keyedFlow[K]) {
	g.wheel.remove(kf)
	g.forgetLocked(kf)
}

// forgetLocked deletes a bucket that has been taken out of the wheel.
func (g *Group[K]) forgetLocked(kf *keyedFlow[K]) {
	if kf.home == ownBucket {
		delete(g.table, kf.key)
	} else {
		g.overflow.remove(kf, g.planOfLocked(kf))
	}
	if kf.unlimited {
		g.unlimitedKeys--
	}
	g.blocks.forget(&kf.flow)
	g.releasePlanLocked(g.planOfLocked(kf))
	g.forgetLeaseLocked(kf)
}

// dropClosedLocked is dropAllLocked for a Group that has been closed. It keeps the buckets for
// Snapshot.
func (g *Group[K]) dropClosedLocked() {
	g.lastTable = g.table
	g.dropAllLocked()
}

// dropAllLocked deletes all buckets. Calls that wait for the limits function go on, and
// find the Group closed.
func (g *Group[K]) dropAllLocked() {
	for _, q := range g.limitsCalls {
		q.err = errNoResult
		if q.done != nil {
			close(q.done)
		}
	}
	g.table, g.peakKeys, g.unlimitedKeys = make(map[K]*keyedFlow[K]), 0, 0
	g.limitsCalls, g.peakCalls = make(map[K]*limitsCall), 0
	g.plans, g.peakPlans, g.unused = make(map[Limits]*plan), 0, nil
	g.overflow.rings, g.overflow.len = nil, 0
	g.wheel = wheel[K]{}
	g.sweepTimer.next = exact.Forever
}

// A sweepTimer calls sweep when a bucket of a Group may be drained. It is a timer and
// not a goroutine, so that a Group can be forgotten without Close, and does not keep a
// testing/synctest bubble from ending. The lock of the dispatcher guards it.
type sweepTimer struct {
	sweep func() // what it calls, in a goroutine of its own
	timer *time.Timer
	at    int64 // when the timer fires; forever: never
	next  int64 // when it should fire
}

// arm sets the timer to the instant at which it should fire.
func (b *sweepTimer) arm(now int64) {
	if b.at == b.next {
		return
	}
	b.at = b.next
	switch d := time.Duration(b.next - now); {
	case b.next == exact.Forever:
		b.timer.Stop()
	case b.timer == nil:
		b.timer = time.AfterFunc(d, b.sweep)
	default:
		b.timer.Reset(d)
	}
}
