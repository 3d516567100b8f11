package shaper

import (
	"time"

	"example.com/leakybucket/internal/exact"
)

// A lease is what a flow has of a level in a [Bucket]: a stretch of the level that this
// process has raised, and in which its requests leave, each by the one rule of bucket. The
// lock of the dispatcher guards it.
//
// What is leased are cost units. The level of the Bucket was raised by each of them from an
// instant on, at which the unit is due; the units of a stretch are due one interval apart. A
// request of cost n uses the next n. Its slot is max(0, Burst − n) intervals before the first
// of them is due: from then on it may leave. A unit that has not been used when the lateness
// has passed since it was due is dropped. So in any window of length W no more than
// (W + lateness)/interval + Burst units are used, by all processes together.
type lease struct {
	d       *dispatcher
	f       *flow
	key     string   // of the Bucket
	given   *plan    // of the flow: its Limits as this process was given them; see inForceLocked
	common  *backend // of the key
	backend *backend // common, or one of the lease's own; see standAloneLocked

	rate    BucketRate // in force, as far as this process knows
	plan    *plan      // interval and burst of rate
	clock   clockMap
	adopted *plan   // given with the rate of another process; nil: none has a newer one
	high    Instant // up to which the level has been raised in this clock epoch, as far as this process knows; zero: unknown
	end     Instant // of the latest stretch, on the Bucket's clock

	usedUpTo exact.Nanos // an interval after the latest unit that was used was due, on the Bucket's clock
	floor    int64       // no unit of the next stretch may be due earlier, on the dispatcher's clock; 0: whenever they are; see keepDistanceLocked

	now     stretch // from which requests leave
	next    stretch // fetched ahead; empty: none
	ended   stretch // before now, if its last unit was used by the latest departure
	largest int64   // the largest cost for which a batch was leased
	batch   int64   // units of the latest stretch when it was leased
	since   uint32  // the flow's departures when requests began to leave out of now as it is; see unuseLocked

	level     int64 // when the level reaches 0 on the Bucket's clock, in ns, if no other process has taken anything since the latest answer; 0: unknown
	placeless int32 // how many of the first newcomers in line have no place, at most; see placelessLocked
	asksRoom  bool  // the pump asks for what the level has room for
	refusedIt bool  // that was refused, so the pump asks for a batch first

	pump     pump
	busyAt   int64    // until then the Bucket is known to refuse, so it is not asked; 0: it is not
	failed   error    // the latest failure; nil after a success
	failures int      // in a row
	probes   bool     // a call has come in the fallback since the backend was asked last
	rtts     [8]int64 // the latest round trips
	rtt      int64    // the shortest of them; 0: unknown
	meanTrip int64    // their moving average

	contended bool        // after the latest stretch, no more could be leased for now; see courtesyLocked
	asking    int         // calls that ask the Bucket for themselves; see ask
	metering  bool        // one of them, or a goroutine for several, calls the Bucket
	questions []*question // the others, which wait for that
	fallback  bool        // requests leave by the flow's own bucket, at the rate of the Fallback

	pace      float64 // of the level's movement beside that of this process, as a multiple of its own: 1 / its share
	lastBegan Instant // the Empty at which the latest stretch began
	lastCost  int64   // its cost; 0: the line has been empty since
	endsAt    int64   // the instant at which the latest stretch ends, on the dispatcher's clock

	counts bucketCounts
}

// A stretch is a number of leased units that have not been used, one after the other.
type stretch struct {
	empty     exact.Nanos // when the first unit is due, on the Bucket's clock; the lease's clockMap maps it to ours
	remaining int64       // how many units there are
	tail      int64       // how many can be given back: the last ones, if they are without a gap and no process is known to have leased since
	moved     int64       // how many, from the first one on, are due later than at first; see coversLocked
	usedUp    bool        // a request has used the last unit; see unuseLocked
	by        int64       // how much later at most the moved ones are due, in ns
}

// bucketCounts are the totals of [BucketStats].
type bucketCounts struct{ roundTrips, failures, leased, dropped, givenBack uint64 }

// newLeaseLocked makes the lease of a flow, whose bucket has the plan of its [Limits].
func (d *dispatcher) newLeaseLocked(f *flow, key bucketKey) *lease {
	common := d.shared.backendNamed(key.backend)
	ls := &lease{d: d, f: f, key: key.key, given: f.bucket.plan, pace: 1, backend: common, common: common}
	r := d.shared.rates.of(ls.given)
	r.Version = d.shared.version
	ls.setRateLocked(r)
	d.shared.leases[f] = ls
	return ls
}

// leaseOfLocked returns the lease of a flow; nil if it has none, as its level is not shared or
// its rate is rate.Inf.
func (d *dispatcher) leaseOfLocked(f *flow) *lease {
	if d.mode&modeShared == 0 {
		return nil
	}
	if ls := d.shared.leases[f]; ls != nil && !ls.given.interval.IsZero() {
		return ls
	}
	return nil
}

// leaseEvenAtInfLocked returns the lease of a flow, also while its rate is rate.Inf.
func (d *dispatcher) leaseEvenAtInfLocked(f *flow) *lease {
	if d.mode&modeShared == 0 {
		return nil
	}
	return d.shared.leases[f]
}

