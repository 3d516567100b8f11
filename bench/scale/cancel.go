package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/leakybucket/bench/internal/measure"
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
