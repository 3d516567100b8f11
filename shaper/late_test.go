package shaper_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Some tests are about time-outs of real connections, which run on while the machine has other
// work. If it is so late that a time-out may have passed for that reason alone, such a test is
// run again, with longer ones.

// unlessLate runs a test that needs a machine on which nothing takes as long as limit that
// should take no time. If the test fails and the machine was late, it is run again with twice
// the limit, up to one above ten seconds. If it fails on a machine that was in time, that counts
// at once.
func unlessLate(t *testing.T, limit time.Duration, test func(t testing.TB, limit time.Duration)) {
	t.Helper()
	for began := time.Now(); ; {
		one := &trial{TB: t}
		late := lateness(func() { one.run(func() { test(one, limit) }) })
		if !one.Failed() {
			return
		}
		t.Log(one.text())
		// A test that waits in vain takes long, and a machine is late now and then.
		if late < limit/10 || limit > 10*time.Second || time.Since(began) > 2*time.Minute {
			t.Fatalf("with a limit of %v, on a machine that was late by %v", limit, late)
		}
		t.Logf("it fails with a limit of %v, but the machine was late by %v", limit, late)
		limit *= 2
	}
}

// lateness returns for how long a goroutine that only sleeps was kept from running while f ran.
func lateness(f func()) (late time.Duration) {
	const tick, usual = 20 * time.Millisecond, 5 * time.Millisecond
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for over := false; !over; {
		began := time.Now()
		select {
		case <-done:
			over = true
		case <-time.After(tick):
		}
		if d := time.Since(began) - tick; d > usual {
			late += d
		}
	}
	return late
}

// A trial is one run of a test that may be run again. It keeps to itself what the run says.
type trial struct {
	testing.TB
	cleanups []func() // the run's goroutine alone uses them

	mu     sync.Mutex
	said   []string
	failed bool
}

// run runs the test, then what it has asked for by Cleanup.
func (t *trial) run(test func()) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer t.cleanUp()
		test()
	}()
	<-over
}

// cleanUp goes on after a cleanup that ends the goroutine.
func (t *trial) cleanUp() {
	if len(t.cleanups) == 0 {
		return
	}
	last := t.cleanups[len(t.cleanups)-1]
	t.cleanups = t.cleanups[:len(t.cleanups)-1]
	defer t.cleanUp()
	last()
}

func (t *trial) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *trial) say(text string, fails bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said = append(t.said, text)
	t.failed = t.failed || fails
}

// text returns what the run has said.
func (t *trial) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.said, "\n")
}

func (t *trial) Log(args ...any)                   { t.say(fmt.Sprint(args...), false) }
func (t *trial) Logf(format string, args ...any)   { t.say(fmt.Sprintf(format, args...), false) }
func (t *trial) Error(args ...any)                 { t.say(fmt.Sprint(args...), true) }
func (t *trial) Errorf(format string, args ...any) { t.say(fmt.Sprintf(format, args...), true) }
func (t *trial) Fail()                             { t.say("failed", true) }

func (t *trial) FailNow() {
	t.Fail()
	runtime.Goexit()
}

func (t *trial) Fatal(args ...any) {
	t.Error(args...)
	runtime.Goexit()
}

func (t *trial) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func (t *trial) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}
