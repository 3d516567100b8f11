// Package scale measures long lines: the memory of a waiter, and how long it takes to
// give up in one.
package scale

import (
	"context"
	"errors"
	"time"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

const (
	manyWaiting = 100_000

	// slowLimit is so slow that of a long line only a few leave meanwhile.
	slowLimit = 1 // per second
)

// Experiment is "scale".
var Experiment = run.Experiment{
	Name: "scale",
	What: "memory per waiter, and cancel in a long line",
	Note: "Memory: resident in a process, where the system tells, after what is not in use has been given back. " +
		"beyond: without what a bare goroutine takes that is parked on a channel. " +
		"With a context of its own a waiter has, and watches, one that can be cancelled; it is counted. " +
		"uber's cannot be cancelled and watch none. " +
		"Cancel: from the call of its cancel function until the wait of one in the line has returned.",
	Goals: []report.Goal{
		{What: "memory per waiter beyond a goroutine, in bytes", Ours: "Memory/limiter=shaper/waiting=100000/context=shared beyond-B/waiter", Most: 160},
		{
			What: "cancel p50 of one of 100,000 waiters, against x-time", Most: 1,
			Ours: "Cancel/limiter=shaper/waiting=100000 p50-ns", Theirs: []string{"Cancel/limiter=x-time/waiting=100000 p50-ns"},
		},
	},
	Estimate: func(o run.Options) time.Duration {
		return run.Estimate(memoryGroups(o)...) + run.Estimate(cancelCases(o))
	},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		memory, err1 := measureMemory(ctx, o)
		cancel, err2 := run.InTurns(ctx, o, cancelChild.Take, cancelCases(o))
		return report.Report{Lines: append(run.Lines(memory), run.Lines(cancel)...)}, errors.Join(err1, err2)
	},
}
