package shaper

import (
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

// A sharedFlow is a flow whose level is in a [shared.Bucket]: its lease, the pump and the meter that ask
// for more, and its circuit breaker. The lock of the dispatcher
// guards it.
type sharedFlow struct {
	lease.Lease
	all     *sharedLevels
	d       *dispatcher
	f       *flow
	was     *plan          // of the flow: its Limits as this process was given them; see inForceLocked
	adopted *plan          // was with the rate of another process; nil: none has a newer one
	common  *lease.Breaker // of the key's server
	breaker *lease.Breaker // common, or one of its own; see standAloneLocked

	covered int32 // how many of the first newcomers in line have no place, at most; see placeless

	failed   error       // the latest failure; nil after a success
	failures int         // in a row
	fallback bool        // requests leave by the flow's own bucket, at the rate of the Fallback
	fellWith exact.Nanos // when that bucket's level would have reached 0 if none had left in the fallback

	pump    pump
	meter   meter
	holding holding
	seating seating
}

// add makes the sharedFlow of a flow, whose bucket has the plan of its [Limits].
func (s *sharedLevels) add(f *flow, key levelKey) {
	common := s.breakerOf(key.backend)
	sf := &sharedFlow{Lease: lease.New(key.key, s.guard, &f.bucket.departures, &s.counts), all: s, d: s.d, f: f, breaker: common, common: common}
	sf.pump.sf, sf.meter.sf, sf.holding.sf = sf, sf, sf
	sf.seating.begin(sf, key.key)
	sf.setGivenLocked(f.bucket.plan)
	sf.SetRate(s.rateOf(sf.was, s.version))
	s.flows[f] = sf
	f.setRemote(sf)
}

// forget forgets a flow that is deleted.
func (s *sharedLevels) forget(f *flow) {
	if sf := s.flows[f]; sf != nil && s.d.phase != closed {
		sf.standWithOthersLocked(s.d.clock) // Else nobody would be told that its outage has ended.
	}
	s.drop(f)
}

// updateLinesLocked updates the lines whose levels are in a backend, after that has become
// unavailable, or can be asked again.
func (s *sharedLevels) updateLinesLocked(b *lease.Breaker, now int64) {
	d := s.d
	for _, ln := range d.due {
		if sf := s.flows[ln.flow]; sf != nil && !sf.aloneLocked() && sf.breaker == b {
			ln.slot = ln.flow.nextInLine()
			sf.moved(now)
		}
	}
	d.due.reorder()
	d.rearm = true
}

// close gives back all leased units, after the lines have been emptied, and returns when
// that is done, or has failed. The lock is not held.
func (s *sharedLevels) close() {
	d := s.d
	now := d.lockAndAdvance()
	for _, sf := range s.flows {
		sf.moved(now)
		sf.holding.kickLocked(now)
	}
	d.unlockAndArm()
	s.waitForPumps()
	d.mu.Lock()
	defer d.mu.Unlock()
	for f, sf := range s.flows {
		sf.DropAll()                                                      // Units that could not be given back are lost.
		if d.host != nil && sf.meter.asking == 0 && f.seatsTaken() == 0 { // Its flow is gone.
			s.drop(f)
		}
	}
}

// busy reports whether the lease is in use.
func (sf *sharedFlow) busy(now int64) bool {
	sf.DropLate(now) // While the Bucket can't be asked nothing is given back.
	return sf.pump.running || sf.holding.running || sf.seating.busyLocked(now) || sf.meter.asking > 0 || sf.Leased() > 0
}

// usesOwnLevelLocked reports whether requests leave by the flow's own bucket, and use no units: in a
// fallback, and at rate.Inf.
func (sf *sharedFlow) usesOwnLevelLocked() bool { return sf.Off || sf.fallback && sf.Leased() == 0 }

// aloneLocked reports whether neither the rate nor a cap is shared, so that it does not matter whether the backend can be asked.
func (sf *sharedFlow) aloneLocked() bool { return sf.Off && !sf.all.grantSeats() }

// mayLeave returns when the head may use the units that are leased.
func (sf *sharedFlow) mayLeave(head *waiter) int64 {
	if sf.usesOwnLevelLocked() {
		return sf.f.slotOf(head)
	}
	return max(sf.unitsDueLocked(head.cost), sf.f.keptUntil())
}

// unitsDueLocked returns the instant from which on a request of cost n may use the next units;
// forever if units have to be leased for it first.
func (sf *sharedFlow) unitsDueLocked(n int64) int64 {
	if !sf.Covers(n, sf.d.clock) {
		return exact.Forever
	}
	return sf.SlotFor(n)
}

// leave lets the head of the line leave now, if units for it are still leased.
func (sf *sharedFlow) leave(w *waiter, now int64) bool {
	if !sf.leavesLocked(w, now) {
		sf.losePatienceLocked(now)
		return false
	}
	if !w.is(reentered) {
		sf.covered = max(0, sf.covered-1)
	}
	return true
}

// leavesLocked is leave, if it is not the patience of one in line that has come to its end.
func (sf *sharedFlow) leavesLocked(w *waiter, now int64) bool {
	sf.seating.grantLocked(now) // Its lease may have ended before the ticker came.
	switch {
	case !sf.f.hasSeat():
		return false
	case sf.usesOwnLevelLocked():
		slot, hasLeft := sf.f.bucket.letLeave(sf.f.line.since, now, w.cost)
		if !hasLeft {
			return false // Its units have been dropped since.
		}
		sf.f.line.since = slot
		sf.NotUsed() // It has used no units.
	case sf.f.headMayLeave() > now:
		return false
	default:
		sf.f.bucket.leave(exact.At(now), w.cost)
		sf.Use(w.cost)
		sf.NoteUse()
		sf.f.line.since = exact.At(now)
	}
	return true
}

// giveBack makes the units that a request has used available again.
func (sf *sharedFlow) giveBack(w *waiter, _ *companions) {
	if !sf.Off && !sf.fallback {
		sf.Unuse(w.departureNo, w.cost)
	}
	sf.f.bucket.giveBack(w.departureNo, w.cost)
}

// moved makes the pump take its next step, and the seating.
func (sf *sharedFlow) moved(now int64) {
	sf.seating.kickLocked(now)
	sf.pump.kickLocked(now)
}

// given returns the plan of the [Limits] that the flow was given, whose users are counted.
func (sf *sharedFlow) given() *plan { return sf.was }

// setGivenLocked notes the [Limits] that this process was given.
func (sf *sharedFlow) setGivenLocked(p *plan) {
	sf.was, sf.Off, sf.Slack = p, p.interval.IsZero(), p.limits.Slack
}

// change puts other [Limits] in force, in place of those that the flow was given
// before. If they have another rate or burst, that becomes the rate of all processes, as
// the newest.
func (sf *sharedFlow) change(to *plan) {
	now, b := sf.d.clock, &sf.f.bucket
	// The limits of another process, if it has changed them since.
	// A hold is time, and the level above it stays.
	from := max(now, b.coldOrNone().hold.Ceil())
	before, level := sf.inForceLocked().limits, b.level(from)
	sf.setGivenLocked(to)
	if sf.Off {
		sf.DropAll()
		sf.fallback = false
		b.plan = to
		b.setEmpty(exact.At(now), nil)
		return
	}
	if to.limits.Rate != before.Rate || to.limits.burst() != before.burst() {
		sf.adopted = nil
		sf.ChangeRate(sf.all.rateOf(to, max(sf.all.version, sf.Rate.Version+1)), now)
	} else if sf.adopted != nil {
		sf.adoptLimitsLocked(sf.Rate)
	}
	// The level does not change, in cost units.
	fell, raised := sf.fallback, sf.raisedLocked(now)
	sf.fallback = false
	sf.estimateFromLocked(sf.PaceInterval(), now)
	if fell {
		sf.checkFallbackLocked(now)
	}
	empty := exact.Sum(from, int64(level*float64(b.interval.Whole())))
	if until := sf.KeptUntil(); until > 0 { // Each of the kept units seems to raise the level.
		empty = max(empty, exact.Sum(until, -b.interval.Times(sf.Leased()).Whole()))
	}
	b.setEmpty(exact.At(empty), nil)
	sf.fellWith = b.interval.Minus(b.empty, b.interval.Times(raised))
}

// adoptLocked puts the rate in force that another process has set.
func (sf *sharedFlow) adoptLocked(r shared.BucketRate) {
	if sf.Off {
		return
	}
	sf.Adopt(r)
	sf.adoptLimitsLocked(r)
	sf.estimateFromLocked(sf.Interval, sf.f.bucket.empty.Ceil())
}

// adoptLimitsLocked makes the [Limits] those that were given, with the rate of another
// process.
func (sf *sharedFlow) adoptLimitsLocked(r shared.BucketRate) {
	p := *sf.was
	p.limits.Rate, p.limits.Burst, p.burst = lease.PerSecond(r), int(r.Burst), r.Burst
	sf.adopted = &p
}

// While a flow leaves by its lease, its own bucket is an estimate: the level of the
// Bucket as it looks from here, where each request seems to raise it by as much as it and
// the requests of the other processes do together. So all that predicts a wait (Forecast,
// RetryAfter, MaxWait, deadlines, Line) is computed by the same functions as without a Bucket.

// estimateFromLocked makes the flow's bucket an estimate: its level reaches 0 at an instant, and
// each cost unit takes the interval.
func (sf *sharedFlow) estimateFromLocked(interval exact.Interval, empty int64) {
	if sf.fallback || sf.Off {
		return
	}
	b := &sf.f.bucket
	if b.plan == sf.was || b.interval != interval || b.limits != sf.inForceLocked().limits {
		p := *sf.inForceLocked()
		p.interval, p.burst = interval, sf.Rate.Burst
		b.plan = &p
	}
	b.setEmpty(exact.At(max(empty, 0)), nil)
}

// inForceLocked returns the plan of the [Limits] that are in force: the limits of this
// process, or with the rate of another one that is newer.
func (sf *sharedFlow) inForceLocked() *plan {
	if sf.adopted != nil {
		return sf.adopted
	}
	return sf.was
}

// probeLocked makes the pump ask a backend that could not be asked, if it is time to. In the
// fallback requests may leave without a line, so that the pump does not run.
func (sf *sharedFlow) probeLocked(now int64) {
	if _, ok := sf.breaker.MayAsk(now); ok && !sf.pump.probes {
		sf.pump.probes = true
		sf.pump.kickLocked(now)
	}
}

// checkFallbackLocked begins or ends the fallback, as the backend demands it, and grants the seats that there are.
func (sf *sharedFlow) checkFallbackLocked(now int64) {
	defer sf.seating.grantLocked(now)
	switch n := int64(sf.all.fallback); {
	case sf.breaker.Open == sf.fallback || n == 0 || sf.aloneLocked():
	case sf.Off: // The cap alone is shared.
		sf.fallback = sf.breaker.Open
	case sf.breaker.Open:
		sf.fallback = true
		p := *sf.inForceLocked()
		whole := sf.Interval
		p.interval = exact.IntervalOfFraction(min(whole.Times(n).Whole(), int64(horizon)-1)+1, 0, 1) // A nanosecond longer rather than a part of one shorter.
		if n == 1 {
			p.interval = whole
		}
		p.burst = max(1, sf.Rate.Burst/n)
		start := max(sf.breaker.OpenedAt, sf.EndsAt) + sf.Lateness() // Whatever others have leased has passed by then.
		sf.f.bucket.plan = &p
		sf.fellWith = p.interval.Plus(exact.At(start), p.interval.Times(p.burst-1))
		sf.f.bucket.setEmpty(sf.fellWith, nil)
		sf.f.notBefore(now) // A request is not late because none could leave.
		sf.d.markDirtyLocked(sf.f)
	default:
		// The Bucket is told of the requests that have left meanwhile, by the level that they have made.
		own := sf.levelAsHighLocked(now)
		sf.Raise(own)
		sf.fallback = false
		sf.estimateFromLocked(sf.PaceInterval(), now)
		sf.f.notBefore(now)
		sf.d.markDirtyLocked(sf.f)
	}
}

// levelAsHighLocked returns when the level that has been made in the fallback would reach 0 on the
// [shared.Bucket]'s clock; the zero [shared.Instant] if none has left in it, or nothing is known of that clock.
func (sf *sharedFlow) levelAsHighLocked(now int64) shared.Instant {
	raised := sf.raisedLocked(now)
	if raised == 0 || !sf.Clock.Known() {
		return shared.Instant{}
	}
	return lease.InstantOf(exact.Sum(sf.Clock.Latest(now), sf.Interval.Times(raised).Ceil()))
}

// raisedLocked returns the part of the level that has been made by requests which have left in the
// fallback, rounded up to whole units: all of it, but for what the fallback began with. That keeps
// requests until the slots of others have passed, and is no level of the [shared.Bucket].
func (sf *sharedFlow) raisedLocked(now int64) int64 {
	b := &sf.f.bucket
	units := min(b.level(now), b.interval.Units(b.interval.Minus(b.empty, sf.fellWith)))
	return int64(math.Ceil(max(0, units)))
}

// Without a [shared.Bucket], as many requests as an idle bucket has room for leave at once, and only
// those behind them take places in line. While a Bucket is asked they all wait, for as long as
// it takes to answer. So the requests that the room of a shared level covers take no place
// either, and as much as the level has room for is leased at once.

// needsNoPlaceLocked reports whether a request of cost n that enters the line now could leave at
// once, if the level has the room that this process takes it to have.
func (sf *sharedFlow) needsNoPlaceLocked(now, n int64) bool {
	f := sf.f
	if sf.usesOwnLevelLocked() || f.bucket.coldOrNone().hold.Ceil() > now || f.waiting() >= sf.expectedSeats() {
		return false
	}
	ahead := max(0, f.ahead()-sf.Leased())
	return exact.Sum(ahead, min(n, sf.Burst)) <= sf.Room(now)
}

// placeless returns how many of those in line have no place, as it counts for a request of
// cost n: those at the head that the room of the level covers; and all if it covers this one, too.
//
// If an answer shows that there is less room, as other processes have taken it, those that are in
// line stay, and have a place from then on. So the line never holds more than [Limits.Depth]
// requests, those that were counted against the room, and retries, which need no place. If a
// request without a place gives up, the next one behind it moves up into its room.
func (sf *sharedFlow) placeless(now, n int64) int32 {
	waiting := int32(sf.f.waiting())
	switch {
	case sf.usesOwnLevelLocked():
		return 0
	case sf.needsNoPlaceLocked(now, n):
		return waiting
	}
	covered := min(sf.Room(now)+sf.Leased(), int64(sf.expectedSeats()))
	covered = max(0, covered) // at most, as each costs 1 at least
	sf.covered = int32(min(int64(sf.covered), int64(waiting), covered))
	return sf.covered
}

// enters notes if a newcomer takes no place in line.
func (sf *sharedFlow) enters(now, n int64) {
	if sf.needsNoPlaceLocked(now, n) {
		sf.covered++
	}
}

// decide decides upon a request by the lease. If there is none for it, and it must not wait, the [shared.Bucket]
// is to be asked.
func (sf *sharedFlow) decide(now, n, deadline int64, kind entryKind) (answer levelAnswer, why rejection) {
	f, d := sf.f, sf.d
	sf.checkFallbackLocked(now)
	asks := kind == allow || kind == newcomer && f.bucket.limits.Depth == 0
	keptOut := f.keptOutUntil() > now
	full := f.waiting() > 0 || f.seatsTaken() >= sf.seating.limitLocked()
	switch {
	case d.phase == closed, d.phase == draining && kind != reentry:
		return judges, why // The order of the reasons to refuse is the same.
	case sf.Off && kind != reentry && !f.hasSeat() && sf.isUnavailableLocked(now):
		return refuses, sf.unavailableLocked(now)
	case sf.Off && asks && !full && !f.hasSeat() && deadline > now:
		return sf.mustAskLocked(now), why // There may be a seat.
	case sf.Off:
		return judges, why
	case kind != reentry && sf.tooCostlyLocked(n):
		return refuses, rejection{reason: refusedCostly}
	case kind != reentry && deadline > now && !keptOut && f.waiting() == 0 && f.hasSeat() &&
		max(sf.unitsDueLocked(n), f.bucket.coldOrNone().hold.Ceil()) <= now:
		return passes, why
	case sf.usesOwnLevelLocked():
		sf.probeLocked(now)
		return judges, why
	case kind != reentry && sf.isUnavailableLocked(now):
		return refuses, sf.unavailableLocked(now)
	case asks && (full || sf.holding.keepsLocked(now) || keptOut || sf.fallback):
		// Asking would not help: the request may not overtake, or not leave.
		v := f.view()
		wait := v.expected(f.bucket.wait(now, v.ahead, n))
		return isFull, rejection{retryAfter: max(wait, shortestSeatWait)}
	case asks && deadline <= now: // It is too late, whatever the Bucket says.
		return refuses, rejection{reason: refusedLate, also: missedDeadline}
	case asks:
		return sf.mustAskLocked(now), why
	}
	return estimates, why
}

// mustAskLocked notes that a request is about to ask the [shared.Bucket].
func (sf *sharedFlow) mustAskLocked(now int64) levelAnswer {
	sf.meter.asking++
	if sf.f.hasSeat() { // Else a seat is asked for first.
		sf.breaker.Asks(now, sf.all.timeout)
	}
	if sf.f.bucket.cap == ownCap { // A seat of all is taken by ask.
		sf.f.lineOrNew().seatsTaken++ // It is given back if the Bucket refuses.
	}
	return mustAsk
}

// forecast returns why a newcomer would be refused in an outage.
func (sf *sharedFlow) forecast(now, n int64) (why rejection) {
	sf.checkFallbackLocked(now)
	if sf.d.phase == open && !sf.tooCostlyLocked(n) && sf.isUnavailableLocked(now) {
		why = sf.unavailableLocked(now)
	}
	return why
}

// expectsSeat reports whether a request gets a seat, as far as is known.
func (sf *sharedFlow) expectsSeat() bool { return sf.expectedSeats() > 0 }

// expectedSeats returns how many more requests would get a seat.
func (sf *sharedFlow) expectedSeats() int { return sf.seating.expectedLocked() - sf.f.seatsTaken() }

// refusesAll reports whether newcomers are refused in an outage.
func (sf *sharedFlow) refusesAll(now int64) bool { return sf.isUnavailableLocked(now) }

// tooCostlyLocked is plan.tooCostly, at the rate of the [shared.Bucket].
func (sf *sharedFlow) tooCostlyLocked(n int64) bool {
	return sf.was.limits.Depth == 0 && n > sf.Burst || sf.Interval.Times(n).Exceeds(horizon)
}

// isUnavailableLocked reports whether newcomers are refused because the [shared.Bucket] can't be asked.
// When it is time to ask it again, one request may try.
func (sf *sharedFlow) isUnavailableLocked(now int64) bool {
	if sf.aloneLocked() || !sf.breaker.Open || sf.fallback {
		return false
	}
	_, ok := sf.breaker.MayAsk(now)
	return !ok || sf.f.waiting() > 0
}

// unavailableLocked returns why a request is refused as the [shared.Bucket] can't be asked.
func (sf *sharedFlow) unavailableLocked(now int64) rejection {
	why := rejection{reason: refusedUnavailable, retryAfter: time.Duration(max(sf.breaker.ProbeAt-now, int64(shortestSeatWait)))}
	if slow, ok := sf.breaker.Err.(tooSlowError); ok {
		why.also = &alsoError{slow, true}
	}
	return why
}

// waitedTooLong returns why a request is refused that has lost patience.
func (sf *sharedFlow) waitedTooLong(at int64) rejection { return sf.unavailableLocked(at) }

// patienceEndsLocked returns when the patience of a request in the line ends; forever if there is
// no outage, or the request waits through it.
func (sf *sharedFlow) patienceEndsLocked(w *waiter) int64 {
	s := sf.all
	if sf.aloneLocked() || !sf.breaker.Open || s.fallback != shared.FallbackClosed || s.patience == 0 {
		return exact.Forever
	}
	return exact.Sum(max(w.at, sf.breaker.OpenedAt), int64(s.patience))
}

// nextBound returns when patience in the line ends next.
func (sf *sharedFlow) nextBound() int64 {
	return sf.patienceEndsLocked(sf.f.line.oldest())
}

// losePatienceLocked refuses the requests in line whose patience has ended by now. The caller
// then updates the departures.
func (sf *sharedFlow) losePatienceLocked(now int64) {
	ln := sf.f.line
	for w := ln.oldest(); w != nil && sf.patienceEndsLocked(w) <= now; w = ln.oldest() {
		ln.refuseLocked(sf.d, w, now, unavailable)
	}
}

// stats returns the [shared.Stats] of one lease.
func (sf *sharedFlow) stats() shared.Stats {
	st := bucketTotals(sf.Counts)
	st.State, st.Err = sf.all.stateOf(sf.breaker), sf.failed
	if st.Err == nil && sf.breaker.Open { // Another key has found the outage.
		st.Err = sf.breaker.Err
	}
	st.RTT, st.Held, st.Lateness = time.Duration(sf.RTT), sf.Leased(), time.Duration(sf.Lateness())
	st.Ahead, st.HoldsAlone = sf.MostAhead(), sf.holding.alone
	st.Seats, st.SeatsTarget = sf.seating.statsLocked()
	st.InFlight = sf.all.cap
	if sf.Counts.Leased > 0 {
		st.Share = 1 / sf.Pace
	}
	return st
}
