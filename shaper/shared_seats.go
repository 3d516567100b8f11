package shaper

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/shared"
)

// A seating leases seats of a flow from a [shared.Seater] ([shared.Options.InFlight]). Its loop asks for them one call
// at a time, and the engine sees only how many there are ([flow.seats]). The zero seating of a flow without such a cap
// does nothing.
//
// The lease of seats lasts [shared.SeatLease] from when they were asked for, and then nobody leaves. While some are used they
// are renewed, and a process for whom there are too few asks each [shared.SeatPoll]. If none has been used since a process
// asked last, it gives all back in place of the next renewal, and then does not ask at all. To give them back at once would
// take more round trips where requests come one by one. To keep them without a renewal would be a mistake: if the Bucket
// loses its state, it gives nothing until all have said what they hold, for a renewal and a time-out.
//
// From when a question says how many seats are kept, no more of them are used, whatever becomes of the question. So a
// seat is given back once.
type seating struct {
	sf  *sharedFlow
	key string
	loop

	held     int   // the seats that this process has, if their lease lasts
	target   int   // to how many it is to come down
	overdue  int   // as many of those have been in flight when no lease lasted, so that others may have got these seats
	asked    int64 // when it asked for those
	number   int64 // of that question; 0: it has told since that it needs none
	short    bool  // it got fewer than it could use
	gaveWay  bool  // it has told that it wants none, as its turn is over and others wait
	stagger  int64 // how much later it asks again then
	turnEnds int64 // until then it may go on using more than its target
	guard    int64 // when a state of the key that is new begins to give seats, at the latest; 0: it has given some

	inUse     int     // the requests in flight since notedAt
	notedAt   int64   //
	used      float64 // seat-nanoseconds of the requests in flight since asked
	most      int     // that were in flight at a time since asked
	mostSince int     // that were so since the latest question, answered or not
	idle      bool    // nothing is in flight, and nobody in line needs a seat soon

	wishes []*seatWish
	timer  *time.Timer // wakes an idle seating to give its seats back, as no goroutine stays for that; nil: it has not been idle
	timed  bool        // it runs
}

const (
	// seatTurn is for how long a process uses seats that it has just got, even if it is to have fewer. Where there are fewer
	// seats than processes they take turns, and short calls would use little of a seat that each call gives up.
	seatTurn = 5 * time.Second

	// seatAhead is how long before the head of a line may leave it needs a seat: slots are taken so far ahead.
	seatAhead = shared.MaxAhead + shared.SeatPoll
)

// A seatWish is a request that must not wait in line, and for which a seat is asked for.
type seatWish struct {
	done  chan struct{} // closed when the question has been answered, or can't be asked
	asked bool          // a question has been asked for it
	has   bool          // it has got a seat
	lost  bool          // the Bucket could not be asked
}

// begin makes the seating of a flow, the seats of which have a key.
func (s *seating) begin(sf *sharedFlow, key string) { s.sf, s.key = sf, key }

// statsLocked returns the part of [shared.Stats] that is about seats.
func (s *seating) statsLocked() (seats, target int) {
	if seats = s.hasLocked(s.sf.d.clock); seats == 0 && s.on() && s.sf.fallback {
		seats = s.usableLocked(s.sf.d.clock)
	}
	return seats, s.target
}

// on reports whether there is a cap of all processes.
func (s *seating) on() bool { return s.sf.all.grantSeats() }

// busyLocked reports whether the flow must stay, as it has seats or asks for some.
func (s *seating) busyLocked(now int64) bool { return s.running || s.lastsLocked(now) }

// lastsLocked reports whether this process has seats whose lease lasts.
func (s *seating) lastsLocked(now int64) bool { return s.held > 0 && now < s.endsLocked() }

// endsLocked returns when the lease ends.
func (s *seating) endsLocked() int64 { return s.asked + int64(shared.SeatLease) }

// hasLocked returns how many seats this process has.
func (s *seating) hasLocked(now int64) int {
	if s.lastsLocked(now) {
		return s.held
	}
	return 0
}

