// Package scale measures long lines: the memory of a waiter, and how long it takes to
// give up in one.
package scale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

const (
	manyWaiting = 100_000

	// slowLimit is so slow that only a few of a long line leave meanwhile.
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
	Measure: func(ctx context.Context, o run.Options) (report.Report, error) {
		memory, err1 := measureMemory(ctx, o)
		cancel, err2 := run.InTurns(ctx, o, cancelChild.Take, cancelCases(o))
		return report.Report{Lines: append(run.Lines(memory), run.Lines(cancel)...)}, errors.Join(err1, err2)
	},
}

type cancelInput struct {
	Limiter string
	Waiting int
	Cancels int
}

// A cancelFound is how long it takes a caller in a long line to give up, from the
// call of its cancel function until its wait has returned.
type cancelFound struct {
	P50 float64 `unit:"p50-ns"`
	P99 float64 `unit:"p99-ns"`
}

var cancelChild = run.NewMeasurement("cancel", func(in cancelInput) (cancelFound, error) {
	latencies, err := cancelLatencies(rivals.Named(in.Limiter), in.Waiting, in.Cancels)
	return cancelFound{measure.Quantile(latencies, 0.5), measure.Quantile(latencies, 0.99)}, err
})

// cancelLatencies lets some callers all over a line give up, one after another,
// and returns how many nanoseconds each took to return.
func cancelLatencies(r rivals.Rival, waiting, cancels int) ([]float64, error) {
	rival := r.Open(slowLimit, waiting)
	defer rival.Stop()
	var (
		all, cancelAll = context.WithCancel(context.Background())
		contexts       = make([]context.Context, waiting)
		giveUp         = make([]context.CancelFunc, waiting)
		returned       = make(chan time.Time, waiting) // with room for all, so that none blocks
	)
	for i := range waiting {
		contexts[i], giveUp[i] = context.WithCancel(all)
	}
	line, err := measure.Gather(waiting, func(i int) {
		_ = rival.Wait(contexts[i])
		returned <- time.Now()
	})
	if err != nil {
		cancelAll()
		return nil, err
	}
	if n := len(returned); n > waiting/10 {
		cancelAll()
		return nil, fmt.Errorf("%d of %d did not wait", n, waiting)
	}
	// Those that leave meanwhile, one a second, are the first; the order is the
	// same for all limiters.
	order := rand.New(rand.NewPCG(1, 2)).Perm(waiting - waiting/10)[:cancels]
	var latencies []float64
	for _, i := range order {
		for len(returned) > 0 {
			<-returned
		}
		start := time.Now()
		giveUp[waiting/10+i]()
		latencies = append(latencies, float64((<-returned).Sub(start).Nanoseconds()))
	}
	cancelAll()
	line.All.Wait()
	return latencies, nil
}

func cancelCases(o run.Options) (cases []run.Case[cancelInput]) {
	for _, name := range []string{rivals.Ours, "x-time", "failsafe"} {
		cases = append(cases, run.Case[cancelInput]{
			Name:   fmt.Sprintf("Cancel/limiter=%s/waiting=%d", name, manyWaiting),
			Input:  cancelInput{name, manyWaiting, manyWaiting / 50},
			Rounds: o.Times(3, 1),
		})
	}
	return cases
}

// bareGoroutine stands beside the limiters: one that is parked on a channel,
// which is the least cost of a waiter.
const bareGoroutine = "goroutine"

var memoryLimiters = []string{bareGoroutine, rivals.Ours, "x-time", "uber", "failsafe", "naive"}

type memoryInput struct {
	Limiter    string // or bareGoroutine
	Waiting    int
	OwnContext bool // each has a context of its own, otherwise [context.Background]
}

// A memoryFound is the resident memory of one waiter, in bytes, and how much of it is beyond a bare
// goroutine's in the same round.
type memoryFound struct {
	Bytes  float64 `unit:"B/waiter"`
	Beyond float64 `unit:"beyond-B/waiter"`
}

// memoryChild ends while all of them wait, as some cannot be stopped.
var memoryChild = run.NewMeasurement("memory", func(in memoryInput) (memoryFound, error) {
	never := make(chan struct{})
	wait := rivals.Wait(func(context.Context) error { <-never; return nil })
	before := measure.ResidentBytes()
	if in.Limiter != bareGoroutine {
		wait = rivals.Named(in.Limiter).Open(slowLimit, in.Waiting).Wait
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
				Name:   fmt.Sprintf("Memory/limiter=%s/waiting=%d/context=%s", name, manyWaiting, context),
				Input:  memoryInput{name, manyWaiting, ownContext},
				Rounds: o.Times(3, 1),
			})
		}
		return cases
	}
	if o.Quick {
		return [][]run.Case[memoryInput]{group(false, "shared")}
	}
	return [][]run.Case[memoryInput]{group(false, "shared"), group(true, "own")}
}

// measureMemory adds to each figure how much of it is beyond a bare goroutine's.
func measureMemory(ctx context.Context, o run.Options) ([]run.Result[memoryInput, memoryFound], error) {
	results, err := run.InTurns(ctx, o, memoryChild.Take, memoryGroups(o)...)
	return run.Beyond(results, func(bare, of memoryInput) bool {
		return bare.Limiter == bareGoroutine && bare.OwnContext == of.OwnContext
	}, func(bare memoryFound, from *memoryFound) { from.Beyond = from.Bytes - bare.Bytes }), err
}
