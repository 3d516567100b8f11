package shaper

import (
	"context"
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

// A pump is the goroutine that asks the [shared.Bucket] for a lease: one call at a time. It runs
// only while there is something to ask, or to wait for.
type pump struct {
	sf *sharedFlow
	loop

	probes   bool // a call has come in the fallback since the Bucket was asked last
	asksRoom bool // it asks for as much as the level has room for
}

// A loop is a goroutine that takes one step after the other while there is one, as a caller of the
// [shared.Bucket] of a flow.
type loop struct {
	running bool
	until   int64         // it sleeps until then; 0: it does not sleep
	wake    chan struct{} // has room for one value; wakes it
}

// A caller says what the steps of a loop are.
type caller interface {
	nextStepLocked(now int64) (s step, until int64) // for stepSleep, until when
	callLocked(s step, now int64) (call func())     // the call is made without the lock
}

// A step is the next action of a loop.
type step uint8

const (
	stepEnd step = iota
	stepSleep
	stepTake
	stepGiveBack
)

// nextStepLocked returns the next step of the pump, and for stepSleep, until when. It is asked
// again after each change of the line, of its seats or of the lease.
func (p *pump) nextStepLocked(now int64) (s step, until int64) {
	sf, f, d := p.sf, p.sf.f, p.sf.d
	if p.probes {
		if _, ok := sf.breaker.MayAsk(now); ok && sf.fallback && d.phase == open {
			return stepTake, 0
		}
		p.probes = false
	}
	if f.waiting() == 0 || d.phase == closed || sf.Off {
		sf.EndLine()
		sf.DropLate(now)
		switch {
		case sf.Leased() == 0 || sf.breaker.Open:
			return stepEnd, 0
		case sf.CanGiveBack():
			return stepGiveBack, 0
		}
		sf.DropAll() // They are of a rate that has been changed since.
		return stepEnd, 0
	}
	if sf.breaker.Open && !sf.fallback && (f.hasSeat() || f.bucket.cap != grantedCap) { // Else a seat is asked for.
		// Those in line lose patience even if it is a hold or the cap that keeps them, or if slots
		// are leased for them, so the Bucket is asked whether it can be again.
		if until, ok := sf.breaker.MayAsk(now); !ok {
			return stepSleep, until
		}
		return stepTake, 0
	}
	if !p.wantsLocked(now) {
		return stepEnd, 0
	}
	at := max(sf.BusyAt, sf.holding.keptUntilLocked()-sf.RTT)
	if sf.Contended && sf.Leased() == 0 {
		// Others first, but it asks half an interval before the next slot at the latest.
		next := exact.Sum(sf.EndsAt, -sf.Interval.Times(sf.Burst-1).Whole())
		at = max(at, min(f.line.since.Whole()+sf.LongestCourtesy(), next-sf.Interval.Whole()/2))
	}
	if mayAsk, ok := sf.breaker.MayAsk(now); !ok {
		at = max(at, mayAsk)
	}
	if at > now {
		return stepSleep, at
	}
	return stepTake, 0
}

// wantsLocked reports whether units are to be leased: for the head, or ahead for those behind
// it, as soon as half of the stretch has been used. So no more than two batches are ever
// leased.
func (p *pump) wantsLocked(now int64) bool {
	sf, f := p.sf, p.sf.f
	if !f.hasSeat() {
		return false
	}
	covered := sf.Covers(f.line.head.cost, now)
	switch {
	case f.ahead() <= sf.Leased() || sf.HasNext():
		return false
	case f.capped() && covered && int64(f.freeSeats()) <= sf.Leased():
		return false // At most so many can leave, as each costs 1 at least.
	}
	return !covered || sf.HalfUsed()
}

// kickLocked makes the pump take its next step, if there is one.
func (p *pump) kickLocked(now int64) { p.loop.kickLocked(p.sf, p, now) }

// callLocked returns the call that asks for a lease, or gives units back.
func (p *pump) callLocked(s step, now int64) (call func()) {
	if s == stepGiveBack {
		t, end := p.sf.GiveBack(now)
		return func() { p.sf.callGiveBack(t, end) }
	}
	t := p.takeLocked(now)
	return func() { p.callTake(t) }
}

// kickLocked makes the loop take its next step, if there is one.
func (l *loop) kickLocked(sf *sharedFlow, by caller, now int64) {
	s, until := by.nextStepLocked(now)
	switch {
	case l.until > 0 && (s != stepSleep || until < l.until): // also to end: Close waits for that
		select {
		case l.wake <- struct{}{}:
		default:
		}
	case !l.running && s != stepEnd:
		l.running = true
		if l.wake == nil {
			l.wake = make(chan struct{}, 1)
		}
		sf.all.pumps++
		go l.run(sf, by)
	}
}

// run is the body of the loop. It takes the lock itself.
func (l *loop) run(sf *sharedFlow, by caller) {
	d := sf.d
	for {
		now := d.lockAndAdvance()
		sf.checkFallbackLocked(now)
		s, until := by.nextStepLocked(now)
		switch s {
		case stepTake, stepGiveBack:
			call := by.callLocked(s, now)
			d.unlockAndArm()
			call()
		case stepSleep:
			l.until = until
			d.unlockAndArm()
			l.sleep(d, time.Duration(until-now))
		default:
			l.running = false
			if sf.all.pumps--; sf.all.pumps == 0 && sf.all.idle != nil {
				close(sf.all.idle)
				sf.all.idle = nil
			}
			d.unlockAndArm()
			return
		}
	}
}

// sleep waits for a time, or until the loop is woken. The lock is not held.
func (l *loop) sleep(d *dispatcher, span time.Duration) {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.wake:
	}
	d.mu.Lock()
	l.until = 0
	d.mu.Unlock()
}