// usableLocked returns how many requests may be in flight now, for another one to leave.
func (s *seating) usableLocked(now int64) int {
	n := max(0, s.hasLocked(now)-s.overdue)
	switch all := s.sf.all; {
	case n > s.target && now >= s.turnEnds:
		n = s.target
	case s.hasLocked(now) == 0 && s.sf.fallback:
		n = max(1, all.cap/int(all.fallback))
	}
	return min(n, s.limitLocked())
}

// limitLocked returns how many requests of this process may be in flight, whatever seats it has.
func (s *seating) limitLocked() int {
	f := s.sf.f
	switch own := s.sf.was.limits.InFlight; {
	case !f.capped():
		return math.MaxInt
	case !s.on():
		return f.seats()
	case own > 0:
		return min(own, s.sf.all.cap)
	}
	return s.sf.all.cap
}

// expectedLocked returns how many requests may be in flight if this process gets the seats that it asks for, as far
// as is known.
func (s *seating) expectedLocked() int {
	if s.on() && (s.short || s.sf.breaker.Open || s.held > 0 && s.held >= s.target) { // A target is below the cap only if others wait.
		return s.sf.f.seats()
	}
	return s.limitLocked()
}

// grantLocked tells the engine how many requests may be in flight now.
func (s *seating) grantLocked(now int64) {
	if !s.on() {
		return
	}
	f, d := s.sf.f, s.sf.d
	seats := int32(s.usableLocked(now))
	r := f.bucket.rareOrNew()
	if r.seats == seats {
		return
	}
	had := f.hasSeat()
	if r.seats = seats; !had && f.hasSeat() {
		f.notBefore(now) // The head could not leave before.
		f.bucket.idleUntil(now)
	}
	if ln := f.line; ln != nil && ln.index >= 0 && ln.head != nil {
		ln.slot = f.nextInLine()
		d.due.update(ln)
		d.rearm = true
	}
}

// noteLocked notes how many requests are in flight from now on.
func (s *seating) noteLocked(now int64) {
	s.used += float64(s.inUse) * float64(max(0, now-s.notedAt))
	s.inUse, s.notedAt = s.sf.f.seatsTaken(), now
	s.most, s.mostSince = max(s.most, s.inUse), max(s.mostSince, s.inUse)
	needed, _ := s.neededLocked(now)
	if s.idle = s.inUse == 0 && !needed && len(s.wishes) == 0; s.idle {
		s.short, s.guard = false, 0
	}
}

// neededLocked reports whether the head of the line needs a seat soon; if not, from when on it will.
func (s *seating) neededLocked(now int64) (needed bool, from int64) {
	f := s.sf.f
	if f.waiting() == 0 {
		return false, exact.Forever
	}
	at := s.sf.mayLeave(f.line.head)
	if at == exact.Forever {
		at = f.slotOf(f.line.head)
	}
	from = exact.Sum(at, -int64(seatAhead))
	return from <= now, from
}

// meanLocked returns how many seats have been in use in the mean since it asked last, rounded to the nearest number, but to 1
// rather than to 0.
func (s *seating) meanLocked(now int64) int {
	mean := s.used / float64(max(now-s.asked, 1))
	return int(math.Ceil(max(mean-0.5, min(mean, 1))))
}

// saysLittleLocked reports whether it has asked too short a time ago for its use since then to mean something.
func (s *seating) saysLittleLocked(now int64) bool { return now-s.asked < int64(shared.SeatPoll) }

// wantLocked returns how many seats this process could use, if it has so many: those in use, those that are free and that
// those in line will take, and one for each in line that these will not reach within a second.
func (s *seating) wantLocked(now int64, has int) int {
	n := s.inUse
	if !s.saysLittleLocked(now) {
		n = max(n, min(s.meanLocked(now), has))
	}
	n += len(s.wishes)
	if needed, _ := s.neededLocked(now); needed {
		n = max(n, s.inUse+len(s.wishes)+s.neededInLineLocked(now, has))
	}
	return min(n, s.limitLocked())
}

