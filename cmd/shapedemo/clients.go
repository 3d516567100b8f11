package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"runtime"
	"slices"
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
	wait       time.Duration // for its departure, by the Server-Timing header; 0 without one
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
	sent := result{status: got.StatusCode, took: time.Since(start), wait: waitFromHeader(got.Header)}
	if sent.status == http.StatusTooManyRequests {
		sent.retryAfter = retryAfter(got.Header)
	}
	return sent
}

// serverTiming is the header in which the middleware reports how long a request
// waited.
const serverTiming = "Server-Timing"

// waitFromHeader returns the wait that the headers of a response report.
func waitFromHeader(h http.Header) time.Duration {
	for _, value := range h.Values(serverTiming) {
		if text, ok := strings.CutPrefix(value, "shaper;dur="); ok {
			if ms, err := strconv.ParseFloat(text, 64); err == nil {
				return time.Duration(ms * float64(time.Millisecond))
			}
		}
	}
	return 0
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
	longestWait                                          time.Duration // of the requests that were served
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
		t.longestWait = max(t.longestWait, r.wait)
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

// sendBurst sends requests to target, each on a connection of its own. It returns when
// all have their responses or have disconnected, or when ctx has ended, with its
// error. The impatient clients are keyed by index in sends.
func sendBurst(ctx context.Context, target string, sends []time.Duration, impatient map[int]*impatientClient) (tally, error) {
	client := newClient(len(sends))
	defer client.CloseIdleConnections()
	results := make([]result, len(sends))
	sendAt(ctx, sends, func(i int) {
		if c := impatient[i]; c != nil {
			results[i] = c.send(ctx, client, target, i)
		} else {
			results[i] = get(ctx, client, target)
		}
	})
	var all tally
	for _, r := range results {
		all.add(r)
	}
	return all, ctx.Err()
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

// An impatientClient is a client of the burst that disconnects before its turn if it
// has to wait. The shaper's hooks tell it that it waits and at which place in the
// line, which a real client does not know: otherwise it might cut off a request
// that does not have to wait. A nil impatientClient is a patient client.
type impatientClient struct {
	upload           bool          // it sends a body, which the server does not read while the request waits
	patiencePerPlace time.Duration // it waits that long times its place in the line, 1 being the head

	mu         sync.Mutex
	disconnect context.CancelFunc
	timer      *time.Timer // nil: it does not wait
	left       time.Time   // zero: it has not disconnected
}

// clientHeader is the header in which an impatient client sends its index.
const clientHeader = "Demo-Client"

// chooseImpatient makes percent of n clients impatient, evenly spread over the
// burst, and returns them by index. Their patience varies. Every second one
// sends a body, as net/http alone does not notice when such a client disconnects.
func chooseImpatient(n, percent int, info limitsInfo) map[int]*impatientClient {
	chosen := map[int]*impatientClient{}
	for i := range n {
		if k := len(chosen); (i+1)*percent/100 > i*percent/100 {
			chosen[i] = &impatientClient{upload: k%2 == 1, patiencePerPlace: time.Duration(patienceOf(k) * info.interval * float64(time.Second))}
		}
	}
	return chosen
}

// send sends a request and reads the response, unless the client disconnects before.
func (c *impatientClient) send(ctx context.Context, client *http.Client, target string, index int) result {
	ctx, disconnect := context.WithCancel(ctx)
	defer disconnect()
	c.mu.Lock()
	c.disconnect = disconnect
	c.mu.Unlock()
	method, body := http.MethodGet, ""
	if c.upload {
		method, body = http.MethodPost, "a body that the server does not read while the request waits\n"
	}
	r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return result{}
	}
	if c.upload && runtime.GOOS == "linux" {
		// A body of unknown length is not read ahead, so that only
		// shaper.ConnContext can notice that the client has disconnected. It works
		// on Linux; elsewhere the body should be read ahead.
		r.ContentLength = -1
	}
	r.Header.Set(clientHeader, strconv.Itoa(index))
	got := send(client, r)
	got.left = !c.leftAt().IsZero()
	return got
}

// startWaiting tells a client that it has entered the line, in which that many
// requests, its own included, are waiting now.
func (c *impatientClient) startWaiting(waiting int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	patience := min(float64(c.patiencePerPlace)*float64(waiting), math.MaxInt64/2)
	c.timer = time.AfterFunc(time.Duration(patience), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.timer != nil { // Otherwise its turn came after the timer had fired.
			c.left = time.Now() // Taken before anyone can have noticed.
			c.disconnect()
		}
	})
}

// stopWaiting tells a client that its turn has come.
func (c *impatientClient) stopWaiting() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// leftAt returns when the client disconnected, or the zero time.
func (c *impatientClient) leftAt() time.Time {
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// A requestLog records when the shaper did what with one request. An instant is
// zero if its event did not happen. The log is a value of the request's context,
// and only the goroutine that serves the request writes to it.
type requestLog struct {
	client   *impatientClient // nil: a patient client
	arrived  time.Time        // just before the middleware
	enqueued time.Time        // when it entered the line
	departed time.Time
	refused  time.Time
	reason   error // of the refusal
	waiting  int   // requests in line just after it entered the line or was refused
}

// admitted returns when a request entered the line, or, if it did not have to
// wait, when it left.
func (r *requestLog) admitted() time.Time {
	if r.enqueued.IsZero() {
		return r.departed
	}
	return r.enqueued
}

type requestLogKey struct{}

// traceRequests returns hooks that record the shaper's own instants.
func traceRequests() *shaper.Trace {
	write := func(set func(*requestLog, shaper.Event)) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			if r, ok := ctx.Value(requestLogKey{}).(*requestLog); ok {
				set(r, e)
			}
		}
	}
	return &shaper.Trace{
		Enqueued: write(func(r *requestLog, e shaper.Event) {
			r.enqueued, r.waiting = e.At, e.Waiting
			r.client.startWaiting(e.Waiting)
		}),
		Departed: write(func(r *requestLog, e shaper.Event) {
			r.departed = e.At
			r.client.stopWaiting()
		}),
		Refused: write(func(r *requestLog, e shaper.Event) { r.refused, r.reason, r.waiting = e.At, e.Err, e.Waiting }),
	}
}

// requestLogs are the logs of all requests that pass the middleware.
type requestLogs struct {
	impatient map[int]*impatientClient

	mu         sync.Mutex
	all        []*requestLog
	inProgress sync.WaitGroup
}

// middleware logs each request before next has it.
func (b *requestLogs) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log := &requestLog{arrived: time.Now()}
		if index, err := strconv.Atoi(r.Header.Get(clientHeader)); err == nil {
			log.client = b.impatient[index]
		}
		b.mu.Lock()
		b.all = append(b.all, log)
		b.inProgress.Add(1)
		b.mu.Unlock()
		defer b.inProgress.Done()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestLogKey{}, log)))
	})
}

// byArrival waits until all requests have ended, and returns their logs in the order
// in which they arrived. A request whose client has disconnected may end a little
// later than the last response.
func (b *requestLogs) byArrival() []*requestLog {
	b.inProgress.Wait()
	return slices.SortedFunc(slices.Values(b.all), func(x, y *requestLog) int { return x.arrived.Compare(y.arrived) })
}