// takeLocked returns the question for the next stretch: for the first in line that are not
// covered yet.
func (p *pump) takeLocked(now int64) shared.Take {
	sf, f := p.sf, p.sf.f
	p.probes, p.asksRoom = false, false
	sf.breaker.Asks(now, sf.all.timeout)
	if f.waiting() == 0 { // The Bucket is asked whether it can be again.
		t := sf.questionLocked(1, now)
		t.High = t.High.Later(sf.levelAsHighLocked(now))
		return t
	}
	if sf.HasNext() { // So here, and there is no place for more units.
		return sf.emptyQuestionLocked(now)
	}
	walk := f.line.walk()
	w, next := walk(), walk()
	rest, queued := sf.Leased(), f.waiting()
	for rest >= w.cost && next != nil {
		rest -= w.cost
		w, next = next, walk()
		queued--
	}
	// If the remaining units do not suffice for a request, all of its cost is leased anew: the
	// remaining units may be too far from the new ones to be used with them.
	sf.Largest = max(sf.Largest, w.cost)
	t := sf.questionLocked(w.cost, now)
	unit := max(sf.Interval.Units(exact.At(int64(time.Second))), 0) // per second
	most := sf.BatchFor(queued, unit)
	free := int64(math.MaxInt64) // how many may leave before a seat is given back
	if f.capped() {
		free = max(1, int64(f.freeSeats())-sf.Leased())
	}
	most = min(most, free)
	longest, n := int64(sf.LongestBatch()*unit), int64(1)
	for ; n < most && next != nil && t.Cost+next.cost <= longest; n++ {
		t.Cost += next.cost
		next = walk()
	}
	// The last request of the batch must not be farther away than MaxAhead either: a change of the
	// rate relies on this.
	behind := time.Duration(sf.Rate.Times(t.Cost-t.First).Micros+1) * time.Microsecond
	t.Ahead = max(0, shared.MaxAhead-behind)
	if sf.fallback {
		t.High = t.High.Later(sf.levelAsHighLocked(now))
		return t
	}
	// Requests for which the level has room may leave now, so their units are asked for besides, all or
	// nothing: if there is no such room nothing is granted, and then a batch alone is asked for.
	batch, room := t.Cost, sf.ShareOfRoom(now)
	for ; !sf.RefusedRoom && n < free && next != nil && t.Cost+next.cost <= room; n++ {
		t.Cost += next.cost
		next = walk()
	}
	if t.Cost > batch {
		// The rest of a batch may leave later, as it may without the room.
		t.First, t.Ahead, p.asksRoom = t.Cost-(batch-t.First), 0, true
	}
	return t
}

