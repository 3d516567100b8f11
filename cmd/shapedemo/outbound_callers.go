package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"example.com/leakybucket/shaper"
)

// callers are a pool of goroutines that call an API. Each calls again as soon as
// it has its response. After a refusal it first waits for as long as the refusal
// asks it to, as well-behaved clients do.
type callers struct {
	count      int
	client     *http.Client
	url        string
	countsOnly bool // without the times: a pool that runs for days must not remember each call

	mu    sync.Mutex
	stats callStats
}

// callStats count what callers got. Calls in progress when the callers are
// stopped are not counted.
type callStats struct {
	served   int
	refused  int             // by the API, with 429
	rejected int             // by the shaper, with a RejectError
	failed   int             // no response, or another one
	times    []time.Duration // of the calls that were served, from the call to the end of the response; sorted
	duration time.Duration   // how long the pool called
}

// run lets the callers call until ctx ends, and returns what they got.
func (c *callers) run(ctx context.Context) callStats {
	start := time.Now()
	var all sync.WaitGroup
	for range c.count {
		all.Go(func() {
			for ctx.Err() == nil {
				sleep(ctx, c.call(ctx))
			}
		})
	}
	all.Wait()
	c.stats.duration = time.Since(start)
	slices.Sort(c.stats.times)
	return c.stats
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

// call calls the API once, and returns how long to wait before the next call.
func (c *callers) call(ctx context.Context) (pause time.Duration) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return c.recordFailure(err)
	}
	start := time.Now()
	got, err := c.client.Do(r)
	if err == nil {
		_, err = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		return c.recordFailure(err)
	case got.StatusCode == http.StatusTooManyRequests:
		c.record(func(stats *callStats) { stats.refused++ })
		return retryAfter(got.Header)
	case got.StatusCode != http.StatusOK:
		return c.recordFailure(errors.New(got.Status))
	}
	took := time.Since(start)
	c.record(func(stats *callStats) {
		stats.served++
		if !c.countsOnly {
			stats.times = append(stats.times, took)
		}
	})
	return 0
}

// recordFailure counts a call that got no useful response, and returns how long
// to wait before the next call.
func (c *callers) recordFailure(err error) (pause time.Duration) {
	if refusal, ok := errors.AsType[*shaper.RejectError](err); ok {
		c.record(func(stats *callStats) { stats.rejected++ })
		return max(refusal.RetryAfter, time.Millisecond)
	}
	c.record(func(stats *callStats) { stats.failed++ })
	return 100 * time.Millisecond
}

func (c *callers) record(what func(*callStats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what(&c.stats)
}

// retryAfter returns how long a refusal asks the caller to wait: one second if
// its header has no whole number of seconds from 1, as a burstIntolerantAPI sends.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 1 {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second
}

// perSecond returns how many calls were served per second.
func (s callStats) perSecond() float64 {
	if s.duration <= 0 {
		return 0
	}
	return float64(s.served) / s.duration.Seconds()
}

// answered returns how many calls ended, with whatever result.
func (s callStats) answered() int { return s.served + s.refused + s.rejected + s.failed }
