package shaper

import (
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
	"example.com/leakybucket/shaper/watch"
)

// Stats is the state of a [Shaper] at one instant: first gauges, then totals, which only grow. A call is counted
// when it returns. So while no call is between its slot and its return, Departed + Refused + Abandoned + Waiting is
// the number of calls that had a live context and a cost above 0. A retry of a [Transport] counts as one more call.
//
// Free is the greatest cost up to [Limits.Burst] with which [Shaper.AllowN] would let a request leave now; at
// [rate.Inf] it is [math.MaxInt]. With a [shared.Bucket] Free and EmptyAt are estimates.
type Stats struct {
	Name   string // set by WithName
	Limits Limits // as they were given: a Burst of 0 stays 0

	Waiting       int           // requests in the line
	Level         float64       // the level of the bucket, in cost units
	Free          int           // cost units that may leave at once
	EmptyAt       time.Time     // when the level will be 0, if no request leaves before; zero if it is 0 now
	Keys          int           // keys that have requests in line; 0 without WithFairQueue
	OldestWait    time.Duration // how long the head of the line has waited, and WithFairQueue any request; a retry of a Transport starts at 0
	InFlight      int           // requests that have left and not ended; 0 without a cap
	Reserved      int           // cost units of requests that have left by Reserve and are not settled
	DryRun        bool          // WithDryRun is set: the numbers are the shadow's
	HeldUntil     time.Time     // no request leaves before; zero if the line is not held
	BlockedUntil  time.Time     // newcomers are refused until then, because of WithBlock; zero if the bucket is not blocked
	LastCall      time.Time     // when the latest call that has been counted came; zero if there was none
	LastRefusal   time.Time     // when the latest request was refused that is counted in Refused; zero if none was
	Precise       bool          // the ticker waits on a kernel timer (tens of microseconds), not on a Go timer
	NoKernelTimer string        // why no kernel timer could be had when one was last wanted; empty if one was had, or none wanted, as in a synctest bubble

	Departed  uint64 // requests that left
	Refused   uint64 // requests refused; the sum of the next five
	Abandoned uint64 // requests whose context ended before their call returned

	QueueFull, TooLate, TooCostly, Closed, Unavailable uint64 // Refused, by reason: with ErrQueueFull, and so on

	TotalWait time.Duration // the sum of the waits of Departed, from admission until each was given its slot
	Missed    float64       // cost units lost to lateness beyond Limits.Slack
	GivenBack uint64        // cost units that settle has given back, each time rounded down
	Charged   uint64        // cost units that settle has charged
	Forfeited uint64        // cost units that were reserved too much and had drained when settle was called; at rate.Inf, all that were

	Bucket shared.Stats // of the shared bucket; zero without WithBucket
}

// setRefusals sets the fields that count refusals.
func (st *Stats) setRefusals(by *refusals) {
	st.QueueFull, st.TooLate = by.of(refusedFull), by.of(refusedLate)
	st.TooCostly, st.Closed = by.of(refusedCostly), by.of(refusedClosed)
	st.Unavailable = by.of(refusedUnavailable)
	st.Refused = st.QueueFull + st.TooLate + st.TooCostly + st.Closed + st.Unavailable
}

// Stats returns the state of the Shaper now. It works on a closed one too.
func (s *Shaper) Stats() Stats {
	s.mustBeMade()
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	st := s.statsLocked(&s.flow, now)
	if s.stripes != nil {
		s.stripes.addTo(&st, s.flow.bucket.cold.refused, &s.dispatcher)
	}
	return st
}

// freeLocked returns [Stats.Free] of a flow.
func (d *dispatcher) freeLocked(f *flow, now int64) int {
	b, lv := &f.bucket, f.remote()
	switch {
	case d.phase != open, f.waiting() > 0, !f.hasSeat() && (lv == nil || !lv.expectsSeat()), now < b.coldOrNone().hold.Ceil(), now < f.keptOutUntil():
		return 0
	case b.interval.IsZero():
		return math.MaxInt
	}
	if lv != nil && lv.refusesAll(now) {
		return 0
	}
	// The float is off by less than a unit, unless the burst is beyond 2⁵²; the instants are exact.
	n := min(b.burst, max(0, b.burst-int64(math.Ceil(b.level(now)))))
	for n > 0 && b.due(n).Ceil() > now {
		n--
	}
	for n < b.burst && b.due(n+1).Ceil() <= now {
		n++
	}
	return int(n)
}

