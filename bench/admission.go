package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// admissionGoroutines are how many call at once.
var admissionGoroutines = []int{1, 2, 64}

// An admissionResult is what one call costs.
type admissionResult struct {
	Limiter     string            `json:"limiter"`
	Call        string            `json:"call"`
	Refused     bool              `json:"refused"`
	Tells       bool              `json:"tells_when_to_come_back"`
	ByCallers   []admissionTiming `json:"by_goroutines"`
	AllocsPerOp float64           `json:"allocs_per_call"`
}

// An admissionTiming is wall time over all goroutines, per call.
type admissionTiming struct {
	Goroutines int     `json:"goroutines"`
	NsPerCall  float64 `json:"ns_per_call"`
	Allocs     float64 `json:"allocs_per_call"`
}

type admissionInput struct {
	Index int           // in admissionCalls
	Batch time.Duration // how long each number of goroutines calls
}

// admissionCell measures one call.
func admissionCell(input []byte) (any, error) {
	var in admissionInput
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	calls := admissionCalls()
	if in.Index < 0 || in.Index >= len(calls) {
		return nil, fmt.Errorf("there is no call %d", in.Index)
	}
	each, stop, err := calls[in.Index].open()
	if err != nil {
		return nil, err
	}
	defer stop()
	var found []admissionTiming
	for _, goroutines := range admissionGoroutines {
		t, err := timeCalls(each, goroutines, in.Batch)
		if err != nil {
			return nil, fmt.Errorf("%d goroutines: %w", goroutines, err)
		}
		found = append(found, t)
	}
	return found, nil
}

// timeCalls finds out how many calls fill the batch, which warms the limiter
// too, and then measures as many.
func timeCalls(each func() func() bool, goroutines int, batch time.Duration) (admissionTiming, error) {
	n := 1
	for {
		took, _, err := callAtOnce(each, goroutines, n)
		if err != nil {
			return admissionTiming{}, err
		}
		if took >= batch/8 {
			n = max(1, int(float64(n)*float64(batch)/float64(took)))
			break
		}
		n *= 2
	}
	took, mallocs, err := callAtOnce(each, goroutines, n)
	ops := float64(n * goroutines)
	return admissionTiming{
		Goroutines: goroutines,
		NsPerCall:  float64(took.Nanoseconds()) / ops,
		Allocs:     float64(mallocs) / ops,
	}, err
}

// callAtOnce lets each of the goroutines make n calls. All start together.
func callAtOnce(each func() func() bool, goroutines, n int) (took time.Duration, mallocs uint64, err error) {
	var (
		ready, done sync.WaitGroup
		start       = make(chan struct{})
		wrong       atomic.Int64
	)
	ready.Add(goroutines)
	for range goroutines {
		done.Go(func() {
			call, amiss := each(), int64(0)
			ready.Done()
			<-start
			for range n {
				if !call() {
					amiss++
				}
			}
			wrong.Add(amiss)
		})
	}
	ready.Wait()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	close(start)
	done.Wait()
	took = time.Since(began)
	runtime.ReadMemStats(&after)
	if amiss := wrong.Load(); amiss > 0 {
		err = fmt.Errorf("%d of %d calls did not come out as they should", amiss, n*goroutines)
	}
	return took, after.Mallocs - before.Mallocs, err
}

func admissionRounds(o options) (times int, batch time.Duration) {
	if o.quick {
		return o.times(3), 5 * time.Millisecond
	}
	return o.times(5), 50 * time.Millisecond
}

// admissionTakes reckons with a quarter beside each batch, for finding out how
// many calls fill it.
func admissionTakes(o options) time.Duration {
	times, batch := admissionRounds(o)
	each := time.Duration(len(admissionGoroutines))*batch*5/4 + startAndEnd
	return time.Duration(times*len(admissionCalls())) * each
}

// measureAdmission is the part.
func measureAdmission(ctx context.Context, o options) (report, error) {
	times, batch := admissionRounds(o)
	calls := admissionCalls()
	found := make([][][]admissionTiming, len(calls)) // by call and round
	for round := range times {
		o.say("round %d of %d", round+1, times)
		for i := range calls {
			var timings []admissionTiming
			if err := measureCell(ctx, "admission", admissionInput{Index: i, Batch: batch}, &timings); err != nil {
				return report{}, fmt.Errorf("%s %s: %w", calls[i].limiter, calls[i].call, err)
			}
			found[i] = append(found[i], timings)
		}
	}
	results := make([]admissionResult, len(calls))
	for i, c := range calls {
		results[i] = admissionMedians(c, found[i])
	}
	return report{Tables: admissionTables(results, times), Data: results, Goals: admissionGoals(results)}, nil
}

