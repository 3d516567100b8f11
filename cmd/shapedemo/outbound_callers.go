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

// Callers are a pool of goroutines that use an API. Each calls again as soon as
// it has its answer; and after a refusal when it has waited for as long as it was
// told to, as good clients do.
type callers struct {
	number int
	client *http.Client
	url    string
	brief  bool // only the counts are wanted, not the times: a pool that runs for days must not remember each call

	mu  sync.Mutex
	saw experience
}

// An experience is what callers got. Calls that were under way when they were
// told to stop are in none of the counts.
type experience struct {
	served  int
	refused int             // by the API, with 429
	turned  int             // away, by the shaper
	failed  int             // no answer, or another
	times   []time.Duration // of those that were served, from the call to the end of the answer
	span    time.Duration   // for which they called
}

// run lets them call until ctx ends, and returns what they got.
func (c *callers) run(ctx context.Context) experience {
	start := time.Now()
	var all sync.WaitGroup
	for range c.number {
		all.Go(func() {
			for ctx.Err() == nil {
				rest(ctx, c.call(ctx))
			}
		})
	}
	all.Wait()
	c.saw.span = time.Since(start)
	slices.Sort(c.saw.times)
	return c.saw
}

// rest sleeps for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
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

// call calls the API once, and returns how long not to call it again.
func (c *callers) call(ctx context.Context) (pause time.Duration) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return c.failure(err)
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
		return c.failure(err)
	case got.StatusCode == http.StatusTooManyRequests:
		c.note(func(saw *experience) { saw.refused++ })
		return retryAfter(got.Header)
	case got.StatusCode != http.StatusOK:
		return c.failure(errors.New(got.Status))
	}
	took := time.Since(start)
	c.note(func(saw *experience) {
		saw.served++
		if !c.brief {
			saw.times = append(saw.times, took)
		}
	})
	return 0
}

// failure counts a call without an answer of use.
func (c *callers) failure(err error) (pause time.Duration) {
	if refusal, ok := errors.AsType[*shaper.RejectError](err); ok {
		c.note(func(saw *experience) { saw.turned++ })
		return max(refusal.RetryAfter, time.Millisecond)
	}
	c.note(func(saw *experience) { saw.failed++ })
	return 100 * time.Millisecond
}

func (c *callers) note(what func(*experience)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what(&c.saw)
}

// retryAfter is how long a refusal asks to wait: a second, if it says nothing
// that a punisher would say.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 1 {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second
}

// perSecond is how many were served per second.
func (e experience) perSecond() float64 {
	if e.span <= 0 {
		return 0
	}
	return float64(e.served) / e.span.Seconds()
}

// answers is how many calls got an answer, of whomever.
func (e experience) answers() int { return e.served + e.refused + e.turned + e.failed }
