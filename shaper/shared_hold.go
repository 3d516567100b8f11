package shaper

import (
	"context"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper/internal/lease"
	"example.com/leakybucket/shaper/shared"
)

// A holding shares the holds of a flow with the other processes. It tells the [shared.Bucket] at once of a hold
// that this process sets, and again each second, in case that the state is lost: those who wait for the end of a
// hold do not ask. Every [shared.Take] carries the latest hold that is known, and every answer may tell of a later
// one.
//
// A hold is an instant of the Bucket's clock. Here it is the hold of the flow too, on the engine's clock, as it
// has been estimated last: when the Bucket's clock has certainly come to it.
type holding struct {
	sf *sharedFlow
	loop

	latest int64 // the latest hold that is known, as a reading of the Bucket's clock in microseconds; 0: none
	mapped int64 // the instant that it stands for, as the flow was held for it; 0: it was not
	alone  bool  // the Bucket has been told of a hold, and answered none

	own     int64 // the end of the hold that this process has set, on the engine's clock; 0: it has set none
	pending bool  // it is not in latest, as the Bucket's clock is not known yet
	untold  bool  // the Bucket has not answered yet that it knows
	tried   bool  // it has been told, or asked for its clock, since this process has set own
	tellAt  int64 // when it is told next

	taken shared.Take    // a unit that a question has taken though it should take nothing, and that is given back; Cost 0: none
	end   shared.Instant // of it
}

// longestHold bounds a hold of all processes: none of them can end it.
const longestHold = 24 * time.Hour

const (
	tellAgain    = time.Second     // after so long the Bucket is told once more
	tellNoLonger = 2 * time.Second // while more than this is left of the hold
)

// hold notes a hold that this process sets. A span of 0 ends what this process holds: it forgets the hold, and
// learns of it again if another process or the [shared.Bucket] has it.
func (sf *sharedFlow) hold(now int64, span time.Duration) time.Duration {
	h := &sf.holding
	switch {
	case sf.Off: // Nothing is shared.
		return span
	case span == 0:
		h.latest, h.mapped, h.own, h.pending, h.untold = 0, 0, 0, false, false
		h.kickLocked(now)
		return 0
	}
	span = min(span, longestHold)
	if end := exact.Sum(now, int64(span)); end > h.own {
		h.own, h.pending = end, true
		h.joinLocked(now)
		h.applyLocked(now)
		h.kickLocked(now)
	}
	return span
}

// joinLocked makes the hold that this process has set the latest one, on the [shared.Bucket]'s clock, as soon as
// that is known. It takes the latest reading that this clock can have then, so that the hold is never too short.
// If a later one is known, there is nothing to tell.
func (h *holding) joinLocked(now int64) {
	known := h.sf.Clock.Known()
	switch reading := h.readingLocked(h.own, now); {
	case !h.pending:
		return
	case !known || reading > h.latest:
		h.untold, h.tried, h.tellAt = true, false, now
		if known {
			h.becomesLocked(reading)
		}
	default:
		h.own, h.untold = 0, false
	}
	h.pending = !known
}

// becomesLocked notes a later hold.
func (h *holding) becomesLocked(latest int64) {
	h.latest = latest
	h.sf.EndLine() // It is no other process that will have moved the level.
}

// readingLocked returns the latest that the [shared.Bucket]'s clock can show at an instant, in microseconds.
func (h *holding) readingLocked(at, now int64) int64 {
	return lease.InstantOf(exact.Sum(h.sf.Clock.Latest(now), at-now)).Micros
}

// endsLocked returns the instant at which the [shared.Bucket]'s clock has certainly come to the end of the hold.
func (h *holding) endsLocked() int64 { return h.sf.Clock.Reaches(h.latest * 1000) }

// keepsLocked reports whether a hold keeps requests of the flow about which the [shared.Bucket] need not be asked: one
// that it does not know.
func (h *holding) keepsLocked(now int64) bool {
	hold := h.sf.f.bucket.coldOrNone().hold
	return hold.Whole() > now && (h.latest == 0 || h.alone || hold != exact.At(h.mapped))
}

// keptUntilLocked is flow.keptUntil, but for a hold of all the first instant at which that may have ended: whoever asks
// then learns what the [shared.Bucket]'s clock shows, and leaves at the end of the hold rather than when it is certain.
func (h *holding) keptUntilLocked() int64 {
	kept := h.sf.f.keptUntil()
	if h.latest > 0 && kept == h.mapped && h.mapped > h.own {
		return max(h.sf.Clock.MayReach(h.latest*1000), h.own)
	}
	return kept
}

// applyLocked holds the flow until the end of the hold, as that is estimated now. No unit is kept that is due before,
// and the level seems to be as the [shared.Bucket] makes it: a request of cost 1 leaves at the end of the hold, and
// the others follow at the rate.
func (h *holding) applyLocked(now int64) {
	if h.latest == 0 || h.sf.Off {
		return
	}
	sf, f, d := h.sf, h.sf.f, h.sf.d
	end := max(h.endsLocked(), h.own)
	if c := f.bucket.coldOrNew(); h.mapped > 0 && c.hold == exact.At(h.mapped) {
		if end < h.mapped && h.mapped > now { // The estimate has become better.
			c.hold = exact.At(end)
		}
	}
	h.mapped = end
	if end > now {
		d.holdUntilLocked(f, now, end)
		h.dropLocked()
		if b := &f.bucket; !sf.fallback && !h.alone {
			b.setEmpty(exact.Later(b.empty, b.interval.Plus(exact.At(end), b.interval.Times(b.burst-1))), nil)
		}
	}
	d.markDirtyLocked(f)
}