// statsLocked returns the [Stats] of a flow.
func (d *dispatcher) statsLocked(f *flow, now int64) Stats {
	st := f.stats(now)
	st.Name, st.DryRun, st.Free = d.name, d.letsAllThrough(), d.freeLocked(f, now)
	if empty := f.bucket.empty.Ceil(); now < empty {
		st.EmptyAt = d.timeOf(empty)
	}
	settled := f.bucket.settled()
	st.Reserved, st.GivenBack, st.Charged, st.Forfeited = settled.units(), settled.givenBack, settled.charged, settled.forfeited
	st.Precise, st.NoKernelTimer = d.ticker.precision()
	if f.entered >= 0 {
		st.LastCall = d.timeOf(f.entered)
	}
	if st.Refused > 0 {
		st.LastRefusal = d.timeOf(f.bucket.cold.refusedAt)
	}
	if until := f.keptOutUntil(); now < until {
		st.BlockedUntil = d.timeOf(until)
	}
	if d.ordered {
		st.Keys = f.line.order.keys()
		if w := f.line.oldest(); w != nil {
			st.OldestWait = time.Duration(now - w.at)
		}
	}
	if hold := f.bucket.coldOrNone().hold.Whole(); now < hold {
		st.HeldUntil = d.timeOf(hold)
	}
	switch lv := f.remote(); {
	case lv != nil:
		st.Bucket = lv.stats()
	case d.levels != nil: // A bucket that has nothing to share, as all have in a closed Group.
		all := d.levels.stats()
		st.Bucket.State, st.Bucket.Err = all.State, all.Err
	}
	return st
}

// Forecast predicts the result of WaitN(ctx, n) now, or with [Limits.InFlight] of Acquire, for a ctx without a
// deadline: how long it would wait, if all requests ahead stay and nothing changes, or the error with which it would
// be refused. It takes nothing and counts nothing. A wait that depends on when requests end is an estimate, and may
// be above [Limits.MaxWait].
func (s *Shaper) Forecast(n int) (wait time.Duration, err error) {
	s.mustBeMade()
	return s.forecast(&request{cost: int64(n), deadline: exact.Forever})
}

// forecast is Forecast for a request without a context.
func (s *Shaper) forecast(r *request) (wait time.Duration, err error) {
	if r.cost < 0 {
		return 0, ErrNegativeCost
	}
	if r.cost == 0 {
		return 0, nil
	}
	if s.ordered {
		r.key, r.weight = s.flow.line.order.weigh(r.key)
	}
	now := s.lockFlow(&s.flow)
	defer s.unlockAndArm()
	return s.forecastLocked(&s.flow, now, r)
}

// forecastLocked is forecast for a flow.
func (d *dispatcher) forecastLocked(f *flow, now int64, r *request) (wait time.Duration, err error) {
	if lv := f.remote(); lv != nil {
		if why := lv.forecast(now, r.cost); why.reason != notRefused {
			err := why.value()
			return 0, &err
		}
	}
	r.takesTurn(d)
	j := d.judgeLocked(f, now, r)
	if j.refusal.reason != notRefused {
		err := j.refusal.value()
		return 0, &err
	}
	v, ln := f.viewFor(now, r.cost), f.lineOrNone()
	v.waiting, _ = ln.before(r, ln.outlasting(&v, r))
	return v.expected(j.wait), nil
}

// Line returns the first requests in line, at most max, the next to leave first. It holds the lock for some tens of
// nanoseconds per request, so ask for no more than is needed. In a dry run it is the line of the shadow.
func (s *Shaper) Line(max int) []watch.Waiter {
	s.mustBeMade()
	line, _ := s.lineOf(max, nil, func() (*flow, int) { return &s.flow, s.flow.waiting() })
	return line
}

// LineOf is as [KeyLimiter.Line] for a key that has a bucket of its own, and nothing for any other. So
// it never calls the limits function.
func (g *Group[K]) LineOf(key K, max int) []watch.Waiter {
	g.mustBeMade()
	line, _ := g.shardOf(key).line(key, max)
	return line
}

// line is LineOf, and reports whether the key has a bucket of its own.
func (s *keyShard[K]) line(key K, most int) (line []watch.Waiter, found bool) {
	return s.lineOf(most, nil, func() (f *flow, waiting int) {
		if kf := s.table.Get(key); kf != nil {
			f, waiting = &kf.Value, kf.Value.waiting()
		}
		return f, waiting
	})
}

