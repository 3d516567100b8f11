package shaper

import (
	"math/big"
	"math/bits"
	"time"

	"example.com/leakybucket/internal/exact"
)

// A bucket holds the level of a [Shaper], or of one key of a [Group], and implements
// the one rule by which requests leave:
//
//	A request of cost n leaves as soon as it is at the head of the line and
//	the level is at most max(0, Burst − n). Leaving raises the level by n.
//
// The instant at which the level reaches 0 is all of its state. Instants count from
// when the Shaper or Group was made. The lock of the dispatcher guards it.
type bucket struct {
	*plan
	*cold // nil means that all its fields are 0; see coldOrNone

	empty      exact.Nanos // the instant at which the level reaches 0
	departures uint32      // how many requests have left, modulo 2³²
	leftAt     uint32      // when the latest of them left; see lastLeftAt
}

// cold holds the fields that most buckets of a [Group] never need.
type cold struct {
	hold   exact.Nanos // no request leaves before
	missed float64     // the cost lost to lateness beyond slack

	abandoned uint64 // requests whose context ended
	refused   refusals
	refusedAt int64 // when the latest of refused was; 0: none was

	seatTime int64 // moving average of the time for which seats are taken, in ns; 0: none has been measured

	rare *rare // nil means that all its fields are 0
}

// rare holds the fields that few of the buckets need which need cold.
type rare struct {
	// excess is how far empty lies above the exact instant, which after a
	// change of the rate need not be a multiple of 1/den of a nanosecond, where den
	// is the interval's. nil means 0. No departure depends on it: it is
	// less than 1/den, and all instants that the bucket compares and all spans that it
	// adds are multiples of 1/den. It is kept for the next change of the rate. If the
	// exact instant is centuries away, empty is the latest instant there is, and
	// excess is negative. A value is never changed once it is set.
	excess *big.Rat

	// sinceRounded says that line.since is above the exact instant by excess, as the slot of a request is
	// that the level has let leave. Any other instant from which on a head may leave is a whole nanosecond.
	// From an exact instant until a rounded one it is longer by the excess than it should be; between two
	// rounded ones it is exact.
	sinceRounded bool

	ledger       ledger  // nil: nobody keeps one
	level        level   // of the flow; nil: it has none
	remote       remote  // the same, if it is one; else nil
	keptOutUntil int64   // see flow.keptOutUntil
	bounds       *bounds // of those in line; nil: none has had one
	seats        int32   // how many seats the level grants, if the cap of the plan is grantedCap
}

// A ledger follows the level of a bucket, for those that may lower it later on. The bucket tells it
// whatever the level does but leak.
type ledger interface {
	// rises is told before the level rises at an instant, which may be rounded as rare.sinceRounded says.
	rises(b *bucket, at exact.Nanos, rounded bool)
	// emptied is told when the level has become 0.
	emptied()
	// rescaled is told when the interval was another one until now. Neither is 0.
	rescaled(b *bucket, from exact.Interval)

	// leaves is told when a request that has an account in the ledger has left the line of a flow.
	leaves(d *dispatcher, f *flow, b *bucket, w *waiter, by leaving)
	// givesUp is told when such a request gives up in line, or after it has left.
	givesUp(b *bucket, w *waiter)

	settled() *settlements // the counts of what has been settled
}

// A leaving is how a request leaves the line: at a slot, which may be rounded as rare.sinceRounded says.
type leaving struct {
	slot    exact.Nanos
	rounded bool
	now     int64
}

// ledger returns the ledger of a bucket; nil if nobody keeps one.
func (b *bucket) ledger() ledger {
	if r := b.coldOrNone().rare; r != nil {
		return r.ledger
	}
	return nil
}

// coldOrNew returns the cold fields, to be changed. It makes them if there are none.
func (b *bucket) coldOrNew() *cold {
	if b.cold == nil {
		b.cold = new(cold)
	}
	return b.cold
}

// noCold holds the cold fields of a bucket that has none. It is only read.
var noCold cold

// coldOrNone returns the cold fields, to be read only; they are 0 if there are none.
func (b *bucket) coldOrNone() *cold {
	if b.cold == nil {
		return &noCold
	}
	return b.cold
}

// rareOrNew returns the rare fields, to be changed. It makes them if there are none.
func (b *bucket) rareOrNew() *rare {
	c := b.coldOrNew()
	if c.rare == nil {
		c.rare = new(rare)
	}
	return c.rare
}

