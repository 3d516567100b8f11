package shaper

import (
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
)

// What decides how much of a level a process leases, and when: so that all get the same, and the
// rate is reached with few round trips.

const (
	// longestBatch bounds what one process has of the level at a time, unless a single
	// request costs more, or round trips are longer.
	longestBatch = 50 * time.Millisecond
	// shortBatch is how much is leased at once at high rates, even if few wait, so that
	// there are few round trips per departure: at 1,000/s an eighth.
	shortBatch = 8 * time.Millisecond
)

// batchForLocked returns how many requests to lease units for, of so many that wait, at a
// number of units per second: an eighth of them, so that processes take turns; as many as
// leave within shortBatch; or as many as leave within a little more than two round trips, as
// the next lease is asked for when half is used. Of these, only the share of this process
// would be needed. But a process that leases more has a greater share, and would keep it for
// ever; and one whose round trips have been a little longer would get all. So it is the same
// for all.
func (ls *lease) batchForLocked(queued int, perSecond float64) int64 {
	trips := 2.25 * ls.tripSecondsLocked() * perSecond
	k := max(float64(queued)/8, trips, shortBatch.Seconds()*perSecond)
	k = min(math.Ceil(k), float64(queued), ls.longestBatchLocked()*perSecond)
	return int64(max(k, 1))
}

// mostAheadLocked returns how many cost units may be leased ahead at most, as round trips and costs
// have been so far: two batches, each of what leaves in longestBatchLocked or of the cost of a single
// request. What is leased of a burst leaves at once.
func (ls *lease) mostAheadLocked() int64 {
	if ls.given.interval.IsZero() {
		return 0
	}
	perSecond := ls.plan.interval.Units(exact.At(int64(time.Second)))
	return 2 * max(int64(ls.longestBatchLocked()*perSecond), ls.largest, 1)
}

// longestBatchLocked returns how much a batch may be, in seconds of the rate.
func (ls *lease) longestBatchLocked() float64 {
	return max(longestBatch.Seconds(), 2.25*ls.tripSecondsLocked())
}

// tripSecondsLocked returns the mean round trip, rounded up to a power of two of a
// millisecond, so that it is the same for processes whose way to the [Bucket] is.
func (ls *lease) tripSecondsLocked() float64 {
	return math.Exp2(math.Ceil(math.Log2(float64(max(ls.meanTrip, 1))/1e6))) / 1e3
}

// courtesyLocked returns for how long this process lets others ask before it, at rates so slow
// that one can lease only one slot at a time: longest if it has had the latest one, and the
// less the more the others have had since. Without it they would all ask at the instant at
// which the next slot may be leased, and the one that is nearest to the [Bucket] would get
// it, each time. As that slot is still nearly [MaxAhead] away, nothing is lost.
func (ls *lease) courtesyLocked(empty Instant) int64 {
	if ls.end == (Instant{}) {
		return 0
	}
	since := ls.plan.interval.Units(nanosOf(ls.rate, ls.rate.Minus(empty, ls.end))) / float64(max(ls.batch, 1))
	return int64(float64(ls.longestCourtesyLocked()) / (1 + max(since, 0)/4))
}

// longestCourtesyLocked is for how long the process that has had the latest slot lets others ask
// before it.
func (ls *lease) longestCourtesyLocked() int64 {
	return min(ls.plan.interval.Whole()/4, int64(MaxAhead)/8)
}

// notePaceLocked measures which part of the level's movement is this process's: two of its
// successive leases lie as far apart as all others and the first of the two together. If the
// level was at 0, no other process kept this one from having more.
func (ls *lease) notePaceLocked(t Take, taken Taken) {
	if ls.lastCost > 0 {
		units := 1.0
		if taken.Empty.Micros > taken.Now {
			moved := ls.rate.Minus(taken.Empty, ls.lastBegan)
			units = ls.plan.interval.Units(nanosOf(ls.rate, moved)) / float64(ls.lastCost)
		}
		ls.pace += (min(max(units, 1), 1e6) - ls.pace) / paceWeight
	}
	ls.lastBegan, ls.lastCost = taken.Empty, t.Cost
}

// paceWeight divides the difference that the latest lease makes to the average, as
// seatTimeWeight does.
const paceWeight = 8
