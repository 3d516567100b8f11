package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
)

// worker is a process that shares the rate.
var worker = run.NewMeasurement("shared-worker", work)

// A workerInput says what one process does, and when it begins.
type workerInput struct {
	Input   input
	Address string // of the server, or of the network before it
	Begin   time.Time
}

// A workerOutput is the record of one process.
type workerOutput struct {
	At         []int64 // when each caller ran again, in nanoseconds of the machine's clock
	Entered    []int64 // when it had begun to wait
	RoundTrips int64
	CPU        float64 // in nanoseconds
	Late       bool    // it was not there when the window began, and has done nothing
}

// patience is for how long the server may take to answer, because the machine may be busy. A
// server that has failed is all that is waited for so long.
const patience = time.Minute

// work is the body of a process.
func work(todo workerInput) (found workerOutput, err error) {
	var trips counter
	client := redis.NewClient(&redis.Options{
		Addr: todo.Address, MaxRetries: -1, PoolSize: todo.Input.Waiters, ContextTimeoutEnabled: true,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	defer client.Close()
	client.AddHook(&trips)
	l, err := open(todo.Input, client)
	if err != nil {
		return found, err
	}
	found, err = l.loop(todo)
	found.RoundTrips, found.CPU = trips.count.Load(), measure.CPUTime()
	return found, err
}

// A limiter lets callers wait.
type limiter struct {
	wait func(context.Context) error
	stop func() error
}

// open makes a limiter of the shared rate.
func open(in input, client *redis.Client) (limiter, error) {
	switch in.Limiter {
	case ours:
		s, err := shaper.New(shaper.Limits{Rate: rate.Limit(in.Rate), Depth: 2 * in.Waiters}, shaper.WithBucket(redisbucket.New(client), "bench"))
		if err != nil {
			return limiter{}, err
		}
		wait := func(ctx context.Context) error {
			for {
				err := s.Wait(ctx)
				refusal, is := errors.AsType[*shaper.RejectError](err)
				if !is || !errors.Is(err, shaper.ErrUnavailable) {
					return err
				}
				sleep(ctx, max(refusal.RetryAfter, time.Millisecond)) // A busy machine let the server answer too late.
			}
		}
		return limiter{wait, s.Close}, nil
	case "redis_rate":
		r := redis_rate.NewLimiter(client)
		limit := redis_rate.Limit{Rate: int(in.Rate), Burst: 1, Period: time.Second}
		return limiter{func(ctx context.Context) error {
			return poll(ctx, func() (time.Duration, error) {
				found, err := r.Allow(ctx, "bench", limit)
				if err != nil || found.Allowed > 0 {
					return -1, err
				}
				return found.RetryAfter, nil
			})
		}, nil}, nil
	case "throttled":
		store, err := goredisstore.NewCtx(client, "bench:")
		if err != nil {
			return limiter{}, err
		}
		t, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(int(in.Rate))})
		if err != nil {
			return limiter{}, err
		}
		return limiter{func(ctx context.Context) error {
			return poll(ctx, func() (time.Duration, error) {
				limited, found, err := t.RateLimitCtx(ctx, "bench", 1)
				switch {
				case err != nil && ctx.Err() == nil:
					return 0, nil // It gives up after ten lost races with other callers; then it is asked again.
				case err != nil || !limited:
					return -1, err
				}
				return found.RetryAfter, nil
			})
		}, nil}, nil
	}
	return limiter{}, fmt.Errorf("no limiter is named %q", in.Limiter)
}

// poll asks until there is no time to wait for any more, and sleeps for that time before it
// asks again.
func poll(ctx context.Context, ask func() (retryAfter time.Duration, err error)) error {
	for {
		after, err := ask()
		if err != nil || after < 0 {
			return err
		}
		if sleep(ctx, after); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// sleep ends with the context.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// loop lets callers wait again and again, from the instant at which all processes begin to
// the end of the window. If the window has begun already, it does nothing.
func (l limiter) loop(todo workerInput) (found workerOutput, err error) {
	time.Sleep(time.Until(todo.Begin))
	if time.Since(todo.Begin) > todo.Input.Warm {
		return workerOutput{Late: true}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	outputs, errs := make([]workerOutput, todo.Input.Waiters), make([]error, todo.Input.Waiters)
	for i := range todo.Input.Waiters {
		all.Go(func() {
			o := &outputs[i]
			for ctx.Err() == nil {
				entered := time.Now().UnixNano()
				if err := l.wait(ctx); err != nil {
					if ctx.Err() == nil {
						errs[i] = err
					}
					return
				}
				o.At, o.Entered = append(o.At, time.Now().UnixNano()), append(o.Entered, entered)
			}
		})
	}
	time.Sleep(time.Until(todo.Begin.Add(todo.Input.Warm + todo.Input.Window)))
	cancel()
	all.Wait()
	if l.stop != nil {
		err = l.stop()
	}
	for i, o := range outputs {
		found.At, found.Entered = append(found.At, o.At...), append(found.Entered, o.Entered...)
		if errs[i] != nil {
			err = errs[i]
		}
	}
	return found, err
}

// A counter counts the round trips of a client: each command, or pipeline of commands, is one.
type counter struct{ count atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count.Add(1)
		return next(ctx, cmds)
	}
}
