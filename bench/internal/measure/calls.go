package measure

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A Timing is what one call costs. Calls allocate the same in each round, or
// something is amiss: so the largest number of allocations counts.
type Timing struct {
	Ns     float64 `unit:"ns/call"` // wall time over all goroutines, per call
	Allocs float64 `unit:"allocs/call" rounds:"max"`
}

// TimeCalls measures a call of which each goroutine has its own, made by each.
// A call returns whether it came out as it should. TimeCalls finds out how many
// calls fill the batch, which warms up the limiter too, and then measures as
// many. If the machine has stalled while it found out, these are so few that they
// take far less than the batch; then it finds out once more.
func TimeCalls(each func() func() bool, goroutines int, batch time.Duration) (Timing, error) {
	n, filling := 1, false
	for {
		took, mallocs, err := callAtOnce(each, goroutines, n)
		switch {
		case err != nil:
			return Timing{}, err
		case took < batch/8:
			n, filling = 2*n, false
		case !filling:
			n, filling = max(1, int(float64(n)*float64(batch)/float64(took))), true
		default:
			calls := float64(n * goroutines)
			return Timing{Ns: float64(took.Nanoseconds()) / calls, Allocs: float64(mallocs) / calls}, nil
		}
	}
}

// TimeEstimate returns about how long TimeCalls takes.
func TimeEstimate(batch time.Duration) time.Duration { return batch * 5 / 4 }

// callAtOnce lets each of the goroutines make n calls. All start together.
func callAtOnce(each func() func() bool, goroutines, n int) (took time.Duration, mallocs uint64, err error) {
	var (
		ready, done sync.WaitGroup
		start       = make(chan struct{})
		wrong       atomic.Int64
	)
	ready.Add(goroutines)
	for range goroutines {
		done.Go(func() {
			call, amiss := each(), int64(0)
			ready.Done()
			<-start
			for range n {
				if !call() {
					amiss++
				}
			}
			wrong.Add(amiss)
		})
	}
	ready.Wait()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	close(start)
	done.Wait()
	took = time.Since(began)
	runtime.ReadMemStats(&after)
	if amiss := wrong.Load(); amiss > 0 {
		err = fmt.Errorf("%d of %d calls did not come out as they should", amiss, n*goroutines)
	}
	return took, after.Mallocs - before.Mallocs, err
}
