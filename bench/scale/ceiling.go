package scale

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// ceilingCallers come again as soon as they have left.
var ceilingCallers = []int{100, 10_000}

// ceilingLimits are departures per second. What a limiter can hand out to a
// line shows only where there is one: far above it every slot is due when
// its caller comes, and none waits.
var (
	ceilingLimits      = []float64{1.2e6, 2e6, 3e6}
	ceilingQuickLimits = []float64{1.2e6}
)

type ceilingInput struct {
	Callers int
	Limit   float64
	Window  time.Duration
}

// A ceilingFound is how many departures there are if nothing but the limiter
// holds them up, and how many of the callers were in line, on average.
type ceilingFound struct {
	PerSecond float64 `unit:"departures/s"`
	InLine    float64 `unit:"in-line"`
}

type ceilingResult = run.Result[ceilingInput, ceilingFound]

var ceilingChild = run.NewMeasurement("ceiling", ceiling)

// ceilingLooks is how often ceiling looks how many callers are in line.
const ceilingLooks = 20

// ceiling returns how many leave per second. Of rivals it could not be told whether
// they had a line.
func ceiling(in ceilingInput) (found ceilingFound, err error) {
	s := rivals.Must(shaper.New(shaper.Limits{Rate: rate.Limit(in.Limit), Depth: in.Callers}))
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var came atomic.Int64
	for range in.Callers {
		running.Go(func() {
			came.Add(1)
			for s.Wait(ctx) == nil {
			}
		})
	}
	for came.Load() < int64(in.Callers) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(in.Window / 5) // until the heap has its size
	before, start := s.Stats(), time.Now()
	for range ceilingLooks {
		time.Sleep(in.Window / ceilingLooks)
		found.InLine += float64(s.Stats().Waiting) / ceilingLooks
	}
	after, took := s.Stats(), time.Since(start)
	cancel()
	running.Wait()
	found.PerSecond = float64(after.Departed-before.Departed) / took.Seconds()
	return found, nil
}

func ceilingCases(o run.Options) (cases []run.Case[ceilingInput]) {
	window, limits := 300*time.Millisecond, ceilingLimits
	if o.Quick {
		window, limits = 150*time.Millisecond, ceilingQuickLimits
	}
	for _, limit := range limits {
		for _, callers := range ceilingCallers {
			cases = append(cases, run.Case[ceilingInput]{
				Name:     fmt.Sprintf("Ceiling/limiter=%s/limit=%.0f/callers=%d", rivals.Ours, limit, callers),
				Input:    ceilingInput{callers, limit, window},
				Rounds:   o.Times(3, 1),
				Estimate: window * 13 / 10,
			})
		}
	}
	return cases
}

func ceilingTable(results []ceilingResult) report.Table {
	t := report.Table{
		Title: "Dispatch ceiling: departures per second",
		Note: fmt.Sprintf("Of callers who come again as soon as they have left; medians of %d. In line: how many were, on average. "+
			"Where nearly none were there was no line, and most left at once.", len(results[0].Found)),
		Columns: []string{"limit per second", "callers", "departures per second", "in line"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{
			report.Grouped(int(r.Input.Limit)), report.Grouped(r.Input.Callers), report.Grouped(int(r.Median.PerSecond)), report.Grouped(int(r.Median.InLine)),
		})
	}
	return t
}

// ceilingGoal takes the best that was handed out to a line, of at least a quarter
// of the callers, and says how long that was.
func ceilingGoal(results []ceilingResult) report.Goal {
	g := report.Goal{What: "dispatch ceiling, departures per second", Want: "at least 1,000,000", Got: "there was no line"}
	var best float64
	for _, r := range results {
		in, m := r.Input, r.Median
		if m.InLine >= float64(in.Callers)/4 && m.PerSecond > best {
			best = m.PerSecond
			g.Got = fmt.Sprintf("%s, of %s asked for, with %s of %s callers in line",
				report.Grouped(int(best)), report.Grouped(int(in.Limit)), report.Grouped(int(m.InLine)), report.Grouped(in.Callers))
			g.Reached = best >= 1e6
		}
	}
	return g
}
