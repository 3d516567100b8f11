package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

var cancelContestants = []string{"shaper", "x-time", "failsafe"}

// A cancelResult is how long it takes one in a long line to give up, from the
// call of its cancel function until its wait has returned.
type cancelResult struct {
	Contestant string  `json:"contestant"`
	Waiting    int     `json:"waiting"`
	P50        float64 `json:"returned_p50_us"`
	P99        float64 `json:"returned_p99_us"`
}

type cancelInput struct {
	Contestant string
	Waiting    int
	Cancels    int
}

// cancelCell measures one contestant.
func cancelCell(input []byte) (any, error) {
	var in cancelInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	c, err := contestantNamed(in.Contestant)
	if err != nil {
		return nil, err
	}
	latencies, err := cancelLatencies(c, in.Waiting, in.Cancels)
	return cancelResult{c.name, in.Waiting, quantile(latencies, 0.5), quantile(latencies, 0.99)}, err
}

// cancelLatencies lets some members of a line give up, one after another, all
// over the line, and returns how many microseconds each took to return.
func cancelLatencies(c contestant, waiting, cancels int) ([]float64, error) {
	wait, stop := c.open(memoryLimit, waiting)
	defer stop()
	var (
		all, cancelAll = context.WithCancel(context.Background())
		contexts       = make([]context.Context, waiting)
		giveUp         = make([]context.CancelFunc, waiting)
		returned       = make(chan time.Time, waiting) // all, so that nobody blocks
	)
	for i := range waiting {
		contexts[i], giveUp[i] = context.WithCancel(all)
	}
	line, err := gather(waiting, func(i int) {
		_ = wait(contexts[i])
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
	// Those who leave meanwhile, one a second, are the first; the order is the
	// same for all.
	order := rand.New(rand.NewPCG(1, 2)).Perm(waiting - waiting/10)[:cancels]
	var latencies []float64
	for _, i := range order {
		for len(returned) > 0 {
			<-returned
		}
		start := time.Now()
		giveUp[waiting/10+i]()
		latencies = append(latencies, float64((<-returned).Sub(start).Nanoseconds())/1e3)
	}
	cancelAll()
	line.members.Wait()
	return latencies, nil
}

// measureCancel measures all contestants.
func measureCancel(ctx context.Context, o options, times int) ([]cancelResult, error) {
	p50, p99 := make([][]float64, len(cancelContestants)), make([][]float64, len(cancelContestants))
	for round := range times {
		o.say("cancel in a line of %d, round %d of %d", scaleWaiting, round+1, times)
		for i, name := range cancelContestants {
			var r cancelResult
			if err := measureCell(ctx, "cancel", cancelInput{name, scaleWaiting, scaleWaiting / 50}, &r); err != nil {
				return nil, err
			}
			p50[i], p99[i] = append(p50[i], r.P50), append(p99[i], r.P99)
		}
	}
	results := make([]cancelResult, len(cancelContestants))
	for i, name := range cancelContestants {
		results[i] = cancelResult{name, scaleWaiting, median(p50[i]...), median(p99[i]...)}
	}
	return results, nil
}

func cancelTable(results []cancelResult, times int) table {
	t := table{
		Title: "Cancel: one of a long line gives up",
		Note: fmt.Sprintf("Microseconds from the call of its cancel function until its wait has returned, in a line of %d; medians of %d.",
			scaleWaiting, times),
		Columns: []string{"contestant", "p50 µs", "p99 µs"},
	}
	for _, r := range results {
		t.Rows = append(t.Rows, []string{r.Contestant, fmt.Sprintf("%.1f", r.P50), fmt.Sprintf("%.1f", r.P99)})
	}
	return t
}
