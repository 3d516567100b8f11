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
// nanoseconds since the shaper was made; the lock of the shaper guards it.
type bucket struct {
	interval interval
	burst    int64
	slack    int64 // lateness that may be made up, in nanoseconds

	empty nanos // when the level reaches 0
	since nanos // since when the head of the line may leave, but for its slot
	hold  nanos // until when nobody leaves
	left  uint64
	// missed is the cost lost to lateness beyond slack.
	missed float64

	// above is by how much empty lies above the exact instant, which need not
	// be a multiple of 1/den after the rate has changed. nil means 0. It is
	// below 1/den, and all instants that the bucket compares and all spans
	// that it adds are multiples of 1/den, so that no departure depends on it:
	// it is kept for the next change of the rate alone. Where the exact instant
	// is centuries away, empty is the latest there is, and above is negative.
	above *big.Rat
}

func newBucket(l Limits) bucket {
	return bucket{interval: intervalOf(l.Rate), burst: l.burst(), slack: l.slack()}
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

// slot is the instant at which the head of the line, of cost n, is to leave.
func (b *bucket) slot(n int64) nanos { return later(later(b.due(n), b.since), b.hold) }

// wait is how long a request of cost n would wait from now behind ahead cost
// units in the line, if they all stay. With nobody in line, ahead is 0.
//
// No walk along the line is needed: nobody who waits finds the bucket empty
// before his slot, so each raises the level by his cost and no more; and each
// is due later than the one ahead of him. (If nobody leaves for a while, as the
// line is held or all places are taken, the bucket may be empty by the end of
// that, and then the first slot is there.)
func (b *bucket) wait(now, ahead, n int64) time.Duration {
	empty := later(b.empty, b.hold)
	due := b.dueAfter(empty, n)
	if ahead > 0 {
		due = b.interval.plus(due, b.interval.times(ahead))
	}
	return time.Duration(max(0, sum(later(due, b.hold).ceil(), -now)))
}

// pass lets a request that found nobody in line leave now.
func (b *bucket) pass(now, n int64) { b.leave(nanos{whole: now}, n) }

// release lets the head of the line, of cost n, leave if its slot has come.
//
// The slot counts, not the moment at which somebody noticed: so what leaves
// late, if by no more than the slack, makes nobody behind it later. Lateness
// beyond the slack is gone. For that time the bucket counts as not having
// leaked; it would otherwise be made up after all, by a level that has fallen
// below what a punctual departure would have found.
func (b *bucket) release(now, n int64) bool {
	slot := b.slot(n)
	if slot.ceil() > now {
		return false
	}
	b.rest(b.hold.whole) // Nobody has left before that.
	if earliest := (nanos{whole: now - b.slack}); earliest.after(slot) {
		lost := b.interval.minus(earliest, slot)
		b.missed += b.interval.units(lost)
		b.empty = b.interval.plus(b.empty, lost)
		b.above = nil
		slot = earliest
	}
	b.leave(slot, n)
	b.since = slot
	return true
}

// leave raises the level for a departure at an instant.
func (b *bucket) leave(at nanos, n int64) {
	if at.after(b.empty) {
		b.empty, b.above = at, nil
	}
	b.left++
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
func (b *bucket) giveBack(left uint64, n int64) {
	if b.left != left {
		return
	}
	b.left--
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
func (b *bucket) rest(now int64) {
	if at := (nanos{whole: now}); !b.empty.after(at) {
		b.empty, b.above = at, nil
	}
}

// level is the level now, in cost units.
func (b *bucket) level(now int64) float64 {
	at := nanos{whole: now}
	if !b.empty.after(at) {
		return 0
	}
	if b.above == nil {
		return b.interval.units(b.interval.minus(b.empty, at))
	}
	exact := b.exactly()
	exact.Sub(exact, new(big.Rat).SetInt64(now))
	level, _ := exact.Quo(exact, b.interval.rat()).Float64()
	return level
}

// change puts new limits in force from now on. The level is kept, exactly.
func (b *bucket) change(l Limits, now int64) {
	if next := intervalOf(l.Rate); next != b.interval {
		b.rescale(next, now)
	}
	b.burst, b.slack = l.burst(), l.slack()
	// A head that the new limits would have let leave sooner leaves now.
	b.since = nanos{whole: now}
}

// rescale moves empty so that the level now is the same at another rate. At
// rate.Inf the level is 0, so a change to it and back empties the bucket.
func (b *bucket) rescale(next interval, now int64) {
	old, at := b.interval, nanos{whole: now}
	if !b.empty.after(at) || old.none() || next.none() {
		b.interval, b.empty, b.above = next, at, nil
		return
	}
	begin := new(big.Rat).SetInt64(now)
	exact := b.exactly()
	exact.Sub(exact, begin)
	exact.Mul(exact, next.rat())
	exact.Quo(exact, old.rat())
	b.interval = next
	b.setExactly(exact.Add(exact, begin))
}

// exactly is the exact instant that empty stands for, in nanoseconds.
func (b *bucket) exactly() *big.Rat {
	exact := b.interval.exactly(b.empty)
	if b.above != nil {
		exact.Sub(exact, b.above)
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
	b.above = b.interval.exactly(b.empty)
	b.above.Sub(b.above, exact)
	if b.above.Sign() == 0 || b.above.Denom().BitLen() > maxAbove {
		b.above = nil
	}
}

// costs is for how many nanoseconds a cost of n holds the bucket.
func (b *bucket) costs(n int64) *big.Rat {
	r := b.interval.rat()
	return r.Mul(r, new(big.Rat).SetInt64(n))
}
