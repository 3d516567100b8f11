// Package lease holds one process's part of a level that several processes share: the units that
// it has leased, the Bucket's clock, the pace of the level, and how much to lease when. It knows
// neither lines nor requests, and calls nobody: the engine tells it each answer and each unit
// used, and asks it when a request may leave.
//
// The engine's lock guards all of it. Instants are nanoseconds on the engine's clock, unless they
// are said to be on the Bucket's.
package lease

import (
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// A Lease is a stretch of a level that this process has raised, and in which its requests leave,
// each by the one rule.
//
// Leases are of cost units. The level was raised by each of them from an instant on, at which the
// unit is due; the units of a stretch are due one interval apart. A request of cost n uses the
// next n. Its slot is max(0, Burst − n) intervals before the first of them is due: from then on it
// may leave. A unit that has not been used when the lateness has passed since it was due is
// dropped. So in any window of length W no more than (W + lateness)/interval + Burst units are
// used, by all processes together.
type Lease struct {
	key      string            // of the Bucket
	Rate     shared.BucketRate // in force, as far as this process knows
	Interval exact.Interval    // of Rate
	Burst    int64             // of Rate
	Slack    time.Duration     // for how long after it was due a unit may be used; 0: see Lateness
	Guard    time.Duration     // as of a shared.Take, without a Burst
	Off      bool              // there is no rate: nothing is leased

	Clock Clock
	high  shared.Instant // up to which the level has been raised in this clock epoch, as far as this process knows; zero: unknown
	end   shared.Instant // of the latest stretch, on the Bucket's clock

	usedUpTo exact.Nanos // an interval after the latest unit that was used was due, on the Bucket's clock
	floor    int64       // no unit of the next stretch may be due earlier; 0: whenever they are; see keepDistance

	units
	Largest int64 // the largest cost for which a batch was leased

	level       int64 // when the level reaches 0 on the Bucket's clock, in ns, if no other process has taken anything since the latest answer; 0: unknown
	RefusedRoom bool  // the Bucket has refused although the level seemed to have room
	BusyAt      int64 // until then the Bucket is known to refuse; 0: it is not
	Contended   bool  // after the latest stretch, no more could be leased for now; see courtesy

	trips

	Pace      float64        // of the level's movement, as a multiple of this process's own part: 1 / its share
	lastBegan shared.Instant // the Empty at which the latest stretch began
	lastCost  int64          // its cost; 0: the line has been empty since
	EndsAt    int64          // the instant at which the latest stretch ends

	tally
}

// A tally counts for one lease, and for all together.
type tally struct {
	Counts Counts
	total  *Counts
}

// Counts are totals.
type Counts struct{ RoundTrips, Failures, Leased, Dropped, GivenBack uint64 }

// A stretch is a number of leased units that have not been used, one after the other.
type stretch struct {
	empty     exact.Nanos // when the first unit is due, on the Bucket's clock; Lease.Clock maps it to ours
	remaining int64       // how many units there are
	tail      int64       // how many can be given back: the last ones, if they are without a gap and no process is known to have leased since
	moved     int64       // how many, from the first one on, are due later than at first; see Covers
	usedUp    bool        // a request has used the last unit; see Unuse
	by        int64       // how much later at most the moved ones are due, in ns
	old       *spacing    // of its units, if they were leased at a rate that is not in force any more; nil: that of the Rate
}

// A spacing says when units are due after the first one, and a request may leave before that.
type spacing struct {
	interval exact.Interval
	burst    int64
}

// spacing returns the spacing of a stretch of a lease.
func (s *stretch) spacing(l *Lease) spacing {
	if s.old != nil {
		return *s.old
	}
	return spacing{l.Interval, l.Burst}
}

// units are cost units that are leased and have not been used.
type units struct {
	now        stretch // from which requests leave
	next       stretch // fetched ahead; empty: none
	ended      stretch // before now, if its last unit was used by the latest departure
	batch      int64   // of the latest stretch when it was leased
	since      uint32  // the departures when requests began to leave out of now as it is; see Unuse
	departures *uint32 // of the flow, counted by the engine
}

// defaultSlack is shaper.DefaultSlack.
const defaultSlack = 20 * time.Millisecond

// leastPause is for how long the Bucket is left alone at least after it has refused.
const leastPause = time.Millisecond

// horizon bounds spans, so that sums of them are far from overflow.
const horizon = 365 * 24 * time.Hour

// New returns a Lease of a key, which counts in total too. departures is where the engine counts
// the departures of the flow.
func New(key string, guard time.Duration, departures *uint32, total *Counts) Lease {
	return Lease{key: key, Guard: guard, units: units{departures: departures}, tally: tally{total: total}, Pace: 1}
}

// Lateness is for how long after it was due a unit may be used: Slack if that is set, but at most 365
// days, else the longest of the interval, 20 ms, and the time of two round trips.
func (l *Lease) Lateness() int64 {
	if slack := l.Slack; slack > 0 {
		return int64(min(slack, horizon))
	}
	return max(l.Interval.Whole(), int64(defaultSlack), 2*l.RTT+int64(time.Millisecond))
}

// Leased returns how many units are leased.
func (u *units) Leased() int64 { return u.now.remaining + u.next.remaining }

// SlotFor returns the instant, on the engine's clock, from which on a request of
// cost n may leave that uses the next units: when the Bucket's clock has certainly come
// to its slot.
func (l *Lease) SlotFor(n int64) int64 {
	return l.Clock.Reaches(l.now.spacing(l).slot(l.now.empty, n).Ceil())
}

// slot returns the slot of a request of cost n that uses the units from an instant on.
func (s spacing) slot(due exact.Nanos, n int64) exact.Nanos {
	if n < s.burst {
		return s.interval.Minus(due, s.interval.Times(s.burst-n))
	}
	return due
}

// Covers reports whether a request of cost n can use units that are leased. Units of both
// stretches may be needed. Then the units of the first move to just before the second: their slot
// is later than it was at first, but none is used beyond the lateness after that. If they are of
// another rate they are dropped, as some of them would be due earlier.
func (l *Lease) Covers(n int64, now int64) bool {
	l.DropLate(now)
	if l.now.remaining < n && l.next.remaining > 0 {
		if l.now.remaining > 0 {
			interval := l.next.spacing(l).interval
			moved := interval.Minus(l.next.empty, interval.Times(l.now.remaining))
			by := interval.Minus(moved, l.now.empty).Ceil()
			if l.now.moved > 0 {
				by += l.now.by
			}
			switch {
			case l.now.spacing(l) != l.next.spacing(l), by > l.Lateness():
				l.Drop(l.now.remaining)
			case moved == l.now.empty:
				l.next.tail += l.now.tail
				l.next.moved, l.next.by = l.now.moved, l.now.by
				l.next.empty = moved
				l.next.remaining += l.now.remaining
			default:
				l.next.moved, l.next.by = l.now.remaining, by
				l.next.empty = moved
				l.next.remaining += l.now.remaining
			}
		}
		l.beginNext()
	}
	return l.now.remaining >= n
}

// DropLate drops the units whose lateness has passed.
func (l *Lease) DropLate(now int64) {
	for l.now.remaining > 0 {
		late := exact.Sum(l.Clock.Latest(now), -l.Lateness()) - l.now.empty.Whole()
		n := l.now.remaining
		if l.now.moved > 0 {
			n = min(n, l.now.moved)
			late += l.now.by
		}
		if late <= 0 {
			return
		}
		if span := l.now.spacing(l).interval.Units(exact.At(late)); span < float64(n) {
			n = max(1, int64(span))
		}
		l.lose(n)
	}
}

// lose drops the first n units.
func (l *Lease) lose(n int64) {
	l.Drop(n)
	l.Use(n)
	l.since = *l.departures
	if l.now.remaining == 0 {
		l.beginNext()
	}
}

// beginNext goes on with the stretch that was fetched ahead. The units of the departures
// so far can't go back into it.
func (u *units) beginNext() {
	u.ended, u.now, u.next = stretch{}, u.next, stretch{}
	u.since = *u.departures
}

// endNow is beginNext after the latest departure has used the last unit of a
// stretch: that can still go back.
func (u *units) endNow() {
	ended := u.now
	ended.usedUp = true
	u.beginNext()
	u.ended = ended
}

// CountLeased counts units that have been taken.
func (t *tally) CountLeased(n int64) {
	t.Counts.Leased += uint64(n)
	t.total.Leased += uint64(n)
}

// Drop counts units that are lost.
func (t *tally) Drop(n int64) {
	t.Counts.Dropped += uint64(n)
	t.total.Dropped += uint64(n)
}

// CountGivenBack counts units that are given back.
func (t *tally) CountGivenBack(n int64) {
	t.Counts.GivenBack += uint64(n)
	t.total.GivenBack += uint64(n)
}

// DropBefore drops the units of which a request of cost 1 could leave before a reading of the Bucket's
// clock, which is the end of a hold. Else all of them would leave at once when it ends.
func (l *Lease) DropBefore(reading int64) {
	for l.now.remaining > 0 {
		s := l.now.spacing(l)
		early := reading - s.slot(l.now.empty, 1).Ceil()
		if early <= 0 {
			return
		}
		n := l.now.remaining
		if span := s.interval.Units(exact.At(early)); span < float64(n) {
			n = max(1, int64(math.Ceil(span)))
		}
		l.lose(n)
	}
}

// DropAll drops all that is leased, as nobody knows any more when its units are due.
func (l *Lease) DropAll() {
	l.Drop(l.Leased())
	l.next, l.lastCost = stretch{}, 0
	l.beginNext()
}

// Use takes the next n units, which are leased, for a request that leaves now. Its
// departure is to be counted by the engine, and then by NoteUse.
func (l *Lease) Use(n int64) {
	interval := l.now.spacing(l).interval
	l.now.empty = interval.Plus(l.now.empty, interval.Times(n))
	l.now.remaining -= n
	l.now.tail = min(l.now.tail, l.now.remaining)
	l.now.moved = max(0, l.now.moved-n)
}

// NoteUse notes that the latest departure of the flow has used units.
func (l *Lease) NoteUse() {
	l.usedUpTo = l.now.empty
	if l.now.remaining == 0 && l.next.remaining > 0 {
		l.endNow()
	}
}

// Unuse makes n units available again that were used for the departure with that number,
// if nothing has left since, and the stretch that they come from has not changed since.
func (l *Lease) Unuse(departureNo uint32, n int64) {
	switch {
	case *l.departures != departureNo:
		l.Drop(n)
		return
	case departureNo == l.since && l.ended.usedUp && l.next.remaining == 0:
		l.now, l.next, l.ended = l.ended, l.now, stretch{}
	case int32(departureNo-l.since) <= 0:
		l.Drop(n)
		return
	}
	switch {
	case l.now.by > 0: // Some of them may have been leased before a gap.
		l.now.moved += n
	case l.now.old == nil && l.now.tail == l.now.remaining:
		l.now.tail += n
	}
	interval := l.now.spacing(l).interval
	l.now.empty = interval.Minus(l.now.empty, interval.Times(n))
	l.now.remaining += n
}

// SetRate puts a rate in force for units leased from now on.
func (l *Lease) SetRate(r shared.BucketRate) {
	l.Rate, l.Burst, l.Interval = r, r.Burst, intervalOf(r)
}

// intervalOf returns the time of a unit.
func intervalOf(r shared.BucketRate) exact.Interval {
	perNano := r.Parts / 1000
	return exact.IntervalOfFraction(r.Micros*1000+r.Part/perNano, uint64(r.Part%perNano), uint64(perNano))
}

// ChangeRate puts a rate in force that this process sets now. The level stays the same in cost
// units, as far as it is known.
func (l *Lease) ChangeRate(r shared.BucketRate, now int64) {
	units := l.Burst - l.Room(now)
	l.keepUnits()
	l.SetRate(r)
	if l.Clock.known {
		l.level = exact.Sum(l.Clock.Latest(now), l.Interval.Times(max(units, 0)).Ceil())
	}
}

// Adopt puts a rate in force that another process has set.
func (l *Lease) Adopt(r shared.BucketRate) {
	l.keepUnits()
	l.SetRate(r)
	l.Pace = 1
}

// keepUnits notes that the rate is about to change, and forgets what is known in its units. What is
// leased stays due when it was: [shared.BucketRate.Rescale] leaves these slots to whoever has them. If
// they were dropped, the level would keep them all the same, and nothing would ever leave a process
// that changes its rate before each of its slots. They can't be given back, as nobody knows by how
// much they raise the level at the new rate.
func (l *Lease) keepUnits() {
	l.high, l.end, l.BusyAt = shared.Instant{}, shared.Instant{}, 0
	l.usedUpTo, l.floor, l.lastCost = exact.Nanos{}, 0, 0
	old := &spacing{l.Interval, l.Burst}
	for _, s := range []*stretch{&l.now, &l.next, &l.ended} {
		if *s != (stretch{}) && s.old == nil {
			s.old, s.tail = old, 0
		}
	}
}

// KeptUntil returns the least instant, on the engine's clock, at which a level at the rate in force
// can reach 0 behind units that were leased at an earlier one; 0 if there are none.
func (l *Lease) KeptUntil() int64 {
	if until := l.keptUntil(); until > 0 {
		return l.Clock.Reaches(until)
	}
	return 0
}

// keptUntil is KeptUntil on the Bucket's clock. By Rescale no request of cost 1 leaves before the slot
// of the last such unit.
func (l *Lease) keptUntil() (until int64) {
	for _, s := range []*stretch{&l.now, &l.next} {
		if s.old != nil && s.remaining > 0 {
			last := s.old.interval.Plus(s.empty, s.old.interval.Times(s.remaining-1))
			until = max(until, exact.Sum(s.old.slot(last, 1).Ceil(), l.Interval.Times(l.Burst-1).Ceil()))
		}
	}
	return until
}

// keepDistance drops units of the first stretch after the Bucket's clock was set that
// are due before the end of the units that this process has used already, on its own clock.
func (l *Lease) keepDistance() {
	for l.now.remaining > 0 && l.Clock.Reaches(l.now.empty.Ceil()) < l.floor {
		l.Drop(1)
		l.Use(1)
		l.since = *l.departures
	}
	l.floor = 0
}

// NotUsed notes that the latest departure has used no units of the lease.
func (u *units) NotUsed() { u.since = *u.departures }

// HasNext reports whether a stretch has been fetched ahead.
func (u *units) HasNext() bool { return u.next.remaining > 0 }

// HalfUsed reports whether half of the latest stretch has been used.
func (u *units) HalfUsed() bool { return u.now.remaining <= u.batch/2 }

// EndLine notes that the line is empty, so that the pace is measured anew.
func (l *Lease) EndLine() { l.lastCost = 0 }

// Add adds a stretch that an answer has granted, at the rate of the question, which may have changed
// since. It returns how many units were leased before, and when the first of the new ones is due.
func (l *Lease) Add(t shared.Take, taken shared.Taken) (before, due int64) {
	before = l.Leased()
	got := stretch{empty: NanosOf(t.Rate, taken.Empty), remaining: t.Cost, tail: t.Cost}
	l.CountLeased(t.Cost)
	end := t.Rate.Plus(taken.Empty, t.Rise())
	l.batch, l.BusyAt, l.RefusedRoom = t.Cost, 0, false
	l.Contended = end.Micros-t.Rate.Times(t.Rate.Burst-1).Micros-taken.Now >= shared.MaxAhead.Microseconds()
	l.EndsAt = l.Clock.Reaches(NanosOf(t.Rate, end).Ceil())
	if t.Rate == l.Rate {
		l.end = end
		l.high = l.high.Later(end)
		l.notePace(t, taken)
	} else {
		got.old, got.tail = &spacing{intervalOf(t.Rate), t.Rate.Burst}, 0
	}
	if l.next = got; before == 0 {
		if used := *l.departures != l.since; used && l.now != (stretch{}) {
			l.endNow()
		} else {
			l.beginNext()
		}
	}
	l.keepDistance()
	return before, l.Clock.Reaches(got.empty.Ceil())
}

// Wait notes that the level is too high for a lease now, and returns when it reaches 0.
func (l *Lease) Wait(t shared.Take, taken shared.Taken, now int64) (empty int64) {
	end := NanosOf(l.Rate, taken.Empty)
	first := l.Interval.Minus(end, NanosOf(l.Rate, t.Room()))
	// When the Bucket's clock has certainly come so far that it can be leased.
	l.BusyAt = max(l.Clock.Reaches(first.Ceil()-int64(t.Ahead)), now+int64(leastPause)) + l.courtesy(taken.Empty)
	l.lastCost = 0
	return l.Clock.Reaches(end.Ceil())
}

// CanGiveBack reports whether there are units that can be given back.
func (u *units) CanGiveBack() bool { return u.now.tail > 0 || u.next.tail > 0 }

// GiveBack takes the units that can be given back from the lease, which are the tail of the level
// as this process knows it, and returns the question. Units that can't be given back are dropped.
func (l *Lease) GiveBack(now int64) (t shared.Take, end shared.Instant) {
	l.Covers(math.MaxInt64, now) // joins the two stretches
	n := min(l.now.remaining, l.now.tail)
	l.Drop(l.now.remaining - n)
	t = l.Question(n)
	end = l.end
	if l.high == end {
		l.high = l.Rate.Minus(end, t.Rise())
	}
	l.CountGivenBack(n)
	l.lastCost = 0
	l.level = NanosOf(l.Rate, l.Rate.Minus(end, t.Rise())).Ceil()
	l.beginNext()
	return t, end
}
