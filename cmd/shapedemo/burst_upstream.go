package main

import (
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"time"
)

// A capacity is how much load the fragile upstream can take.
type capacity struct {
	workers     int64
	serviceTime time.Duration // of each request
}

// perSecond returns how many requests it can serve per second.
func (s capacity) perSecond() float64 { return float64(s.workers) / s.serviceTime.Seconds() }

// capacityFor returns the capacity of an upstream that can serve four times the
// shaped rate, and in addition what may leave at once. That is too little for
// the whole burst, and leaves enough spare workers behind the shaper when a busy
// machine delays requests by up to three service times. The service time is the
// longest of three with which the burst still has twice as many requests as
// there are workers.
func capacityFor(info limitsInfo, burst int) capacity {
	if info.unlimited {
		return capacity{workers: 8, serviceTime: 100 * time.Millisecond}
	}
	if burst == 0 {
		burst = defaultBurst
	}
	var s capacity
	for _, service := range []time.Duration{100 * time.Millisecond, 50 * time.Millisecond, 25 * time.Millisecond} {
		workers := float64(info.atOnce) + math.Ceil(4*info.rate*service.Seconds())
		s = capacity{workers: int64(min(workers, math.MaxInt32)), serviceTime: service}
		if 2*s.workers <= int64(burst) {
			break
		}
	}
	return s
}

// A fragileUpstream is a real HTTP server on loopback with few workers, a fixed
// service time and no backlog: it answers 503 while all workers are busy, and
// asks for a pause with that if it has been slowed. It records when each request
// reached it.
type fragileUpstream struct {
	loopback
	size    capacity
	reached instants

	busy    atomic.Int64
	slowed  atomic.Bool   // each request takes slowdown times as long
	refused atomic.Uint64 // requests that found no worker
}

// slowdown is how many times the usual service time a request takes while the
// upstream is slow. At the full rate behind a shaper all workers are then busy,
// because [capacityFor] gives an upstream four times the workers that it needs.
const slowdown = 10

// serviceTime returns how long a request takes now.
func (f *fragileUpstream) serviceTime() time.Duration {
	if f.slowed.Load() {
		return slowdown * f.size.serviceTime
	}
	return f.size.serviceTime
}

// startFragileUpstream starts an upstream on a free port. The caller must close it.
func startFragileUpstream(s capacity) (*fragileUpstream, error) {
	f := &fragileUpstream{size: s}
	var err error
	f.loopback, err = startLoopback(f)
	return f, err
}

// ServeHTTP serves a request if there is a worker for it.
func (f *fragileUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.reached.note(time.Now())
	if !f.takeWorker() {
		f.refused.Add(1)
		if f.slowed.Load() {
			w.Header().Set("Retry-After", "1")
		}
		http.Error(w, "the upstream has no worker left", http.StatusServiceUnavailable)
		return
	}
	defer f.busy.Add(-1)
	// A worker is busy for the whole service time, even if the client has
	// disconnected: that is what makes the upstream fragile.
	time.Sleep(f.serviceTime())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "served by the fragile upstream\n")
}

// takeWorker reserves a worker and reports whether one was free. Compare-and-swap
// keeps a request that gets no worker out of the count at all times.
func (f *fragileUpstream) takeWorker() bool {
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