// setRateLocked puts a rate in force for what is leased from now on.
func (ls *lease) setRateLocked(r BucketRate) {
	ls.rate = r
	perNano := r.Parts / 1000
	p := *ls.given
	p.interval = exact.IntervalOfFraction(r.Micros*1000+r.Part/perNano, uint64(r.Part%perNano), uint64(perNano))
	p.burst = r.Burst
	ls.plan = &p
}

// latenessLocked is for how long after it was due a unit may be used: [Limits.Slack] if
// that is set, else the longest of the interval, [DefaultSlack] and what two round trips
// need.
func (ls *lease) latenessLocked() int64 {
	if slack := ls.given.limits.Slack; slack > 0 {
		return int64(slack)
	}
	return max(ls.plan.interval.Whole(), int64(DefaultSlack), 2*ls.rtt+int64(time.Millisecond))
}

// leasedLocked returns how many units are leased.
func (ls *lease) leasedLocked() int64 { return ls.now.remaining + ls.next.remaining }

// slotForLocked returns the instant, on the dispatcher's clock, from which on a request of
// cost n may leave that uses the next units: when the [Bucket]'s clock has certainly come
// to its slot.
func (ls *lease) slotForLocked(n int64) int64 {
	slot := ls.now.empty
	if n < ls.plan.burst {
		slot = ls.plan.interval.Minus(slot, ls.plan.interval.Times(ls.plan.burst-n))
	}
	return ls.clock.reaches(slot.Ceil())
}

// coversLocked reports whether a request of cost n can use units that are leased. Units of both
// stretches may be needed. Then those of the first move to just before the second: their slot
// is later than it was at first, but none is used beyond the lateness after that.
func (ls *lease) coversLocked(n int64, now int64) bool {
	ls.dropLateLocked(now)
	if ls.now.remaining < n && ls.next.remaining > 0 {
		if ls.now.remaining > 0 {
			moved := ls.plan.interval.Minus(ls.next.empty, ls.plan.interval.Times(ls.now.remaining))
			by := ls.plan.interval.Minus(moved, ls.now.empty).Ceil()
			if ls.now.moved > 0 {
				by += ls.now.by
			}
			switch {
			case by > ls.latenessLocked():
				ls.dropLocked(ls.now.remaining)
			case moved == ls.now.empty:
				ls.next.tail += ls.now.tail
				ls.next.moved, ls.next.by = ls.now.moved, ls.now.by
				ls.next.empty = moved
				ls.next.remaining += ls.now.remaining
			default:
				ls.next.moved, ls.next.by = ls.now.remaining, by
				ls.next.empty = moved
				ls.next.remaining += ls.now.remaining
			}
		}
		ls.beginNextLocked()
	}
	return ls.now.remaining >= n
}

// dropLateLocked drops the units whose lateness has passed.
func (ls *lease) dropLateLocked(now int64) {
	for ls.now.remaining > 0 {
		late := exact.Sum(ls.clock.latest(now), -ls.latenessLocked()) - ls.now.empty.Whole()
		n := ls.now.remaining
		if ls.now.moved > 0 {
			n = min(n, ls.now.moved)
			late += ls.now.by
		}
		if late <= 0 {
			return
		}
		if span := ls.plan.interval.Units(exact.At(late)); span < float64(n) {
			n = max(1, int64(span))
		}
		ls.dropLocked(n)
		ls.useLocked(n)
		ls.since = ls.f.bucket.departures
		if ls.now.remaining == 0 {
			ls.beginNextLocked()
		}
	}
}

// beginNextLocked goes on with the stretch that was fetched ahead. The units of the departures
// so far can't go back into it.
func (ls *lease) beginNextLocked() {
	ls.ended, ls.now, ls.next = stretch{}, ls.next, stretch{}
	ls.since = ls.f.bucket.departures
}

// endNowLocked is beginNextLocked after the latest departure has used the last unit of a
// stretch: that can still go back.
func (ls *lease) endNowLocked() {
	ended := ls.now
	ended.usedUp = true
	ls.beginNextLocked()
	ls.ended = ended
}

// countLeasedLocked counts units that have been taken.
func (ls *lease) countLeasedLocked(n int64) {
	ls.counts.leased += uint64(n)
	ls.d.shared.counts.leased += uint64(n)
}

// dropLocked counts units that are lost.
func (ls *lease) dropLocked(n int64) {
	ls.counts.dropped += uint64(n)
	ls.d.shared.counts.dropped += uint64(n)
}

// dropAllLocked drops all that is leased, as nobody knows any more when its units are due.
func (ls *lease) dropAllLocked() {
	ls.dropLocked(ls.leasedLocked())
	ls.next, ls.lastCost = stretch{}, 0
	ls.beginNextLocked()
}

// useLocked takes the next n units, which are leased, for a request that leaves now. Its
// departure is to be counted by the flow's bucket, for the estimate, and then by noteUseLocked.
func (ls *lease) useLocked(n int64) {
	ls.now.empty = ls.plan.interval.Plus(ls.now.empty, ls.plan.interval.Times(n))
	ls.now.remaining -= n
	ls.now.tail = min(ls.now.tail, ls.now.remaining)
	ls.now.moved = max(0, ls.now.moved-n)
}

