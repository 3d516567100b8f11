package buckettest

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"example.com/leakybucket/shaper/shared"
)

// Told runs the checks of [Run] whose names begin so, each on a Bucket of its own, until one of them fails. It
// returns what that one says; "" if none does.
func Told(ctx context.Context, about string, newBucket func() shared.Bucket) string {
	for _, c := range checks {
		if !strings.HasPrefix(c.name, about) {
			continue
		}
		r := &recorder{ctx: ctx}
		done := make(chan struct{})
		go func() {
			defer close(done)
			tester := newTester(r, newBucket())
			tester.long = true // In a bubble nothing takes long.
			c.run(tester)
		}()
		<-done
		if r.fatal != "" {
			return c.name + ": " + r.fatal
		}
	}
	return ""
}

// A recorder is a reporter that keeps every report.
type recorder struct {
	ctx   context.Context
	fatal string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(string, ...any) { runtime.Goexit() }
