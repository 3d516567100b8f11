package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// keysActiveContestants are those whose calls wait.
var keysActiveContestants = []string{oursKeyed, "x-time"}

// A keysActiveResult is how late those leave who wait in the lines of many keys at
// once, and what that takes.
type keysActiveResult struct {
	Contestant  string  `json:"contestant"`
	Keys        int     `json:"keys"`
	PerSecond   float64 `json:"departures_per_second"` // that were to be
	RateReached float64 `json:"rate_reached"`
	LateP50     float64 `json:"late_p50_us"`
	LateP99     float64 `json:"late_p99_us"`
	LateMax     float64 `json:"late_max_us"`
	CPUPer100k  float64 `json:"cpu_seconds_per_100k"` // 0: not known
	Bytes       float64 `json:"resident_bytes_per_key"`
}

type keysActiveInput struct {
	Contestant string
	Keys       int
	Each       time.Duration // from one departure of a key to its next
	Warm       time.Duration // from when all have come and left once
	Window     time.Duration
}

// keysActiveCell measures one contestant. In each line there is one caller, who
// comes again as soon as he has left, so that his slots are known: after his first
// departure, at once, there is one after each interval, as no lateness here is
// beyond what may be made up. The keys come evenly, and so their slots are.
func keysActiveCell(in keysActiveInput) (keysActiveResult, error) {
	c, err := keyedContestantNamed(in.Contestant)
	if err != nil {
		return keysActiveResult{}, err
	}
	var (
		r      = keysActiveResult{Contestant: c.name, Keys: in.Keys, PerSecond: float64(in.Keys) / in.Each.Seconds()}
		wanted = r.PerSecond * in.Window.Seconds()
		late   = make([]float64, 2*int(wanted)+in.Keys)
		used   atomic.Int64
		from   = in.Each + in.Warm
		to     = from + in.Window

		callers sync.WaitGroup
		refused atomic.Int64
	)
	for i := range late {
		late[i] = -1 // The memory is there from now on.
	}
	before, err := residentIfTold()
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k, err := c.open(ctx, in.Keys, keyedBucket{every: in.Each, burst: 1})
	if err != nil {
		return r, err
	}
	defer k.stop()
	call := k.each[0]()
	began := time.Now()
	for i := range in.Keys {
		// A sleep would let them come, and leave for ever, a millisecond's worth at
		// once.
		for due := time.Duration(i) * in.Each / time.Duration(in.Keys); time.Since(began) < due; {
			runtime.Gosched()
		}
		key, first := keyName(i), time.Since(began)
		if !call(key) {
			return r, fmt.Errorf("key %d of %d may not leave at once", i, in.Keys)
		}
		callers.Add(1)
		go func() { // As in gather: WaitGroup.Go would take room on the stack.
			for due := first + in.Each; call(key); due += in.Each {
				if at := time.Since(began); from <= at && at < to {
					if n := used.Add(1) - 1; n < int64(len(late)) {
						late[n] = microseconds(at - due)
					}
				}
			}
			if ctx.Err() == nil {
				refused.Add(1)
			}
			callers.Done()
		}()
	}
	time.Sleep(from - time.Since(began))
	cpu, err := cpuTime()
	if err != nil {
		return r, err
	}
	time.Sleep(to - time.Since(began))
	cpuSince, err := cpuTime()
	if err != nil {
		return r, err
	}
	after, err := residentIfTold()
	if err != nil {
		return r, err
	}
	cancel()
	callers.Wait()
	n := used.Load()
	switch {
	case refused.Load() > 0:
		return r, fmt.Errorf("%d callers were refused", refused.Load())
	case n == 0 || n > int64(len(late)):
		return r, fmt.Errorf("%d have left in %v, of about %.0f", n, in.Window, wanted)
	}
	late = late[:n]
	r.RateReached = float64(n) / wanted
	r.LateP50, r.LateP99, r.LateMax = quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1)
	r.CPUPer100k = (cpuSince - cpu).Seconds() / float64(n) * 100_000
	r.Bytes = float64(after-before) / float64(in.Keys)
	return r, nil
}

