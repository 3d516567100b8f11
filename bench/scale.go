package main

import (
	"context"
	"time"
)

const (
	scaleWaiting     = 100_000
	scaleFullWaiting = 1_000_000

	// bytesPerWaiter is more than a waiter of any contestant takes, with its
	// goroutine and what the collector needs.
	bytesPerWaiter = 4000

	notMeasured = "not measured on this system"
)

// scaleResults are the data of the part.
type scaleResults struct {
	Memory  []memoryResult  `json:"memory,omitempty"` // none where it is not told
	Cancel  []cancelResult  `json:"cancel"`
	Close   closeResult     `json:"close"`
	Ceiling []ceilingResult `json:"ceiling"`
}

func scaleTimes(o options) int {
	if o.quick {
		return o.times(1)
	}
	return o.times(3)
}

// scaleTakes reckons with what a round takes on two cores of 2024, and a million
// waiters once.
func scaleTakes(o options) time.Duration {
	round := 18 * time.Second
	if o.quick {
		round = 8 * time.Second
	}
	takes := time.Duration(scaleTimes(o)) * round
	if o.full {
		takes += time.Minute
	}
	return takes
}

// measureScale is the part.
func measureScale(ctx context.Context, o options) (report, error) {
	var (
		found  scaleResults
		err    error
		crowds = memoryCrowds(o)
		times  = scaleTimes(o)
	)
	for _, in := range crowds {
		ofOne, err := measureMemory(ctx, o, in, times)
		if err != nil {
			return report{}, err
		}
		found.Memory = append(found.Memory, ofOne...)
	}
	if found.Cancel, err = measureCancel(ctx, o, times); err != nil {
		return report{}, err
	}
	if found.Close, err = measureClose(ctx, o, times); err != nil {
		return report{}, err
	}
	if found.Ceiling, err = measureCeiling(ctx, o, times); err != nil {
		return report{}, err
	}
	return report{
		Tables: []table{
			memoryTable(found.Memory, crowds, times),
			cancelTable(found.Cancel, times),
			closeTable(found.Close, times),
			ceilingTable(found.Ceiling, times),
		},
		Data:  found,
		Goals: []goal{memoryGoal(found.Memory), ceilingGoal(found.Ceiling)},
	}, nil
}