// neededInLineLocked returns how many seats those in line need which could leave by the level within a second: the free
// ones of those that this process has, and one for each that does not get one of these in this time.
func (s *seating) neededInLineLocked(now int64, has int) int {
	f := s.sf.f
	b := &f.bucket
	queue := float64(f.waiting())
	if !b.interval.IsZero() {
		units := float64(s.sf.Leased()) + float64(b.burst) - b.level(now) + b.interval.Units(exact.At(int64(time.Second)))
		queue = min(queue, max(1, math.Floor(units*queue/float64(f.ahead()))))
	}
	free := float64(max(0, has-s.inUse))
	reached := free
	if mean := f.seatTime(); mean > 0 && !s.stuckLocked(now) {
		each := float64(time.Second) / float64(mean)
		reached = float64(min(s.inUse, has))*each + free*max(1, each)
	}
	return int(min(free, queue) + max(0, queue-math.Floor(reached)))
}

// stuckLocked reports whether no seat has become free for the head of the line for a second, so that the time for which
// seats were taken before says nothing.
func (s *seating) stuckLocked(now int64) bool { return s.stuckAtLocked() <= now }

// stuckAtLocked returns from when on that will be so; forever: not before something changes.
func (s *seating) stuckAtLocked() int64 {
	if f := s.sf.f; f.waiting() > 0 && !f.hasSeat() {
		return f.line.since.Ceil() + int64(shared.SeatPoll)
	}
	return exact.Forever
}

// keptLocked returns how many seats are kept by a question that is asked now: those in use, and beside them what has been
// of use since it asked last; while others wait, in the mean.
func (s *seating) keptLocked(now int64) int {
	kept := s.hasLocked(now)
	if !s.saysLittleLocked(now) {
		if kept = min(kept, s.most); s.target < s.sf.all.cap {
			kept = min(kept, s.meanLocked(now))
		}
	}
	return max(min(kept, s.usableLocked(now)), s.inUse)
}

// kickLocked makes the loop take its next step, if there is one.
func (s *seating) kickLocked(now int64) {
	if s.on() {
		s.loop.kickLocked(s.sf, s, now)
	}
}

// passed uses units for a request that has left as it came.
func (sf *sharedFlow) passed(cost int64) {
	sf.Use(cost)
	sf.NoteUse()
	sf.seating.kickLocked(sf.d.clock)
}

// nextStepLocked returns the next step. It is asked again after each change of the line, of the seats or of the level.
func (s *seating) nextStepLocked(now int64) (step step, until int64) {
	sf := s.sf
	s.noteLocked(now)
	s.grantLocked(now)
	until = exact.Forever
	mayAsk, ok := sf.breaker.MayAsk(now)
	if sf.d.phase == closed {
		s.endWishesLocked(false)
		if ok && !sf.breaker.Open && s.hasLocked(now) > s.inUse {
			return stepTake, 0
		}
		return stepEnd, 0
	}
	if sf.fallback || !ok {
		s.endWishesLocked(true)
	}
	at := s.asksAtLocked(now)
	if !ok {
		at = max(at, mayAsk)
	}
	switch {
	case at <= now:
		return stepTake, 0
	case s.idle:
		s.wakeLocked(at - now)
	default:
		until = at
	}
	if _, from := s.neededLocked(now); from > now {
		until = min(until, from)
	}
	if s.lastsLocked(now) && !s.idle {
		until = min(until, s.endsLocked())
		if s.target < s.held && s.turnEnds > now {
			until = min(until, s.turnEnds)
		}
		if stuck := s.stuckAtLocked(); stuck > now {
			until = min(until, stuck)
		}
	}
	if until == exact.Forever {
		return stepEnd, 0
	}
	return stepSleep, until
}

// wakeLocked makes the loop take its next step after a time in which the seating stays idle.
func (s *seating) wakeLocked(after int64) {
	switch {
	case s.timed || after >= int64(shared.SeatLease):
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(time.Duration(after), func() {
			now := s.sf.d.lockAndAdvance()
			defer s.sf.d.unlockAndArm()
			s.timed = false
			s.kickLocked(now)
		})
	default:
		s.timer.Reset(time.Duration(after))
	}
	s.timed = true
}