func keysActiveOf(o options) keysActiveInput {
	if o.quick {
		return keysActiveInput{Keys: 20_000, Each: time.Second, Warm: 200 * time.Millisecond, Window: 500 * time.Millisecond}
	}
	return keysActiveInput{Keys: 100_000, Each: 5 * time.Second, Warm: time.Second, Window: 5 * time.Second}
}

// measureKeysActive measures all contestants.
func measureKeysActive(ctx context.Context, o options, times int) ([]keysActiveResult, error) {
	in := keysActiveOf(o)
	found := make([][]keysActiveResult, len(keysActiveContestants))
	for round := range times {
		for i, name := range keysActiveContestants {
			o.say("%s active at once, round %d of %d: %s", counted(in.Keys, "key"), round+1, times, name)
			in.Contestant = name
			var r keysActiveResult
			if err := measureCell(ctx, "keys-active", in, &r); err != nil {
				return nil, err
			}
			found[i] = append(found[i], r)
		}
	}
	results := make([]keysActiveResult, len(found))
	for i, rounds := range found {
		of := func(figure func(keysActiveResult) float64) float64 {
			var all []float64
			for _, r := range rounds {
				all = append(all, figure(r))
			}
			return median(all...)
		}
		results[i] = rounds[0]
		results[i].RateReached = of(func(r keysActiveResult) float64 { return r.RateReached })
		results[i].LateP50 = of(func(r keysActiveResult) float64 { return r.LateP50 })
		results[i].LateP99 = of(func(r keysActiveResult) float64 { return r.LateP99 })
		results[i].LateMax = of(func(r keysActiveResult) float64 { return r.LateMax })
		results[i].CPUPer100k = of(func(r keysActiveResult) float64 { return r.CPUPer100k })
		results[i].Bytes = of(func(r keysActiveResult) float64 { return r.Bytes })
	}
	return results, nil
}

func keysActiveTable(results []keysActiveResult, o options, times int) table {
	in := keysActiveOf(o)
	t := table{
		Title: fmt.Sprintf("%s active at once", counted(in.Keys, "key")),
		Note: fmt.Sprintf("In the line of each there is a caller, who comes again as soon as he has left, which he may once in %v: %s together. "+
			"Late: from his slot until he ran again; medians of %d, over %v. x-time: a limiter for each key. "+
			"Memory: resident beyond that of the process before, with the goroutine of the caller.",
			in.Each, perSecond(float64(in.Keys)/in.Each.Seconds()), times, in.Window),
		Columns: []string{"contestant", "rate reached", "late p50 µs", "late p99 µs", "late max µs", "CPU s per 100k", "bytes per key"},
	}
	for _, r := range results {
		bytes := "-"
		if memoryIsTold() {
			bytes = fmt.Sprintf("%.0f", r.Bytes)
		}
		t.Rows = append(t.Rows, []string{
			r.Contestant, fmt.Sprintf("%.3f", r.RateReached), figure(r.LateP50), figure(r.LateP99), figure(r.LateMax),
			figureOrDash(r.CPUPer100k), bytes,
		})
	}
	return t
}

// keysActiveGoal holds us against x/time.
func keysActiveGoal(results []keysActiveResult) goal {
	g := goal{What: "median lateness of departures, with a line for each of many keys", Want: "less than x/time's", Got: "not measured"}
	var ours, theirs *keysActiveResult
	for i, r := range results {
		switch r.Contestant {
		case oursKeyed:
			ours = &results[i]
		case "x-time":
			theirs = &results[i]
		}
	}
	if ours != nil && theirs != nil {
		g.What = fmt.Sprintf("median lateness of departures, with a line for each of %s", counted(ours.Keys, "key"))
		g.Got = fmt.Sprintf("%.0f µs against %.0f", ours.LateP50, theirs.LateP50)
		g.Reached = ours.LateP50 < theirs.LateP50
	}
	return g
}
