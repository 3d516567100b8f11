package shaper

import (
	"iter"
	"time"
)

// GroupStats is what a Group knows of itself at one instant: gauges first, then
// totals over all keys, which only grow and outlive the buckets. A call is counted
// when it returns. One whose Limits could not be had is in LimitErrors only.
type GroupStats struct {
	Name string // as given by WithName

	Keys     int    // that have a bucket of their own; one that is drained counts up to a second longer
	Waiting  int    // requests in all lines
	DryRun   bool   // WithDryRun: the line is a shadow, and totals tell what would have been
	Precise  bool   // as in Stats
	Fallback string // as in Stats

	Departed  uint64 // requests that left
	Refused   uint64 // requests refused; the sum of the next four
	Abandoned uint64 // requests whose context ended before their call returned

	QueueFull uint64 // Refused with ErrQueueFull
	TooLate   uint64 // Refused with ErrTooLate
	TooCostly uint64 // Refused with ErrTooCostly
	Closed    uint64 // Refused with ErrClosed

	TotalWait time.Duration // from admission to slot, summed over Departed
	Missed    float64       // cost units lost to lateness beyond Slack

	Overflowed  uint64 // calls of keys that found the table full and shared a bucket
	RefusedKeys uint64 // about how many different keys have been refused
	LimitErrors uint64 // how often Limits of a key could not be had, or were not valid
}

// Stats returns the state of the Group now. It works on a closed one too.
func (g *Group[K]) Stats() GroupStats {
	g.mustBeMade()
	g.lockAndAdvance()
	defer g.unlockAndArm()
	t := &g.totals
	var by Stats
	by.setRefusals(&t.refused)
	return GroupStats{
		Name:        g.name,
		Keys:        len(g.table),
		Waiting:     g.waiting,
		DryRun:      g.dryRun,
		Precise:     g.ticker.precise,
		Fallback:    g.ticker.failure,
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
}

// All tells the keys that have a bucket of their own which is not drained, in no
// order, with what is known of it: totals count since it was made. The keys are
// copied first, under the lock (20 ms for a million); then it is held for one after
// the other, and not while the loop body runs, so that this may call any method, and
// what it sees of two keys may be of two instants.
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

// Top tells which keys meet their limits most: the n with the most calls that were
// refused or had to wait, or would have in a dry run, most first. It remembers them
// when their buckets are gone, in fixed memory (m is 1,024); KeyCount says how exact
// it is.
func (g *Group[K]) Top(n int) []KeyCount[K] {
	g.mustBeMade()
	return g.limited.top(n)
}

// keys are those in the table.
func (g *Group[K]) keys() []K {
	g.lockAndAdvance()
	defer g.unlockAndArm()
	keys := make([]K, 0, len(g.table))
	for key := range g.table {
		keys = append(keys, key)
	}
	return keys
}

// statsOf is what is known of the bucket of a key, if it has one.
func (g *Group[K]) statsOf(key K) (st Stats, ok bool) {
	now := g.lockAndAdvance()
	defer g.unlockAndArm()
	c := g.table[key]
	if c == nil || c.flow.drained(now) {
		return st, false
	}
	c.flow.bucket.idleUntil(now)
	return g.statsLocked(&c.flow, now), true
}
