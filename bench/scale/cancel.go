package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

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

type cancelResult = run.Result[cancelInput, cancelFound]

var cancelChild = run.NewMeasurement("cancel", func(in cancelInput) (cancelFound, error) {
	latencies, err := cancelLatencies(rivals.Named(in.Limiter), in.Waiting, in.Cancels)
	return cancelFound{measure.Quantile(latencies, 0.5), measure.Quantile(latencies, 0.99)}, err
})

// cancelLatencies lets some callers all over a line give up, one after another,
// and returns how many nanoseconds each took to return.
func cancelLatencies(r rivals.Rival, waiting, cancels int) ([]float64, error) {
	rival := r.Open(slowLimit, waiting, nil)
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
			Name:     fmt.Sprintf("Cancel/limiter=%s/waiting=%d", name, manyWaiting),
			Input:    cancelInput{name, manyWaiting, manyWaiting / 50},
			Rounds:   o.Times(3, 1),
			Estimate: 700 * time.Millisecond,
		})
	}
	return cases
}

func cancelTable(results []cancelResult) report.Table {
	t := report.Table{
		Title: "Cancel: one of a long line gives up",
		Note: fmt.Sprintf("Microseconds from the call of its cancel function until its wait has returned, in a line of %s; medians of %d.",
			report.Grouped(manyWaiting), len(results[0].Found)),
		Columns: []string{"limiter", "p50 µs", "p99 µs"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{r.Input.Limiter, report.Fixed(r.Median.P50/1000, 1), report.Fixed(r.Median.P99/1000, 1)})
	}
	return t
}

// cancelGoal holds ours against x/time.
func cancelGoal(results []cancelResult) report.Goal {
	p50 := func(limiter string) float64 {
		m, _ := run.MedianWhere(results, func(in cancelInput) bool { return in.Limiter == limiter })
		return m.P50 / 1000
	}
	what := fmt.Sprintf("cancel p50 of one of %s waiters, against x-time", report.Grouped(manyWaiting))
	return report.AtMost(what, 1, p50(rivals.Ours), p50("x-time"), "µs")
}
