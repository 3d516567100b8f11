package shaper

import (
	"errors"
	"fmt"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// errNoSense is for a [Bucket] that breaks its contract.
var errNoSense = errors.New("shaper: the answer of the shared bucket makes no sense")

// noteAnswerLocked notes what an answer says about the [Bucket]: its clock, its rate, and
// whether it can be asked. It reports whether there is one.
func (ls *lease) noteAnswerLocked(t Take, a answer) bool {
	d := ls.d
	ls.counts.roundTrips++
	d.shared.counts.roundTrips++
	if a.err != nil {
		ls.noteFailureLocked(a, a.err)
		return false
	}
	rtt := max(a.received-a.sent, 1)
	ls.noteRoundTripLocked(rtt)
	usedUpTo := ls.clock.reaches(ls.usedUpTo.Ceil()) // on the dispatcher's clock, before what is known of the Bucket's begins anew
	if !ls.clock.note(a.sent, a.received, a.taken.Now) {
		// The clock has been set, or another server answers: nobody knows any more when
		// the units are due that this process has.
		ls.dropAllLocked()
		ls.high, ls.end, ls.floor = Instant{}, Instant{}, usedUpTo
	}
	ls.noteLevelLocked(t, a.taken)
	d.succeededLocked(ls.common, a.received)
	// One answer that was late, in a process or on a server that was busy, does not mean that no
	// slot can be used in time. Nor do the first, which may have waited for a connection.
	if slack := ls.given.limits.Slack; slack > 0 && ls.rtt >= int64(slack) && ls.rtts[tripsToJudge-1] > 0 {
		ls.tooSlowLocked(a, tooSlowError{slack, time.Duration(ls.rtt).Round(time.Microsecond)})
	} else {
		ls.failed, ls.failures = nil, 0
		ls.standWithOthersLocked(a.received)
	}
	// The rate may have been changed since the question.
	if r := a.taken.Other; r != nil && !r.Agrees(ls.rate) && (r.Version > ls.rate.Version || t.Rate == ls.rate) {
		ls.adoptLocked(*r)
	}
	return true
}

// noteRoundTripLocked notes how long a call took: rtt is the shortest of the latest few, and
// meanTrip the moving average.
func (ls *lease) noteRoundTripLocked(rtt int64) {
	if ls.meanTrip == 0 {
		ls.meanTrip = rtt
	}
	ls.meanTrip += (rtt - ls.meanTrip) / paceWeight
	copy(ls.rtts[1:], ls.rtts[:])
	ls.rtts[0], ls.rtt = rtt, rtt
	for _, r := range ls.rtts {
		if r > 0 {
			ls.rtt = min(ls.rtt, r)
		}
	}
}

// tooSlowLocked notes that slots can't be used in time. That is so for these [Limits] only, so
// from now on the lease has a circuit breaker of its own.
func (ls *lease) tooSlowLocked(a answer, err error) {
	ls.standAloneLocked(0)
	ls.noteFailureLocked(a, err)
}

// standAloneLocked gives the lease a circuit breaker of its own, with so many failures in a row,
// unless it has one, until an answer is in time or the lease is forgotten.
func (ls *lease) standAloneLocked(failures int) {
	if ls.backend == ls.common {
		ls.backend = &backend{name: ls.common.name, failures: failures}
	}
}

// standWithOthersLocked gives up the circuit breaker of the lease's own, if it has one.
func (ls *lease) standWithOthersLocked(now int64) {
	if ls.backend != ls.common {
		ls.d.succeededLocked(ls.backend, now)
		ls.backend = ls.common
	}
}

// tripsToJudge is after how many round trips a [Bucket] may be found to be too far.
const tripsToJudge = 3

// checkAnswer returns what is wrong with an answer.
func checkAnswer(t Take, taken Taken) error {
	r := taken.Other
	switch {
	case taken.Now <= 0, taken.Empty.Micros < taken.Now:
		return fmt.Errorf("%w: the level reaches 0 at %d, before now, %d", errNoSense, taken.Empty.Micros, taken.Now)
	case r == nil:
		return nil
	case taken.OK, r.Agrees(t.Rate), r.Version < t.Rate.Version, r.Parts < 1000, r.Parts > shared.MaxParts, r.Parts%1000 != 0, r.Part < 0, r.Part >= r.Parts,
		r.Micros < 0, r.Micros > horizon.Microseconds(), r.Micros == 0 && r.Part == 0, r.Burst < 1:
		return fmt.Errorf("%w: the rate in force is %+v", errNoSense, *r)
	}
	return nil
}

// noteFailureLocked notes that the [Bucket] could not be asked.
func (ls *lease) noteFailureLocked(a answer, err error) {
	ls.counts.failures++
	ls.d.shared.counts.failures++
	ls.failed = err
	if ls.failures++; ls.backend.open {
		ls.failures = 0 // There is an outage already.
	} else if ls.failures >= failuresToOpen && ls.common.failures+1 < failuresToOpen {
		// Other keys are answered, so this one has an outage of its own, as with a row that
		// stays locked.
		ls.standAloneLocked(failuresToOpen - 1)
	}
	ls.d.failedLocked(ls.backend, a, err)
}

// adoptLocked puts the rate in force that another process has set.
func (ls *lease) adoptLocked(r BucketRate) {
	if ls.given.interval.IsZero() {
		return
	}
	ls.dropAllLocked()
	ls.high, ls.end, ls.busyAt = Instant{}, Instant{}, 0
	ls.adoptLimitsLocked(r)
	ls.setRateLocked(r)
	ls.pace = 1
	ls.estimateFromLocked(ls.plan.interval, ls.f.bucket.empty.Ceil())
}
