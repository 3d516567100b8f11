package main

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// A crowd is a number of goroutines that wait in one line.
type crowd struct {
	members sync.WaitGroup
	came    atomic.Int64
}

// patienceWithCrowd bounds how long gather looks on once all have come.
const patienceWithCrowd = 10 * time.Second

// gather starts n goroutines, the i-th of which calls wait(i) once, and returns
// when they have come and stand still: each is parked, or has come back already.
// They come one after another, but where they have to contend for a lock some
// may come to the line before those ahead of them.
func gather(n int, wait func(i int)) (*crowd, error) {
	c := new(crowd)
	c.members.Add(n)
	for i := range n {
		// WaitGroup.Go and a defer would take room on the stack: a bit more of it,
		// and every waiter has one of 4 KiB in place of 2.
		go func() {
			c.came.Add(1)
			wait(i)
			c.members.Done()
		}()
		for c.came.Load() <= int64(i) {
			runtime.Gosched()
		}
	}
	// One look may be a little off, as others go on meanwhile. Those that run
	// count: one of them may hold the lock for which the others are parked.
	start := time.Now()
	for still := 0; still < 10; still++ {
		if goroutines("runnable") > 0 {
			still = 0
			runtime.Gosched()
		} else if goroutines("running") > 1 {
			still = 0
		}
		if time.Since(start) > patienceWithCrowd {
			return nil, fmt.Errorf("%d goroutines have come and do not stand still after %v", n, patienceWithCrowd)
		}
	}
	return c, nil
}

// goroutines is how many of this process are in a state that runtime/metrics
// tells.
func goroutines(state string) uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines/" + state + ":goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
