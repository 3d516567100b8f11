package alarm

import (
	"runtime"
	"time"
)

// A Lead is by how much sooner than its next slot the ticker wakes. To wake
// takes some tens of microseconds, not always the same number; a ticker that is
// up a little too soon and yields until the slot comes hands it out to within a
// microsecond, at hardly more CPU time (ARCHITECTURE.md). Only the ticker
// goroutine uses it.
//
// Of the runtime's yields it must be said that they are quick only while the
// process has nothing else to do: a goroutine that yields goes to the global
// run queue, and while all threads are busy that can take 100 ms. So where
// wake-ups or yields are seen to be late, there is no lead for a while.
type Lead struct {
	span   int64 // in nanoseconds
	paused int64 // until that instant there is none
	pause  int64 // for how long the last pause was meant, in nanoseconds
}

const (
	// leadUpTo is the longest sleep for which the ticker takes a lead. After
	// longer ones, the kernel's idle states make waking too uneven.
	leadUpTo = time.Millisecond
	// LongestLead bounds what is yielded away for one slot.
	LongestLead = 50 * time.Microsecond
	// A wake-up that is lateWake late, or a yield that takes lateYield, may be a
	// hiccup of the machine, or a sign of a busy process: the first costs the
	// shortest pause, and each that soon follows doubles it.
	lateWake      = time.Millisecond
	lateYield     = 100 * time.Microsecond
	shortestPause = 5 * time.Millisecond
	longestPause  = 320 * time.Millisecond
)

// Before returns the lead for a slot, in nanoseconds.
func (l *Lead) Before(slot, now int64) int64 {
	if now < l.paused || slot-now > int64(leadUpTo) {
		return 0
	}
	return l.span
}

// Woke learns from a wake-up that was late by so much. The lead becomes such
// that eight of nine wake-ups are not later than it: a rise of eight steps for
// each that is, a fall of one for each that isn't.
func (l *Lead) Woke(now, late int64) {
	const step = int64(125 * time.Nanosecond)
	switch {
	case late < 0: // It was woken for something else.
	case late >= int64(lateWake):
		l.suspend(now)
	case late > l.span:
		l.span = min(l.span+8*step, int64(LongestLead))
	default:
		l.span = max(l.span-step, 0)
	}
}

// Yield lets other goroutines run until an instant that is at most the longest
// lead away, or until one of them keeps the processor.
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

// suspend takes no lead for a while.
func (l *Lead) suspend(now int64) {
	if now < l.paused+l.pause {
		l.pause = min(2*l.pause, int64(longestPause))
	} else {
		l.pause = int64(shortestPause)
	}
	l.paused = now + l.pause
}
