package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	holeLimit   = 1000 // departures per second
	holeWaiting = 1000
	holeStay    = 50 // at either end of the line; those between give up
)

var holeContestants = []string{"shaper", "x-time", "failsafe", "naive"}

// A holeResult is how soon the rest of a line leaves when its middle gives up.
type holeResult struct {
	Contestant string  `json:"contestant"`
	Ms         float64 `json:"rest_has_left_ms"`
}

type holeInput struct {
	Contestant string
}

// holeCell measures one hole of one contestant.
func holeCell(input []byte) (any, error) {
	var in holeInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	c, err := contestantNamed(in.Contestant)
	if err != nil {
		return nil, err
	}
	took, err := hole(c)
	return holeResult{c.name, took.Seconds() * 1e3}, err
}

// hole is how long it takes 1,000 waiters to leave, of whom 900 give up as soon
// as all are in line. It begins with the first arrival, as the head leaves while
// the line forms: begun with the giving up, it would be the shorter for
// everybody by the same few milliseconds, which is more of a short time than of
// a long one. Each has a context of its own, as requests do; those of the 900
// have a parent, which is cancelled.
func hole(c contestant) (time.Duration, error) {
	wait, stop := c.open(holeLimit, holeWaiting)
	defer stop()
	leaving, giveUp := context.WithCancel(context.Background())
	defer giveUp()

	var (
		staying sync.WaitGroup
		refused atomic.Pointer[error] // of those who stay; such a one has not left
	)
	staying.Add(2 * holeStay)
	waiter := func(parent context.Context) error {
		ctx, cancel := context.WithCancel(parent)
		defer cancel()
		return wait(ctx)
	}
	stays := func(int) {
		if err := waiter(context.Background()); err != nil {
			refused.Store(&err)
		}
		staying.Done()
	}
	goes := func(int) { _ = waiter(leaving) }

	// One group after the other, as within a group the order is not sure.
	var line []*crowd
	start := time.Now()
	for _, group := range []struct {
		n    int
		wait func(int)
	}{{holeStay, stays}, {holeWaiting - 2*holeStay, goes}, {holeStay, stays}} {
		c, err := gather(group.n, group.wait)
		if err != nil {
			return 0, err
		}
		line = append(line, c)
	}
	giveUp()
	staying.Wait()
	took := time.Since(start)
	for _, c := range line {
		c.members.Wait()
	}
	if err := refused.Load(); err != nil {
		return 0, fmt.Errorf("one who stays was refused: %w", *err)
	}
	return took, nil
}

func holeTimes(o options) int {
	if o.quick {
		return o.times(1)
	}
	return o.times(5)
}

// holeTakes reckons with a second for all but the shaper, whose line is gone
// after a tenth of it.
func holeTakes(o options) time.Duration {
	return time.Duration(holeTimes(o)) * 3400 * time.Millisecond
}

// measureHole is the part.
func measureHole(ctx context.Context, o options) (report, error) {
	times := holeTimes(o)
	found := make([][]float64, len(holeContestants))
	for round := range times {
		o.say("round %d of %d", round+1, times)
		for i, name := range holeContestants {
			var r holeResult
			if err := measureCell(ctx, "hole", holeInput{name}, &r); err != nil {
				return report{}, err
			}
			found[i] = append(found[i], r.Ms)
		}
	}
	t := table{
		Title: "The hole: 900 of 1,000 waiters give up at once",
		Note: fmt.Sprintf("The limit is 1,000/s; milliseconds until the other 100 have left, of whom 50 are ahead of the 900 and 50 behind. "+
			"From the first arrival: 99 is ideal. Medians of %d.", times),
		Columns: []string{"contestant", "ms"},
	}
	results := make([]holeResult, len(holeContestants))
	ms := map[string]float64{}
	for i, name := range holeContestants {
		results[i] = holeResult{name, median(found[i]...)}
		ms[name] = results[i].Ms
		t.Rows = append(t.Rows, []string{name, fmt.Sprintf("%.0f", results[i].Ms)})
	}
	sooner := math.Inf(1)
	if ms["shaper"] > 0 {
		sooner = ms["x-time"] / ms["shaper"]
	}
	return report{Tables: []table{t}, Data: results, Goals: []goal{{
		What:    "900 of 1,000 give up: the rest has left",
		Want:    "at least 8 times sooner than with x/time",
		Got:     fmt.Sprintf("%.1f times (%.0f ms against %.0f)", sooner, ms["shaper"], ms["x-time"]),
		Reached: sooner >= 8,
	}}}, nil
}
