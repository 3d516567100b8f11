package main

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// BenchmarkGoodput reports what is served of the limit, in virtual time: the
// same figures in every run, which tell a change of behaviour, not of speed.
func BenchmarkGoodput(b *testing.B) {
	for _, by := range goodputEnds {
		for _, offered := range goodputOffers {
			for _, name := range goodputContestants {
				b.Run(fmt.Sprintf("by=%s/offered=%g/limiter=%s", by, offered, name), func(b *testing.B) {
					c, err := contestantNamed(name)
					if err != nil {
						b.Fatal(err)
					}
					var served float64
					for b.Loop() {
						// A bubble wants a *testing.T. A new one serves, as long
						// as nothing in the bubble makes use of it.
						synctest.Test(new(testing.T), func(*testing.T) {
							var callers *sync.WaitGroup
							served, callers = goodput(c, offered, by, 2*time.Second, 10*time.Second)
							callers.Wait() // In a bubble that takes no time.
						})
					}
					b.ReportMetric(served, "served_%")
				})
			}
		}
	}
}

// BenchmarkHole reports the milliseconds until the rest has left, in virtual
// time too.
func BenchmarkHole(b *testing.B) {
	for _, name := range holeContestants {
		b.Run("limiter="+name, func(b *testing.B) {
			c, err := contestantNamed(name)
			if err != nil {
				b.Fatal(err)
			}
			var took time.Duration
			for b.Loop() {
				synctest.Test(new(testing.T), func(*testing.T) { took, err = hole(c) })
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(took.Seconds()*1e3, "hole_ms")
		})
	}
}
