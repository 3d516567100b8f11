package realtime

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Watch measures for how long this process did not go on, by its sleeps: what one takes
// longer than it should is a stall. The zero Watch is ready, and its methods may be called at
// the same time.
type Watch struct {
	longest, total atomic.Int64
}

// slow is from when on a stall counts in Total. Less is what a timer costs.
const slow = 100 * time.Millisecond

// tick is how long Run and LongestStall sleep at a time.
const tick = 10 * time.Millisecond

// Sleep sleeps, and notes for how long it has slept too long.
func (w *Watch) Sleep(d time.Duration) { w.sleep(d, nil) }

// Run measures until the process ends.
func (w *Watch) Run() {
	for w.sleep(tick, nil) {
	}
}

// Total is the sum of the stalls of more than a tenth of a second.
func (w *Watch) Total() time.Duration { return time.Duration(w.total.Load()) }

// sleep reports whether it was left to sleep until d had passed.
func (w *Watch) sleep(d time.Duration, end <-chan struct{}) (whole bool) {
	began := time.Now()
	select {
	case <-time.After(d):
		whole = true
	case <-end:
	}
	w.note(time.Since(began) - d)
	return whole
}

// note notes by how much a sleep was too long, or too short if it was cut off.
func (w *Watch) note(late time.Duration) {
	if late > slow {
		w.total.Add(int64(late))
	}
	for {
		longest := w.longest.Load()
		if int64(late) <= longest || w.longest.CompareAndSwap(longest, int64(late)) {
			return
		}
	}
}

// LongestStall calls f, and returns for how long at a time, at most, a goroutine that only
// sleeps was kept from running meanwhile. It is no sum, so it does not grow with the time that
// f takes. The goroutine ends also if f ends the test.
func LongestStall(f func()) time.Duration {
	var w Watch
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for w.sleep(tick, over) {
		}
	}()
	end := sync.OnceFunc(func() {
		close(over)
		<-ended
	})
	defer end()
	f()
	end()
	return time.Duration(w.longest.Load())
}