// lineOf is Line for the flow that a function finds under the lock, with how many wait in it, and reports whether
// there is one; if not, the function returns nil. If key is not nil, only the requests of that key are meant.
func (d *dispatcher) lineOf(most int, key any, find func() (f *flow, waiting int)) (line []watch.Waiter, found bool) {
	if most <= 0 {
		return nil, false
	}
	for {
		now := d.lockAndAdvance()
		f, n := find()
		if n = min(n, most); f != nil {
			f.bucket.idleUntil(now) // As lockFlow does: while all seats are taken the bucket may have emptied.
		}
		if n <= cap(line) {
			line = line[:n]
			if n > 0 {
				f.readLine(d.origin, now, key, line)
			}
			d.unlockAndArm()
			return line, f != nil
		}
		d.unlockAndArm()
		line = make([]watch.Waiter, 0, min(most, n+n/8)) // Some more may come meanwhile.
	}
}

// readLine fills a slice with the first in the line, which has as many at least; with the first of a key, if
// that is not nil.
func (f *flow) readLine(o origin, now int64, key any, line []watch.Waiter) {
	v, ahead, next := f.view(), load{}, f.line.walk()
	for filled := 0; filled < len(line); {
		w, of := next(), ""
		if f.line.order != nil {
			of = f.line.order.keyOf(w)
		}
		if key == nil || key == of {
			wait := v.leavesIn(now, v.placeBehind(f, ahead, w))
			line[filled] = watch.Waiter{Key: of, Cost: int(w.cost), Since: o.timeOf(w.at), Leaves: o.timeOf(exact.Sum(now, int64(wait)))}
			filled++
		}
		ahead = f.behind(ahead, w)
	}
}

// GroupStats is the state of a [Group]: gauges first, then totals over all keys, which only grow and outlive the
// buckets. A call that got no [Limits] is counted in LimitErrors only. Calls that return while the parts of a Group
// are looked at may be missing.
type GroupStats struct {
	Name string // as given by WithName

	Keys          int  // keys that count against WithMaxKeys: that have a bucket of their own, or had one until it was drained, up to a second ago
	Waiting       int  // requests in all lines
	Reserved      int  // cost units of requests that have left by Reserve and are not settled
	DryRun        bool // WithDryRun: the line is a shadow, and the totals are hypothetical
	Precise       bool // as in Stats, and NoKernelTimer
	NoKernelTimer string

	Departed  uint64 // requests that left
	Refused   uint64 // requests refused; the sum of the next five
	Abandoned uint64 // requests whose context ended before their call returned

	QueueFull, TooLate, TooCostly, Closed, Unavailable uint64 // Refused, by reason: with ErrQueueFull, and so on

	TotalWait                     time.Duration // from admission to slot, summed over Departed
	Missed                        float64       // cost units lost to lateness beyond Slack
	GivenBack, Charged, Forfeited uint64        // cost units, as in Stats

	Overflowed  uint64 // calls of keys without a bucket of their own, mostly as the table was full: they shared one, or found none to share. A Hold does not count
	RefusedKeys uint64 // about how many different keys have been refused
	LimitErrors uint64 // how often the limits function returned an error or invalid Limits, or Reload could not use them

	Bucket shared.Stats // of the shared bucket; zero without WithBuckets
}

// Stats returns the state of the Group now. It works on a closed Group too.
func (g *Group[K]) Stats() GroupStats {
	g.mustBeMade()
	st := GroupStats{Name: g.overflow.name, Keys: int(g.counts.Heavy.Load()), DryRun: g.overflow.letsAllThrough(), RefusedKeys: g.limited.RefusedKeys()}
	st.Precise, st.NoKernelTimer = g.ticker.precision()
	var sum totals
	for _, s := range g.all {
		s.addStats(&st, &sum)
	}
	var by Stats
	by.setRefusals(&sum.refused)
	st.Departed, st.Abandoned = sum.departed, sum.abandoned
	st.TotalWait, st.Missed = time.Duration(sum.wait), sum.missed
	st.Reserved, st.GivenBack, st.Charged, st.Forfeited = sum.units(), sum.givenBack, sum.charged, sum.forfeited
	st.QueueFull, st.TooLate, st.TooCostly, st.Closed = by.QueueFull, by.TooLate, by.TooCostly, by.Closed
	st.Unavailable, st.Refused = by.Unavailable, by.Refused
	return st
}

