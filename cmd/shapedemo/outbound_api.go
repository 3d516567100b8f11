package main

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// penalty is how long a burstIntolerantAPI refuses all requests after a burst.
// Real APIs of this kind refuse for a minute or more; with one second a run stays
// short. Retry-After can express whole seconds only, so penalty is a multiple of
// one second.
const penalty = time.Second

// A burstIntolerantAPI is a real HTTP server on loopback. When two requests come
// within interval, it answers 429 with a Retry-After to all requests during the
// penalty. It records when each request reached it.
type burstIntolerantAPI struct {
	loopback
	interval time.Duration
	reached  instants

	mu         sync.Mutex
	last       time.Time // when the latest request came, whether served or refused
	penaltyEnd time.Time // zero before the first penalty
}

// burstInterval returns the interval within which two requests are a burst for an
// API called with these limits: a quarter of the time between departures. It must
// be that much shorter because the machine delays some requests between the
// shaper and the API, and these must not look like a burst.
func burstInterval(info limitsInfo) time.Duration {
	if info.unlimited {
		return 5 * time.Millisecond
	}
	return time.Duration(info.interval / 4 * float64(time.Second))
}

// startBurstIntolerantAPI starts an API on a free port. The caller must close it.
func startBurstIntolerantAPI(interval time.Duration) (*burstIntolerantAPI, error) {
	a := &burstIntolerantAPI{interval: interval}
	var err error
	a.loopback, err = startLoopback(a)
	return a, err
}

// ServeHTTP serves a request, or refuses it during the penalty.
func (a *burstIntolerantAPI) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	a.reached.note(now)
	if rest := a.penaltyLeft(now); rest > 0 {
		seconds := (rest + time.Second - 1) / time.Second // Rounded up, so that no caller comes back too early.
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		http.Error(w, "too many requests at once", http.StatusTooManyRequests)
		return
	}
	_, _ = io.WriteString(w, "served by the fragile API\n")
}

// penaltyLeft records a request that has come now. It returns how long this and
// all further requests are refused: 0 or less if this one is served.
func (a *burstIntolerantAPI) penaltyLeft(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	// The first request to get the lock need not have read the clock first. If now
	// lies before last, the two came at the same time, which is a burst too.
	if !now.Before(a.penaltyEnd) && !a.last.IsZero() && now.Sub(a.last) < a.interval {
		a.penaltyEnd = now.Add(penalty)
	}
	if now.After(a.last) {
		a.last = now
	}
	return a.penaltyEnd.Sub(now)
}
