package shaper

import (
	"iter"
	"slices"
	"time"
)

// GroupStats is the state of a [Group]: gauges first, then totals over all keys, which only
// grow and outlive the buckets. A call is counted when it returns. A call that got no
// [Limits] is counted in LimitErrors only.
//
// The keys of a Group are in several parts, each with a lock of its own, and [Group.Stats]
// looks at one part after the other. So it may count some of the calls that return
// meanwhile and not others. While no call runs, the numbers are those of one instant.
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
	st := GroupStats{Name: g.over.name, Keys: int(g.counts.Heavy.Load()), DryRun: g.over.isDryRun(), RefusedKeys: g.limited.RefusedKeys()}
	st.Precise, st.Fallback = g.ticker.precision()
	var sum totals
	for _, s := range g.all {
		s.addStats(&st, &sum)
	}
	var by Stats
	by.setRefusals(&sum.refused)
	st.Departed, st.Abandoned = sum.departed, sum.abandoned
	st.TotalWait, st.Missed = time.Duration(sum.wait), sum.missed
	st.QueueFull, st.TooLate, st.TooCostly, st.Closed = by.QueueFull, by.TooLate, by.TooCostly, by.Closed
	st.Unavailable, st.Refused = by.Unavailable, by.Refused
	return st
}

// StatsOf is [Shaper.Stats] for the bucket of a key; ok reports whether the key has one of its
// own. It never calls the limits function, and makes no bucket. On a closed Group it tells of
// a bucket without limits that refuses everything, and ok is true for each key.
func (g *Group[K]) StatsOf(key K) (st Stats, ok bool) {
	g.mustBeMade()
	ok = g.shardOf(key).of(key).withOwnFlow(func(d *dispatcher, f *flow, now int64) { st = d.statsLocked(f, now) })
	return st, ok
}

// addStats adds the state of a shard to that of the [Group], and its totals to sum.
func (s *keyShard[K]) addStats(st *GroupStats, sum *totals) {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	sum.add(s.totals)
	st.Waiting += int(s.waiting)
	st.Overflowed += s.overflowed
	st.LimitErrors += s.limitErrors
	if s.shared != nil {
		st.Bucket = s.shared.stats()
	}
}

// All returns an iterator over the keys that have a bucket of their own which is not
// drained, in no particular order, with the [Stats] of the bucket, whose totals count
// since it was made. The keys are copied first, a thousand at a time under the lock. The
// lock is not held while the loop body runs, so the body may call any method, and the
// Stats of two keys may be of two instants.
func (g *Group[K]) All() iter.Seq2[K, Stats] {
	g.mustBeMade()
	return func(yield func(K, Stats) bool) {
		for _, key := range g.shards.keys() {
			st, ok := g.shardOf(key).of(key).stats()
			if ok && !yield(key, st) {
				return
			}
		}
	}
}

// keysAtOnce is how many keys are copied while the lock is held. It takes some tens of
// microseconds, and a million at once would delay every departure meanwhile.
const keysAtOnce = 1000

// keys returns the keys that are in the tables all the while, and perhaps others.
func (all shards[K]) keys() (keys []K) {
	for _, s := range all {
		keys = s.appendKeys(keys)
	}
	return keys
}

// appendKeys appends the keys of a shard. Between two slices of keys the table may change, as
// that of a range statement may in its body, or be replaced: then the old one still has all
// the keys that were in it.
func (s *keyShard[K]) appendKeys(keys []K) []K {
	s.mu.Lock()
	table := s.table.Entries()
	count := len(table)
	s.mu.Unlock()
	keys = slices.Grow(keys, count) // which takes long enough for many keys that the lock is not held meanwhile
	s.lockAndAdvance()
	for key := range table {
		if len(keys)%keysAtOnce == keysAtOnce-1 {
			s.unlockAndArm()
			s.lockAndAdvance()
		}
		keys = append(keys, key)
	}
	s.unlockAndArm()
	return keys
}

// stats returns the [Stats] of the bucket of a key, and whether it has one that is not
// drained.
func (k ofKey[K]) stats() (st Stats, ok bool) {
	s, key := k.s, k.key
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.table.Get(key)
	if kf == nil || s.idleLocked(&kf.Value, now) {
		return st, false
	}
	kf.Value.bucket.idleUntil(now)
	return s.statsLocked(&kf.Value, now), true
}

// KeyCount is how many calls of one key met its limit: were refused, or had to wait,
// or in a dry run would have. It is as exact as a fixed number m of counters can be.
// With N such calls of all keys together:
//
//   - Count is never below the true number, and above it by at most Error, so
//     that Count − Error calls are certain.
//   - Error is at most N/m, and 0 for all until there have been more than m
//     different keys.
//   - A key with more than N/m such calls has one of the counters.
type KeyCount[K comparable] struct {
	Key   K
	Count uint64
	Error uint64
}

// Top returns the n keys that meet their limits most: those with the most calls that
// were refused or had to wait, or in a dry run would have, most first. It remembers
// keys whose buckets are gone, in fixed memory; [KeyCount] says how exact it is, with
// m = 1,024.
func (g *Group[K]) Top(n int) []KeyCount[K] {
	g.mustBeMade()
	counts := g.limited.Top(n)
	if counts == nil {
		return nil
	}
	top := make([]KeyCount[K], len(counts))
	for i, c := range counts {
		top[i] = KeyCount[K](c)
	}
	return top
}
