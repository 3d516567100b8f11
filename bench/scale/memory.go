package scale

import (
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

const (
	// bareGoroutine stands beside the limiters: one that is parked on a channel,
	// which is what a waiter costs at the least.
	bareGoroutine = "goroutine"

	// bytesPerWaiter is more than a waiter of any limiter takes, with its
	// goroutine and what the garbage collector needs.
	bytesPerWaiter = 4000
)

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

// memoryNeeded returns an error if -full needs more memory than there is.
func memoryNeeded(o run.Options) error {
	if !o.Full || !measure.MemoryIsTold() {
		return nil
	}
	const need = fullWaiting * bytesPerWaiter
	o.Progress.Logf("-full lets %s wait and needs %.1f GiB of memory\n", report.Grouped(fullWaiting), need/float64(1<<30))
	return measure.EnoughMemory(need)
}

// memoryGroups are the lines whose memory is measured. There are none where the
// system does not tell how much memory is resident.
func memoryGroups(o run.Options) [][]run.Case[memoryInput] {
	if !measure.MemoryIsTold() {
		return nil
	}
	group := func(waiting int, ownContext bool, rounds int) (cases []run.Case[memoryInput]) {
		context := "shared"
		if ownContext {
			context = "own"
		}
		for _, name := range memoryLimiters {
			cases = append(cases, run.Case[memoryInput]{
				Name:     fmt.Sprintf("Memory/limiter=%s/waiting=%d/context=%s", name, waiting, context),
				Input:    memoryInput{name, waiting, ownContext},
				Rounds:   rounds,
				Estimate: time.Duration(waiting) * 4 * time.Microsecond,
			})
		}
		return cases
	}
	groups := [][]run.Case[memoryInput]{group(manyWaiting, false, o.Times(3, 1))}
	if !o.Quick {
		groups = append(groups, group(manyWaiting, true, o.Times(3, 1)))
	}
	if o.Full {
		groups = append(groups, group(fullWaiting, false, 1)) // It takes long.
	}
	return groups
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

// memoryTable has one row for each limiter, and columns for each kind of line.
func memoryTable(results []memoryResult) report.Table {
	t := report.Table{Title: memoryTitle, Columns: []string{"limiter"}}
	t.Note = fmt.Sprintf("Resident memory of a process, after what is not in use has been given back; medians of %d (a million: one). "+
		"Beyond: without what a bare goroutine takes that is parked on a channel. "+
		"With a context of its own a waiter has, and watches, one that can be cancelled; it is counted. "+
		"uber's cannot be cancelled and watch none.", len(results[0].Found))
	var kinds []memoryInput
	for _, r := range results {
		kind := memoryInput{Waiting: r.Input.Waiting, OwnContext: r.Input.OwnContext}
		if slices.Contains(kinds, kind) {
			continue
		}
		kinds = append(kinds, kind)
		what := report.Grouped(kind.Waiting)
		if kind.OwnContext {
			what += ", own context"
		}
		t.Columns = append(t.Columns, what, "beyond")
	}
	for _, name := range memoryLimiters {
		row := []string{name}
		for _, kind := range kinds {
			kind.Limiter = name
			m, measured := run.MedianWhere(results, func(in memoryInput) bool { return in == kind })
			if !measured {
				m = memoryFound{measure.Unknown, measure.Unknown}
			}
			row = append(row, report.Fixed(m.Bytes, 0), report.Fixed(m.Beyond, 0))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// memoryGoal looks at every line without contexts, and tells beside it what they add.
func memoryGoal(results []memoryResult) report.Goal {
	g := report.Goal{What: "bytes per waiter beyond a goroutine", Want: "at most 160", Got: report.NotMeasured}
	most, own := 0.0, ""
	for _, r := range results {
		switch {
		case r.Input.Limiter != rivals.Ours:
		case r.Input.OwnContext:
			own = ", and " + report.Fixed(r.Median.Beyond, 0) + " with a context of its own"
		default:
			most = max(most, r.Median.Beyond)
			g.Got, g.Reached = report.Fixed(most, 0), most <= 160
		}
	}
	g.Got += own
	return g
}
