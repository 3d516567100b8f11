// Package realtime is for tests that run in real time, on a machine that has other work too: they
// wait until something is so, and measure for how long the machine stood still.
package realtime

import (
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for an event that must come. It is no measure: a busy
// machine may stop a process for seconds, and some servers take a minute to fail over. A test
// that fails is all that waits for so long.
const Patience = 2 * time.Minute

// Until returns as soon as a condition holds. If it does not within [Patience], the test fails
// and says what never came true. The condition is asked for on the goroutine of the test, so it
// may fail the test itself, which a condition of require.Eventually may not.
func Until(t testing.TB, is func() bool, what string) {
	t.Helper()
	for began := time.Now(); !is(); {
		passed := time.Since(began)
		if passed > Patience {
			t.Fatalf("never: %s", what)
		}
		// A condition that takes long is asked for less often, as an answer may cost a query or a
		// process.
		time.Sleep(min(max(time.Millisecond, passed/10), 10*time.Millisecond))
	}
}

// Next receives from a channel on which something must come. If nothing does within [Patience],
// the test fails.
func Next[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(Patience):
		t.Fatal("nothing came")
	}
	return v
}

// Close closes a server when the test ends. A test that has failed does not wait for the server's handlers: they may wait
// for something that the test would have done next, and so hide the failure until the time of all tests is over.
func Close(t testing.TB, server *httptest.Server) {
	t.Cleanup(func() {
		if t.Failed() {
			go server.Close()
			return
		}
		server.Close()
	})
}

// tick is how long LongestStall sleeps at a time.
const tick = 10 * time.Millisecond

// LongestStall calls f, and returns for how long at a time, at most, a goroutine that only
// sleeps was kept from running meanwhile. It is no sum, so it does not grow with the time that
// f takes. The goroutine ends also if f ends the test.
func LongestStall(f func()) (longest time.Duration) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for isOver := false; !isOver; {
			began := time.Now()
			select {
			case <-time.After(tick):
			case <-over:
				isOver = true
			}
			longest = max(longest, time.Since(began)-tick)
		}
	}()
	end := sync.OnceFunc(func() {
		close(over)
		<-ended
	})
	defer end()
	f()
	end()
	return longest
}
