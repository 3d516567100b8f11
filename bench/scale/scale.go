// Package scale measures long lines: the memory of a waiter.
package scale

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	What: "memory per waiter in a long line",
	Note: "Memory: resident in a process, where the system tells, after what is not in use has been given back. " +
		"beyond: without what a bare goroutine takes that is parked on a channel. " +
		"With a context of its own a waiter has, and watches, one that can be cancelled; it is counted. " +
		"uber's cannot be cancelled and watch none.",
	Goals: []report.Goal{
		{What: "memory per waiter beyond a goroutine, in bytes", Ours: "Memory/limiter=shaper/waiting=100000/context=shared beyond-B/waiter", Most: 160},
	},
	Groups: memoryGroups,
	Conclude: func(r *report.Report, _ run.Options) error {
		report.Beyond(r.Lines, "B/waiter", "beyond-B/waiter", func(name string) (string, float64) {
			_, rest, _ := strings.Cut(name, "/waiting=")
			return "Memory/limiter=" + bareGoroutine + "/waiting=" + rest, 1
		})
		return nil
	},
}

// bareGoroutine stands beside the limiters: a goroutine that is parked on a
// channel, the least cost of a waiter.
const bareGoroutine = "goroutine"

var memoryLimiters = []string{bareGoroutine, rivals.Ours, "x-time", "uber", "failsafe", "naive"}

// memoryOf returns the resident memory of one waiter. It ends while all of them wait, as some cannot be stopped. Each has a context of its own, or all
// have [context.Background].
func memoryOf(t *testing.T, limiter string, waiting int, ownContext bool) report.Figure {
	never := make(chan struct{})
	wait := rivals.Wait(func(context.Context) error { <-never; return nil })
	before := measure.ResidentBytes()
	if limiter != bareGoroutine {
		wait = rivals.Openers[limiter](slowLimit, waiting).Wait
	}
	ctx := context.Background()
	if ownContext && limiter != bareGoroutine {
		measure.Gather(t, waiting, func(int) {
			own, cancel := context.WithCancel(ctx)
			_ = wait(own)
			cancel()
		})
	} else {
		measure.Gather(t, waiting, func(int) { _ = wait(ctx) })
	}
	// A few leave meanwhile, one a second. Callers that were refused would take
	// no memory, and would make the limiter look thrifty.
	require.GreaterOrEqual(t, measure.Goroutines("waiting"), uint64(waiting-waiting/100), "so many goroutines wait")
	bytes := measure.ResidentBytes() - before
	return report.Figure{Value: bytes / float64(waiting), Unit: "B/waiter"}
}

// memoryGroups are the lines whose memory is measured. There are none where the
// system does not tell how much memory is resident.
func memoryGroups(o run.Options) []run.Group {
	if !measure.MemoryIsTold() {
		return nil
	}
	group := func(ownContext bool, whose string) (g run.Group) {
		for _, name := range memoryLimiters {
			g.Cases = append(g.Cases, run.One(fmt.Sprintf("Memory/limiter=%s/waiting=%d/context=%s", name, manyWaiting, whose), o.Times(3, 1),
				func(t *testing.T) report.Figure { return memoryOf(t, name, manyWaiting, ownContext) }))
		}
		return g
	}
	if o.Quick {
		return []run.Group{group(false, "shared")}
	}
	return []run.Group{group(false, "shared"), group(true, "own")}
}
