package shaper

import (
	"math/big"
	"time"
)

// bucket is the level of a shaper, and the one rule by which requests leave:
//
//	A request of cost n leaves as soon as it is at the head of the line and
//	the level is at most max(0, Burst − n). Leaving raises the level by n.
//
// All its state is one instant, at which the level reaches 0. Its instants are
// nanoseconds since the Shaper or Group was made; its lock guards it.
type bucket struct {
	*plan
	*cold // nil: as if all of it were 0

	empty      nanos  // when the level reaches 0
	departures uint64 // how many have left
}

// rare is what most of the buckets of a Group never need.
type cold struct {
	hold   nanos   // until when nobody leaves
	missed float64 // the cost lost to lateness beyond slack

	abandoned uint64 // requests whose context ended
	refused   refusals

	seatTime int64 // moving average of the time for which seats are taken, in ns; 0: none has been measured

	// above is by how much empty lies above the exact instant, which need not
	// be a multiple of 1/den after the rate has changed. nil means 0. It is
	// below 1/den, and all instants that the bucket compares and all spans
	// that it adds are multiples of 1/den, so that no departure depends on it:
	// it is kept for the next change of the rate alone. Where the exact instant
	// is centuries away, empty is the latest there is, and above is negative.
	roundedUpBy *big.Rat
}

func newBucket(l Limits) bucket { return bucket{plan: planOf(l), cold: new(cold)} }

// uncommon makes what the bucket has of rare, if it has none.
func (b *bucket) coldOrNew() *cold {
	if b.cold == nil {
		b.cold = new(cold)
	}
	return b.cold
}

// missedSoFar is the cost lost to lateness beyond slack.
func (b *bucket) missedSoFar() float64 {
	if b.cold == nil {
		return 0
	}
	return b.cold.missed
}

// heldUntil is until when nobody leaves.
func (b *bucket) heldUntil() nanos {
	if b.cold == nil {
		return nanos{}
	}
	return b.cold.hold
}

// isExact notes that empty is exact.
func (b *bucket) isExact() {
	if b.cold != nil {
		b.cold.roundedUpBy = nil
	}
}

// excess is by how much empty lies above the exact instant; nil means 0.
func (b *bucket) excess() *big.Rat {
	if b.cold == nil {
		return nil
	}
	return b.cold.roundedUpBy
}

// due is the instant at which the level has fallen so far that a request of
// cost n may leave.
func (b *bucket) due(n int64) nanos { return b.dueAfter(b.empty, n) }

// dueAfter is due for a bucket whose level reaches 0 at an instant.
func (b *bucket) dueAfter(empty nanos, n int64) nanos {
	if n >= b.burst {
		return empty
	}
	return b.interval.minus(empty, b.interval.times(b.burst-n))
}

// slot is the instant at which the head of the line, of cost n, is to leave, which
// may leave since some instant, but for its slot.
func (b *bucket) slot(since nanos, n int64) nanos {
	return later(later(b.due(n), since), b.heldUntil())
}

// wait is how long a request of cost n would wait from now behind ahead cost
// units in the line, if they all stay. With nobody in line, ahead is 0.
//
// No walk along the line is needed: nobody who waits finds the bucket empty
// before his slot, so each raises the level by his cost and no more; and each
// is due later than the one ahead of him. (If nobody leaves for a while, as the
// line is held or all places are taken, the bucket may be empty by the end of
// that, and then the first slot is there.)
func (b *bucket) wait(now, ahead, n int64) time.Duration {
	hold := b.heldUntil()
	empty := later(b.empty, hold)
	due := b.dueAfter(empty, n)
	if ahead > 0 {
		due = b.interval.plus(due, b.interval.times(ahead))
	}
	return time.Duration(max(0, sum(later(due, hold).ceil(), -now)))
}

// pass lets a request that found nobody in line leave now.
func (b *bucket) pass(now, n int64) { b.leave(nanos{whole: now}, n) }

// release lets the head of the line, of cost n, leave if its slot has come, and
// returns the slot.
//
// The slot counts, not the moment at which somebody noticed: so what leaves
// late, if by no more than the slack, makes nobody behind it later. Lateness
// beyond the slack is gone. For that time the bucket counts as not having
// leaked; it would otherwise be made up after all, by a level that has fallen
// below what a punctual departure would have found.
func (b *bucket) release(since nanos, now, n int64) (slot nanos, left bool) {
	slot = b.slot(since, n)
	if slot.ceil() > now {
		return slot, false
	}
	b.idleUntil(b.heldUntil().whole) // Nobody has left before that.
	if earliest := (nanos{whole: now - b.slack}); earliest.after(slot) {
		lost := b.interval.minus(earliest, slot)
		b.coldOrNew().missed += b.interval.units(lost)
		b.empty = b.interval.plus(b.empty, lost)
		b.isExact()
		slot = earliest
	}
	b.leave(slot, n)
	return slot, true
}

