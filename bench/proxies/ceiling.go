package proxies

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

// A ceilingInput is a proxy that is asked for as long as the window is.
type ceilingInput struct {
	Proxy  string
	Window time.Duration
}

// A ceiling is what goes through a proxy whose limit is out of reach.
type ceiling struct {
	PerSecond float64 `unit:"requests/s"`
	CPU       float64 `unit:"cpu-ns/request"` // of the proxy, if there is one
}

const ceilingCallers = 64

// measureCeiling sends requests to a proxy, or to the upstream itself, as fast as they
// are answered.
func (p *programs) measureCeiling(ctx context.Context, in ceilingInput) (ceiling, error) {
	if in.Proxy == direct {
		u, err := startUpstream(0, false)
		if err != nil {
			return ceiling{}, err
		}
		defer u.close()
		return flood(ctx, u.address, in.Window, func() (usage, error) { return usage{cpu: measure.Unknown}, nil })
	}
	s, err := p.stage(ctx, in.Proxy, noLimit, 1000, false)
	if err != nil {
		return ceiling{}, err
	}
	defer s.close()
	return flood(ctx, s.address, in.Window, s.usage)
}

// longestWindow is how long a window may become in which nothing is answered.
const longestWindow = time.Minute

// flood sends a request from each caller as soon as it has its last response, and asks
// at both ends of the window what the proxy has used.
func flood(ctx context.Context, address string, window time.Duration, used func() (usage, error)) (ceiling, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	callers, err := openCallers(ctx, address, ceilingCallers)
	if err != nil {
		return ceiling{}, err
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
	before, err1 := used()
	from, began := answered.Load(), time.Now()
	sleep(ctx, window)
	// On a busy machine a short window may pass without any answer. The rate is
	// that of the time that it took in the end.
	for answered.Load() == from && ctx.Err() == nil && time.Since(began) < longestWindow {
		sleep(ctx, window)
	}
	n, took := float64(answered.Load()-from), time.Since(began)
	after, err2 := used()
	over.Store(true)
	asking.Wait()
	if err := context.Cause(ctx); err != nil {
		return ceiling{}, err
	}
	if n == 0 {
		return ceiling{}, errors.New("no request was answered")
	}
	return ceiling{n / took.Seconds(), (after.cpu - before.cpu) / n}, errors.Join(err1, err2)
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
