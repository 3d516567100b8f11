package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// A Waiter is a request in the line, as [Shaper.Line] shows it.
type Waiter struct {
	Cost int
	// Since is when the request entered the line.
	Since time.Time
	// Leaves is when the request is predicted to leave, if all requests ahead of it stay
	// and nothing changes, as [Shaper.Forecast] predicts for newcomers. With
	// [Limits.InFlight] it is an estimate for all that stand behind the free seats.
	Leaves time.Time
}

// Line returns the first requests in line, at most so many, the next to leave first. A max
// of 0 or less gives none. It takes nothing from the line. It holds the lock for some tens
// of nanoseconds per request, and for 100,000 requests that is milliseconds: so ask for no
// more than is needed. In a dry run it is the line of the shadow.
func (s *Shaper) Line(max int) []Waiter {
	s.mustBeMade()
	line, _ := s.lineOf(max, func() *flow { return &s.flow })
	return line
}

// Line is [Shaper.Line] on the bucket of a key. It makes no bucket: a key that has none
// has no line. For a key that shares a bucket it is the line of all keys that share it;
// to find that bucket, the limits function is called. Once a key has a bucket of its own, its
// requests that still wait in the one it has shared are not shown.
func (g *Group[K]) Line(key K, max int) []Waiter {
	g.mustBeMade()
	line, found := g.shardOf(key).of(key).line(max)
	if found || max <= 0 || g.overflow.Len() == 0 {
		return line
	}
	limits, err := g.shardOf(key).of(key).callLimits()
	if err != nil { // They say which bucket it shares.
		return nil
	}
	if line, found = g.shardOf(key).of(key).line(max); found {
		return line
	}
	line, _ = g.over.lineOf(max, func() *flow {
		if kf := g.over.usedLocked(key, limits); kf != nil {
			return &kf.Value
		}
		return nil
	})
	return line
}

// LineOf is [Group.Line] for a key that has a bucket of its own, and nothing for any other. So
// it never calls the limits function.
func (g *Group[K]) LineOf(key K, max int) []Waiter {
	g.mustBeMade()
	line, _ := g.shardOf(key).of(key).line(max)
	return line
}

// line is LineOf, and reports whether the key has a bucket of its own.
func (k ofKey[K]) line(most int) (line []Waiter, found bool) {
	s, key := k.s, k.key
	return s.lineOf(most, func() *flow {
		if kf := s.table.Get(key); kf != nil {
			return &kf.Value
		}
		return nil
	})
}

// lineOf is Line for the flow that a function finds under the lock, and reports whether there
// is one; if not, the function returns nil.
func (d *dispatcher) lineOf(most int, find func() *flow) (line []Waiter, found bool) {
	if most <= 0 {
		return nil, false
	}
	for {
		now := d.lockAndAdvance()
		f, n := find(), 0
		if f != nil {
			f.bucket.idleUntil(now) // As lockFlow does: while all seats are taken the bucket may have emptied.
			n = min(most, f.waiting())
		}
		if n <= cap(line) {
			line = line[:n]
			if n > 0 {
				f.readLine(d.origin, now, line)
			}
			d.unlockAndArm()
			return line, f != nil
		}
		d.unlockAndArm()
		line = make([]Waiter, 0, min(most, n+n/8)) // Some more may come meanwhile.
	}
}

// readLine fills a slice with the first in the line, which has as many at least.
func (f *flow) readLine(o origin, now int64, line []Waiter) {
	v, ahead, w := f.view(), int64(0), f.line.head
	for i := range line {
		wait := v.leavesIn(now, placed{i + 1, v.leavesAfter(v.bucketInstants, ahead, w.cost)})
		line[i] = Waiter{Cost: int(w.cost), Since: o.timeOf(w.at), Leaves: o.timeOf(exact.Sum(now, int64(wait)))}
		ahead = exact.Sum(ahead, w.cost)
		w = w.next
	}
}
