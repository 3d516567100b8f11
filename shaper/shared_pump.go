package shaper

import (
	"context"
	"math"
	"time"

	"example.com/leakybucket/internal/exact"
)

// A pump is the goroutine that asks the [Bucket] for a lease: one call at a time. It runs
// only while there is something to ask, or to wait for.
type pump struct {
	running bool
	until   int64         // it sleeps until then; 0: it does not sleep
	wake    chan struct{} // has room for one value; wakes it
}

// A step is what a pump does next.
type step uint8

const (
	stepEnd step = iota
	stepSleep
	stepTake
	stepGiveBack
)

// nextStepLocked returns what the pump is to do, and for stepSleep, until when. It is asked
// again after each change of the line, of its seats or of the lease.
func (ls *lease) nextStepLocked(now int64) (s step, until int64) {
	f, d := ls.f, ls.d
	if ls.probes {
		if _, ok := ls.backend.mayAsk(now); ok && ls.fallback && d.phase == open {
			return stepTake, 0
		}
		ls.probes = false
	}
	if f.waiting() == 0 || d.phase == closed || ls.given.interval.IsZero() {
		ls.lastCost = 0
		if ls.dropLateLocked(now); ls.leasedLocked() > 0 && !ls.backend.open {
			return stepGiveBack, 0
		}
		return stepEnd, 0
	}
	if ls.backend.open && !ls.fallback {
		// Those in line lose patience even if it is a hold or the cap that keeps them, or if slots
		// are leased for them, so the Bucket is asked whether it can be again.
		if until, ok := ls.backend.mayAsk(now); !ok {
			return stepSleep, until
		}
		return stepTake, 0
	}
	if !ls.wantsLocked(now) {
		return stepEnd, 0
	}
	at := max(ls.busyAt, f.keptUntil()-ls.rtt)
	if ls.contended && ls.leasedLocked() == 0 {
		// Others first, but it asks half an interval before the next slot at the latest.
		next := exact.Sum(ls.endsAt, -ls.plan.interval.Times(ls.plan.burst-1).Whole())
		at = max(at, min(f.line.since.Whole()+ls.longestCourtesyLocked(), next-ls.plan.interval.Whole()/2))
	}
	if mayAsk, ok := ls.backend.mayAsk(now); !ok {
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
func (ls *lease) wantsLocked(now int64) bool {
	f := ls.f
	if !f.hasSeat() {
		return false
	}
	covered := ls.coversLocked(f.line.head.cost, now)
	switch {
	case f.ahead() <= ls.leasedLocked() || ls.next.remaining > 0:
		return false
	case f.capped() && covered && int64(f.bucket.limits.InFlight-f.seatsTaken()) <= ls.leasedLocked():
		return false // At most so many can leave, as each costs 1 at least.
	}
	return !covered || ls.now.remaining <= ls.batch/2
}

// kickLocked makes the pump do what is to be done, if there is something.
func (ls *lease) kickLocked(now int64) {
	s, until := ls.nextStepLocked(now)
	p := &ls.pump
	switch {
	case p.until > 0 && (s != stepSleep || until < p.until): // also to end: Close waits for that
		select {
		case p.wake <- struct{}{}:
		default:
		}
	case !p.running && s != stepEnd:
		p.running = true
		if p.wake == nil {
			p.wake = make(chan struct{}, 1)
		}
		ls.d.shared.pumps++
		go ls.run()
	}
}

// run is the body of the pump. It takes the lock itself.
func (ls *lease) run() {
	d := ls.d
	for {
		now := d.lockAndAdvance()
		ls.checkFallbackLocked(now)
		s, until := ls.nextStepLocked(now)
		switch s {
		case stepTake:
			t := ls.takeLocked(now)
			d.unlockAndArm()
			ls.callTake(t)
		case stepGiveBack:
			t, end := ls.giveBackLocked()
			d.unlockAndArm()
			ls.callGiveBack(t, end)
		case stepSleep:
			ls.pump.until = until
			d.unlockAndArm()
			ls.sleep(time.Duration(until - now))
		default:
			ls.pump.running = false
			if d.shared.pumps--; d.shared.pumps == 0 && d.shared.idle != nil {
				close(d.shared.idle)
				d.shared.idle = nil
			}
			d.unlockAndArm()
			return
		}
	}
}

// sleep waits for a time, or until the pump is woken. The lock is not held.
func (ls *lease) sleep(span time.Duration) {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ls.pump.wake:
	}
	ls.d.mu.Lock()
	ls.pump.until = 0
	ls.d.mu.Unlock()
}

// takeLocked returns the question for the next stretch: for the first in line that are not
// covered yet.
func (ls *lease) takeLocked(now int64) Take {
	f := ls.f
	ls.probes, ls.asksRoom = false, false
	ls.d.shared.asksLocked(ls.backend, now)
	if f.waiting() == 0 { // The Bucket is asked whether it can be again.
		t := ls.questionLocked(1)
		t.High = t.High.Later(ls.levelAsHighLocked(now))
		return t
	}
	if ls.next.remaining > 0 { // So here, and there is no place for more units.
		t := ls.questionLocked(1)
		t.First = ls.plan.burst + 1 // It takes nothing, unless the level is at 0.
		return t
	}
	w, rest, queued := f.line.head, ls.leasedLocked(), f.waiting()
	for rest >= w.cost && w.next != nil {
		rest -= w.cost
		w = w.next
		queued--
	}
	// If what is left does not suffice for a request, then units for all of its cost are
	// leased: those that are left may be too far from the new ones to be used with them.
	ls.largest = max(ls.largest, w.cost)
	t := ls.questionLocked(w.cost)
	unit := max(ls.plan.interval.Units(exact.At(int64(time.Second))), 0) // per second
	most := ls.batchForLocked(queued, unit)
	free := int64(math.MaxInt64) // how many may leave before a seat is given back
	if f.capped() {
		free = max(1, int64(f.bucket.limits.InFlight-f.seatsTaken())-ls.leasedLocked())
	}
	most = min(most, free)
	longest, n := int64(ls.longestBatchLocked()*unit), int64(1)
	for ; n < most && w.next != nil && t.Cost+w.next.cost <= longest; n++ {
		w = w.next
		t.Cost += w.cost
	}
	// The last request of the batch must not be farther away than MaxAhead either: that is
	// what a change of the rate relies on.
	behind := time.Duration(ls.rate.Times(t.Cost-t.First).Micros+1) * time.Microsecond
	t.Ahead = max(0, MaxAhead-behind)
	if ls.fallback {
		t.High = t.High.Later(ls.levelAsHighLocked(now))
		return t
	}
	// What the level has room for may leave now, so it is asked for besides, all or nothing: it
	// is not granted if the room is not there, and then a batch alone is asked for.
	batch, room := t.Cost, ls.shareOfRoomLocked(now)
	for ; !ls.refusedIt && n < free && w.next != nil && t.Cost+w.next.cost <= room; n++ {
		w = w.next
		t.Cost += w.cost
	}
	if t.Cost > batch {
		// The rest of a batch may leave later, as it may without the room.
		t.First, t.Ahead, ls.asksRoom = t.Cost-(batch-t.First), 0, true
	}
	return t
}

// questionLocked returns a [Take] for a request of cost n, as of now.
func (ls *lease) questionLocked(n int64) Take {
	return Take{Key: ls.key, Cost: n, First: n, Rate: ls.rate, High: ls.high, Seen: ls.clock.lastSeen, Guard: ls.guardLocked()}
}

// guardLocked returns the Guard of a [Take]. With a Burst a request may leave before the
// level has fallen to 0, so that is added.
func (ls *lease) guardLocked() time.Duration {
	g := ls.d.shared.guard
	if g == 0 {
		return 0
	}
	room := ls.rate.Times(ls.rate.Burst - 1)
	return g + time.Duration(min(room.Micros+1, int64(horizon/time.Microsecond)))*time.Microsecond
}

// callTake calls the [Bucket], and notes the answer. The lock is not held.
func (ls *lease) callTake(t Take) {
	d := ls.d
	ctx, cancel := context.WithTimeout(context.Background(), d.shared.timeout)
	defer cancel()
	a := d.askBucket(ctx, t)
	now := d.lockAndAdvance()
	defer d.unlockAndArm()
	if ls.noteAnswerLocked(t, a) {
		switch {
		case a.taken.OK && (t.Rate != ls.rate || ls.given.interval.IsZero() || ls.next.remaining > 0): // Another rate is in force, or there is no place for it.
			ls.countLeasedLocked(t.Cost)
			ls.dropLocked(t.Cost)
		case a.taken.OK:
			ls.addLocked(t, a.taken)
		case ls.asksRoom:
			ls.refusedIt = true
		case a.taken.Other == nil && t.Rate == ls.rate && ls.f.waiting() > 0 && t.First <= t.Cost:
			ls.waitsUntilLocked(t, a.taken, now)
		}
	}
	ls.checkFallbackLocked(now)
	d.markDirtyLocked(ls.f)
	d.advanceLocked(now, headFirst)
}

// askBucket calls [Bucket.Take], and returns between which instants of the dispatcher's
// clock that was.
func (d *dispatcher) askBucket(ctx context.Context, t Take) (a answer) {
	a.sent = int64(time.Since(d.epoch))
	a.taken, a.err = d.shared.bucket.Take(ctx, t)
	a.received = int64(time.Since(d.epoch))
	if a.err == nil {
		a.err = checkAnswer(t, a.taken)
	}
	return a
}

// addLocked adds a stretch that has been leased.
func (ls *lease) addLocked(t Take, taken Taken) {
	before := ls.leasedLocked()
	got := stretch{empty: nanosOf(ls.rate, taken.Empty), remaining: t.Cost, tail: t.Cost}
	ls.countLeasedLocked(t.Cost)
	ls.end = ls.rate.Plus(taken.Empty, t.Rise())
	ls.high = ls.high.Later(ls.end)
	ls.batch, ls.busyAt, ls.refusedIt = t.Cost, 0, false
	ls.contended = ls.end.Micros-ls.rate.Times(ls.rate.Burst-1).Micros-taken.Now >= MaxAhead.Microseconds()
	ls.endsAt = ls.clock.reaches(nanosOf(ls.rate, ls.end).Ceil())
	ls.notePaceLocked(t, taken)
	if ls.next = got; before == 0 {
		if used := ls.f.bucket.departures != ls.since; used && ls.now != (stretch{}) {
			ls.endNowLocked()
		} else {
			ls.beginNextLocked()
		}
	}
	ls.keepDistanceLocked()
	interval := ls.paceIntervalLocked()
	ls.estimateFromLocked(interval, exact.Sum(ls.clock.reaches(got.empty.Ceil()), -interval.Times(before).Whole()))
}

// keepDistanceLocked drops units of the first stretch after the [Bucket]'s clock was set that
// are due before what this process has used already ends, on its own clock.
func (ls *lease) keepDistanceLocked() {
	for ls.now.remaining > 0 && ls.clock.reaches(ls.now.empty.Ceil()) < ls.floor {
		ls.dropLocked(1)
		ls.useLocked(1)
		ls.since = ls.f.bucket.departures
	}
	ls.floor = 0
}

// waitsUntilLocked notes that the level is too high for a lease now.
func (ls *lease) waitsUntilLocked(t Take, taken Taken, now int64) {
	empty := nanosOf(ls.rate, taken.Empty)
	first := ls.plan.interval.Minus(empty, nanosOf(ls.rate, t.Room()))
	// When the Bucket's clock has certainly come so far that it can be leased.
	ls.busyAt = max(ls.clock.reaches(first.Ceil()-int64(t.Ahead)), now+int64(shortestSeatWait)) + ls.courtesyLocked(taken.Empty)
	ls.lastCost = 0
	ls.estimateFromLocked(ls.paceIntervalLocked(), ls.clock.reaches(empty.Ceil()))
}

// giveBackLocked takes what is leased and can be given back from the lease, which is the tail of
// the level as this process knows it, and returns the question. What can't be given back is
// dropped.
func (ls *lease) giveBackLocked() (t Take, end Instant) {
	ls.coversLocked(math.MaxInt64, ls.d.clock) // joins the two stretches
	n := min(ls.now.remaining, ls.now.tail)
	ls.dropLocked(ls.now.remaining - n)
	t = ls.questionLocked(n)
	end = ls.end
	if ls.high == end {
		ls.high = ls.rate.Minus(end, t.Rise())
	}
	ls.counts.givenBack += uint64(n)
	ls.d.shared.counts.givenBack += uint64(n)
	ls.lastCost = 0
	ls.level = nanosOf(ls.rate, ls.rate.Minus(end, t.Rise())).Ceil()
	ls.beginNextLocked()
	return t, end
}

// callGiveBack calls the [Bucket]. The lock is not held.
func (ls *lease) callGiveBack(t Take, end Instant) {
	d := ls.d
	ctx, cancel := context.WithTimeout(context.Background(), d.shared.timeout)
	defer cancel()
	a := answer{sent: int64(time.Since(d.epoch))}
	a.err = d.shared.bucket.GiveBack(ctx, t, end)
	a.received = d.lockAndAdvance()
	defer d.unlockAndArm()
	ls.counts.roundTrips++
	d.shared.counts.roundTrips++
	if a.err != nil {
		ls.noteFailureLocked(a, a.err)
	}
}
