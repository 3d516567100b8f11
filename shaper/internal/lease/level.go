package lease

import (
	"errors"
	"fmt"
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// noteLevel notes the level that an answer shows, with the units taken.
func (l *Lease) noteLevel(t shared.Take, taken shared.Taken) {
	r, empty := t.Rate, taken.Empty
	switch {
	case taken.Other != nil:
		r = *taken.Other
	case taken.OK:
		empty = r.Plus(empty, t.Rise())
	}
	l.level = NanosOf(r, empty).Ceil()
}

// Room returns how many cost units the level has room for now, so that they may leave at
// once: below 0 if slots are leased ahead. The room is the one that the latest answer of the
// Bucket has shown, plus the leak since, as if no other process had taken anything; or the room
// of an idle bucket, as long as there is no answer.
func (l *Lease) Room(now int64) int64 {
	burst := l.Burst
	if !l.Clock.known || l.level == 0 {
		return burst
	}
	ahead := l.level - l.Clock.Latest(now)
	if ahead <= 0 {
		return burst
	}
	const rounding = 1e-6
	return burst - int64(math.Ceil(min(l.Interval.Units(exact.At(ahead)), 1e15)-rounding))
}

// ShareOfRoom is Room where other processes take their share of the leak, as they have of late.
func (l *Lease) ShareOfRoom(now int64) int64 {
	room := l.Room(now)
	if !l.Clock.known || l.Pace <= 1 {
		return room
	}
	shown := l.Room(l.Clock.at)
	return shown + int64(float64(room-shown)/l.Pace)
}

// NoteHigh notes up to which instant the level has been raised.
func (l *Lease) NoteHigh(t shared.Take, taken shared.Taken) {
	if t.Rate == l.Rate {
		l.high = l.high.Later(t.Rate.Plus(taken.Empty, t.Rise()))
	}
}

// IsLate reports whether a unit that was taken for a request, and was due at an instant, can't be
// used any more: the answer took too long.
func (l *Lease) IsLate(t shared.Take, due shared.Instant, now int64) bool {
	return l.Clock.Latest(now)-l.Lateness() > NanosOf(t.Rate, due).Whole()
}

// Question returns a [shared.Take] for a request of cost n, as of now.
func (l *Lease) Question(n int64) shared.Take {
	high := l.high
	if until := l.keptUntil(); until > 0 {
		high = high.Later(InstantOf(until))
	}
	return shared.Take{Key: l.key, Cost: n, First: n, Rate: l.Rate, High: high, Seen: l.Clock.lastSeen, Guard: l.guard()}
}

// guard returns the Guard of a [shared.Take]. With a Burst a request may leave before the
// level has fallen to 0, so that is added.
func (l *Lease) guard() time.Duration {
	g := l.Guard
	if g == 0 {
		return 0
	}
	room := l.Rate.Times(l.Rate.Burst - 1)
	return g + time.Duration(min(room.Micros+1, int64(horizon/time.Microsecond)))*time.Microsecond
}

// Raise notes a level that this process has made without asking: its end on the Bucket's clock.
func (l *Lease) Raise(end shared.Instant) {
	l.high = l.high.Later(end)
	l.level = max(l.level, end.Micros*1000)
}

// NoteAnswer adds the news in an answer that came between the two instants: how long the call took,
// the Bucket's clock, and the level. If the clock does not fit the earlier answers, it has been set,
// or another server answers: nobody knows any more when the units are due that this process has.
// NoteAnswer reports whether it fits.
func (l *Lease) NoteAnswer(t shared.Take, taken shared.Taken, sent, received int64) (fits bool) {
	l.noteRoundTrip(max(received-sent, 1))
	usedUpTo := l.Clock.Reaches(l.usedUpTo.Ceil()) // before the estimate of the clock begins anew
	if fits = l.Clock.note(sent, received, taken.Now); !fits {
		l.DropAll()
		l.high, l.end, l.floor = shared.Instant{}, shared.Instant{}, 0
		if l.usedUpTo != (exact.Nanos{}) {
			l.remember(usedUpTo)
		}
	}
	l.noteLevel(t, taken)
	return fits
}

// remember keeps, after the Bucket's clock was set, what this process has used: up to an instant of
// its own clock. The level of the Bucket may have forgotten that. The stretch that is granted next
// may begin earlier, as keepDistance expects, and each later one is asked for with what was used as
// the least level.
func (l *Lease) remember(usedUpTo int64) {
	reading := l.Clock.reading(usedUpTo)
	l.floor, l.usedUpTo, l.high = usedUpTo, exact.At(reading), InstantOf(reading)
}

// IsTooSlow reports whether no slot can be used in time, as round trips take longer than Slack. One
// answer that was late, in a process or on a server that was busy, does not say so. Nor do the
// first, which may have waited for a connection.
func (l *Lease) IsTooSlow() bool {
	return l.Slack > 0 && l.RTT >= int64(l.Slack) && l.rtts[tripsToJudge-1] > 0
}

// tripsToJudge is after how many round trips a Bucket may be found to be too far.
const tripsToJudge = 3

// CountRoundTrip counts a call of the Bucket.
func (t *tally) CountRoundTrip() {
	t.Counts.RoundTrips++
	t.total.RoundTrips++
}

// CountFailure counts a call that failed.
func (t *tally) CountFailure() {
	t.Counts.Failures++
	t.total.Failures++
}

// UntilRoom returns after which time from now on, a reading of the Bucket's clock in microseconds,
// a request of cost n may leave, if the level reaches 0 at an instant. The Bucket counts in whole
// microseconds, so it says yes from the next one on.
func UntilRoom(t shared.Take, empty shared.Instant, now, n int64) time.Duration {
	t.First = n
	first := t.Rate.Minus(empty, t.Room())
	if first.Part > 0 {
		first.Micros++
	}
	return max(time.Duration(first.Micros-now)*time.Microsecond, time.Microsecond)
}

// Fits reports whether a request of cost n may leave at a reading of the Bucket's clock.
func Fits(t shared.Take, empty shared.Instant, now, n int64) bool {
	t.First = n
	first := t.Rate.Minus(empty, t.Room())
	return first.Micros < now || first.Micros == now && first.Part == 0
}

// Check returns an error that says what is wrong with an answer, or nil.
func Check(t shared.Take, taken shared.Taken) error {
	r := taken.Other
	switch {
	case taken.Now <= 0, taken.Empty.Micros < taken.Now:
		return fmt.Errorf("%w: the level reaches 0 at %d, before now, %d", ErrNoSense, taken.Empty.Micros, taken.Now)
	case taken.Hold < 0, taken.Hold > 0 && taken.Hold <= taken.Now:
		return fmt.Errorf("%w: the hold in force ends at %d, and now is %d", ErrNoSense, taken.Hold, taken.Now)
	case r == nil:
		return nil
	case taken.OK, r.Agrees(t.Rate), r.Version < t.Rate.Version, r.Parts < 1000, r.Parts > shared.MaxParts, r.Parts%1000 != 0, r.Part < 0, r.Part >= r.Parts,
		r.Micros < 0, r.Micros > horizon.Microseconds(), r.Micros == 0 && r.Part == 0, r.Burst < 1:
		return fmt.Errorf("%w: the rate in force is %+v", ErrNoSense, *r)
	}
	return nil
}

// ErrNoSense is for a Bucket that breaks its contract.
var ErrNoSense = errors.New("shaper: the answer of the shared bucket makes no sense")