// callTake calls the [shared.Bucket], and notes the answer. The lock is not held.
func (p *pump) callTake(t shared.Take) {
	sf, d := p.sf, p.sf.d
	ctx, cancel := context.WithTimeout(context.Background(), sf.all.timeout)
	defer cancel()
	a := sf.all.call(ctx, t)
	now := d.lockAndAdvance()
	defer d.unlockAndArm()
	if sf.noteAnswerLocked(t, a) {
		switch {
		case a.taken.OK && (sf.Off || sf.HasNext()): // No rate is in force, or there is no place for it.
			sf.CountLeased(t.Cost)
			sf.Drop(t.Cost)
		case a.taken.OK:
			before, due := sf.Add(t, a.taken)
			interval := sf.PaceInterval()
			sf.estimateFromLocked(interval, exact.Sum(due, -interval.Times(before).Whole()))
			sf.holding.dropLocked() // The question may have been older than a hold.
		case p.asksRoom:
			sf.RefusedRoom = true
		case a.taken.Other == nil && t.Rate == sf.Rate && sf.f.waiting() > 0 && t.First <= t.Cost:
			sf.estimateFromLocked(sf.PaceInterval(), sf.Wait(t, a.taken, now))
		}
	}
	sf.checkFallbackLocked(now)
	d.markDirtyLocked(sf.f)
	d.advanceLocked(now, headFirst)
}

// callGiveBack calls the [shared.Bucket]. The lock is not held.
func (sf *sharedFlow) callGiveBack(t shared.Take, end shared.Instant) {
	d := sf.d
	ctx, cancel := context.WithTimeout(context.Background(), sf.all.timeout)
	defer cancel()
	a := answer{sent: int64(time.Since(d.epoch))}
	a.err = sf.all.bucket.GiveBack(ctx, t, end)
	a.received = d.lockAndAdvance()
	defer d.unlockAndArm()
	sf.CountRoundTrip()
	if a.err != nil {
		sf.noteFailureLocked(a, a.err)
	}
}

// noteAnswerLocked notes the news of an answer about the [shared.Bucket]: its clock, its rate, and
// whether it can be asked. It reports whether there is one.
func (sf *sharedFlow) noteAnswerLocked(t shared.Take, a answer) bool {
	sf.CountRoundTrip()
	if a.err != nil {
		sf.noteFailureLocked(a, a.err)
		return false
	}
	sf.holding.noteLocked(t, a)
	sf.noteSuccessLocked(a)
	// The rate may have been changed since the question.
	if r := a.taken.Other; r != nil && !r.Agrees(sf.Rate) && (r.Version > sf.Rate.Version || t.Rate == sf.Rate) {
		sf.adoptLocked(*r)
	}
	return true
}

// noteSuccessLocked notes that the [shared.Bucket] can be asked.
func (sf *sharedFlow) noteSuccessLocked(a answer) {
	if !sf.common.Open || a.sent >= sf.common.OpenedAt { // Else it was asked before the outage, and says nothing new.
		sf.all.succeededLocked(sf.common, a.received)
	}
	if sf.IsTooSlow() {
		// That is so for these Limits only, so from now on the flow has a circuit breaker of its own.
		sf.standAloneLocked(0)
		sf.noteFailureLocked(a, tooSlowError{sf.Slack, time.Duration(sf.RTT).Round(time.Microsecond)})
		return
	}
	sf.failed, sf.failures = nil, 0
	sf.standWithOthersLocked(a.received)
}

// standAloneLocked gives the flow a circuit breaker of its own, with so many failures in a row,
// unless it has one, until an answer is in time or the flow is forgotten.
func (sf *sharedFlow) standAloneLocked(failures int) {
	if sf.breaker == sf.common {
		sf.breaker = &lease.Breaker{Name: sf.common.Name, Failures: failures}
	}
}

// standWithOthersLocked gives up the circuit breaker of the flow's own, if it has one.
func (sf *sharedFlow) standWithOthersLocked(now int64) {
	if sf.breaker != sf.common {
		sf.all.succeededLocked(sf.breaker, now)
		sf.breaker = sf.common
	}
}

// noteFailureLocked notes that the [shared.Bucket] could not be asked.
func (sf *sharedFlow) noteFailureLocked(a answer, err error) {
	sf.CountFailure()
	sf.failed = err
	if sf.failures++; sf.breaker.Open {
		sf.failures = 0 // There is an outage already.
	} else if sf.failures >= lease.FailuresToOpen && sf.common.Failures+1 < lease.FailuresToOpen {
		// Other keys are answered, so this one has an outage of its own, as with a row that
		// stays locked.
		sf.standAloneLocked(lease.FailuresToOpen - 1)
	}
	sf.all.failedLocked(sf.breaker, a, err)
}
