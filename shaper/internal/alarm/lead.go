package alarm

import (
	"runtime"
	"time"
)

// A Lead is the time by which the ticker wakes before its next slot. Waking up takes
// some tens of microseconds, and not always the same time. A ticker that wakes a
// little too soon, and yields until the slot comes, is in time to within a
// microsecond, for hardly more CPU time (ARCHITECTURE.md). Only the ticker goroutine
// uses the Lead.
//
// The runtime's yields are quick only while the process has nothing else to do: a
// goroutine that yields joins the end of the global run queue, and while all threads
// are busy it can stay there for 100 ms. So when a wake-up or a yield has been late,
// the lead is 0 for a while.
type Lead struct {
	paused int64 // the instant until which the lead is 0
	pause  int32 // the length of the last pause, in nanoseconds; at most longestPause, so it fits
	span   int32 // in nanoseconds; at most LongestLead
}

const (
	// leadUpTo is the longest sleep for which the ticker takes a lead. After
	// longer ones, the kernel's idle states make waking too uneven.
	leadUpTo = time.Millisecond
	// LongestLead bounds the time that is spent yielding for one slot.
	LongestLead = 50 * time.Microsecond
	// spinUpTo is how long others wait at most for the processor of a goroutine that
	// looks at the clock in place of yielding.
	spinUpTo = 10 * time.Microsecond
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
	return int64(l.span)
}

// Woke learns from a wake-up at the instant now, which was late by that many
// nanoseconds. The lead settles where three of four wake-ups are no later than the lead:
// it rises by three steps after a wake-up that was later, and falls by one step after a
// wake-up that was not.
func (l *Lead) Woke(now, late int64) {
	const step = int32(125 * time.Nanosecond)
	switch {
	case late < 0: // The ticker was woken before its time, for something else.
	case late >= int64(lateWake):
		l.suspend(now)
	case late > int64(l.span):
		l.span = min(l.span+3*step, int32(LongestLead))
	default:
		l.span = max(l.span-step, 0)
	}
}

// Await returns at the instant until, which is at most [LongestLead] away, for a goroutine
// that has just slept. It is Yield, but only looks at the clock for the first spinUpTo. Most
// leads are over by then; and each yield of an idle process wakes another thread, which
// looks for work and finds none.
func (l *Lead) Await(until int64, epoch time.Time) {
	began := int64(time.Since(epoch))
	for now := began; now < until; now = int64(time.Since(epoch)) {
		if now-began >= int64(spinUpTo) {
			l.Yield(until, epoch)
			return
		}
	}
}

// Yield lets other goroutines run until the instant until, which is at most
// [LongestLead] away. It returns sooner if one of them keeps the processor too long.
func (l *Lead) Yield(until int64, epoch time.Time) {
	at := int64(time.Since(epoch))
	for {
		runtime.Gosched()
		now := int64(time.Since(epoch))
		if now-at >= int64(lateYield) {
			l.suspend(now)
			return
		}
		if now >= until {
			return
		}
		at = now
	}
}

// suspend makes the lead 0 for a while.
func (l *Lead) suspend(now int64) {
	if now < l.paused+int64(l.pause) {
		l.pause = min(2*l.pause, int32(longestPause))
	} else {
		l.pause = int32(shortestPause)
	}
	l.paused = now + int64(l.pause)
}