// roundedUpBy returns how far empty lies above the exact instant; see rare.
func (b *bucket) roundedUpBy() *big.Rat {
	if r := b.coldOrNone().rare; r != nil {
		return r.excess
	}
	return nil
}

// setEmpty sets empty, and how far it lies above the exact instant.
func (b *bucket) setEmpty(empty exact.Nanos, excess *big.Rat) {
	b.empty = empty
	if excess != nil || b.coldOrNone().rare != nil {
		b.rareOrNew().excess = excess
	}
}

// due returns the instant at which the level is low enough for a request of cost n.
func (b *bucket) due(n int64) exact.Nanos { return b.dueAfter(b.empty, n) }

// dueAfter is due for a level that reaches 0 at the instant empty.
func (p *plan) dueAfter(empty exact.Nanos, n int64) exact.Nanos {
	if n >= p.burst {
		return empty
	}
	return p.interval.Minus(empty, p.interval.Times(p.burst-n))
}

// slot returns the instant at which the head of the line, of cost n, is to leave.
// since is the instant from which it has been the head and a seat has been free.
func (b *bucket) slot(since exact.Nanos, n int64) exact.Nanos {
	return exact.Later(exact.Later(b.due(n), since), b.coldOrNone().hold)
}

// wait returns how long a request of cost n would wait from now on. ahead is the cost
// of the requests in the line, 0 if it is empty; wait assumes that all of them stay.
//
// The line need not be walked. The level does not reach 0 before the slot of a request
// that waits, so each departure moves empty by its cost exactly, and each request is
// due later than the one ahead of it. (While the line is held, or all seats are taken,
// the level may reach 0. Then the first slot is at the end of that time.)
func (b *bucket) wait(now, ahead, n int64) time.Duration {
	return timeUntil(b.leavesAfter(bucketInstants{b.empty, b.coldOrNone().hold}, ahead, n), now)
}

// bucketInstants are the two instants on which the slots of a bucket depend, beside its plan.
type bucketInstants struct {
	empty exact.Nanos // bucket.empty
	hold  exact.Nanos // cold.hold
}

// timeUntil returns how long it is from now until an instant; 0 if that has come. It can't
// overflow, as no clock of a dispatcher is ever below 0.
func timeUntil(at, now int64) time.Duration { return time.Duration(max(at, now) - now) }

// leavesAfter returns when a request of cost n leaves a bucket that has these instants, behind
// others in line of the cost ahead.
func (p *plan) leavesAfter(from bucketInstants, ahead, n int64) int64 {
	due := p.dueAfter(exact.Later(from.empty, from.hold), n)
	if ahead > 0 {
		due = p.interval.Plus(due, p.interval.Times(ahead))
	}
	return exact.Later(due, from.hold).Ceil()
}

// pass lets a request of cost n, which found the line empty, leave now.
func (b *bucket) pass(now, n int64) { b.leave(exact.At(now), n) }

// noteLeftAt notes that a request has left at an instant. So that all buckets of a [Group] have
// room for it, it is kept in units of at most a 2¹⁹th of the interval, modulo 2³².
func (b *bucket) noteLeftAt(at int64) { b.leftAt = uint32(at >> (b.leftAtUnit & 63)) }

// lastLeftAt returns when the latest request left, if that was less than 4,096 intervals before
// now; rounded down, but never by more than a 2¹⁹th of the interval.
func (b *bucket) lastLeftAt(now int64) int64 {
	ago := uint32(now>>b.leftAtUnit) - b.leftAt
	return (now>>b.leftAtUnit - int64(ago)) << b.leftAtUnit
}

// letLeave lets the head of the line, of cost n, leave if its slot has come. It returns
// the slot, and reports whether the head has left.
//
// The departure counts as of its slot, even if the ticker was late. So a departure
// that is late by no more than the slack delays none of those behind it. Lateness
// beyond the slack is lost: the bucket counts as not having leaked meanwhile.
// Otherwise the level would be lower than at a punctual departure, and later requests
// would make up the loss after all.
func (b *bucket) letLeave(since exact.Nanos, now, n int64) (slot exact.Nanos, hasLeft bool) {
	slot = b.slot(since, n)
	if slot.Ceil() > now {
		return slot, false
	}
	b.idleUntil(b.coldOrNone().hold.Whole()) // No request has left before the end of the hold.
	if earliest := exact.At(now - b.limits.slack()); earliest.After(slot) {
		lost := b.interval.Minus(earliest, slot)
		b.coldOrNew().missed += b.interval.Units(lost)
		b.setEmpty(b.interval.Plus(b.empty, lost), nil)
		slot = earliest
	}
	rounded := false
	if r := b.coldOrNone().rare; r != nil {
		r.sinceRounded = slot.After(b.cold.hold) && (r.sinceRounded || slot.After(since))
		rounded = r.sinceRounded
	}
	b.leaveAt(slot, n, rounded)
	return slot, true
}