// StatsOf is as [KeyLimiter.Stats] for a key that has a bucket of its own, and ok reports whether it has. It never
// calls the limits function. On a closed Group ok is true for each key, and the bucket refuses everything.
func (g *Group[K]) StatsOf(key K) (st Stats, ok bool) {
	g.mustBeMade()
	ok = g.shardOf(key).withOwnFlow(key, func(d *dispatcher, f *flow, now int64) { st = d.statsLocked(f, now) })
	return st, ok
}

// addStats adds the state of a shard to the state of the [Group], and its totals to sum.
func (s *keyShard[K]) addStats(st *GroupStats, sum *totals) {
	s.lockAndAdvance()
	defer s.unlockAndArm()
	sum.add(s.totals)
	st.Waiting += int(s.waiting)
	st.Overflowed += s.overflowed
	st.LimitErrors += s.limitErrors
	if s.levels != nil {
		st.Bucket = s.levels.stats()
	}
}

// All returns an iterator over the keys that have a bucket of their own which is not drained, in no particular
// order, with the [Stats] of the bucket, whose totals count since it was made. No lock is held while the loop body
// runs, so it may call any method, and the Stats of two keys may be of two instants.
func (g *Group[K]) All() iter.Seq2[K, Stats] {
	g.mustBeMade()
	return func(yield func(K, Stats) bool) {
		for _, key := range g.shards.keys() {
			st, ok := g.shardOf(key).stats(key)
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
// the map of a range statement may in its body, or be replaced: then the old one still has all
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
func (s *keyShard[K]) stats(key K) (st Stats, ok bool) {
	now := s.lockAndAdvance()
	defer s.unlockAndArm()
	kf := s.table.Get(key)
	if kf == nil || s.idleLocked(&kf.Value, now) {
		return st, false
	}
	kf.Value.bucket.idleUntil(now)
	return s.statsLocked(&kf.Value, now), true
}

// Top returns the n keys with the most calls that were refused or had to wait, or in a dry run would have, most
// first. It remembers keys whose buckets are gone, in fixed memory; [watch.KeyCount] says how exact it is, with m =
// 1,024.
func (g *Group[K]) Top(n int) []watch.KeyCount[K] {
	g.mustBeMade()
	counts := g.limited.Top(n)
	if counts == nil {
		return nil
	}
	top := make([]watch.KeyCount[K], len(counts))
	for i, c := range counts {
		top[i] = watch.KeyCount[K](c)
	}
	return top
}

// stats returns the part of [Stats] that the flow itself knows.
func (f *flow) stats(now int64) Stats {
	b := &f.bucket
	st := Stats{
		Limits:    b.limits,
		Waiting:   f.waiting(),
		InFlight:  f.seatsTaken(),
		Level:     b.level(now),
		Departed:  f.departed,
		TotalWait: time.Duration(f.wait),
	}
	c := b.coldOrNone()
	st.Abandoned, st.Missed = c.abandoned, c.missed
	st.setRefusals(&c.refused)
	if head := f.lineOrNone().head; head != nil {
		st.OldestWait = time.Duration(now - head.at)
	}
	return st
}

// add adds the counts of others.
func (t *totals) add(o *totals) {
	t.departed += o.departed
	t.abandoned += o.abandoned
	for i, n := range o.refused {
		t.refused[i] += n
	}
	t.wait = exact.Sum(t.wait, o.wait)
	t.missed += o.missed
	t.settlements.add(&o.settlements)
}

// precision reports whether the ticker waits on a file. If one is wanted and there is none,
// failure says why.
func (t *ticker) precision() (precise bool, failure string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.precise, t.failure
}

// settlements are the counts of what has been reserved and settled, in cost units.
type settlements struct {
	reserved                      atomic.Int64 // and not settled
	givenBack, charged, forfeited uint64
}

// add adds the counts of others.
func (s *settlements) add(o *settlements) {
	s.reserved.Add(o.reserved.Load())
	s.count(o.givenBack, o.charged, o.forfeited)
}

// noSettlements are the counts of a bucket without settlements. It is only read.
var noSettlements settlements

// settled returns the counts of settlements of a bucket, to be read.
func (b *bucket) settled() *settlements {
	if l := b.ledger(); l != nil {
		return l.settled()
	}
	return &noSettlements
}

// units returns the units that are reserved; the greatest int if that is exceeded, as it can be at rate.Inf
// and where an int has 32 bits.
func (s *settlements) units() int { return int(min(uint64(s.reserved.Load()), math.MaxInt)) }

// count counts what a settlement has given back, charged, and found drained.
func (s *settlements) count(givenBack, charged, forfeited uint64) {
	s.givenBack += givenBack
	s.charged += charged
	s.forfeited += forfeited
}
