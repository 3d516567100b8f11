package main

import (
	"context"
	"time"
)

// keysResults are the data of the part.
type keysResults struct {
	Calls   []keysResult        `json:"calls"`
	Left    []keysLeftResult    `json:"left"`
	Touched []keysTouchedResult `json:"touched"`
	Active  []keysActiveResult  `json:"active"`
}

func keysTimes(o options) int {
	if o.quick {
		return o.times(1)
	}
	return o.times(3)
}

// keysTakes reckons with what rounds take on two cores of 2024, and with what is
// measured once.
func keysTakes(o options) time.Duration {
	active := keysActiveOf(o)
	round := time.Duration(len(keysActiveContestants))*(active.Each+active.Warm+active.Window+time.Second) + 24*time.Second
	once := 16 * time.Second
	if o.quick {
		round -= 20 * time.Second
		once = 4 * time.Second
	}
	for _, in := range keysTouchedInputs(o) {
		once += in.Lasts
	}
	return once + time.Duration(keysTimes(o))*round
}

// measureKeys is the part.
func measureKeys(ctx context.Context, o options) (report, error) {
	var (
		found keysResults
		err   error
		times = keysTimes(o)
	)
	if found.Calls, err = measureKeysCalls(ctx, o, times); err != nil {
		return report{}, err
	}
	if found.Left, err = measureKeysLeft(ctx, o); err != nil {
		return report{}, err
	}
	if found.Touched, err = measureKeysTouched(ctx, o); err != nil {
		return report{}, err
	}
	if found.Active, err = measureKeysActive(ctx, o, times); err != nil {
		return report{}, err
	}
	return report{
		Tables: []table{
			keysMemoryTable(found.Calls, times),
			keysLeftTable(found.Left),
			keysCostTable(found.Calls, times),
			keysContentionTable(found.Calls, times),
			keysTouchedTable(found.Touched, o),
			keysActiveTable(found.Active, o, times),
		},
		Data:  found,
		Goals: keysGoals(found),
	}, nil
}

func keysGoals(found keysResults) []goal {
	goals := []goal{keysMemoryGoal(found.Calls), keysLeftGoal(found.Left)}
	goals = append(goals, keysCostGoals(found.Calls)...)
	return append(goals, keysTouchedGoal(found.Touched), keysActiveGoal(found.Active))
}
