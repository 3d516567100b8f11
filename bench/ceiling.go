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
// holds them up, and how many of the callers were parked, on average: in its
// line or at its lock. Of ours it is known how many were in the line.
type ceilingResult struct {
	Contestant string  `json:"contestant"`
	Callers    int     `json:"callers"`
	Limit      float64 `json:"limit_per_second"`
	PerSecond  float64 `json:"departures_per_second"`
	Parked     float64 `json:"parked"`
	InLine     float64 `json:"in_line"` // notTold of those who keep it to themselves
}

const notTold = -1

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
	return ceiling(c, in.Callers, in.Limit, in.Window)
}

// ceilingLooks is how often ceiling looks how many are parked.
const ceilingLooks = 20

// ceiling is how many leave per second when so many callers come again as soon
// as they have left.
func ceiling(c contestant, callers int, limit float64, window time.Duration) (ceilingResult, error) {
	ownOfRuntime := goroutines("waiting")
	r := ceilingResult{Contestant: c.name, Callers: callers, Limit: limit}
	var (
		wait   func(context.Context) error
		inLine = func() int { return 0 }
		stop   func()
	)
	if c.lined != nil {
		wait, inLine, stop = c.lined(limit, callers)
	} else {
		wait, stop = c.open(limit, callers)
	}
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
		refused     atomic.Pointer[error]
	)
	departed := func() (sum int64) {
		for i := range counts {
			sum += counts[i].Load()
		}
		return sum
	}
	for i := range counts {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := wait(ctx); err != nil {
					if ctx.Err() == nil {
						refused.Store(&err)
					}
					return
				}
				counts[i].Add(1)
			}
		})
	}
	time.Sleep(window / 5) // until all are there and the heap has its size
	before, start := departed(), time.Now()
	for range ceilingLooks {
		time.Sleep(window / ceilingLooks)
		now := min(max(goroutines("waiting"), ownOfRuntime)-ownOfRuntime, uint64(callers))
		r.Parked += float64(now) / ceilingLooks
		r.InLine += float64(inLine()) / ceilingLooks
	}
	after, took := departed(), time.Since(start)
	cancel()
	running.Wait()
	if err := refused.Load(); err != nil {
		return ceilingResult{}, fmt.Errorf("a caller was refused: %w", *err)
	}
	r.PerSecond = float64(after-before) / took.Seconds()
	if c.lined == nil {
		r.InLine = notTold
	}
	return r, nil
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
	perSecond, parked, inLine := make([][]float64, len(results)), make([][]float64, len(results)), make([][]float64, len(results))
	for round := range times {
		o.say("dispatch ceiling, round %d of %d", round+1, times)
		for i, r := range results {
			if err := measureCell(ctx, "ceiling", ceilingInput{r.Contestant, r.Callers, r.Limit, window}, &r); err != nil {
				return nil, err
			}
			perSecond[i], parked[i], inLine[i] = append(perSecond[i], r.PerSecond), append(parked[i], r.Parked), append(inLine[i], r.InLine)
		}
	}
	for i := range results {
		results[i].PerSecond, results[i].Parked, results[i].InLine = median(perSecond[i]...), median(parked[i]...), median(inLine[i]...)
	}
	return results, nil
}

func ceilingTable(results []ceilingResult, times int) table {
	t := table{
		Title: "Dispatch ceiling: departures per second",
		Note: fmt.Sprintf("Of callers who come again as soon as they have left; medians of %d. "+
			"Parked: how many of them stood still, on average, in the line or at the lock. In line: how many were, as far as the limiter tells. "+
			"Where nearly none were there was no line, and most left at once.", times),
		Columns: []string{"contestant", "limit per second"},
	}
	for _, callers := range ceilingCallers {
		t.Columns = append(t.Columns, fmt.Sprintf("%d callers", callers), "parked", "in line")
	}
	// All numbers of callers of one limit follow one another.
	for i, r := range results {
		if i%len(ceilingCallers) == 0 {
			t.Rows = append(t.Rows, []string{r.Contestant, fmt.Sprintf("%.0f", r.Limit)})
		}
		last := &t.Rows[len(t.Rows)-1]
		line := "-"
		if r.InLine != notTold {
			line = fmt.Sprintf("%.0f", r.InLine)
		}
		*last = append(*last, fmt.Sprintf("%.0f", r.PerSecond), fmt.Sprintf("%.0f", r.Parked), line)
	}
	return t
}

// ceilingGoal takes the best that was handed out to a line, of at least a quarter of
// the callers, and says how long that was. Who is parked at the lock does not
// count: above the limit that a line can have, many are, and nobody is in line.
func ceilingGoal(results []ceilingResult) goal {
	g := goal{What: "dispatch ceiling, departures per second", Want: "at least 1000000", Got: "there was no line"}
	var best float64
	for _, r := range results {
		if r.Contestant == "shaper" && r.InLine >= float64(r.Callers)/4 && r.PerSecond > best {
			best = r.PerSecond
			g.Got = fmt.Sprintf("%.0f, of %.0f asked for, with %.0f of %d callers in line", best, r.Limit, r.InLine, r.Callers)
			g.Reached = best >= 1e6
		}
	}
	return g
}