// sinceIsWhole notes that line.since has become a whole nanosecond.
func (b *bucket) sinceIsWhole() {
	if r := b.coldOrNone().rare; r != nil {
		r.sinceRounded = false
	}
}

// leave raises the level by n for a departure at the instant at.
func (b *bucket) leave(at exact.Nanos, n int64) { b.leaveAt(at, n, false) }

// leaveAt is leave for a departure at a slot that may be rounded; see rare.sinceRounded.
func (b *bucket) leaveAt(at exact.Nanos, n int64, rounded bool) {
	if at.After(b.empty) {
		b.setEmpty(at, nil)
	}
	if l := b.ledger(); l != nil {
		l.rises(b, at, rounded)
	}
	b.departures++
	if raised := b.interval.Plus(b.empty, b.interval.Times(n)); raised.Whole() < exact.Forever {
		b.empty = raised
		return
	}
	b.setEmpty(b.interval.Add(b.empty, b.roundedUpBy(), n))
}

// giveBack undoes a departure of cost n, if no other has followed: the level is as if
// the request had not left. If others have followed, the slot is lost. They left on a
// schedule that includes this departure, and a request that got its cost now would
// leave too soon after the one before.
//
// To undo a departure is to take n off the level. If the level was 0 when the request
// left, empty is now the instant of that departure instead of an earlier one, which is
// the same level from then on.
func (b *bucket) giveBack(departureNo uint32, n int64) {
	if b.departures != departureNo {
		return
	}
	b.departures--
	if b.empty.Whole() < exact.Forever {
		b.empty = b.interval.Minus(b.empty, b.interval.Times(n))
		return
	}
	b.setEmpty(b.interval.Add(b.empty, b.roundedUpBy(), -n))
}

// idleUntil moves empty up to now if the level is 0, and drops its excess: the exact
// instant may lie just before now, and that difference must not be credited to the next
// departure. now is an instant at which no request in line has a slot that has come, or
// the end of a hold.
func (b *bucket) idleUntil(now int64) {
	if at := exact.At(now); !b.empty.After(at) {
		b.empty = at // This is setEmpty, in the form that is inlined.
		if r := b.coldOrNone().rare; r != nil {
			r.excess = nil
		}
	}
}

// level returns the level now, in cost units.
func (b *bucket) level(now int64) float64 {
	at := exact.At(now)
	if !b.empty.After(at) {
		return 0
	}
	if b.roundedUpBy() == nil {
		return b.interval.Units(b.interval.Minus(b.empty, at))
	}
	return b.interval.UnitsSince(now, b.empty, b.roundedUpBy())
}

// A plan is [Limits] in the form that a bucket needs. It never changes; all buckets of
// a [Group] that have the same Limits share one.
type plan struct {
	limits     Limits // as given
	interval   exact.Interval
	burst      int64
	inLine     time.Duration // how long a request may be in line ([WithLineTimeout]); 0: for ever
	users      int32         // in a Group, the number of buckets that have this plan
	cap        capKind       // whether requests take seats
	several    bool          // the flow has further levels
	returns    bool          // settle gives back all that was reserved too much
	leftAtUnit uint8         // the unit of bucket.leftAt is 1<<leftAtUnit nanoseconds
}

func planOf(l Limits) *plan {
	interval := exact.IntervalOf(l.Rate)
	p := &plan{
		limits: l, interval: interval, burst: l.burst(),
		leftAtUnit: uint8(max(0, bits.Len64(uint64(interval.Whole()))-20)),
	}
	if l.InFlight > 0 {
		p.cap = ownCap
	}
	return p
}

// A capKind says how many requests may be in flight.
type capKind uint8

const (
	noCap      capKind = iota // any number: none takes a seat
	ownCap                    // as many as [Limits.InFlight] says
	grantedCap                // as many as the level of the flow grants: rare.seats
)
