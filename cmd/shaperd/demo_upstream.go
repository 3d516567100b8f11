package main

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// The capacity of the demonstration's upstream. The welcome and demo.caddyfile have it
// too.
const (
	upstreamWorkers = 8
	upstreamService = 100 * time.Millisecond // of each request
	upstreamDown    = 2 * time.Second        // after more requests than workers were there at once
)

// An upstream is as fragile as a program without a line: one request too many, and it is
// down for a while, also for the requests that it was serving.
type upstream struct {
	mu       sync.Mutex
	busy     int
	served   int
	failed   int
	downs    int
	downTill time.Time
}

// startUpstream serves an upstream. It ends with the process.
func startUpstream(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("the upstream of the demonstration can't listen: %w", err)
	}
	go func() { _ = http.Serve(l, &upstream{}) }()
	return nil
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/upstream" {
		u.mu.Lock()
		defer u.mu.Unlock()
		fmt.Fprintf(w, "served %d\nfailed %d\nbroke down %d\n", u.served, u.failed, u.downs)
		return
	}
	if !u.enter(time.Now()) {
		http.Error(w, "the upstream is down", http.StatusServiceUnavailable)
		return
	}
	time.Sleep(upstreamService)
	if n := u.leave(time.Now()); n > 0 {
		fmt.Fprintf(w, "request %d, served by the upstream\n", n)
		return
	}
	http.Error(w, "the upstream broke down meanwhile", http.StatusBadGateway)
}

// enter reports whether a worker serves a request, and breaks down if there is none left.
func (u *upstream) enter(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case now.Before(u.downTill):
		u.failed++
		return false
	case u.busy == upstreamWorkers:
		u.failed++
		u.downs++
		u.downTill = now.Add(upstreamDown)
		return false
	}
	u.busy++
	return true
}

// leave gives the worker back, and returns how many requests have been served by now, or 0 if the
// upstream has broken down.
func (u *upstream) leave(now time.Time) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy--
	if now.Before(u.downTill) {
		u.failed++
		return 0
	}
	u.served++
	return u.served
}
