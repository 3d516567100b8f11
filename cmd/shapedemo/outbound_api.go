package main

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// punishment is how long a punisher refuses everybody after a burst: one second,
// where APIs of this kind take a minute or more, so that it can be watched. It is
// a whole number of seconds, as Retry-After is.
const punishment = time.Second

// A punisher is an API that bears no bursts, as a real HTTP server on loopback:
// when two requests come within an interval it refuses everybody for a while,
// with 429 and a Retry-After. It writes down when each request reached it.
type punisher struct {
	loopback
	interval time.Duration
	reached  instants

	mu    sync.Mutex
	last  time.Time // when the latest request came, refused ones included
	until time.Time // to when the punishment lasts
}

// intervalOf is what an API that is made for limits takes for a burst: a quarter
// of the time between departures. What the machine adds to that time, or takes
// from it, between a departure and the API must not look like one.
func intervalOf(m meaning) time.Duration {
	if m.endless {
		return 5 * time.Millisecond
	}
	return time.Duration(m.every / 4 * float64(time.Second))
}

// startPunisher starts an API on a free port. It must be closed.
func startPunisher(interval time.Duration) (*punisher, error) {
	p := &punisher{interval: interval}
	var err error
	p.loopback, err = startLoopback(p)
	return p, err
}

// ServeHTTP answers a request, or refuses it.
func (p *punisher) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	p.reached.note(now)
	if rest := p.restAt(now); rest > 0 {
		seconds := (rest + time.Second - 1) / time.Second // Rounded up: nobody is to come too early.
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		http.Error(w, "too many requests at once", http.StatusTooManyRequests)
		return
	}
	_, _ = io.WriteString(w, "served by the fragile API\n")
}

// restAt is how long a request that has come now is too early, and all after it:
// 0 if it is served.
func (p *punisher) restAt(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Who gets the lock first need not have looked at the clock first: if that
	// lies before the last, they came at once.
	if !now.Before(p.until) && !p.last.IsZero() && now.Sub(p.last) < p.interval {
		p.until = now.Add(punishment)
	}
	if now.After(p.last) {
		p.last = now
	}
	return p.until.Sub(now)
}