// asksAtLocked returns when it asks next; forever: not before something changes.
func (s *seating) asksAtLocked(now int64) int64 {
	has := s.hasLocked(now)
	switch {
	case s.inUse > has, len(s.wishes) > 0, has > max(s.usableLocked(now), s.inUse) && !s.sf.breaker.Open:
		return now
	case s.idle:
		if has == 0 || s.sf.breaker.Open {
			return exact.Forever
		}
		return s.asked + int64(shared.SeatRenew)
	case s.wantLocked(now, has) <= has:
		return min(s.asked+int64(shared.SeatRenew), s.idlesAtLocked(now, has))
	case !s.short:
		return now
	}
	at := s.asked + int64(shared.SeatPoll)
	switch {
	case s.gaveWay:
		at += s.stagger
	case has == 0 && s.turnEnds > 0 && s.asked < s.turnEnds+2*int64(seatTurn): // The turns of others end now.
		at -= int64(shared.SeatPoll) / 7
	}
	if s.asked < s.guard {
		at = min(at, s.guard)
	}
	return at
}

// idlesAtLocked returns when a seat will have been idle in the mean since it asked last, if nothing changes until then and
// others wait; else forever. Where calls are short and few, or end while nobody is in line, a seat that is given back
// only with the next renewal would be idle for most of the time.
func (s *seating) idlesAtLocked(now int64, has int) int64 {
	if s.target >= s.sf.all.cap || has <= max(s.inUse, 1) {
		return exact.Forever
	}
	few := float64(has) - 0.5 // A mean up to this is rounded down.
	in := (s.used - few*float64(now-s.asked)) / (few - float64(s.inUse))
	return max(now+int64(math.Ceil(max(0, in))), s.asked+int64(shared.SeatPoll))
}

// callLocked returns the call that asks for seats.
func (s *seating) callLocked(_ step, now int64) (call func()) {
	sf, all := s.sf, s.sf.all
	sf.breaker.Asks(now, all.timeout)
	lasts := s.lastsLocked(now)
	all.asked++
	q := shared.Seating{Key: s.key, ID: all.id, Cap: all.cap, Held: s.keptLocked(now), Number: all.asked}
	if q.Want = s.wantLocked(now, q.Held); sf.d.phase == closed {
		q.Held, q.Want = s.inUse, s.inUse
	}
	if s.gaveWay = lasts && q.Held == 0 && s.held-s.overdue > s.usableLocked(now); s.gaveWay {
		// It waits behind all who wait now, and first for the turn of another. A turn lasts five polls, so processes in step would
		// ask just before a seat is given back, again and again; and the later it asks first, the more often it may later.
		q.Want = 0
		s.stagger = int64(shared.SeatPoll)/3 + rand.Int64N(int64(shared.SeatPoll)/2)
	}
	if now < s.endsLocked() { // Also if it waits, and has none: an older state does not know of that.
		q.Answered = s.number
	}
	s.overdue = max(0, q.Held-max(0, s.hasLocked(now)-s.overdue))
	if s.held = q.Held; q.Held+q.Want == 0 {
		s.number = 0
	}
	s.grantLocked(now)
	for _, w := range s.wishes {
		w.asked = true
	}
	usedBefore := s.used
	s.mostSince = s.inUse
	return func() { s.callSeats(q, usedBefore) }
}

// callSeats calls the [shared.Seater], and notes the answer. used are the seat-nanoseconds before the question. The lock is
// not held.
func (s *seating) callSeats(q shared.Seating, used float64) {
	sf, d := s.sf, s.sf.d
	ctx, cancel := context.WithTimeout(context.Background(), sf.all.timeout)
	defer cancel()
	a := answer{sent: int64(time.Since(d.epoch))}
	seated, err := sf.all.seater.Seats(ctx, q)
	a.received = int64(time.Since(d.epoch))
	if a.err = err; err == nil {
		a.err = checkSeated(q, seated)
	}
	now := d.lockAndAdvance()
	defer d.unlockAndArm()
	s.noteLocked(now)
	sf.CountRoundTrip()
	if a.err != nil {
		sf.noteFailureLocked(a, a.err)
	} else {
		sf.noteSuccessLocked(a)
		s.answeredLocked(q, seated, a)
		s.used, s.most = s.used-used, s.mostSince
	}
	sf.checkFallbackLocked(now)
	s.grantLocked(now)
	s.answerWishesLocked(now, a.err != nil)
	d.markDirtyLocked(sf.f)
	d.advanceLocked(now, headFirst)
}