// dropLocked drops the leased units that would leave at once when the hold ends, beside the first request behind it.
func (h *holding) dropLocked() {
	if h.latest > 0 {
		h.sf.DropBefore(h.latest * 1000)
	}
}

// noteLocked notes an answer of the [shared.Bucket], also about its clock and the level.
func (h *holding) noteLocked(t shared.Take, a answer) {
	sf, taken := h.sf, a.taken
	ends := h.endsLocked() // before the estimate of the clock begins anew
	if !sf.NoteAnswer(t, taken, a.sent, a.received) && h.latest > 0 {
		h.latest = h.readingLocked(ends, a.received)
	}
	if taken.Hold > 0 {
		h.alone = false
	} else if t.Hold > taken.Now && taken.Other == nil && taken.Now >= t.Seen {
		h.alone = true
	}
	if taken.Hold > h.latest {
		h.becomesLocked(taken.Hold)
	}
	h.joinLocked(a.received)
	h.applyLocked(a.received)
	if taken.Now >= h.latest {
		h.latest, h.mapped = 0, 0
	}
}

// questionLocked returns the question for a request of cost n, with the hold while it lasts.
func (sf *sharedFlow) questionLocked(n, now int64) shared.Take {
	t := sf.Question(n)
	if h := &sf.holding; h.latest > 0 && h.endsLocked() > now {
		t.Hold = h.latest
	}
	return t
}

// emptyQuestionLocked returns a question that takes nothing, unless the level is at 0.
func (sf *sharedFlow) emptyQuestionLocked(now int64) shared.Take {
	t := sf.questionLocked(1, now)
	t.First = sf.Burst + 1
	return t
}

// kickLocked makes the loop take its next step, if there is one.
func (h *holding) kickLocked(now int64) { h.loop.kickLocked(h.sf, h, now) }

// nextStepLocked returns the next step: the [shared.Bucket] is told at once, and then again and again.
// In an outage the hold is this process's own, and the first call that may be made tells of it.
func (h *holding) nextStepLocked(now int64) (s step, until int64) {
	closing := h.sf.d.phase == closed
	switch at := max(now, h.tellAt); {
	case h.taken.Cost > 0:
		return stepGiveBack, 0
	case h.sf.Off, h.own <= now, h.latest > 0 && h.endsLocked() <= now, closing && (h.tried || !h.untold),
		!h.untold && (h.alone || h.own-at <= int64(tellNoLonger)):
		return stepEnd, 0
	case at > now && !closing:
		return stepSleep, at
	}
	until, ok := h.sf.breaker.MayAsk(now)
	switch {
	case ok:
		return stepTake, 0
	case closing:
		return stepEnd, 0
	}
	return stepSleep, until
}

// takeLocked returns the question that tells of the hold. A process that has had no answer yet asks what the clock of
// the [shared.Bucket] shows.
func (h *holding) takeLocked(now int64) shared.Take {
	sf := h.sf
	sf.breaker.Asks(now, sf.all.timeout)
	h.tried = sf.Clock.Known()
	t := sf.emptyQuestionLocked(now)
	if sf.fallback {
		t.High = t.High.Later(sf.levelAsHighLocked(now))
	}
	return t
}

// callTake calls the [shared.Bucket], and notes the answer. The lock is not held.
func (h *holding) callTake(t shared.Take) {
	sf, d := h.sf, h.sf.d
	ctx, cancel := context.WithTimeout(context.Background(), sf.all.timeout)
	defer cancel()
	a := sf.all.call(ctx, t)
	now := d.lockAndAdvance()
	defer d.unlockAndArm()
	answered := sf.noteAnswerLocked(t, a)
	if answered && a.taken.OK { // The level was at 0: no hold was told, or the clock has gone back.
		sf.CountLeased(t.Cost)
		h.taken, h.end = t, t.Rate.Plus(a.taken.Empty, t.Rise())
	}
	switch {
	case !answered:
		h.tellAt = now + int64(tellSoon)
	case t.Hold < h.latest && !h.alone, a.taken.Other != nil, a.taken.Now < t.Seen:
		h.tellAt = now // It has not been told of the latest hold, or can't compare it with its own.
	default:
		h.untold, h.tellAt = false, a.sent+int64(tellAgain)
	}
	if answered && h.alone && t.Rate == sf.Rate && sf.Leased() == 0 { // The level is not as this process has taken it to be.
		sf.estimateFromLocked(sf.PaceInterval(), sf.Clock.Reaches(lease.NanosOf(t.Rate, a.taken.Empty).Ceil()))
	}
	sf.checkFallbackLocked(now)
	d.markDirtyLocked(sf.f)
	d.advanceLocked(now, headFirst)
}

// tellSoon is after how long the [shared.Bucket] is told again if a call has failed.
const tellSoon = 50 * time.Millisecond

// callLocked returns the call that tells of the hold, or gives a unit back.
func (h *holding) callLocked(s step, now int64) (call func()) {
	if s == stepGiveBack {
		t, end := h.taken, h.end
		h.taken = shared.Take{}
		h.sf.CountGivenBack(t.Cost)
		return func() { h.sf.callGiveBack(t, end) }
	}
	t := h.takeLocked(now)
	return func() { h.callTake(t) }
}
