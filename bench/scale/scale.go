// Package scale measures long lines: the memory of a waiter, how long it takes to
// give up in one and to close one, and how many departures a second there are at
// most.
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
	What: "memory per waiter, cancel and Close in a long line, departures per second at most",
	Estimate: func(o run.Options) time.Duration {
		return run.Estimate(memoryGroups(o)...) + run.Estimate(cancelCases(o)) + run.Estimate(closeCases(o)) + run.Estimate(ceilingCases(o))
	},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		memory, err1 := measureMemory(ctx, o)
		cancel, err2 := run.InTurns(ctx, o, cancelChild.Take, cancelCases(o))
		closed, err3 := run.InTurns(ctx, o, closeChild.Take, closeCases(o))
		ceiling, err4 := run.InTurns(ctx, o, ceilingChild.Take, ceilingCases(o))
		r := report.Report{Goals: []report.Goal{memoryGoal(memory), cancelGoal(cancel), ceilingGoal(ceiling)}}
		if !measure.MemoryIsTold() {
			r.Tables = append(r.Tables, report.Table{Title: memoryTitle, Note: "Not known on this system."})
		}
		run.Report(&r, memory, memoryTable)
		run.Report(&r, cancel, cancelTable)
		run.Report(&r, closed, closeTable)
		run.Report(&r, ceiling, ceilingTable)
		return r, errors.Join(err1, err2, err3, err4)
	},
}
