package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"time"
)

// A burst is more requests than may leave at once, each on its own open
// connection.
type burst struct {
	rate     int
	requests int
	every    time.Duration // between two of them
}

// A spacing is how a burst arrived at the upstream.
type spacing struct {
	RateReached    float64  `json:"rate_reached"`    // as a share of the rate
	ErrorP50       float64  `json:"error_p50_us"`    // of |spacing - interval|
	ErrorP99       float64  `json:"error_p99_us"`    // of the same
	Bunched        float64  `json:"bunched_percent"` // spacings below half an interval
	OvertakenSent  float64  `json:"overtaken_sent_percent"`
	OvertakenQueue *float64 `json:"overtaken_queue_percent,omitempty"` // nil: cannot be seen
	Refused        float64  `json:"refused"`
}

// settling is how long connections are open before something is sent, so that
// the proxy has accepted them all.
const settling = 100 * time.Millisecond

// measureSpacing sends a burst through a contender.
func measureSpacing(ctx context.Context, c contender, u *upstream, b burst) (spacing, error) {
	p, address, err := c.start(ctx, u.address, b.rate, true)
	if err != nil {
		return spacing{}, err
	}
	defer p.stop()
	if _, err := u.take(); err != nil {
		return spacing{}, err
	}
	refused, err := b.send(ctx, address)
	if err != nil {
		return spacing{}, err
	}
	arrivals, err := u.take()
	if err != nil {
		return spacing{}, err
	}
	if len(arrivals)+refused != b.requests {
		return spacing{}, fmt.Errorf("of %d requests %d arrived and %d were refused", b.requests, len(arrivals), refused)
	}
	return spacingOf(arrivals, refused, b.rate)
}

// send sends the burst and returns how many were refused when all are answered.
func (b burst) send(ctx context.Context, address string) (refused int, err error) {
	patience := time.Duration(float64(b.requests)/float64(b.rate)*float64(time.Second)) + 20*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer to all requests within %v", patience))
	defer cancel()
	callers, err := openCallers(ctx, address, b.requests)
	if err != nil {
		return 0, err
	}
	defer callers.close()
	type answer struct {
		status int
		err    error
	}
	answers := make(chan answer, b.requests) // Room for all, so that nobody waits to tell.
	for _, c := range callers.all {
		go func() {
			status, err := c.receive()
			answers <- answer{status, err}
		}()
	}
	pause(settling)
	if err := b.sendEach(callers.all); err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	for range b.requests {
		a := <-answers
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case a.err != nil:
			return 0, fmt.Errorf("an answer: %w", a.err)
		case a.status == http.StatusTooManyRequests:
			refused++
		case a.status != http.StatusOK:
			return 0, fmt.Errorf("an answer has status %d", a.status)
		}
	}
	return refused, nil
}

// sendEach sends one request after another, from one thread: Go's own timers
// would send three at a time.
func (b burst) sendEach(all []caller) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	for i, c := range all {
		pause(time.Until(began.Add(time.Duration(i) * b.every)))
		if err := c.send(fmt.Sprintf("/%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// spacingOf reckons what arrivals look like.
func spacingOf(arrivals []arrival, refused, rate int) (spacing, error) {
	if len(arrivals) < 2 {
		return spacing{}, fmt.Errorf("%d requests arrived, which have no spacing", len(arrivals))
	}
	slices.SortStableFunc(arrivals, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	interval := float64(time.Second) / float64(rate)
	misses := make([]float64, 0, len(arrivals)-1)
	bunched := 0
	sent, entered := make([]int64, len(arrivals)), make([]int64, len(arrivals))
	told := true
	for i, a := range arrivals {
		sent[i], entered[i] = int64(a.number), a.entered
		told = told && a.entered > 0
		if i == 0 {
			continue
		}
		gap := float64(a.at - arrivals[i-1].at)
		misses = append(misses, math.Abs(gap-interval)/float64(time.Microsecond))
		if gap < interval/2 {
			bunched++
		}
	}
	s := spacing{
		RateReached:   float64(len(misses)) * interval / float64(arrivals[len(arrivals)-1].at-arrivals[0].at),
		ErrorP50:      quantile(misses, 0.5),
		ErrorP99:      quantile(misses, 0.99),
		Bunched:       100 * float64(bunched) / float64(len(misses)),
		OvertakenSent: overtaken(sent),
		Refused:       float64(refused),
	}
	if told {
		queue := overtaken(entered)
		s.OvertakenQueue = &queue
	}
	return s, nil
}

// overtaken is the percentage of those before whom somebody arrived who stood
// behind them.
func overtaken(places []int64) float64 {
	if len(places) == 0 {
		return 0
	}
	n, last := 0, places[0]
	for _, place := range places {
		if place < last {
			n++
		}
		last = max(last, place)
	}
	return 100 * float64(n) / float64(len(places))
}

// quantile is the value that a share q of all does not exceed, between two
// values in proportion. Of none it is NaN.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}
