package main

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"example.com/leakybucket/shaper"
)

// benchmarkWaiting is a tenth of what the part lets wait, for the sake of time.
const benchmarkWaiting = scaleWaiting / 10

// BenchmarkMemory reports the heap and the stack of a waiter with its goroutine.
// In one process it can only measure those who can be cancelled.
func BenchmarkMemory(b *testing.B) {
	for _, name := range []string{"shaper", "x-time", "failsafe", "naive"} {
		b.Run(fmt.Sprintf("waiting=%d/limiter=%s", benchmarkWaiting, name), func(b *testing.B) {
			c, err := contestantNamed(name)
			if err != nil {
				b.Fatal(err)
			}
			var bytes float64
			for b.Loop() {
				before := memoryInUse()
				wait, stop := c.open(memoryLimit, benchmarkWaiting)
				ctx, cancel := context.WithCancel(context.Background())
				line, err := gather(benchmarkWaiting, func(int) { _ = wait(ctx) })
				if err != nil {
					b.Fatal(err)
				}
				bytes = float64(memoryInUse()-before) / benchmarkWaiting
				cancel()
				line.members.Wait()
				stop()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(bytes, "B/waiter")
		})
	}
}

func memoryInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkCancel reports how long one of a long line takes to give up.
func BenchmarkCancel(b *testing.B) {
	for _, name := range cancelContestants {
		b.Run(fmt.Sprintf("waiting=%d/limiter=%s", benchmarkWaiting, name), func(b *testing.B) {
			c, err := contestantNamed(name)
			if err != nil {
				b.Fatal(err)
			}
			var all []float64
			for b.Loop() {
				latencies, err := cancelLatencies(c, benchmarkWaiting, benchmarkWaiting/10)
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, latencies...)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(quantile(all, 0.5)*1e3, "p50-ns")
			b.ReportMetric(quantile(all, 0.99)*1e3, "p99-ns")
		})
	}
}

// BenchmarkClose is Close with a long line, until all have returned.
func BenchmarkClose(b *testing.B) {
	b.Run(fmt.Sprintf("waiting=%d/limiter=shaper", benchmarkWaiting), func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s, err := shaper.New(shaper.Limits{Rate: memoryLimit, Depth: benchmarkWaiting})
			if err != nil {
				b.Fatal(err)
			}
			line, err := gather(benchmarkWaiting, func(int) { _ = s.Wait(context.Background()) })
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			_ = s.Close()
			line.members.Wait()
		}
	})
}

// BenchmarkCeiling reports departures per second.
func BenchmarkCeiling(b *testing.B) {
	const limit = 1.2e6
	for _, callers := range ceilingCallers {
		for _, name := range ceilingContestants {
			b.Run(fmt.Sprintf("callers=%d/limit=1200000/limiter=%s", callers, name), func(b *testing.B) {
				c, err := contestantNamed(name)
				if err != nil {
					b.Fatal(err)
				}
				var found []float64
				for b.Loop() {
					r, err := ceiling(c, callers, limit, 200*time.Millisecond)
					if err != nil {
						b.Fatal(err)
					}
					found = append(found, r.PerSecond)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(found...), "departures/s")
			})
		}
	}
}
