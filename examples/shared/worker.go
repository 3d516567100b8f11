package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
)

// taskVariable is the environment variable with the task of a process, as JSON. Where it is
// set, this program is one of the processes that share the rate.
const taskVariable = "SHARED_TASK"

// A task is what one of the processes does.
type task struct {
	Redis, Key string
	Rate       float64
	Callers    int
	Begin      time.Time // so that all processes begin together
}

// work calls until in ends. It writes a line to out for each call that has left: when that
// was, in nanoseconds since 1970, how many round trips there have been, and for how many
// nanoseconds after its instant a slot may be used.
func work(text string, in io.Reader, out io.Writer) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return fmt.Errorf("%s: %w", taskVariable, err)
	}
	client := redis.NewClient(&redis.Options{Addr: t.Redis, ContextTimeoutEnabled: true})
	defer client.Close()
	var s *shaper.Shaper
	trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		st := s.Stats().Bucket
		// One write for each: a process that is killed has told of all its calls.
		fmt.Fprintln(out, e.At.UnixNano(), st.RoundTrips, st.Lateness.Nanoseconds())
	}}
	// The rate is that of all processes, the line is this one's own.
	limits := shaper.Limits{Rate: rate.Limit(t.Rate), Depth: t.Callers}
	s, err := shaper.New(limits, shaper.WithBucket(redisbucket.New(client), t.Key), shaper.WithTrace(trace))
	if err != nil {
		return err
	}
	time.Sleep(time.Until(t.Begin))
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range t.Callers {
		callers.Go(func() {
			for ctx.Err() == nil {
				err := s.Wait(ctx) // Then the call could begin.
				if refused, ok := errors.AsType[*shaper.RejectError](err); ok {
					time.Sleep(min(refused.RetryAfter, time.Second)) // Redis can't be asked.
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, in) // It ends when the parent says so, or has ended itself.
	cancel()
	callers.Wait()
	return s.Close()
}
