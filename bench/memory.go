package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
)

const (
	// bareGoroutine stands beside the contestants: one that is parked on a
	// channel, which is what a waiter costs at the least.
	bareGoroutine = "goroutine"

	// memoryLimit is so slow that of 100,000 no more than one leaves meanwhile.
	memoryLimit = 1 // per second
)

var memoryContestants = []string{"shaper", "x-time", "uber", "failsafe", "naive"}

// A memoryResult is what one waiter takes of the resident memory, in bytes,
// and how much of it is beyond a bare goroutine.
type memoryResult struct {
	Contestant string  `json:"contestant"`
	Waiting    int     `json:"waiting"`
	OwnContext bool    `json:"own_context"`
	Bytes      float64 `json:"bytes"`
	Beyond     float64 `json:"bytes_beyond_a_goroutine"`
}

type memoryInput struct {
	Contestant string // or bareGoroutine
	Waiting    int
	OwnContext bool // each has a context of its own, else context.Background
}

// memoryCell is the resident memory of this process per waiter. The process
// ends with all of them waiting, as some can't be told to stop.
func memoryCell(input []byte) (any, error) {
	var in memoryInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	open := func(float64, int) (func(context.Context) error, func()) {
		never := make(chan struct{})
		return func(context.Context) error { <-never; return nil }, nil
	}
	if in.Contestant != bareGoroutine {
		c, err := contestantNamed(in.Contestant)
		if err != nil {
			return nil, err
		}
		open = c.open
	}
	before, err := residentBytes()
	if err != nil {
		return nil, err
	}
	wait, _ := open(memoryLimit, in.Waiting)
	ctx := context.Background()
	if in.OwnContext {
		_, err = gather(in.Waiting, func(int) {
			own, cancel := context.WithCancel(ctx)
			_ = wait(own)
			cancel()
		})
	} else {
		_, err = gather(in.Waiting, func(int) { _ = wait(ctx) })
	}
	if err != nil {
		return nil, err
	}
	// A few leave meanwhile, one a second. Those who were refused would take
	// nothing, and seem to be thrifty.
	if parked := goroutines("waiting"); parked < uint64(in.Waiting-in.Waiting/100) {
		return nil, fmt.Errorf("only %d goroutines wait, of %d", parked, in.Waiting)
	}
	after, err := residentBytes()
	return float64(after-before) / float64(in.Waiting), err
}

// memoryNeeded says what -full needs, and whether that is there.
func memoryNeeded(o options) error {
	if !o.full || !memoryIsTold() {
		return nil
	}
	const need = scaleFullWaiting * bytesPerWaiter
	o.say("-full lets %s wait and needs %.1f GiB of memory\n", grouped(scaleFullWaiting), need/float64(1<<30))
	return enoughMemory(need)
}

// memoryCrowds are the lines of which the memory is measured. Where the system
// does not tell it, there are none.
func memoryCrowds(o options) []memoryInput {
	if !memoryIsTold() {
		o.say("memory is %s", notMeasured)
		return nil
	}
	crowds := []memoryInput{{Waiting: scaleWaiting}}
	if !o.quick {
		crowds = append(crowds, memoryInput{Waiting: scaleWaiting, OwnContext: true})
	}
	if o.full {
		crowds = append(crowds, memoryInput{Waiting: scaleFullWaiting})
	}
	return crowds
}

// measureMemory measures one kind of line with all contestants. A million take
// long enough to be measured once.
func measureMemory(ctx context.Context, o options, in memoryInput, times int) ([]memoryResult, error) {
	if in.Waiting == scaleFullWaiting {
		times = 1
	}
	names := append([]string{bareGoroutine}, memoryContestants...)
	bytes := make([][]float64, len(names))
	for round := range times {
		o.say("memory of %d waiters, round %d of %d", in.Waiting, round+1, times)
		for i, name := range names {
			var each float64
			ofOne := memoryInput{name, in.Waiting, in.OwnContext && name != bareGoroutine}
			if err := measureCell(ctx, "memory", ofOne, &each); err != nil {
				return nil, err
			}
			bytes[i] = append(bytes[i], each)
		}
	}
	results := make([]memoryResult, len(names))
	for i, name := range names {
		each := median(bytes[i]...)
		results[i] = memoryResult{name, in.Waiting, in.OwnContext, each, each - median(bytes[0]...)}
	}
	return results, nil
}

// memoryTable has one line per contestant, and one column per kind of line.
func memoryTable(results []memoryResult, crowds []memoryInput, times int) table {
	t := table{
		Title: "Memory: bytes per waiter",
		Note: fmt.Sprintf("Resident memory of a process, after what is not in use has been given back; medians of %d (a million: one). "+
			"Beyond: without what a bare goroutine takes that is parked on a channel. "+
			"With a context of its own a waiter has, and watches, one that can be cancelled; it is counted. "+
			"uber's can't be cancelled and watch none.", times),
		Columns: []string{"contestant"},
	}
	for _, in := range crowds {
		what := fmt.Sprintf("%d", in.Waiting)
		if in.OwnContext {
			what += ", own context"
		}
		t.Columns = append(t.Columns, what, "beyond")
	}
	for _, name := range append([]string{bareGoroutine}, memoryContestants...) {
		row := []string{name}
		if len(crowds) == 0 {
			row = append(row, notMeasured)
		}
		for _, r := range results {
			if r.Contestant == name {
				row = append(row, fmt.Sprintf("%.0f", r.Bytes), fmt.Sprintf("%.0f", r.Beyond))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	if len(crowds) == 0 {
		t.Columns = append(t.Columns, "bytes")
	}
	return t
}

// memoryGoal looks at every line without contexts.
func memoryGoal(results []memoryResult) goal {
	g := goal{What: "bytes per waiter beyond a goroutine", Want: "at most 200", Got: notMeasured}
	most := math.Inf(-1)
	for _, r := range results {
		if r.Contestant == "shaper" && !r.OwnContext {
			most = max(most, r.Beyond)
			g.Got, g.Reached = fmt.Sprintf("%.0f", most), most <= 200
		}
	}
	return g
}
