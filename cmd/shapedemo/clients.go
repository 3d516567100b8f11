package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// A result is the answer to one request.
type result struct {
	status     int           // of the response; 0 if there was none
	took       time.Duration // from the request to the end of the response
	retryAfter time.Duration // how long a refusal asks the client to wait
	rejected   bool          // a shaper.Transport has refused the request
	left       bool          // the client disconnected before it got a response
}

// newClient returns an HTTP client that keeps that many connections for further
// requests. Whoever has done with it closes them with CloseIdleConnections.
func newClient(connections int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true, IdleConnTimeout: time.Minute},
		// A redirect is a response like any other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get sends a request and reads the response to its end.
func get(ctx context.Context, client *http.Client, target string) result {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return result{}
	}
	return send(client, r)
}

// send is get for any request.
func send(client *http.Client, r *http.Request) result {
	start := time.Now()
	got, err := client.Do(r)
	if refusal, ok := errors.AsType[*shaper.RejectError](err); ok {
		return result{rejected: true, retryAfter: max(refusal.RetryAfter, time.Millisecond)}
	}
	if err != nil {
		return result{}
	}
	defer got.Body.Close()
	if _, err := io.Copy(io.Discard, got.Body); err != nil {
		return result{}
	}
	sent := result{status: got.StatusCode, took: time.Since(start)}
	if sent.status == http.StatusTooManyRequests {
		sent.retryAfter = retryAfter(got.Header)
	}
	return sent
}

// retryAfter returns how long a refusal asks the client to wait: one second if
// its header has no whole number of seconds from 1.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 1 {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second
}

// A tally counts results by kind. A request without a response, or with an unexpected
// one that is no server error either, counts as other.
type tally struct {
	sent, served, refused, rejected, left, failed, other int
}

func (t *tally) add(r result) {
	t.sent++
	switch {
	case r.left:
		t.left++
	case r.rejected:
		t.rejected++
	case r.status == http.StatusOK:
		t.served++
	case r.status == http.StatusTooManyRequests:
		t.refused++
	case r.status >= http.StatusInternalServerError:
		t.failed++
	default:
		t.other++
	}
}

// sleep sleeps for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// clumps describe how a burst arrives, because real clients come neither all at
// once nor evenly. Each clump is a share of the requests, sent at one instant,
// which is a fraction of the span of the burst.
var clumps = []struct{ share, at float64 }{
	{0.30, 0},
	{0.12, 0.36},
	{0.26, 0.50},
	{0.08, 0.80},
	{0.24, 1},
}

// sendTimes returns when each of n requests is sent, counted from the first.
func sendTimes(n int, span time.Duration) []time.Duration {
	sends := make([]time.Duration, 0, n)
	share := 0.0
	for _, c := range clumps {
		share += c.share
		for len(sends) < int(share*float64(n)+0.5) {
			sends = append(sends, time.Duration(c.at*float64(span)))
		}
	}
	return sends
}

// sendAt calls send(i) on a goroutine of its own when the time sends[i], counted
// from now, has come, and returns when all calls have. After the end of ctx it
// begins no call.
func sendAt(ctx context.Context, sends []time.Duration, send func(i int)) {
	start := time.Now()
	var all sync.WaitGroup
	for i, after := range sends {
		all.Go(func() {
			sleep(ctx, time.Until(start.Add(after)))
			if ctx.Err() == nil {
				send(i)
			}
		})
	}
	all.Wait()
}

// An impatient client disconnects after a part of its predicted wait between
// these two. The parts are less than half, because the line gets shorter when
// clients disconnect: if half of them do, a client that stays for half of its
// predicted wait is served before it disconnects.
const (
	minPatience = 0.10
	maxPatience = 0.40
)

// patienceOf returns the patience of the k-th impatient client as a part of its
// predicted wait. It takes one of seven values, an odd number, so that the clients
// with a body are as patient as those without.
func patienceOf(k int) float64 {
	const steps = 7
	return minPatience + (maxPatience-minPatience)*float64(3*k%steps)/(steps-1)
}

