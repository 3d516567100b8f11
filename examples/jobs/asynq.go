package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

const callType = "call"

type asynqWorker struct {
	line *shaper.Shaper
	call callFunc
}

func (w *asynqWorker) ProcessTask(ctx context.Context, task *asynq.Task) error {
	job, err := strconv.Atoi(string(task.Payload()))
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	for {
		err := w.line.Do(ctx, 1, func(ctx context.Context) error { return w.call(ctx, job) })
		in, refused := again(err)
		if !refused || !isLastAttempt(ctx) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(in):
		}
	}
}

// isLastAttempt reports whether asynq would archive the task after any error, be it a failure or not. Then the job
// has to be tried again here.
func isLastAttempt(ctx context.Context) bool {
	failures, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return failures >= most
}

func workAsynq(ctx context.Context, address string, call callFunc, opts ...shaper.Option) (shaper.Stats, error) {
	client := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
	defer client.Close()
	line, err := shaper.New(limits, append(opts, shaper.WithBucket(redisbucket.New(client), "payments-api", shared.Options{}))...)
	if err != nil {
		return shaper.Stats{}, err
	}
	defer line.Close()

	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency: workers,
		IsFailure: func(err error) bool {
			_, refused := again(err)
			return !refused
		},
		RetryDelayFunc: func(failures int, err error, task *asynq.Task) time.Duration {
			if in, refused := again(err); refused {
				return in
			}
			return asynq.DefaultRetryDelayFunc(failures, err, task)
		},
		DelayedTaskCheckInterval: time.Second, // In 5 s, as it is otherwise, lines get empty.
	})
	if err := server.Start(&asynqWorker{line: line, call: call}); err != nil {
		return shaper.Stats{}, err
	}
	<-ctx.Done()
	server.Shutdown() // The jobs that are in line are done first.
	return line.Stats(), nil
}

func addToAsynq(ctx context.Context, address string, jobs int) error {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: address})
	defer client.Close()
	for i := range jobs {
		if _, err := client.EnqueueContext(ctx, asynq.NewTask(callType, []byte(strconv.Itoa(i)))); err != nil {
			return err
		}
	}
	return nil
}
