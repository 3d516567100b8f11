package main

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"example.com/leakybucket/internal/limitwords"
)

// A loopback is a real HTTP server on a free port of 127.0.0.1. Only this
// program calls it.
type loopback struct {
	url *url.URL

	server *http.Server
	done   chan struct{} // closed when the server has ended
}

// startLoopback starts a server for a handler. The caller must close it.
func startLoopback(h http.Handler) (loopback, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return loopback{}, err
	}
	b := loopback{url: &url.URL{Scheme: "http", Host: l.Addr().String()}, done: make(chan struct{})}
	b.server = &http.Server{
		Handler: h,
		// On a busy machine this program may come to write a request, or to read it, late.
		ReadHeaderTimeout: 30 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
	}
	go func() {
		defer close(b.done)
		// Serve returns when the server is closed. If its listener fails before that,
		// the calls fail, and the results show it.
		_ = b.server.Serve(l)
	}()
	return b, nil
}

// close ends the server at once and waits until it has ended.
func (b loopback) close() {
	_ = b.server.Close()
	<-b.done
}

// instants records when something happened, but only between start and stop: a
// server that runs for days must not remember each request.
type instants struct {
	mu  sync.Mutex
	on  bool
	all []time.Time
}

func (i *instants) start() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.on, i.all = true, nil
}

func (i *instants) note(at time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.on {
		i.all = append(i.all, at)
	}
}

// stop ends the recording and returns the instants in order. They need sorting,
// because the first goroutine to get the lock need not have read the clock first.
func (i *instants) stop() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.on = false
	slices.SortFunc(i.all, time.Time.Compare)
	return i.all
}

// gaps returns the smallest and the median time between successive instants of
// at, which is sorted; ok is false if it has fewer than two.
func gaps(at []time.Time) (smallest, median time.Duration, ok bool) {
	if len(at) < 2 {
		return 0, 0, false
	}
	between := make([]time.Duration, len(at)-1)
	for i := range between {
		between[i] = at[i+1].Sub(at[i])
	}
	slices.Sort(between)
	return between[0], between[len(between)/2], true
}

// gapTexts returns the smallest and the median gap between instants, formatted.
func gapTexts(at []time.Time) (smallest, median string) {
	s, m, ok := gaps(at)
	if !ok {
		return "-", "-"
	}
	return limitwords.Seconds(s.Seconds()), limitwords.Seconds(m.Seconds())
}
