package scale

import (
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// bareGoroutine stands beside the limiters: one that is parked on a channel,
// which is what a waiter costs at the least.
const bareGoroutine = "goroutine"

var memoryLimiters = []string{bareGoroutine, rivals.Ours, "x-time", "uber", "failsafe", "naive"}

type memoryInput struct {
	Limiter    string // or bareGoroutine
	Waiting    int
	OwnContext bool // each has a context of its own, otherwise [context.Background]
}

// A memoryFound is what one waiter takes of the resident memory, in bytes, and
// how much of it is beyond what a bare goroutine took in the same round.
type memoryFound struct {
	Bytes  float64 `unit:"B/waiter"`
	Beyond float64 `unit:"beyond-B/waiter"`
}

type memoryResult = run.Result[memoryInput, memoryFound]

// memoryChild ends while all of them wait, as some cannot be stopped.
var memoryChild = run.NewMeasurement("memory", func(in memoryInput) (memoryFound, error) {
	never := make(chan struct{})
	wait := rivals.Wait(func(context.Context) error { <-never; return nil })
	before := measure.ResidentBytes()
	if in.Limiter != bareGoroutine {
		wait = rivals.Named(in.Limiter).Open(slowLimit, in.Waiting, nil).Wait
	}
	ctx := context.Background()
	var err error
	if in.OwnContext && in.Limiter != bareGoroutine {
		_, err = measure.Gather(in.Waiting, func(int) {
			own, cancel := context.WithCancel(ctx)
			_ = wait(own)
			cancel()
		})
	} else {
		_, err = measure.Gather(in.Waiting, func(int) { _ = wait(ctx) })
	}
	if err != nil {
		return memoryFound{}, err
	}
	// A few leave meanwhile, one a second. Callers that were refused would take
	// no memory, and would make the limiter look thrifty.
	if parked := measure.Goroutines("waiting"); parked < uint64(in.Waiting-in.Waiting/100) {
		return memoryFound{}, fmt.Errorf("only %d goroutines wait, of %d", parked, in.Waiting)
	}
	bytes := measure.ResidentBytes() - before
	return memoryFound{Bytes: bytes / float64(in.Waiting), Beyond: measure.Unknown}, nil
})

// memoryGroups are the lines whose memory is measured. There are none where the
// system does not tell how much memory is resident.
func memoryGroups(o run.Options) [][]run.Case[memoryInput] {
	if !measure.MemoryIsTold() {
		return nil
	}
	group := func(ownContext bool, context string) (cases []run.Case[memoryInput]) {
		for _, name := range memoryLimiters {
			cases = append(cases, run.Case[memoryInput]{
				Name:     fmt.Sprintf("Memory/limiter=%s/waiting=%d/context=%s", name, manyWaiting, context),
				Input:    memoryInput{name, manyWaiting, ownContext},
				Rounds:   o.Times(3, 1),
				Estimate: manyWaiting * 8 * time.Microsecond,
			})
		}
		return cases
	}
	if o.Quick {
		return [][]run.Case[memoryInput]{group(false, "shared")}
	}
	return [][]run.Case[memoryInput]{group(false, "shared"), group(true, "own")}
}

// measureMemory adds to what was measured how much is beyond a bare goroutine.
func measureMemory(ctx context.Context, o run.Options) ([]memoryResult, error) {
	results, err := run.InTurns(ctx, o, memoryChild.Take, memoryGroups(o)...)
	for _, bare := range results {
		if bare.Input.Limiter != bareGoroutine {
			continue
		}
		for i := range results {
			r := &results[i]
			if r.Input.Waiting != bare.Input.Waiting || r.Input.OwnContext != bare.Input.OwnContext {
				continue
			}
			for round := range r.Found {
				r.Found[round].Beyond = r.Found[round].Bytes - bare.Found[round].Bytes
			}
			r.Median = measure.Medians(r.Found)
		}
	}
	return results, err
}

const memoryTitle = "Memory: bytes per waiter"

// memoryTable has one row for each limiter, and columns for each kind of context.
func memoryTable(results []memoryResult) report.Table {
	t := report.Table{Title: memoryTitle, Columns: []string{"limiter"}}
	t.Note = fmt.Sprintf("Resident memory of a process, after what is not in use has been given back; medians of %d. "+
		"Beyond: without what a bare goroutine takes that is parked on a channel. "+
		"With a context of its own a waiter has, and watches, one that can be cancelled; it is counted. "+
		"uber's cannot be cancelled and watch none.", len(results[0].Found))
	contexts := []bool{false, true}
	for _, ownContext := range contexts {
		what := report.Grouped(manyWaiting)
		if ownContext {
			what += ", own context"
		}
		t.Columns = append(t.Columns, what, "beyond")
	}
	for _, name := range memoryLimiters {
		row := []string{name}
		for _, ownContext := range contexts {
			m := memoryOf(results, name, ownContext)
			row = append(row, report.Fixed(m.Bytes, 0), report.Fixed(m.Beyond, 0))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func memoryOf(results []memoryResult, limiter string, ownContext bool) memoryFound {
	m, _ := run.MedianWhere(results, func(in memoryInput) bool { return in.Limiter == limiter && in.OwnContext == ownContext })
	return m
}

// memoryGoal is about waiters without a context of their own, and tells of others beside.
func memoryGoal(results []memoryResult) report.Goal {
	g := report.Bounded("memory per waiter beyond a goroutine", 160, memoryOf(results, rivals.Ours, false).Beyond, "B")
	if own := memoryOf(results, rivals.Ours, true).Beyond; measure.Known(own) {
		g.Got += ", and " + report.Fixed(own, 0) + " with a context of its own"
	}
	return g
}
