// Package http measures what middleware costs in net/http: the time and the
// allocations of a request that is admitted and of one that is refused, and the
// memory of a request that waits.
package http

import (
	"context"
	"errors"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "http".
var Experiment = run.Experiment{
	Name: "http",
	What: "what middleware costs per request in net/http, and the memory of connections that wait",
	Estimate: func(o run.Options) time.Duration {
		return run.Estimate(costCases(o)) + run.Estimate(waitingCases(o))
	},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		costs, err1 := measureCosts(ctx, o)
		waiting, err2 := measureWaiting(ctx, o)
		r := report.Report{Goals: append(costGoals(costs), waitingGoal(waiting))}
		run.Report(&r, costs, admittedTable, refusedTable)
		if !measure.MemoryIsTold() {
			r.Tables = append(r.Tables, report.Table{Title: waitingTitle, Note: "Not known on this system."})
		}
		run.Report(&r, waiting, waitingTable)
		return r, errors.Join(err1, err2)
	},
}

// yesOrNo is for names of benchmarks and for tables.
func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
