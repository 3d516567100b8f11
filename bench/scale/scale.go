// Package scale measures long lines: the memory of a waiter, and how long it takes to
// give up in one.
package scale

import (
	"context"
	"errors"
	"time"

	"example.com/leakybucket/bench/internal/measure"
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
	Estimate: func(o run.Options) time.Duration {
		return run.Estimate(memoryGroups(o)...) + run.Estimate(cancelCases(o))
	},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		memory, err1 := measureMemory(ctx, o)
		cancel, err2 := run.InTurns(ctx, o, cancelChild.Take, cancelCases(o))
		r := report.Report{Goals: []report.Goal{memoryGoal(memory), cancelGoal(cancel)}}
		if !measure.MemoryIsTold() {
			r.Tables = append(r.Tables, report.Table{Title: memoryTitle, Note: "Not known on this system."})
		}
		run.Report(&r, memory, memoryTable)
		run.Report(&r, cancel, cancelTable)
		return r, errors.Join(err1, err2)
	},
}
