// Command jobs shows workers of a job queue that share one rate. Its level is in the database that the
// queue has already: PostgreSQL for River, Redis for asynq. However many processes work, 50 jobs begin
// per second:
//
//	go run ./examples/jobs -add 500 river postgres://…   # once: it makes River's tables, too
//	go run ./examples/jobs river postgres://…            # a worker, in as many terminals as you like
//
//	go run ./examples/jobs -add 500 asynq 127.0.0.1:6379
//	go run ./examples/jobs asynq 127.0.0.1:6379
//
// river.go and asynq.go have all that a worker needs, and again.go what both have in common.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"example.com/leakybucket/shaper"
)

// A queue says how jobs get into a queue, and how a process works on them until ctx ends.
type queue struct {
	add  func(ctx context.Context, address string, jobs int) error
	work func(ctx context.Context, address string, call callFunc, opts ...shaper.Option) (shaper.Stats, error)
}

var queues = map[string]queue{
	"river": {addToRiver, workRiver},
	"asynq": {addToAsynq, workAsynq},
}

// A callFunc is what a job does: it calls the upstream that bears no more than the rate.
type callFunc func(ctx context.Context, job int) error

func main() {
	add := flag.Uint("add", 0, "add so many `jobs` to the queue, and don't work")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, int(*add), flag.Args(), os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "jobs: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, add int, args []string, out io.Writer) error {
	if len(args) != 2 || queues[args[0]].work == nil {
		return fmt.Errorf("arguments %q: expected river and the URL of a database, or asynq and host:port of Redis", args)
	}
	q, address := queues[args[0]], args[1]
	if add > 0 {
		return q.add(ctx, address, add)
	}
	stats, err := q.work(ctx, address, func(_ context.Context, job int) error {
		_, err := fmt.Fprintln(out, "job", job)
		return err
	})
	if err == nil {
		_, err = fmt.Fprintf(out, "jobs that left: %d; times that one went back into the queue: %d\n", stats.Departed, stats.Refused)
	}
	return err
}