// A visit is one request of the burst: how its client behaves, and when what became of
// the request. The zero instant stands for an event that did not happen.
//
// An impatient client disconnects before its turn if it has to wait. The shaper's hooks
// tell it that it waits and at which place in the line, which a real client does not know:
// otherwise it might cut off a request that does not have to wait.
type visit struct {
	impatient        bool
	upload           bool          // it sends a body, which the server does not read while the request waits
	patiencePerPlace time.Duration // an impatient client waits that long times its place in the line, 1 being the head

	// What the proxy records. Only the goroutine that serves the request writes to these.
	arrived  time.Time // just before the middleware
	departed time.Time
	waited   time.Duration // in line, until it departed
	refused  error         // the reason; nil: it was not refused
	waiting  int           // requests in line just after it entered the line or was refused

	got        result
	disconnect context.CancelFunc

	mu    sync.Mutex
	timer *time.Timer // nil: its client does not wait, or has all the time
	left  time.Time   // when its client disconnected
}

// newVisits returns n visits. So many percent of them, evenly spread, have impatient clients,
// whose patience varies. Every second impatient client sends a body, as net/http alone does
// not notice when such a client disconnects.
func newVisits(n, percent int, info limitsInfo) (visits []*visit) {
	impatient := 0
	for i := range n {
		v := &visit{}
		if (i+1)*percent/100 > i*percent/100 {
			v.impatient, v.upload = true, impatient%2 == 1
			v.patiencePerPlace = time.Duration(patienceOf(impatient) * info.interval * float64(time.Second))
			impatient++
		}
		visits = append(visits, v)
	}
	return visits
}

// visitHeader is the header in which a client sends the index of its visit.
const visitHeader = "Demo-Visit"

// send sends the request and reads the response, unless the client disconnects before.
func (v *visit) send(ctx context.Context, client *http.Client, target string, index int) {
	ctx, v.disconnect = context.WithCancel(ctx)
	defer v.disconnect()
	method, body := http.MethodGet, ""
	if v.upload {
		method, body = http.MethodPost, "a body that the server does not read while the request waits\n"
	}
	r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return
	}
	if v.upload && runtime.GOOS == "linux" {
		// A body of unknown length is not read ahead, so that only
		// shaper.ConnContext can notice that the client has disconnected. It works
		// on Linux; elsewhere the body should be read ahead.
		r.ContentLength = -1
	}
	r.Header.Set(visitHeader, strconv.Itoa(index))
	v.got = send(client, r)
	v.got.left = !v.leftAt().IsZero()
}

// startWaiting tells the client that its request has entered the line, in which that many
// requests, its own included, are waiting now.
func (v *visit) startWaiting(waiting int) {
	if !v.impatient {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	patience := min(float64(v.patiencePerPlace)*float64(waiting), math.MaxInt64/2)
	v.timer = time.AfterFunc(time.Duration(patience), func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.timer != nil { // Otherwise its turn came after the timer had fired.
			v.left = time.Now() // Taken before anyone can have noticed.
			v.disconnect()
		}
	})
}

// stopWaiting tells the client that its turn has come.
func (v *visit) stopWaiting() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
}

// leftAt returns when the client disconnected, or the zero time.
func (v *visit) leftAt() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.left
}

type visitKey struct{}

// traceVisits returns hooks that record what the shaper does with the visits that pass
// [recordVisits].
func traceVisits() *shaper.Trace {
	of := func(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }
	return &shaper.Trace{
		Enqueued: func(ctx context.Context, e shaper.Event) {
			of(ctx).waiting = e.Waiting
			of(ctx).startWaiting(e.Waiting)
		},
		Departed: func(ctx context.Context, e shaper.Event) {
			of(ctx).departed, of(ctx).waited = e.At, e.Waited
			of(ctx).stopWaiting()
		},
		Refused: func(ctx context.Context, e shaper.Event) { of(ctx).refused, of(ctx).waiting = e.Err, e.Waiting },
	}
}

// recordVisits returns the middleware that tells the hooks whose request it is. While a request is
// served it counts as in progress: if the client has disconnected, that may be a little longer than
// until the last response.
func recordVisits(visits []*visit, inProgress *sync.WaitGroup) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			index, err := strconv.Atoi(r.Header.Get(visitHeader))
			if err != nil || index < 0 || index >= len(visits) {
				http.Error(w, "no request of the burst", http.StatusBadRequest)
				return
			}
			inProgress.Add(1)
			defer inProgress.Done()
			visits[index].arrived = time.Now()
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, visits[index])))
		})
	}
}
