package shaper_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/leakybucket/internal/realtime"
)

// Some tests are about timeouts of real connections, which run on while the machine has other
// work. If it is so late that a timeout may have passed through lateness alone, such a test
// is run again, with longer ones.

// unlessLate runs a test that needs a machine on which nothing takes as long as limit that
// should take no time. If the test fails and the machine stood still for a tenth of limit at a
// time, it is run again with twice the limit, and then with four times the limit, but never with
// more, as the test's assertions about times must still mean something. With four times the
// limit it has several tries. A failure on a machine that was in time counts at once.
func unlessLate(t *testing.T, limit time.Duration, test func(t testing.TB, limit time.Duration)) {
	t.Helper()
	const tries = 6
	most, began := 4*limit, time.Now()
	for try := 1; ; try++ {
		one := newTrial(t)
		stall := realtime.LongestStall(func() { one.run(func() { test(one, limit) }) })
		switch {
		case one.Failed():
			t.Log(one.text())
		case one.Skipped():
			t.Skip(one.text())
		default:
			return
		}
		if stall < limit/10 || try == tries || time.Since(began) > 2*time.Minute {
			t.Fatalf("try %d, with a limit of %v, on a machine that stood still for up to %v", try, limit, stall)
		}
		t.Logf("it fails with a limit of %v, but the machine stood still for up to %v", limit, stall)
		limit = min(2*limit, most)
	}
}

// A trial is one run of a test that may be run again. It keeps to itself the output of the run, and
// whether it fails or is skipped.
type trial struct {
	testing.TB
	ctx      context.Context // ends with the run, before its cleanups
	cancel   context.CancelFunc
	cleanups []func() // the run's goroutine alone uses them

	mu              sync.Mutex
	said            []string
	failed, skipped bool
}

func newTrial(t testing.TB) *trial {
	one := &trial{TB: t}
	one.ctx, one.cancel = context.WithCancel(t.Context())
	return one
}

// run runs the test, then ends its context, and then runs the functions of its Cleanup.
func (t *trial) run(test func()) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer t.cleanUp()
		defer t.cancel()
		test()
	}()
	<-over
}

func (t *trial) Context() context.Context { return t.ctx }

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

// text returns the output of the run.
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

func (t *trial) SkipNow() {
	t.mu.Lock()
	t.skipped = true
	t.mu.Unlock()
	runtime.Goexit()
}

func (t *trial) Skip(args ...any) {
	t.Log(args...)
	t.SkipNow()
}

func (t *trial) Skipf(format string, args ...any) {
	t.Logf(format, args...)
	t.SkipNow()
}

func (t *trial) Skipped() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skipped
}

func (t *trial) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}
