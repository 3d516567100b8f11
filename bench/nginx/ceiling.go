package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A ceiling is what goes through a proxy whose limit is out of reach.
type ceiling struct {
	PerSecond  float64 `json:"requests_per_second"`
	CPUPer100k float64 `json:"cpu_seconds_per_100k"` // of the proxy; 0: there is none
}

const ceilingCallers = 64

// measureCeiling asks a contender as fast as it answers.
func measureCeiling(ctx context.Context, c contender, u *upstream, window time.Duration) (ceiling, error) {
	p, address, err := c.start(ctx, u.address, noLimit, false)
	if err != nil {
		return ceiling{}, err
	}
	perSecond, all, err := flood(ctx, address, window)
	// The whole life of the proxy is counted, its start included, and so are
	// all requests, those before the window included.
	used := p.stop()
	if err != nil {
		return ceiling{}, err
	}
	return ceiling{PerSecond: perSecond, CPUPer100k: used.Seconds() / float64(all) * 100_000}, nil
}

// flood asks from all callers, each as soon as it has its answer, and returns
// how many were answered a second within the window, and how many at all.
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
	sleep(ctx, window/10) // Until it is warm.
	from, began := answered.Load(), time.Now()
	sleep(ctx, window)
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
		return fmt.Errorf("an answer has status %d", status)
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
