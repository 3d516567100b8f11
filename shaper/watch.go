package shaper

import (
	"cmp"
	"math"
	"slices"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/watch"
)

// An observer is the watcher of a [Shaper], or of a shard of a [Group]: it keeps histograms, and the latest refusals
// and departures.
type observer struct {
	measures    *measures          // nil: no request has waited yet
	refusalRing *refusalRing       // nil: no request has been refused yet
	keysRefused *[keptRefusals]any // the keys of refusalRing; nil: requests have no keys that it knows
	departures  *latestDepartures  // nil: nobody has asked for them yet
}

// refused remembers a refusal.
func (o *observer) refused(at, cost int64, key any, why rejection, seen bool) error {
	ring := o.refusalRing
	if ring == nil {
		ring = o.refusalRingLocked()
	}
	ring.add(at, cost, why)
	if o.keysRefused != nil {
		o.keysRefused[(ring.count-1)%keptRefusals] = key
	}
	if !seen {
		return nil
	}
	return ring.newError(why)
}

// left counts for how long a request has waited, and keeps its departure if somebody asks for departures.
func (o *observer) left(at, waited, cost int64, key any) {
	if waited > 0 {
		countIn(o.measuresLocked().waits[:], lowestWait, time.Duration(waited).Seconds())
	}
	if o.departures != nil {
		o.departures.add(at, cost, key)
	}
}

// A refusalRing holds the latest refusals. A dispatcher gets one with its first refusal.
type refusalRing struct {
	latest [keptRefusals]refusalRecord
	count  uint64 // of all refusals; the next one goes to this index, modulo keptRefusals

	errors *[16]RejectError // made at once; nil: none has been yet
	spare  int              // how many of them have not been handed out yet, the first ones
}

type refusalRecord struct {
	at         int64
	retryAfter time.Duration
	cost       int64
	reason     reason
}

// refusalRingLocked makes the refusalRing of a dispatcher.
//
// It is not inlined into refused, which takes less time without its call.
//
//go:noinline
func (o *observer) refusalRingLocked() *refusalRing {
	o.refusalRing = new(refusalRing)
	return o.refusalRing
}

// add adds a refusal.
func (r *refusalRing) add(at, cost int64, why rejection) {
	r.count++
	last := r.last()
	last.at, last.retryAfter, last.cost, last.reason = at, why.retryAfter, cost, why.reason
}

// newError returns the error of a refusal. They are made 16 in one allocation, as one by one
// they would take a fifth of the time of a refusal.
func (r *refusalRing) newError(why rejection) *RejectError {
	if r.spare == 0 {
		r.errors, r.spare = new([16]RejectError), 16
	}
	r.spare--
	err := &r.errors[r.spare]
	*err = why.value()
	return err
}

// last returns the latest refusal. There has been one.
func (r *refusalRing) last() *refusalRecord { return &r.latest[(r.count-1)%keptRefusals] }

// refusals returns the content of the ring, each [watch.Refusal] with the Key that keyOf returns for
// its number.
func (r *refusalRing) refusals(d *dispatcher, keyOf func(number uint64) any) []watch.Refusal {
	first := r.count - min(r.count, keptRefusals)
	found := make([]watch.Refusal, 0, r.count-first)
	for i := first; i < r.count; i++ {
		record := r.latest[i%keptRefusals]
		found = append(found, watch.Refusal{
			At: d.timeOf(record.at), Reason: reasonErrors[record.reason], RetryAfter: record.retryAfter, Cost: int(record.cost), Key: keyOf(i),
		})
	}
	return found
}

// measuresLocked returns the measures of a dispatcher, and makes them if there are none.
func (o *observer) measuresLocked() *measures {
	if o.measures == nil {
		o.measures = new(measures)
	}
	return o.measures
}

// shortestSpacing is the least that the schedule may put between two departures for their
// spacing to be counted, in intervals. Below it the rounding of lastLeftAt would show.
const shortestSpacing = 1. / 4096

// begins records the departure that precedes the first departure out of a new line. At level 0 it
// records none: that departure may be long ago, and not the schedule but a hold or the cap keeps the request.
func (o *observer) begins(ln *line, now int64) {
	b := &ln.flow.bucket
	ln.leftAt, ln.above = unknown, 0
	if !b.empty.After(exact.At(now)) {
		return
	}
	ln.leftAt = b.lastLeftAt(now)
	// From the same leftAt, so that on schedule the spacing is 1 even if that is too late by a
	// multiple of 2³² units.
	ln.above = float32(b.interval.Units(b.interval.Minus(b.empty, exact.At(ln.leftAt))) - float64(b.burst))
}

// newHead notes if the request that has just become the head of the line is due already.
// Then it was kept by the head before it, and not by the schedule. So no spacing is counted
// for it, nor for the next one, as the level stays below Burst.
func (o *observer) newHead(ln *line, now int64) {
	if ln.head != nil && !ln.flow.bucket.due(ln.head.cost).After(exact.At(now)) {
		ln.above = float32(math.NaN())
	}
}

// rescheduled notes that the next spacing would not be one of the schedule alone.
func (o *observer) rescheduled(ln *line) { ln.leftAt = unknown }

