package nginx

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/bench/internal/measure"
)

// A ceiling is what goes through a proxy whose limit is out of reach.
type ceiling struct {
	PerSecond float64 `unit:"requests/s"`
	CPU       float64 `unit:"cpu-ns/request"` // of the proxy, if there is one
}

const ceilingCallers = 64

// measureCeiling sends requests to a proxy as fast as it answers.
func measureCeiling(ctx context.Context, p proxy, u *upstream, window time.Duration) (ceiling, error) {
	process, address, err := p.start(ctx, u.address, noLimit, false)
	if err != nil {
		return ceiling{}, err
	}
	perSecond, all, err := flood(ctx, address, window)
	// The whole life of the proxy is counted, its start included, and so are
	// all requests, those before the window included.
	used := process.stop()
	if err != nil {
		return ceiling{}, err
	}
	return ceiling{PerSecond: perSecond, CPU: float64(used) / float64(all)}, nil
}

// measureDirect sends them to the upstream itself.
func measureDirect(ctx context.Context, u *upstream, window time.Duration) (ceiling, error) {
	perSecond, _, err := flood(ctx, u.address, window)
	return ceiling{PerSecond: perSecond, CPU: measure.Unknown}, err
}

// longestWindow is how long a window may become in which nothing is answered.
const longestWindow = 20 * time.Second

// flood sends a request from each caller as soon as it has its last response. It
// returns how many were answered a second within the window, and how many at all.
func flood(ctx context.Context, address string, window time.Duration) (perSecond float64, all int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	callers, err := openCallers(ctx, address, ceilingCallers)
	if err != nil {
		return 0, 0, err
	}
	defer callers.close()
	var answered atomic.Int64
	var over atomic.Bool
	var asking sync.WaitGroup
	for _, c := range callers.all {
		asking.Go(func() {
			for !over.Load() {
				if err := ask(c); err != nil {
					cancel(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	sleep(ctx, window/10) // until everything is warm
	from, began := answered.Load(), time.Now()
	sleep(ctx, window)
	// On a busy machine a short window may pass without any answer. The rate is
	// that of the time that it took in the end.
	for answered.Load() == from && ctx.Err() == nil && time.Since(began) < longestWindow {
		sleep(ctx, window)
	}
	n, took := answered.Load()-from, time.Since(began)
	over.Store(true)
	asking.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, 0, err
	}
	if n == 0 {
		return 0, 0, errors.New("no request was answered")
	}
	return float64(n) / took.Seconds(), answered.Load(), nil
}

func ask(c caller) error {
	if err := c.send("/"); err != nil {
		return err
	}
	status, err := c.receive()
	if err == nil && status != http.StatusOK {
		return fmt.Errorf("a response has status %d", status)
	}
	return err
}

// sleep ends with the context.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
