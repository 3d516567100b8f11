// Package alarm wakes one goroutine, the ticker, at an instant. A [File] uses a timer
// of the Linux kernel and is late by tens of microseconds; a [Timer] uses one of Go's
// timers and works on every system. A [Lead] says how much sooner the ticker should be
// woken so that it is running when the instant comes.
//
// Instants are nanoseconds since an epoch, which is a [time.Time] with a reading of
// the monotonic clock.
package alarm

import (
	"errors"
	"runtime"
	"time"

	"example.com/leakybucket/internal/exact"
)

// An Alarm wakes one goroutine at an instant. The caller holds a lock of its own when it
// calls Set or Stop, and not when it calls Wait. Set may move the instant, earlier or
// later, while the goroutine is in Wait or before it gets there.
type Alarm interface {
	// Set makes Wait return at the instant at: immediately if that has passed, and
	// never if it is [exact.Forever].
	Set(at int64)
	// Wait returns when the instant has come. It may return sooner, so the caller
	// must look at a clock. After an error the alarm can only be stopped.
	Wait() error
	// Stop frees the alarm. No goroutine may be in Wait.
	Stop()
}

// ErrOtherClock is the error of [OpenFile] in a testing/synctest bubble, whose clock
// is not the kernel's. It is expected there, not a failure.
var ErrOtherClock = errors.New("no timerfd for a clock that is not the kernel's")

// A Timer is an [Alarm] that uses a [time.Timer]. It works on every system, and in
// testing/synctest bubbles. On Linux it is up to a millisecond late in an idle
// process, because the runtime asks the kernel for whole milliseconds.
type Timer struct {
	epoch time.Time
	timer *time.Timer
	// passed gets a value when Set is called with an instant that has passed, and
	// makes Wait return. It has room for one value: however often that happens before
	// Wait is called, Wait needs to return only once. A value left over from before
	// makes Wait return too soon, which it may.
	//
	// (A timer set to 0 would do the same, except at the end of a testing/synctest
	// bubble: once the bubble's main function has returned, timers no longer go off.)
	passed chan struct{}
}

// NewTimer returns a Timer that is not set. Its instants count from epoch.
func NewTimer(epoch time.Time) *Timer {
	a := &Timer{epoch: epoch, timer: time.NewTimer(exact.Forever), passed: make(chan struct{}, 1)}
	a.timer.Stop()
	return a
}

// Set implements [Alarm].
func (a *Timer) Set(at int64) {
	if at == exact.Forever {
		// While any timer is set, a testing/synctest bubble does not report that
		// all its goroutines are blocked, even if the timer goes off in 292 years.
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

// Wait implements [Alarm]. Its error is always nil.
func (a *Timer) Wait() error {
	select {
	case <-a.timer.C:
	case <-a.passed:
		// This goroutine has not slept, and those that it has woken must get to run.
		runtime.Gosched()
	}
	return nil
}

// Stop implements [Alarm]. The Timer may be set again later.
func (a *Timer) Stop() { a.Disarm() }

// Disarm does the same as [Timer.Stop], and reports whether the timer was still set.
func (a *Timer) Disarm() bool { return a.timer.Stop() }
