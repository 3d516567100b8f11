package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

var (
	ceilingContestants = []string{"shaper", "x-time", "uber-noslack", "failsafe"}
	ceilingCallers     = []int{100, 10_000}

	// ceilingLimits are departures per second. What a limiter can hand out to a
	// line shows only where there is one: far above it every slot is due when
	// its caller comes, and nobody waits.
	ceilingLimits      = []float64{1.2e6, 2e6, 3e6}
	ceilingQuickLimits = []float64{1.2e6}
)

// A ceilingResult is how many departures there are if nothing but the limiter
// holds them up, and how many of the callers were parked, on average.
type ceilingResult struct {
	Contestant string  `json:"contestant"`
	Callers    int     `json:"callers"`
	Limit      float64 `json:"limit_per_second"`
	PerSecond  float64 `json:"departures_per_second"`
	Parked     float64 `json:"parked"`
}

type ceilingInput struct {
	Contestant string
	Callers    int
	Limit      float64
	Window     time.Duration
}

// ceilingCell measures one contestant with one number of callers.
func ceilingCell(input []byte) (any, error) {
	var in ceilingInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	c, err := contestantNamed(in.Contestant)
	if err != nil {
		return nil, err
	}
	perSecond, parked := ceiling(c, in.Callers, in.Limit, in.Window)
	return ceilingResult{c.name, in.Callers, in.Limit, perSecond, parked}, nil
}

// ceilingLooks is how often ceiling looks how many are parked.
const ceilingLooks = 20

// ceiling is how many leave per second when so many callers come again as soon
// as they have left, and how many of them are parked, on average.
func ceiling(c contestant, callers int, limit float64, window time.Duration) (perSecond, waiting float64) {
	ownOfRuntime := goroutines("waiting")
	wait, stop := c.open(limit, callers)
	defer stop()
	// Each counts on a cache line of its own.
	type count struct {
		atomic.Int64
		_ [56]byte
	}
	var (
		ctx, cancel = context.WithCancel(context.Background())
		counts      = make([]count, callers)
		running     sync.WaitGroup
	)
	departed := func() (sum int64) {
		for i := range counts {
			sum += counts[i].Load()
		}
		return sum
	}
	for i := range counts {
		running.Go(func() {
			for ctx.Err() == nil && wait(ctx) == nil {
				counts[i].Add(1)
			}
		})
	}
	time.Sleep(window / 5) // until all are there and the heap has its size
	before, start := departed(), time.Now()
	for range ceilingLooks {
		time.Sleep(window / ceilingLooks)
		now := min(max(goroutines("waiting"), ownOfRuntime)-ownOfRuntime, uint64(callers))
		waiting += float64(now) / ceilingLooks
	}
	after, took := departed(), time.Since(start)
	cancel()
	running.Wait()
	return float64(after-before) / took.Seconds(), waiting
}

// measureCeiling measures all contestants.
func measureCeiling(ctx context.Context, o options, times int) ([]ceilingResult, error) {
	window, limits := 300*time.Millisecond, ceilingLimits
	if o.quick {
		window, limits = 150*time.Millisecond, ceilingQuickLimits
	}
	var results []ceilingResult
	for _, name := range ceilingContestants {
		for _, limit := range limits {
			for _, callers := range ceilingCallers {
				results = append(results, ceilingResult{Contestant: name, Callers: callers, Limit: limit})
			}
		}
	}
	perSecond, parked := make([][]float64, len(results)), make([][]float64, len(results))
	for round := range times {
		o.say("dispatch ceiling, round %d of %d", round+1, times)
		for i, r := range results {
			if err := measureCell(ctx, "ceiling", ceilingInput{r.Contestant, r.Callers, r.Limit, window}, &r); err != nil {
				return nil, err
			}
			perSecond[i], parked[i] = append(perSecond[i], r.PerSecond), append(parked[i], r.Parked)
		}
	}
	for i := range results {
		results[i].PerSecond, results[i].Parked = median(perSecond[i]...), median(parked[i]...)
	}
	return results, nil
}

func ceilingTable(results []ceilingResult, times int) table {
	t := table{
		Title: "Dispatch ceiling: departures per second",
		Note: fmt.Sprintf("Of callers who come again as soon as they have left; medians of %d. "+
			"Parked: how many of them stood still, on average. Where nearly none did there was no line, and most left at once.", times),
		Columns: []string{"contestant", "limit per second"},
	}
	for _, callers := range ceilingCallers {
		t.Columns = append(t.Columns, fmt.Sprintf("%d callers", callers), "parked")
	}
	// All numbers of callers of one limit follow one another.
	for i, r := range results {
		if i%len(ceilingCallers) == 0 {
			t.Rows = append(t.Rows, []string{r.Contestant, fmt.Sprintf("%.0f", r.Limit)})
		}
		last := &t.Rows[len(t.Rows)-1]
		*last = append(*last, fmt.Sprintf("%.0f", r.PerSecond), fmt.Sprintf("%.0f", r.Parked))
	}
	return t
}

// ceilingGoal takes the best that was handed out to a line, of at least a quarter of
// the callers, and says how long that was.
func ceilingGoal(results []ceilingResult) goal {
	g := goal{What: "dispatch ceiling, departures per second", Want: "at least 1000000", Got: "there was no line"}
	var best float64
	for _, r := range results {
		if r.Contestant == "shaper" && r.Parked >= float64(r.Callers)/4 && r.PerSecond > best {
			best = r.PerSecond
			g.Got = fmt.Sprintf("%.0f, of %.0f asked for, with %.0f of %d callers in line", best, r.Limit, r.Parked, r.Callers)
			g.Reached = best >= 1e6
		}
	}
	return g
}
