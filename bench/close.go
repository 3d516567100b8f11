package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"example.com/leakybucket/shaper"
)

// A closeResult is how long Close takes with a long line.
type closeResult struct {
	Waiting    int     `json:"waiting"`
	ClosedMs   float64 `json:"close_returned_ms"`
	ReturnedMs float64 `json:"all_have_returned_ms"`
}

type closeInput struct {
	Waiting int
}

// closeCell closes a shaper once. The others can't be closed.
func closeCell(input []byte) (any, error) {
	var in closeInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	s, err := shaper.New(shaper.Limits{Rate: memoryLimit, Depth: in.Waiting})
	if err != nil {
		return nil, err
	}
	line, err := gather(in.Waiting, func(int) { _ = s.Wait(context.Background()) })
	if err != nil {
		return nil, err
	}
	if n := s.Stats().Waiting; n < in.Waiting-in.Waiting/100 { // One a second leaves meanwhile.
		return nil, fmt.Errorf("only %d wait, of %d", n, in.Waiting)
	}
	start := time.Now()
	_ = s.Close()
	closed := time.Since(start)
	line.members.Wait()
	return closeResult{in.Waiting, closed.Seconds() * 1e3, time.Since(start).Seconds() * 1e3}, nil
}

// measureClose closes some lines.
func measureClose(ctx context.Context, o options, times int) (closeResult, error) {
	var closed, returned []float64
	for round := range times {
		o.say("Close with %d waiters, round %d of %d", scaleWaiting, round+1, times)
		var r closeResult
		if err := measureCell(ctx, "close", closeInput{scaleWaiting}, &r); err != nil {
			return closeResult{}, err
		}
		closed, returned = append(closed, r.ClosedMs), append(returned, r.ReturnedMs)
	}
	return closeResult{scaleWaiting, median(closed...), median(returned...)}, nil
}

func closeTable(r closeResult, times int) table {
	return table{
		Title:   fmt.Sprintf("Close with %d waiters", r.Waiting),
		Note:    fmt.Sprintf("Medians of %d. None of the others can be closed.", times),
		Columns: []string{"contestant", "Close has returned, ms", "all have returned, ms"},
		Rows:    [][]string{{"shaper", fmt.Sprintf("%.1f", r.ClosedMs), fmt.Sprintf("%.1f", r.ReturnedMs)}},
	}
}
