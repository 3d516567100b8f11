package measure

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aclements/go-moremath/stats"
	"github.com/prometheus/procfs"
)

// A Timing is the cost of one call. Calls allocate the same in each round, or something is amiss:
// so the largest number of allocations counts.
type Timing struct {
	Ns     float64 `unit:"ns/call"` // wall time over all goroutines, per call
	Allocs float64 `unit:"allocs/call"`
}

// TimeCalls measures a call. each makes the call of one goroutine. A call
// returns whether it came out as it should. TimeCalls finds out how many calls
// fill the batch, which warms up the limiter too, and then measures as many. If
// the machine has stalled while it found out, these are so few that they take
// far less than the batch; then it finds out once more.
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

// Unknown stands for a figure that could not be measured on this system. Results leave it
// out.
var Unknown = math.NaN()

// Known reports whether a figure was measured.
func Known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Quantile returns the value below which the share q of the values lies. Of no values it is
// [Unknown].
func Quantile(values []float64, q float64) float64 { return stats.Sample{Xs: values}.Quantile(q) }

// MemoryIsTold reports whether this system tells how much memory is resident.
func MemoryIsTold() bool {
	_, err := procfs.Self()
	return err == nil
}

// ResidentBytes returns the resident memory of this process, after memory that is not in use has
// been given back. It is [Unknown] where the system does not tell.
func ResidentBytes() float64 {
	debug.FreeOSMemory()
	self, err := procfs.Self()
	if err != nil {
		return Unknown
	}
	stat, err := self.Stat()
	if err != nil {
		return Unknown
	}
	return float64(stat.ResidentMemory())
}

// LiveHeap returns the bytes that the garbage collector leaves.
func LiveHeap() int64 {
	// The second collection frees the objects that pools have kept over the first.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// stillWithin bounds how long standStill looks on. It is long because the
// machine may be busy; only goroutines that never stand still take all of it.
const stillWithin = time.Minute

// Gather starts n goroutines. The i-th calls wait(i) once. It returns when all
// have come and stand still: each is parked, or has returned already. They come
// one after another, but where they contend for a lock some may get into the
// line before those ahead of them. all is done when all have returned.
func Gather(t testing.TB, n int, wait func(i int)) (all *sync.WaitGroup) {
	t.Helper()
	all = new(sync.WaitGroup)
	all.Add(n)
	var came atomic.Int64
	for i := range n {
		// [sync.WaitGroup.Go] and a defer would take room on the stack. With a bit
		// more of it every waiter has one of 4 KiB in place of 2.
		go func() {
			came.Add(1)
			wait(i)
			all.Done()
		}()
		for came.Load() <= int64(i) {
			runtime.Gosched()
		}
	}
	standStill(t)
	return all
}

// standStill returns when nothing but its own goroutine runs any more.
func standStill(t testing.TB) {
	t.Helper()
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
			t.Fatalf("something still runs after %v", stillWithin)
		}
	}
}

// Goroutines returns how many goroutines of this process are in a state that
// [runtime/metrics] names: "running", "runnable" or "waiting".
func Goroutines(state string) uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines/" + state + ":goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
