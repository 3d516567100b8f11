// Package keys measures what a bucket for each key costs: memory, and the time of a
// call.
package keys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// Experiment is "keys".
var Experiment = run.Experiment{
	Name: "keys",
	What: "a bucket for each key: memory, and the cost of a call",
	Estimate: func(o run.Options) time.Duration {
		return run.Estimate(callCases(o)) + run.AtOnceEstimate(leftCases(o))
	},
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		var found results
		var errs [2]error
		found.calls, errs[0] = run.InTurns(ctx, o, callsChild.Take, callCases(o))
		found.left, errs[1] = run.AtOnce(ctx, o, leftChild.Take, leftCases(o))
		return found.report(o), errors.Join(errs[:]...)
	},
}

// results are all that the experiment has found.
type results struct {
	calls []callsResult
	left  []leftResult
}

func (found results) report(o run.Options) (r report.Report) {
	r.Goals = slices.Concat([]report.Goal{memoryGoal(found.calls), leftGoal(found.left)}, costGoals(found.calls), manyGoals(found.calls))
	run.Report(&r, found.calls, memoryTable, costTable, contentionTable)
	r.Lines = append(r.Lines, timingLines(found.calls)...)
	if len(found.calls) > 0 {
		r.Pictures = append(r.Pictures, picture(found.calls, o.Machine))
	}
	run.Report(&r, found.left, leftTable)
	return r
}

// manyKeys is where a call is measured that has others beside it.
const manyKeys = 100_000

// keyName returns the key of a number below 10^11, of 16 bytes.
func keyName(i int) string {
	name := []byte("user-00000000000")
	for at := len(name) - 1; i > 0; at-- {
		name[at] = byte('0' + i%10)
		i /= 10
	}
	return string(name)
}

// comeOnce lets the keys from one to before another come once. The rival is
// the only one that keeps their names.
func comeOnce(k rivals.Keyed, from, to int) error {
	call := k.Each[0]()
	for i := from; i < to; i++ {
		if !call(keyName(i)) {
			return fmt.Errorf("key %d of %d may not leave", i, to)
		}
	}
	return nil
}
