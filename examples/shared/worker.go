package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// work is all that a program needs to share a rate: four callers wait for their turns again and
// again, until in ends. Each departure is one line of out: its instant, in nanoseconds since 1970.
func work(address, key string, in io.Reader, out io.Writer) error {
	client := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
	defer client.Close()
	trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		fmt.Fprintln(out, e.At.UnixNano())
	}}
	// All processes share the rate. The line is this process's own.
	limits := shaper.Limits{Rate: perSecond, Depth: callers}
	s, err := shaper.New(limits, shaper.WithBucket(redisbucket.New(client), key, shared.Options{}), shaper.WithTrace(trace))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	for range callers {
		calls.Go(func() {
			for ctx.Err() == nil {
				err := s.Wait(ctx) // Then the call could begin.
				if refused, ok := errors.AsType[*shaper.RejectError](err); ok {
					time.Sleep(min(refused.RetryAfter, time.Second)) // Redis can't be asked.
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, in)
	cancel()
	calls.Wait()
	return s.Close()
}