// leave raises the level for a departure at an instant.
func (b *bucket) leave(at nanos, n int64) {
	if at.after(b.empty) {
		b.empty = at
		b.isExact()
	}
	b.departures++
	if raised := b.interval.plus(b.empty, b.interval.times(n)); raised.whole < forever {
		b.empty = raised
		return
	}
	exact := b.exactly()
	b.setExactly(exact.Add(exact, b.costs(n)))
}

// giveBack undoes the departure number left, of cost n, if none has followed:
// the level is as if it had not been. Where another request has left since, it
// left on a schedule that counts this one in, and would stand too close to its
// predecessor if the cost were given back to a successor; so the slot is gone.
//
// Taking n off the level is all there is to undo. If the bucket was empty when
// the request left, empty now lies at that departure instead of before it,
// which is the same level from then on.
func (b *bucket) giveBack(departureNo uint64, n int64) {
	if b.departures != departureNo {
		return
	}
	b.departures--
	if b.empty.whole < forever {
		b.empty = b.interval.minus(b.empty, b.interval.times(n))
		return
	}
	exact := b.exactly()
	b.setExactly(exact.Sub(exact, b.costs(n)))
}

// rest notes that an empty bucket is empty until now. It is called when nobody
// is in line whose slot has come, and for the end of a hold: empty, which is
// rounded up, may then be now, where the exact instant was a little before, and
// what above says of it must not be taken off what leaves now.
func (b *bucket) idleUntil(now int64) {
	if at := (nanos{whole: now}); !b.empty.after(at) {
		b.empty = at
		b.isExact()
	}
}

// level is the level now, in cost units.
func (b *bucket) level(now int64) float64 {
	at := nanos{whole: now}
	if !b.empty.after(at) {
		return 0
	}
	if b.excess() == nil {
		return b.interval.units(b.interval.minus(b.empty, at))
	}
	exact := b.exactly()
	exact.Sub(exact, new(big.Rat).SetInt64(now))
	level, _ := exact.Quo(exact, b.interval.rat()).Float64()
	return level
}

// change puts other limits in force from now on. The level is kept, exactly: empty
// moves so that the level now is the same at another rate. At rate.Inf the level is
// 0, so a change to it and back empties the bucket.
func (b *bucket) change(to *plan, now int64) {
	old, next, at := b.interval, to.interval, nanos{whole: now}
	switch {
	case next == old:
		b.plan = to
		return
	case !b.empty.after(at) || old.none() || next.none():
		b.plan, b.empty = to, at
		b.isExact()
		return
	}
	begin := new(big.Rat).SetInt64(now)
	exact := b.exactly()
	exact.Sub(exact, begin)
	exact.Mul(exact, next.rat())
	exact.Quo(exact, old.rat())
	b.plan = to
	b.setExactly(exact.Add(exact, begin))
}

// exactly is the exact instant that empty stands for, in nanoseconds.
func (b *bucket) exactly() *big.Rat {
	exact := b.interval.exactly(b.empty)
	if above := b.excess(); above != nil {
		exact.Sub(exact, above)
	}
	return exact
}

// maxAbove bounds the memory of a bucket whose rate changes for ever without
// its ever being empty, in bits: what is forgotten beyond it is below 1/den of
// a nanosecond, and on the late side.
const maxAbove = 4096

// setExactly sets the exact instant that empty is to stand for.
func (b *bucket) setExactly(exact *big.Rat) {
	b.empty = b.interval.roundUp(exact)
	above := b.interval.exactly(b.empty)
	above.Sub(above, exact)
	if above.Sign() == 0 || above.Denom().BitLen() > maxAbove {
		b.isExact()
		return
	}
	b.coldOrNew().roundedUpBy = above
}

// costs is for how many nanoseconds a cost of n holds the bucket.
func (b *bucket) costs(n int64) *big.Rat {
	r := b.interval.rat()
	return r.Mul(r, new(big.Rat).SetInt64(n))
}

// A plan is Limits in the form in which a bucket needs them. They never change;
// all buckets of a Group that have the same Limits share one.
type plan struct {
	limits   Limits // as given
	interval interval
	burst    int64
	slack    int64 // lateness that may be made up, in nanoseconds
	users    int   // of a Group's: buckets that have it; its lock guards it
}

func planOf(l Limits) *plan {
	return &plan{limits: l, interval: intervalOf(l.Rate), burst: l.burst(), slack: l.slack()}
}