// answeredLocked notes the answer to a question.
func (s *seating) answeredLocked(q shared.Seating, got shared.Seated, a answer) {
	s.held, s.target, s.asked, s.number = got.Held, got.Target, a.sent, q.Number
	s.short = got.Held < q.Want || s.gaveWay
	if q.Held+q.Want == 0 {
		s.number = 0
	}
	switch {
	case got.Held > q.Held: // All together have no more than there are.
		s.turnEnds, s.guard, s.overdue = a.received+int64(seatTurn), 0, 0
	case got.Held == 0 && s.short && s.guard == 0 && s.turnEnds == 0:
		s.guard = a.received + int64(shared.SeatGuard)
	}
}

// checkSeated returns what is wrong with an answer.
func checkSeated(q shared.Seating, got shared.Seated) error {
	if got.Held < q.Held || got.Held > max(q.Held, q.Want) || got.Target < 0 {
		return fmt.Errorf("shaper: the shared bucket has answered %+v when asked for seats by %+v: Held must be from %d to %d, and Target at least 0",
			got, q, q.Held, max(q.Held, q.Want))
	}
	return nil
}

// answerWishesLocked gives seats to those for whom a question has been asked, as far as there are some.
func (s *seating) answerWishesLocked(now int64, lost bool) {
	f := s.sf.f
	s.wishes = slices.DeleteFunc(s.wishes, func(w *seatWish) bool {
		if !w.asked {
			return false
		}
		if w.lost = lost; !lost && f.hasSeat() && f.waiting() == 0 {
			w.has = true
			f.lineOrNew().seatsTaken++
		}
		close(w.done)
		return true
	})
	s.noteLocked(now)
}

// endWishesLocked ends all wishes without a question; lost says that it could not be asked.
func (s *seating) endWishesLocked(lost bool) {
	for _, w := range s.wishes {
		w.lost = lost
		close(w.done)
	}
	s.wishes = nil
}

// seatedLocked returns what comes of a request that has got a seat: the level is asked next, unless there is none.
func (s *seating) seatedLocked(now int64, r *request, note func(now int64, dec decision)) (dec decision, has bool) {
	if !s.sf.Off {
		return dec, true
	}
	d, f := s.sf.d, s.sf.f
	s.sf.meter.endAskLocked()
	dec = d.admitLocked(f, now, r, d.judgeLocked(f, now, r))
	r.entered = now
	note(now, dec)
	return dec, false
}

// reserve takes a seat for a request that must not wait in line, and asks for one if there is none. It is called for a
// request about which [sharedFlow.decide] has answered mustAsk. If it does not get one, has is false, and dec is the decision.
func (s *seating) reserve(r *request, note func(now int64, dec decision)) (dec decision, has bool) {
	sf, d := s.sf, s.sf.d
	f := sf.f
	now := d.lockFlow(f)
	s.grantLocked(now)
	if f.hasSeat() {
		f.lineOrNew().seatsTaken++
		s.kickLocked(now)
		dec, has = s.seatedLocked(now, r, note)
		d.unlockAndArm()
		return dec, has
	}
	w := &seatWish{done: make(chan struct{})}
	s.wishes = append(s.wishes, w)
	s.kickLocked(now)
	d.unlockAndArm()
	ended := true
	select {
	case <-w.done:
	case <-r.ctx.Done():
		ended = false
	}
	gone := errOf(r.ctx)
	if gone == nil && !ended {
		gone = context.Canceled
	}
	now = d.lockFlow(f)
	defer d.unlockAndArm()
	if gone == nil && w.has {
		return s.seatedLocked(now, r, note)
	}
	s.wishes = slices.DeleteFunc(s.wishes, func(o *seatWish) bool { return o == w })
	sf.meter.endWithoutSeatLocked()
	if w.has {
		f.freeSeat(now)
	}
	d.markDirtyLocked(f)
	switch {
	case gone != nil:
		f.countAbandonment(d.totals, now)
		dec = decision{err: gone, event: abandonedEvent, waiting: int32(f.waiting())}
	case w.lost || d.phase == closed:
		dec = sf.meter.decideWithoutLocked(now, r)
	default:
		v := f.view()
		dec = d.refuseFullLocked(f, now, r, max(v.expected(0), shared.SeatPoll))
	}
	r.entered = now
	note(now, dec)
	return dec, false
}
