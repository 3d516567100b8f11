package alarm

import (
	"runtime"
	"time"
)

// A Lead is the time by which the ticker wakes before its next slot. Waking up takes
// some tens of microseconds, and not always the same time. A ticker that wakes a
// little too soon, and yields until the slot comes, is in time to within a
// microsecond, for hardly more CPU time (docs/decisions.md). Only the ticker goroutine
// uses the Lead.
//
// The runtime's yields are quick only while the process has nothing else to do: a
// goroutine that yields joins the end of the global run queue, and while all threads
// are busy it can stay there for 100 ms. So when a wake-up or a yield has been late,
// the lead is 0 for a while.
type Lead struct {
	paused int64 // the instant until which the lead is 0
	pause  int16 // the length of the last pause, in milliseconds
	span   int16 // eight of nine wake-ups take no longer, in steps; at most LongestLead
	middle int16 // one of two wake-ups takes no longer, in steps; at most LongestLead
	busy   int8  // so many slots are awaited without yielding first; at most slotsBusy
	work   int8  // rises when those who leave work; below 0: after so many slots StepAside does nothing
}

// step is the unit of a Lead's estimate; a coarse unit keeps the estimate, and so a Shaper, small.
const step = 125 * time.Nanosecond

const (
	// leadUpTo is the longest sleep for which the ticker takes a lead. After
	// longer ones, the kernel's idle states make waking too uneven.
	leadUpTo = time.Millisecond
	// LongestLead leaves room for machines that wake more slowly than the one on which 99
	// of 100 wake-ups took less than 57 µs.
	LongestLead = 100 * time.Microsecond
	// awaitUpTo bounds the time for which a ticker that took the usual time to wake
	// waits for its slot: where some wake-ups take far longer than others, the late
	// ones are late, and the others cost little.
	awaitUpTo = 30 * time.Microsecond
	// NotWorthSleeping is how long the ticker yields in place of sleeping.
	NotWorthSleeping = 50 * time.Microsecond
	// lookUpTo is how long others wait at most for the processor of a goroutine that
	// looks at the clock in place of yielding.
	lookUpTo = 10 * time.Microsecond
	// A yield that takes slowYield has let others work. After one before a slot, the next
	// slotsBusy slots come without. For slotsWork see StepAside.
	slowYield = 10 * time.Microsecond
	slotsBusy = 8
	slotsWork = 120
	// A wake-up that is late by lateWake, or a yield that takes lateYield, may be
	// bad luck or the sign of a busy process. The first such event leads to the
	// shortest pause. If the next one comes within the length of a pause after its
	// end, the pause is doubled, up to the longest.
	lateWake      = time.Millisecond
	lateYield     = 100 * time.Microsecond
	shortestPause = 5 * time.Millisecond
	longestPause  = 320 * time.Millisecond
)

// Before returns the lead for a slot, in nanoseconds. now is the present instant.
func (l *Lead) Before(slot, now int64) int64 {
	if now < l.paused || slot-now > int64(leadUpTo) {
		return 0
	}
	return int64(min(l.span, l.middle+int16(awaitUpTo/step))) * int64(step)
}

// Woke learns from a wake-up at the instant now, which was late by that many
// nanoseconds. A spacing is even if the ticker was in time for both of its ends. So the
// lead settles where eight of nine wake-ups are no later than it: nearly four of five
// spacings are even then.
func (l *Lead) Woke(now, late int64) {
	switch {
	case late < 0: // The ticker was woken before its time, for something else.
	case late >= int64(lateWake):
		l.suspend(now)
	default:
		follow(&l.span, late, 8)
		follow(&l.middle, late, 1)
	}
}

// follow lets an estimate settle where of rises+1 wake-ups all but one are no later: it
// goes up by rises steps after a wake-up that was later, and down by one step after a
// wake-up that was not.
func follow(estimate *int16, late int64, rises int16) {
	if late > int64(*estimate)*int64(step) {
		*estimate = min(*estimate+rises, int16(LongestLead/step))
	} else {
		*estimate = max(*estimate-1, 0)
	}
}

// Await returns at the instant until, which is at most [LongestLead] away, for a goroutine
// that has just slept. It yields once and looks at the clock for lookUpTo; after that it
// only yields. It reports whether the process seems to have nothing else to do.
//
// The first yield of an idle process wakes another thread. The ticker needs one as soon as
// a request leaves, and waking it takes some microseconds, by which the request would be
// late. Further yields wake more threads, which look for work and find none. Where the
// first yield lets others work, the next slotsBusy slots come without one.
func (l *Lead) Await(until int64, epoch time.Time) (idle bool) {
	began := int64(time.Since(epoch))
	now := began
	if l.busy > 0 {
		l.busy--
	} else if now = l.yieldOnce(epoch); now-began >= int64(slowYield) {
		l.busy = slotsBusy
	} else {
		idle = true
	}
	for looked := now + int64(lookUpTo); now < min(until, looked); {
		now = int64(time.Since(epoch))
	}
	if now < until && now >= l.paused {
		l.Yield(until, epoch)
	}
	return idle
}

// StepAside lets those run who leave, after a slot, and returns the present instant. Where
// they work before they wait again, the ticker could miss its next slot meanwhile: if that
// happens in more than one of three slots, the next slotsWork slots do without.
func (l *Lead) StepAside(epoch time.Time) int64 {
	began := int64(time.Since(epoch))
	if l.work < 0 {
		l.work++
		return began
	}
	now := l.yieldOnce(epoch)
	switch {
	case now-began < int64(slowYield):
		l.work = max(l.work-1, 0)
	case l.work < 6:
		l.work += 2
	default:
		l.work = -slotsWork
	}
	return now
}

// Yield lets other goroutines run until the instant until, which is at most
// [LongestLead] away. It returns sooner if one of them keeps the processor too long.
func (l *Lead) Yield(until int64, epoch time.Time) {
	for now := l.yieldOnce(epoch); now < until && now >= l.paused; {
		now = l.yieldOnce(epoch)
	}
}

// yieldOnce lets other goroutines run, and returns the present instant.
func (l *Lead) yieldOnce(epoch time.Time) int64 {
	began := time.Since(epoch)
	runtime.Gosched()
	now := time.Since(epoch)
	if now-began >= lateYield {
		l.suspend(int64(now))
	}
	return int64(now)
}

// suspend makes the lead 0 for a while.
func (l *Lead) suspend(now int64) {
	if now < l.paused+int64(l.pause)*int64(time.Millisecond) {
		l.pause = min(2*l.pause, int16(longestPause/time.Millisecond))
	} else {
		l.pause = int16(shortestPause / time.Millisecond)
	}
	l.paused = now + int64(l.pause)*int64(time.Millisecond)
}