// departs counts the spacing of the departure that the head of a line, of cost n, makes at an instant.
func (o *observer) departs(ln *line, at, n int64) {
	b := &ln.flow.bucket
	leftAt, scheduled := ln.leftAt, float64(ln.above)+float64(min(b.burst, n))
	ln.leftAt, ln.above = at, float32(max(0, n-b.burst))
	if math.IsNaN(scheduled) {
		ln.leftAt = unknown
		return
	}
	if leftAt == unknown || b.interval.IsZero() || scheduled < shortestSpacing {
		return
	}
	spacing := b.interval.Units(exact.At(at-leftAt)) / scheduled
	m := o.measuresLocked()
	if spacing <= 0 {
		m.atOnce++
		return
	}
	m.spacingSum += spacing
	countIn(m.spacings[:], lowestSpacing, spacing)
}

// keptRefusals is how many refusals are remembered. It is a power of 2.
const keptRefusals = 64

// Refusals returns the latest 64 refusals, in the order in which their calls returned. A dry run has those that
// would have been refused when they came.
func (s *Shaper) Refusals() []watch.Refusal {
	s.mustBeMade()
	var others []watch.Refusal
	var keys [keptRefusals]any
	found := s.latestRefusals(&s.dispatcher, func() {
		others = s.stripes.latest(&s.dispatcher)
		if s.keysRefused != nil {
			keys = *s.keysRefused
		}
	})
	found = append(found, others...)
	slices.SortStableFunc(found, func(a, b watch.Refusal) int {
		return cmp.Or(cmp.Compare(a.Key.(uint64), b.Key.(uint64)), a.At.Compare(b.At))
	})
	found = found[max(0, len(found)-keptRefusals):]
	for i := range found {
		found[i].Key = keys[found[i].Key.(uint64)%keptRefusals]
	}
	return found
}

// Refusals is [Shaper.Refusals] for all keys together.
func (g *Group[K]) Refusals() []watch.Refusal {
	g.mustBeMade()
	var all []watch.Refusal
	for _, s := range g.all {
		var keys [keptRefusals]refusedKey[K]
		found := s.latestRefusals(&s.dispatcher, func() {
			if s.refusedKeys != nil {
				keys = *s.refusedKeys
			}
		})
		for i := range found {
			found[i].Key = keys[found[i].Key.(uint64)%keptRefusals]
		}
		all = append(all, found...)
	}
	// The refusals of one shard are in their order already.
	slices.SortFunc(all, func(a, b watch.Refusal) int {
		return cmp.Compare(a.Key.(refusedKey[K]).number, b.Key.(refusedKey[K]).number)
	})
	all = all[max(0, len(all)-keptRefusals):]
	for i := range all {
		all[i].Key = all[i].Key.(refusedKey[K]).key
	}
	return all
}

// A refusedKey is the key of a refusal, and the number of the refusal among the refusals of all
// shards of a [Group].
type refusedKey[K comparable] struct {
	key    K
	number uint64
}

// keepRefusedKeyLocked notes the key of the latest refusal.
func (s *keyShard[K]) keepRefusedKeyLocked(key K) {
	if s.refusedKeys == nil {
		s.refusedKeys = new([keptRefusals]refusedKey[K])
	}
	s.refusedKeys[(s.refusalRing.count-1)%keptRefusals] = refusedKey[K]{key, s.group.refusals.Add(1)}
}

// latestRefusals is Refusals for the refusals that a dispatcher has told of. also is called under
// the lock. The Key of each [watch.Refusal] is its number, for the caller to replace it.
func (o *observer) latestRefusals(d *dispatcher, also func()) []watch.Refusal {
	var log refusalRing
	d.lockAndAdvance()
	if o.refusalRing != nil {
		log = *o.refusalRing
	}
	also()
	d.unlockAndArm()
	return log.refusals(d, func(i uint64) any { return i })
}

// keepRefusedInLine remembers the refusal, at an instant, of a request that waited. Any other error
// is none. The lock is not held.
func (s *keyShard[K]) keepRefusedInLine(key K, r *request, at int64, err error) {
	if rejected, ok := err.(*RejectError); ok {
		s.lockAndAdvance()
		why := rejection{reason: refusedClosed, retryAfter: rejected.RetryAfter}
		switch rejected.Reason {
		case ErrUnavailable:
			why.reason = refusedUnavailable
		case ErrTooLate:
			why.reason = refusedLate
		}
		s.refused(at, r.cost, nil, why, false)
		s.keepRefusedKeyLocked(key)
		s.unlockAndArm()
	}
}

// noteFailed remembers the refusal of a call that got no bucket. Any other error is none. The lock is not held.
func (s *keyShard[K]) noteFailed(key K, r *request, err error) {
	if rejected, ok := err.(*RejectError); ok {
		now := s.lockAndAdvance()
		defer s.unlockAndArm()
		s.refused(now, r.cost, nil, rejection{reason: refusedFull, retryAfter: rejected.RetryAfter}, false)
		s.keepRefusedKeyLocked(key)
	}
}
