// Package alarm wakes one goroutine, the ticker, at an instant. A [File] does so by
// a timer of the Linux kernel, within tens of microseconds; a [Timer] by one of Go's,
// on every system. A [Lead] says how much sooner the ticker should be woken so that it
// is running when the instant comes.
//
// Instants are nanoseconds since an epoch, which is a [time.Time] with a reading of
// the monotonic clock.
package alarm

import (
	"errors"
	"runtime"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// An Alarm wakes one goroutine at an instant. Set and Stop are called under a lock of
// the caller's, Wait without it. Set may move the instant, earlier or later, while the
// goroutine is in Wait or before it gets there.
type Alarm interface {
	// Set makes Wait return at the instant at: immediately if that has passed, and
	// never if it is [exact.Forever].
	Set(at int64)
	// Wait returns when the instant has come. It may return sooner, so the caller
	// looks at its clock. After an error the alarm can only be stopped.
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
	// passed makes Wait return because an instant had passed when it was set. It has
	// room for one: however often that happens before Wait is called, Wait needs to
	// return once. A value left over from before makes Wait return once too often.
	//
	// (A timer set to 0 would do the same, except at the end of a bubble: when the
	// bubble's main function has returned, its timers no longer go off.)
	passed chan struct{}
}

// NewTimer returns a Timer, which is not set.
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

// Disarm does what [Timer.Stop] does, and reports whether the timer was still set.
func (a *Timer) Disarm() bool { return a.timer.Stop() }
