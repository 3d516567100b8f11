// Package alarm wakes one goroutine at an instant: with a kernel timer where there
// is one ([OpenFile]), with one of Go's anywhere ([NewTimer]), and if it matters a
// little sooner ([Lead]). It is the only package beside serverconn that calls the
// kernel itself.
package alarm

import (
	"errors"
	"runtime"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// An Alarm wakes the ticker goroutine at an instant. Whoever holds the lock of
// the shaper may set it to another one, earlier or later, whether the ticker
// waits for it or is about to; only the ticker waits.
type Alarm interface {
	// Set makes Wait return at an instant of the shaper's clock, or at once if
	// it has passed, or not at all: forever. The lock is held.
	Set(at int64)
	// Wait returns when the instant has come, or now and then before. An error
	// says that the alarm is broken. The lock is not held.
	Wait() error
	// Stop frees it. Nobody waits. The lock is held.
	Stop()
}

// ErrOtherClock is why there is no precise alarm in a testing/synctest bubble,
// whose clock is not the kernel's. It is no failure.
var ErrOtherClock = errors.New("no timerfd for a clock that is not the kernel's")

// Timer is the alarm of any system, and of testing/synctest bubbles. On Linux
// it is up to a millisecond late in a process with nothing to do, as the
// runtime asks the kernel for whole milliseconds.
type Timer struct {
	epoch time.Time
	timer *time.Timer
	// passed has room for one: any number of instants that have passed before
	// the ticker has looked want the same thing of it, that it look again. One
	// that is left over from before makes it look once for nothing.
	//
	// (A timer set to 0 would do, but not at the end of a bubble, where timers
	// no longer go off when its main function has returned.)
	passed chan struct{}
}

func NewTimer(epoch time.Time) *Timer {
	a := &Timer{epoch: epoch, timer: time.NewTimer(exact.Forever), passed: make(chan struct{}, 1)}
	a.timer.Stop()
	return a
}

func (a *Timer) Set(at int64) {
	if at == exact.Forever {
		// A timer that goes off in 292 years would keep a testing/synctest bubble
		// going in which everybody hangs, where it is to say so.
		a.timer.Stop()
		return
	}
	if d := time.Until(a.epoch.Add(time.Duration(at))); d > 0 {
		a.timer.Reset(d)
		return
	}
	select {
	case a.passed <- struct{}{}:
	default:
	}
}

func (a *Timer) Wait() error {
	select {
	case <-a.timer.C:
	case <-a.passed:
		// This goroutine has not slept, and those that it has told to go must run.
		runtime.Gosched()
	}
	return nil
}

func (a *Timer) Stop() { a.Disarm() }

// Disarm does what Stop does, and reports whether the timer would have gone off.
func (a *Timer) Disarm() bool { return a.timer.Stop() }
