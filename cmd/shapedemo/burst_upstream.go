package main

import (
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"time"
)

// A size is how much the fragile upstream can take.
type size struct {
	workers int64
	service time.Duration // of each request
}

// perSecond is how many requests it can serve.
func (s size) perSecond() float64 { return float64(s.workers) / s.service.Seconds() }

// sizeOf makes the upstream four times as fast as the shaped rate, beside the
// burst that may leave at once: slow enough to fail when the whole burst comes,
// and with so many spare workers that it takes what a busy machine holds up for
// three service times behind the shaper. So the service is as long as leaves
// the burst twice as many requests as there are workers.
func sizeOf(m meaning, burst int) size {
	if m.endless {
		return size{workers: 8, service: 100 * time.Millisecond}
	}
	if burst == 0 {
		burst = defaultBurst
	}
	var s size
	for _, service := range []time.Duration{100 * time.Millisecond, 50 * time.Millisecond, 25 * time.Millisecond} {
		workers := float64(m.atOnce) + math.Ceil(4*m.rate*service.Seconds())
		s = size{workers: int64(min(workers, math.MaxInt32)), service: service}
		if 2*s.workers <= int64(burst) {
			break
		}
	}
	return s
}

// A fragile upstream is a real HTTP server on loopback with few workers of a
// fixed service time and no backlog: what comes while all are busy gets a 503.
// It writes down when each request reached it.
type fragile struct {
	loopback
	size    size
	reached instants

	busy atomic.Int64
}

// startFragile starts an upstream on a free port. It must be closed.
func startFragile(s size) (*fragile, error) {
	f := &fragile{size: s}
	var err error
	f.loopback, err = startLoopback(f)
	return f, err
}

// ServeHTTP serves a request if there is a worker for it.
func (f *fragile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.reached.note(time.Now())
	if !f.takeWorker() {
		http.Error(w, "the upstream has no worker left", http.StatusServiceUnavailable)
		return
	}
	defer f.busy.Add(-1)
	// A worker is taken for the whole service time, whether or not the client
	// is still there: that is what makes the upstream fragile.
	time.Sleep(f.size.service)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "served by the fragile upstream\n")
}

// takeWorker takes a worker, if one is free, and never counts a request that
// is about to fail as busy.
func (f *fragile) takeWorker() bool {
	for {
		busy := f.busy.Load()
		if busy >= f.size.workers {
			return false
		}
		if f.busy.CompareAndSwap(busy, busy+1) {
			return true
		}
	}
}
