package measure

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// Waiters are goroutines that wait in one line. [Gather] makes them.
type Waiters struct {
	All  sync.WaitGroup // is done when all have returned
	came atomic.Int64
}

// stillWithin bounds how long Gather looks on once all have come. It is long because the
// machine may be busy; goroutines that never stand still are all that waits for so long.
const stillWithin = time.Minute

// Gather starts n goroutines, the i-th of which calls wait(i) once. It returns
// when all have come and stand still: each is parked, or has returned already.
// They come one after another, but where they contend for a lock some may get
// into the line before those ahead of them.
func Gather(n int, wait func(i int)) (*Waiters, error) {
	w := new(Waiters)
	w.All.Add(n)
	for i := range n {
		// [sync.WaitGroup.Go] and a defer would take room on the stack. With a bit
		// more of it every waiter has one of 4 KiB in place of 2.
		go func() {
			w.came.Add(1)
			wait(i)
			w.All.Done()
		}()
		for w.came.Load() <= int64(i) {
			runtime.Gosched()
		}
	}
	// One look may be a little off, as goroutines go on meanwhile. One that runs
	// counts too, as it may hold the lock for which the others are parked.
	start := time.Now()
	for still := 0; still < 10; still++ {
		if Goroutines("runnable") > 0 {
			still = 0
			runtime.Gosched()
		} else if Goroutines("running") > 1 {
			still = 0
		}
		if time.Since(start) > stillWithin {
			return nil, fmt.Errorf("%d goroutines have come and do not stand still after %v", n, stillWithin)
		}
	}
	return w, nil
}

// Goroutines returns how many goroutines of this process are in a state that
// [runtime/metrics] names: "running", "runnable" or "waiting".
func Goroutines(state string) uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines/" + state + ":goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
