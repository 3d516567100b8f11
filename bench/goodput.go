package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	goodputLimit    = 100 // departures per second
	goodputPatience = 500 * time.Millisecond
	goodputLine     = 1000 // so deep that patience ends before the line does
)

var (
	goodputContestants = []string{"shaper", "x-time", "uber", "failsafe", "naive"}
	goodputOffers      = []float64{111, 125, 200} // requests per second
	goodputEnds        = []string{byCancel, byDeadline}
)

// The two ways in which callers give up. One who cancels, as a closed
// connection does, tells nobody beforehand; a deadline is known at entry.
const (
	byCancel   = "cancel"
	byDeadline = "deadline"
)

// A goodputResult is the share of the limit that went to callers who were still
// there.
type goodputResult struct {
	Contestant string  `json:"contestant"`
	Offered    float64 `json:"offered_per_second"`
	By         string  `json:"by"`                      // cancel or deadline
	Served     float64 `json:"served_percent_of_limit"` // callers still there
}

type goodputInput struct {
	Contestant   string
	Fill, Window time.Duration
}

// goodputCell measures all streams of one contestant at the same time, as each
// of them asks for little, every stream of a limiter of its own.
func goodputCell(input []byte) (any, error) {
	var in goodputInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	c, err := contestantNamed(in.Contestant)
	if err != nil {
		return nil, err
	}
	var streams sync.WaitGroup
	results := make([]goodputResult, 0, len(goodputEnds)*len(goodputOffers))
	for _, by := range goodputEnds {
		for _, offered := range goodputOffers {
			results = append(results, goodputResult{Contestant: c.name, Offered: offered, By: by})
		}
	}
	for i := range results {
		r := &results[i]
		streams.Go(func() { r.Served, _ = goodput(c, r.Offered, r.By, in.Fill, in.Window) })
	}
	streams.Wait()
	return results, nil
}

// goodput is what is served of the limit, in percent, within a window that
// begins when the stream has run for the time fill. The stream begins with a
// line as long as callers are patient, which at 11 % too many would take
// 4.5 seconds to form, and goes on at an even pace. Some callers may still wait
// when it returns: where they can't be cancelled the last may take minutes.
func goodput(c contestant, offered float64, by string, fill, window time.Duration) (served float64, callers *sync.WaitGroup) {
	wait, stop := c.open(goodputLimit, goodputLine)
	defer stop()
	var left atomic.Int64
	start := time.Now()
	caller := func() {
		ctx, cancel := patientContext(by)
		defer cancel()
		// A wait that can't be cancelled ends well for nobody, if its caller has
		// gone meanwhile.
		if wait(ctx) != nil || ctx.Err() != nil {
			return
		}
		if at := time.Since(start); at >= fill && at < fill+window {
			left.Add(1)
		}
	}
	callers = new(sync.WaitGroup)
	for range int(goodputLimit * goodputPatience / time.Second) {
		callers.Go(caller)
	}
	interval := time.Duration(float64(time.Second) / offered)
	// Not at the instants of the slots: if one were to fall on the very moment at
	// which somebody gives up, chance would decide, to the harm of those that
	// can't hand a slot on.
	for at := interval / 3; at < fill+window; at += interval {
		time.Sleep(at - time.Since(start))
		callers.Go(caller)
	}
	return 100 * float64(left.Load()) / (goodputLimit * window.Seconds()), callers
}

// patientContext ends after goodputPatience.
func patientContext(by string) (context.Context, context.CancelFunc) {
	if by == byDeadline {
		return context.WithTimeout(context.Background(), goodputPatience)
	}
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(goodputPatience, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

func goodputTimes(o options) (fill, window time.Duration) {
	if o.quick {
		return 700 * time.Millisecond, 2 * time.Second
	}
	return 2 * time.Second, 10 * time.Second
}

func goodputTakes(o options) time.Duration {
	fill, window := goodputTimes(o)
	return fill + window + startAndEnd
}

// measureGoodput is the part. The contestants run side by side, as the streams
// of each do: what they wait for is the clock.
func measureGoodput(ctx context.Context, o options) (report, error) {
	fill, window := goodputTimes(o)
	o.say("%d contestants at once, %v", len(goodputContestants), fill+window)
	var (
		cells   sync.WaitGroup
		found   = make([][]goodputResult, len(goodputContestants))
		amiss   = make([]error, len(goodputContestants))
		results []goodputResult
	)
	for i, name := range goodputContestants {
		cells.Go(func() {
			amiss[i] = measureCell(ctx, "goodput", goodputInput{name, fill, window}, &found[i])
		})
	}
	cells.Wait()
	if err := errors.Join(amiss...); err != nil {
		return report{}, err
	}
	for _, ofOne := range found {
		results = append(results, ofOne...)
	}
	return report{Tables: []table{goodputTable(found, fill, window)}, Data: results}, nil
}

func goodputTable(found [][]goodputResult, fill, window time.Duration) table {
	t := table{
		Title: "Goodput: served of the limit of 100/s, in %, to callers who give up after 500 ms",
		Note: fmt.Sprintf("Even arrivals; within %v, after a line of 50 has been there for %v. "+
			"From an empty line those that decide at arrival do well until it has filled (4.5 s at 111/s), and never again. "+
			"By cancel: a timer cancels the context, as a closed connection does. By deadline: the context has one. "+
			"failsafe is told the time left until a deadline as its longest wait. "+
			"uber's Take can't be cancelled and goes on: served is who was still there when it returned. "+
			"naive has room for 1,000.", window, fill),
		Columns: []string{"contestant"},
	}
	for _, r := range found[0] {
		t.Columns = append(t.Columns, fmt.Sprintf("%g/s by %s", r.Offered, r.By))
	}
	for _, ofOne := range found {
		row := []string{ofOne[0].Contestant}
		for _, r := range ofOne {
			row = append(row, fmt.Sprintf("%.1f", r.Served))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
