package shaper_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// BenchmarkStall stops the process for 200 ms while 400 callers wait at 1,000/s,
// and reports the largest number that leaves within any 5 ms, which is 5 or 6 in
// a punctual process. A limiter that makes up any lateness lets all those go at
// once who would have left meanwhile.
func BenchmarkStall(b *testing.B) {
	ours := func() shaper.Limiter {
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 1000})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	xTime := func() shaper.Limiter { return rate.NewLimiter(1000, 1) }
	for _, c := range []struct {
		name string
		make func() shaper.Limiter
	}{{"limiter=shaper", ours}, {"limiter=x-time", xTime}} {
		b.Run(c.name, func(b *testing.B) {
			var worst []int
			for b.Loop() {
				worst = append(worst, mostWithin(5*time.Millisecond, departuresOverAStall(b, c.make())))
			}
			slices.Sort(worst)
			b.ReportMetric(float64(worst[len(worst)/2]), "at_once")
		})
	}
}

// departuresOverAStall returns the instants at which callers left.
func departuresOverAStall(b *testing.B, l shaper.Limiter) []time.Duration {
	script := fmt.Sprintf("sleep 0.1; kill -STOP %d; sleep 0.2; kill -CONT %[1]d", os.Getpid())
	stall := exec.Command("sh", "-c", script)
	if err := stall.Start(); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var callers sync.WaitGroup
	var mu sync.Mutex
	var left []time.Duration
	start := time.Now()
	for range 400 {
		callers.Go(func() {
			for l.WaitN(ctx, 1) == nil {
				at := time.Since(start)
				mu.Lock()
				left = append(left, at)
				mu.Unlock()
			}
		})
	}
	if err := stall.Wait(); err != nil {
		b.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	cancel()
	callers.Wait()
	slices.Sort(left)
	return left
}

// mostWithin returns the largest number of instants within any window.
func mostWithin(window time.Duration, instants []time.Duration) (most int) {
	first := 0
	for last, at := range instants {
		for at-instants[first] > window {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}
