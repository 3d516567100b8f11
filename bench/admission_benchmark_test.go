package main

import (
	"fmt"
	"testing"
)

// The benchmarks of this package are named with key=value pairs, so that
// benchstat -col /limiter sets the limiters side by side.

// BenchmarkAdmission is a call that may leave at once, and one that is refused.
func BenchmarkAdmission(b *testing.B) {
	for _, c := range admissionCalls() {
		outcome := "leaves"
		if c.refuses {
			outcome = "refused"
		}
		for _, goroutines := range admissionGoroutines {
			b.Run(fmt.Sprintf("outcome=%s/call=%s/goroutines=%d/limiter=%s", outcome, c.call, goroutines, c.limiter), func(b *testing.B) {
				each, stop, err := c.open()
				if err != nil {
					b.Fatal(err)
				}
				defer stop()
				b.ReportAllocs()
				if goroutines == 1 {
					call := each()
					for b.Loop() {
						call()
					}
					return
				}
				// RunParallel would take a multiple of GOMAXPROCS goroutines.
				b.ResetTimer()
				if _, _, err := callAtOnce(each, goroutines, max(1, b.N/goroutines)); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
