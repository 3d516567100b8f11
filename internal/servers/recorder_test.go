package servers_test

import (
	"fmt"
	"runtime"
	"testing"
)

// A recorder notes how the test would have ended, and ends the goroutine as a test does.
type recorder struct {
	testing.TB
	skipped, failed bool
	said            string
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped, r.said = true, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed, r.said = true, fmt.Sprintf(format, args...)
	runtime.Goexit()
}
