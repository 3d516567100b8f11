package shaper

import (
	"math"

	"example.com/leakybucket/internal/exact"
)

// Without a [Bucket], as many requests as an idle bucket has room for leave at once, and only
// those behind them take places in line. While a Bucket is asked they all wait, for as long as
// it takes to answer. So of a shared level, too, those that the room covers take no place; and
// what the level has room for is leased at once.

// noteLevelLocked notes the level that an answer shows, with what it has taken.
func (ls *lease) noteLevelLocked(t Take, taken Taken) {
	r, empty := t.Rate, taken.Empty
	switch {
	case taken.Other != nil:
		r = *taken.Other
	case taken.OK:
		empty = r.Plus(empty, t.Rise())
	}
	ls.level = nanosOf(r, empty).Ceil()
}

// roomLocked returns how many cost units the level has room for now, so that they may leave at
// once: below 0 if slots are leased ahead. It is what the latest answer of the [Bucket] has shown,
// with what has leaked since, as if no other process had taken anything; or that of an idle
// bucket, as long as there is no answer.
func (ls *lease) roomLocked(now int64) int64 {
	burst := ls.plan.burst
	if !ls.clock.known || ls.level == 0 {
		return burst
	}
	ahead := ls.level - ls.clock.latest(now)
	if ahead <= 0 {
		return burst
	}
	const rounding = 1e-6
	return burst - int64(math.Ceil(min(ls.plan.interval.Units(exact.At(ahead)), 1e15)-rounding))
}

// shareOfRoomLocked is roomLocked where other processes take their share of what leaks, as they
// have of late.
func (ls *lease) shareOfRoomLocked(now int64) int64 {
	room := ls.roomLocked(now)
	if !ls.clock.known || ls.pace <= 1 {
		return room
	}
	shown := ls.roomLocked(ls.clock.at)
	return shown + int64(float64(room-shown)/ls.pace)
}

// needsNoPlaceLocked reports whether a request of cost n that enters the line now could leave at
// once, if the level has the room that this process takes it to have.
func (ls *lease) needsNoPlaceLocked(now, n int64) bool {
	f := ls.f
	if ls.usesOwnLevelLocked() || f.bucket.coldOrNone().hold.Ceil() > now || f.capped() && f.seatsTaken()+f.waiting() >= f.bucket.limits.InFlight {
		return false
	}
	ahead := max(0, f.ahead()-ls.leasedLocked())
	return exact.Sum(ahead, min(n, ls.plan.burst)) <= ls.roomLocked(now)
}

// placelessLocked returns how many of those in line have no place, as it counts for a request of
// cost n: those at the head that the room of the level covers; and all if it covers this one, too.
//
// If an answer shows that there is less room, as other processes have taken it, those that are in
// line stay, and have a place from then on. So there are never more in line than [Limits.Depth]
// and what the room was taken for, and retries, which need none. If one that has no place gives up,
// the next one behind it moves up into the room that it leaves.
func (ls *lease) placelessLocked(now, n int64) int32 {
	waiting := int32(ls.f.waiting())
	switch {
	case ls.usesOwnLevelLocked():
		return 0
	case ls.needsNoPlaceLocked(now, n):
		return waiting
	}
	covered := max(0, ls.roomLocked(now)+ls.leasedLocked()) // at most, as each costs 1 at least
	ls.placeless = int32(min(int64(ls.placeless), int64(waiting), covered))
	return ls.placeless
}
