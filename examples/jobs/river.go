package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"example.com/leakybucket/pgbucket"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

type callArgs struct {
	Job int `json:"job"`
}

func (callArgs) Kind() string { return "call" }

type riverWorker struct {
	river.WorkerDefaults[callArgs]
	line *shaper.Shaper
	call callFunc
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[callArgs]) error {
	err := w.line.Do(ctx, 1, func(ctx context.Context) error { return w.call(ctx, job.Args.Job) })
	if in, refused := again(err); refused {
		return river.JobSnooze(in)
	}
	return err
}

func workRiver(ctx context.Context, url string, call callFunc, opts ...shaper.Option) (shaper.Stats, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return shaper.Stats{}, err
	}
	defer pool.Close()
	if err := pgbucket.Migrate(ctx, pool); err != nil { // makes the table of the levels, unless it is there
		return shaper.Stats{}, err
	}
	line, err := shaper.New(limits, append(opts, shaper.WithBucket(pgbucket.New(pool), "payments-api", shared.Options{}))...)
	if err != nil {
		return shaper.Stats{}, err
	}
	defer line.Close()

	w := river.NewWorkers()
	river.AddWorker(w, &riverWorker{line: line, call: call})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:          map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers:         w,
		SoftStopTimeout: 10 * time.Second, // When ctx ends, those in line may still leave.
	})
	if err != nil {
		return shaper.Stats{}, err
	}
	if err := client.Start(ctx); err != nil {
		return shaper.Stats{}, err
	}
	<-client.Stopped()
	return line.Stats(), nil
}

// addToRiver adds jobs. It makes River's tables, which a program that uses River has already.
func addToRiver(ctx context.Context, url string, jobs int) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		return err
	}
	all := make([]river.InsertManyParams, jobs)
	for i := range all {
		all[i].Args = callArgs{Job: i}
	}
	_, err = client.InsertMany(ctx, all)
	return err
}