// noteUseLocked notes that the latest departure of the flow has used units.
func (ls *lease) noteUseLocked() {
	ls.usedUpTo = ls.now.empty
	if ls.now.remaining == 0 && ls.next.remaining > 0 {
		ls.endNowLocked()
	}
}

// unuseLocked makes n units available again that were used for the departure with that number,
// if nothing has left since, and the stretch that they come from has not changed since.
func (ls *lease) unuseLocked(departureNo uint32, n int64) {
	switch {
	case ls.fallback:
		return // It has used none.
	case ls.f.bucket.departures != departureNo:
		ls.dropLocked(n)
		return
	case departureNo == ls.since && ls.ended.usedUp && ls.next.remaining == 0:
		ls.now, ls.next, ls.ended = ls.ended, ls.now, stretch{}
	case int32(departureNo-ls.since) <= 0:
		ls.dropLocked(n)
		return
	}
	if ls.now.tail == ls.now.remaining {
		ls.now.tail += n
	}
	if ls.now.by > 0 {
		ls.now.moved += n
	}
	ls.now.empty = ls.plan.interval.Minus(ls.now.empty, ls.plan.interval.Times(n))
	ls.now.remaining += n
}

// busyLocked reports whether the lease is in use, so that its flow must stay.
func (ls *lease) busyLocked(now int64) bool {
	ls.dropLateLocked(now) // While the Bucket can't be asked nothing is given back.
	return ls.pump.running || ls.asking > 0 || ls.leasedLocked() > 0
}

// usesOwnLevelLocked reports whether requests leave by the flow's own bucket, and use no units.
func (ls *lease) usesOwnLevelLocked() bool { return ls.fallback && ls.leasedLocked() == 0 }

// unitsDueLocked returns the instant from which on a request of cost n may use the next units;
// forever if units have to be leased for it first.
func (ls *lease) unitsDueLocked(n int64) int64 {
	if !ls.coversLocked(n, ls.d.clock) {
		return exact.Forever
	}
	return ls.slotForLocked(n)
}

// leavesLocked lets the head of the line leave now, if units for it are still leased.
func (ls *lease) leavesLocked(w *waiter, now int64) bool {
	switch {
	case ls.usesOwnLevelLocked():
		slot, hasLeft := ls.f.bucket.release(ls.f.line.since, now, w.cost)
		if !hasLeft {
			return false // Its slot was that of units which have been dropped since.
		}
		ls.f.line.since = slot
		ls.since = ls.f.bucket.departures // It has used no units.
	case ls.d.headMayLeaveLocked(ls.f) > now:
		return false // It was the patience of one in line that came to its end.
	default:
		ls.useLocked(w.cost)
		ls.f.bucket.leave(exact.At(now), w.cost)
		ls.noteUseLocked()
		ls.f.line.since = exact.At(now)
	}
	if !w.reentry {
		ls.placeless = max(0, ls.placeless-1)
	}
	return true
}

// changeLocked puts other [Limits] in force, in place of those that the flow was given
// before. If they have another rate or burst, that becomes the rate of all processes, as
// the newest.
func (ls *lease) changeLocked(to *plan) {
	now, b := ls.d.clock, &ls.f.bucket
	// Those of another process, if it has changed them since.
	before, level := ls.inForceLocked().limits, b.level(ls.d.clock)
	ls.given = to
	if to.interval.IsZero() {
		ls.dropAllLocked()
		ls.fallback = false
		b.plan = to
		b.setEmpty(exact.At(now), nil)
		return
	}
	if to.limits.Rate != before.Rate || to.limits.burst() != before.burst() {
		ls.dropAllLocked()
		ls.high, ls.end, ls.busyAt, ls.adopted = Instant{}, Instant{}, 0, nil
		units := ls.plan.burst - ls.roomLocked(now)
		r := ls.d.shared.rates.of(to)
		r.Version = max(ls.d.shared.version, ls.rate.Version+1)
		ls.setRateLocked(r)
		if ls.clock.known {
			ls.level = exact.Sum(ls.clock.latest(now), ls.plan.interval.Times(max(units, 0)).Ceil())
		}
	} else {
		if ls.adopted != nil {
			ls.adoptLimitsLocked(ls.rate)
		}
		ls.setRateLocked(ls.rate)
	}
	// The level stays what it is, in cost units.
	fell := ls.fallback
	ls.fallback = false
	ls.estimateFromLocked(ls.paceIntervalLocked(), now)
	if fell {
		ls.checkFallbackLocked(now)
	}
	b.setEmpty(exact.At(exact.Sum(now, int64(level*float64(b.interval.Whole())))), nil)
}

// adoptLimitsLocked makes the [Limits] those that were given, with the rate of another
// process.
func (ls *lease) adoptLimitsLocked(r BucketRate) {
	p := *ls.given
	p.limits.Rate, p.limits.Burst, p.burst = perSecond(r), int(r.Burst), r.Burst
	ls.adopted = &p
}
