package scale

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

// A closeFound is how long Close takes with a long line.
type closeFound struct {
	Closed   float64 `unit:"closed-ns"`   // until Close has returned
	Returned float64 `unit:"returned-ns"` // until all waiters have
}

// closeChild closes a shaper with so many waiters, once. One leaves each minute: even if the
// machine stalls while they come, all but the first still wait.
var closeChild = run.NewMeasurement("close", func(waiting int) (closeFound, error) {
	s, err := shaper.New(shaper.Limits{Rate: rate.Every(time.Minute), Depth: waiting})
	if err != nil {
		return closeFound{}, err
	}
	line, err := measure.Gather(waiting, func(int) { _ = s.Wait(context.Background()) })
	if err != nil {
		return closeFound{}, err
	}
	if n := s.Stats().Waiting; n < waiting-waiting/100 {
		return closeFound{}, fmt.Errorf("only %d wait, of %d", n, waiting)
	}
	start := time.Now()
	_ = s.Close() // It returns nil.
	closed := time.Since(start)
	line.All.Wait()
	return closeFound{float64(closed), float64(time.Since(start))}, nil
})

func closeCases(o run.Options) []run.Case[int] {
	return []run.Case[int]{{
		Name:  fmt.Sprintf("Close/limiter=%s/waiting=%d", rivals.Ours, manyWaiting),
		Input: manyWaiting, Rounds: o.Times(3, 1), Estimate: 500 * time.Millisecond,
	}}
}

func closeTable(results []run.Result[int, closeFound]) report.Table {
	t := report.Table{
		Title:   fmt.Sprintf("Close with %s waiters", report.Grouped(results[0].Input)),
		Note:    fmt.Sprintf("Medians of %d. None of the others can be closed.", len(results[0].Found)),
		Columns: []string{"limiter", "Close has returned, ms", "all have returned, ms"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{rivals.Ours, report.Fixed(r.Median.Closed/1e6, 1), report.Fixed(r.Median.Returned/1e6, 1)})
	}
	return t
}
