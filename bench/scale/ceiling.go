package scale

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

var (
	ceilingLimiters = []string{rivals.Ours, "x-time", "uber-noslack", "failsafe"}
	ceilingCallers  = []int{100, 10_000}

	// ceilingLimits are departures per second. What a limiter can hand out to a
	// line shows only where there is one: far above it every slot is due when
	// its caller comes, and none waits.
	ceilingLimits      = []float64{1.2e6, 2e6, 3e6}
	ceilingQuickLimits = []float64{1.2e6}
)

type ceilingInput struct {
	Limiter string
	Callers int
	Limit   float64
	Window  time.Duration
}

// A ceilingFound is how many departures there are if nothing but the limiter
// holds them up, and how many of the callers were parked, on average: in its
// line or at its lock. Of ours it is known how many were in the line.
type ceilingFound struct {
	PerSecond float64 `unit:"departures/s"`
	Parked    float64 `unit:"parked"`
	InLine    float64 `unit:"in-line"`
}

type ceilingResult = run.Result[ceilingInput, ceilingFound]

var ceilingChild = run.NewMeasurement("ceiling", func(in ceilingInput) (ceilingFound, error) {
	return ceiling(rivals.Named(in.Limiter), in)
})

// ceilingLooks is how often ceiling looks how many callers are parked.
const ceilingLooks = 20

// ceiling returns how many leave per second when so many callers come again as soon
// as they have left.
func ceiling(r rivals.Rival, in ceilingInput) (ceilingFound, error) {
	ownOfRuntime := measure.Goroutines("waiting")
	found := ceilingFound{InLine: measure.Unknown}
	line := r.Open(in.Limit, in.Callers, nil)
	defer line.Stop()
	if line.InLine != nil {
		found.InLine = 0
	}
	// Each counts on a cache line of its own.
	type count struct {
		atomic.Int64
		_ [56]byte
	}
	var (
		ctx, cancel = context.WithCancel(context.Background())
		counts      = make([]count, in.Callers)
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
				if err := line.Wait(ctx); err != nil {
					if ctx.Err() == nil {
						refused.Store(&err)
					}
					return
				}
				counts[i].Add(1)
			}
		})
	}
	time.Sleep(in.Window / 5) // until all are there and the heap has its size
	before, start := departed(), time.Now()
	for range ceilingLooks {
		time.Sleep(in.Window / ceilingLooks)
		now := min(max(measure.Goroutines("waiting"), ownOfRuntime)-ownOfRuntime, uint64(in.Callers))
		found.Parked += float64(now) / ceilingLooks
		if line.InLine != nil {
			found.InLine += float64(line.InLine()) / ceilingLooks
		}
	}
	after, took := departed(), time.Since(start)
	cancel()
	running.Wait()
	if err := refused.Load(); err != nil {
		return ceilingFound{}, fmt.Errorf("a caller was refused: %w", *err)
	}
	found.PerSecond = float64(after-before) / took.Seconds()
	return found, nil
}

func ceilingCases(o run.Options) (cases []run.Case[ceilingInput]) {
	window, limits := 300*time.Millisecond, ceilingLimits
	if o.Quick {
		window, limits = 150*time.Millisecond, ceilingQuickLimits
	}
	for _, name := range ceilingLimiters {
		for _, limit := range limits {
			for _, callers := range ceilingCallers {
				cases = append(cases, run.Case[ceilingInput]{
					Name:     fmt.Sprintf("Ceiling/limiter=%s/limit=%.0f/callers=%d", name, limit, callers),
					Input:    ceilingInput{name, callers, limit, window},
					Rounds:   o.Times(3, 1),
					Estimate: window * 13 / 10,
				})
			}
		}
	}
	return cases
}

// ceilingTable has one row for each limiter and limit, and columns for each
// number of callers.
func ceilingTable(results []ceilingResult) report.Table {
	t := report.Table{
		Title: "Dispatch ceiling: departures per second",
		Note: fmt.Sprintf("Of callers who come again as soon as they have left; medians of %d. "+
			"Parked: how many of them stood still, on average, in the line or at the lock. In line: how many were, as far as the limiter tells. "+
			"Where nearly none were there was no line, and most left at once.", len(results[0].Found)),
		Columns: []string{"limiter", "limit per second"},
	}
	for _, callers := range ceilingCallers {
		t.Columns = append(t.Columns, report.Grouped(callers)+" callers", "parked", "in line")
	}
	for _, r := range results {
		head := []string{r.Input.Limiter, report.Grouped(int(r.Input.Limit))}
		at := slices.IndexFunc(t.Rows, func(row []string) bool { return row[0] == head[0] && row[1] == head[1] })
		if at < 0 {
			at = len(t.Rows)
			t.Rows = append(t.Rows, append(head, slices.Repeat([]string{"-"}, 3*len(ceilingCallers))...))
		}
		m, column := r.Median, 2+3*slices.Index(ceilingCallers, r.Input.Callers)
		copy(t.Rows[at][column:], []string{report.Grouped(int(m.PerSecond)), report.Fixed(m.Parked, 0), report.Fixed(m.InLine, 0)})
	}
	return t
}

// ceilingGoal takes the best that was handed out to a line, of at least a quarter
// of the callers, and says how long that was. Callers that are parked at the lock
// do not count: above the limit that a line can have, many are, and none is in
// line.
func ceilingGoal(results []ceilingResult) report.Goal {
	g := report.Goal{What: "dispatch ceiling, departures per second", Want: "at least 1,000,000", Got: "there was no line"}
	var best float64
	for _, r := range results {
		in, m := r.Input, r.Median
		if in.Limiter == rivals.Ours && m.InLine >= float64(in.Callers)/4 && m.PerSecond > best {
			best = m.PerSecond
			g.Got = fmt.Sprintf("%s, of %s asked for, with %s of %s callers in line",
				report.Grouped(int(best)), report.Grouped(int(in.Limit)), report.Grouped(int(m.InLine)), report.Grouped(in.Callers))
			g.Reached = best >= 1e6
		}
	}
	return g
}
