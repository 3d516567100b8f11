package scale

import (
	"context"
	"fmt"
	"time"

	"example.com/leakybucket/bench/internal/measure"
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
func measureMemory(ctx context.Context, o run.Options) ([]run.Result[memoryInput, memoryFound], error) {
	results, err := run.InTurns(ctx, o, memoryChild.Take, memoryGroups(o)...)
	return run.Beyond(results, func(bare, of memoryInput) bool {
		return bare.Limiter == bareGoroutine && bare.OwnContext == of.OwnContext
	}, func(bare memoryFound, from *memoryFound) { from.Beyond = from.Bytes - bare.Bytes }), err
}