// admissionMedians sums up the rounds of one call. Allocations are the largest
// number of any round: they are the same in all, or something is amiss.
func admissionMedians(c admissionCall, byRound [][]admissionTiming) admissionResult {
	r := admissionResult{Limiter: c.limiter, Call: c.call, Refused: c.refuses, Tells: c.tells}
	for g, goroutines := range admissionGoroutines {
		var ns []float64
		t := admissionTiming{Goroutines: goroutines}
		for _, timings := range byRound {
			ns = append(ns, timings[g].NsPerCall)
			t.Allocs = max(t.Allocs, timings[g].Allocs)
		}
		t.NsPerCall = median(ns...)
		r.ByCallers = append(r.ByCallers, t)
		r.AllocsPerOp = max(r.AllocsPerOp, t.Allocs)
	}
	return r
}

func admissionTables(results []admissionResult, times int) []table {
	note := fmt.Sprintf("Wall time over all goroutines, per call; medians of %d interleaved rounds, each in a process of its own. ", times)
	conforming := table{
		Title: "A call that may leave at once",
		Note: note + "Nobody ever waits: the rate is 1e9 per second. " +
			"failsafe builds a timer for a wait of 0. httprate writes its header fields.",
		Columns: append(admissionColumns(), "allocations"),
	}
	refused := table{
		Title: "A call that is refused",
		Note: note + "The rate is three a day. A refusal that says when to come back has been asked. " +
			"Wait-full-line is met by 100 waiters, Wait-deadline of the shaper by 99.",
		Columns: append(admissionColumns(), "allocations", "says when to come back"),
	}
	for _, r := range results {
		row := []string{r.Limiter, r.Call}
		for _, t := range r.ByCallers {
			row = append(row, fmt.Sprintf("%.1f", t.NsPerCall))
		}
		row = append(row, fmt.Sprintf("%.2f", r.AllocsPerOp))
		if r.Refused {
			tells := "no"
			if r.Tells {
				tells = "yes"
			}
			refused.Rows = append(refused.Rows, append(row, tells))
		} else {
			conforming.Rows = append(conforming.Rows, row)
		}
	}
	return []table{conforming, refused}
}

func admissionColumns() []string {
	columns := []string{"limiter", "call"}
	for _, g := range admissionGoroutines {
		columns = append(columns, fmt.Sprintf("ns, %d at once", g))
	}
	return columns
}

// admissionGoals holds ours against x/time, and against all that say when to
// come back.
func admissionGoals(results []admissionResult) []goal {
	find := func(limiter, call string, refused bool) admissionResult {
		i := slices.IndexFunc(results, func(r admissionResult) bool {
			return r.Limiter == limiter && r.Call == call && r.Refused == refused
		})
		return results[i]
	}
	ratio := func(what string, most float64, ours, theirs admissionResult, g int) goal {
		us, them := ours.ByCallers[g].NsPerCall, theirs.ByCallers[g].NsPerCall
		return goal{
			What:    fmt.Sprintf("%s, goroutines: %d", what, admissionGoroutines[g]),
			Want:    fmt.Sprintf("at most %.1f of x/time's", most),
			Got:     fmt.Sprintf("%.2f (%.0f ns against %.0f)", us/them, us, them),
			Reached: us <= most*them,
		}
	}
	full := find("shaper", "Wait-full-line", true)
	deadline := find("shaper", "Wait-deadline", true)
	one, many := 0, len(admissionGoroutines)-1
	goals := []goal{
		ratio("conforming Wait", 0.5, find("shaper", "Wait", false), find("x-time", "Wait", false), one),
		ratio("refusal by deadline, with RetryAfter", 0.4, deadline, find("x-time", "Wait-deadline", true), one),
		ratio("refusal by deadline, with RetryAfter", 0.4, deadline, find("x-time", "Wait-deadline", true), many),
	}
	for g, goroutines := range admissionGoroutines {
		ns := max(full.ByCallers[g].NsPerCall, deadline.ByCallers[g].NsPerCall)
		best, fastest := "", 0.0
		for _, r := range results {
			if r.Limiter != "shaper" && r.Tells && (best == "" || r.ByCallers[g].NsPerCall < fastest) {
				best, fastest = r.Limiter, r.ByCallers[g].NsPerCall
			}
		}
		goals = append(goals, goal{
			What:    fmt.Sprintf("the slower refusal, with RetryAfter, goroutines: %d", goroutines),
			Want:    fmt.Sprintf("less than the best peer that says when to come back (%s, %.0f ns)", best, fastest),
			Got:     fmt.Sprintf("%.0f ns", ns),
			Reached: ns < fastest,
		})
	}
	// What the runtime allocates meanwhile is far below one per hundred calls.
	most := max(full.AllocsPerOp, deadline.AllocsPerOp)
	return append(goals, goal{
		What:    "allocations per refusal",
		Want:    "at most 1",
		Got:     fmt.Sprintf("%.2f", most),
		Reached: most < 1.01,
	})
}
