package shaper

import (
	"iter"
	"time"
)

// GroupStats is the state of a [Group] at one instant: gauges first, then totals over
// all keys, which only grow and outlive the buckets. A call is counted when it returns.
// A call that got no [Limits] is counted in LimitErrors only.
type GroupStats struct {
	Name string // as given by WithName

	Keys     int    // keys that count against WithMaxKeys: that have a bucket of their own, or had one until it was drained, up to a second ago
	Waiting  int    // requests in all lines
	DryRun   bool   // WithDryRun: the line is a shadow, and the totals are what would have been
	Precise  bool   // as in Stats
	Fallback string // as in Stats

	Departed  uint64 // requests that left
	Refused   uint64 // requests refused; the sum of the next five
	Abandoned uint64 // requests whose context ended before their call returned

	QueueFull uint64 // Refused with ErrQueueFull
	TooLate   uint64 // Refused with ErrTooLate
	TooCostly uint64 // Refused with ErrTooCostly
	Closed    uint64 // Refused with ErrClosed

	Unavailable uint64 // Refused with ErrUnavailable

	TotalWait time.Duration // from admission to slot, summed over Departed
	Missed    float64       // cost units lost to lateness beyond Slack

	Overflowed  uint64 // calls that shared a bucket or found none to share, mostly as the table was full; a Hold is no such call
	RefusedKeys uint64 // about how many different keys have been refused
	LimitErrors uint64 // how often the limits function returned an error or invalid Limits, or Reload could not use them

	Bucket BucketStats // of the shared bucket; zero without WithBuckets
}

// Stats returns the state of the Group now. It works on a closed Group too.
func (g *Group[K]) Stats() GroupStats {
	g.mustBeMade()
	g.lockAndAdvance()
	defer g.unlockAndArm()
	t := &g.totals
	var by Stats
	by.setRefusals(&t.refused)
	st := GroupStats{
		Name:        g.name,
		Keys:        len(g.table) - g.unlimitedKeys,
		Waiting:     int(g.waiting),
		DryRun:      g.isDryRun(),
		Departed:    t.departed,
		Refused:     by.Refused,
		Abandoned:   t.abandoned,
		QueueFull:   by.QueueFull,
		TooLate:     by.TooLate,
		TooCostly:   by.TooCostly,
		Closed:      by.Closed,
		TotalWait:   time.Duration(t.wait),
		Missed:      t.missed,
		Overflowed:  g.overflowed,
		RefusedKeys: g.limited.refusedKeys(),
		LimitErrors: g.limitErrors,
	}
	st.Precise, st.Fallback = g.ticker.precision()
	if g.shared != nil {
		st.Bucket, st.Unavailable = g.shared.stats(), g.shared.unavailable
		st.Refused += st.Unavailable
	}
	return st
}

// All returns an iterator over the keys that have a bucket of their own which is not
// drained, in no particular order, with the [Stats] of the bucket, whose totals count
// since it was made. The keys are copied first, a thousand at a time under the lock. The
// lock is not held while the loop body runs, so the body may call any method, and the
// Stats of two keys may be of two instants.
func (g *Group[K]) All() iter.Seq2[K, Stats] {
	g.mustBeMade()
	return func(yield func(K, Stats) bool) {
		for _, key := range g.keys() {
			st, ok := g.statsOf(key)
			if ok && !yield(key, st) {
				return
			}
		}
	}
}

// keysAtOnce is how many keys are copied while the lock is held. It takes some tens of
// microseconds, and a million at once would delay every departure meanwhile.
const keysAtOnce = 1000

// keys returns the keys that are in the table all the while, and perhaps others. Between
// two slices of keys the table may change, as that of a range statement may in its body,
// or be replaced: then the old one still has all the keys that were in it.
func (g *Group[K]) keys() []K {
	g.mu.Lock()
	table := g.table
	count := len(table)
	g.mu.Unlock()
	keys := make([]K, 0, count) // which takes long enough for many keys that the lock is not held meanwhile
	g.lockAndAdvance()
	for key := range table {
		if len(keys)%keysAtOnce == keysAtOnce-1 {
			g.unlockAndArm()
			g.lockAndAdvance()
		}
		keys = append(keys, key)
	}
	g.unlockAndArm()
	return keys
}

// statsOf returns the Stats of the bucket of a key, and whether it has one that is not
// drained.
func (g *Group[K]) statsOf(key K) (st Stats, ok bool) {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	kf := g.table[key]
	if kf == nil || g.idleLocked(&kf.flow, now) {
		return st, false
	}
	kf.flow.bucket.idleUntil(now)
	return g.statsLocked(&kf.flow, now), true
}
