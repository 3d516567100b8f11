package keys

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// activeLimiters are those whose calls wait.
var activeLimiters = []string{rivals.Ours, "x-time"}

type activeInput struct {
	Limiter string
	Keys    int
	Each    time.Duration // from one departure of a key to its next
	Warm    time.Duration // from when all have come and left once
	Window  time.Duration
}

// An activeFound is how late those callers leave that wait in the lines of many
// keys at once, and what that takes.
type activeFound struct {
	RateReached float64 `unit:"of-rate"`
	LateP50     float64 `unit:"late-p50-ns"`
	LateP99     float64 `unit:"late-p99-ns"`
	LateMax     float64 `unit:"late-max-ns"`
	CPU         float64 `unit:"cpu-ns/departure"`
	Bytes       float64 `unit:"resident-B/key"`
}

type activeResult = run.Result[activeInput, activeFound]

var activeChild = run.NewMeasurement("keys-active", active)

// activeWithin bounds how long active looks for a window in which a request leaves.
const activeWithin = time.Minute

// active has one caller in each line, which comes again as soon as it has left, so
// that its slots are known: after its first departure, at once, there is one after
// each interval, as no lateness here is beyond what may be made up. The keys come
// evenly, and so do their slots.
func active(in activeInput) (activeFound, error) {
	var (
		found  activeFound
		wanted = float64(in.Keys) / in.Each.Seconds() * in.Window.Seconds()
		late   = make([]float64, 2*int(wanted)+in.Keys)
		used   atomic.Int64

		// The window, since the begin. It is set when all have come.
		from, to atomic.Int64

		callers sync.WaitGroup
		refused atomic.Int64
	)
	from.Store(math.MaxInt64)
	for i := range late {
		late[i] = -1 // The memory is there from now on.
	}
	before := measure.ResidentBytes()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k := rivals.KeyedNamed(in.Limiter).Open(ctx, in.Keys, rivals.Bucket{Every: in.Each, Burst: 1})
	defer k.Stop()
	call := k.Each[0]()
	began := time.Now()
	for i := range in.Keys {
		// With a sleep those of a millisecond would come, and leave for ever, at
		// once.
		for due := time.Duration(i) * in.Each / time.Duration(in.Keys); time.Since(began) < due; {
			runtime.Gosched()
		}
		key, first := keyName(i), time.Since(began)
		if !call(key) {
			return found, fmt.Errorf("key %d of %d may not leave at once", i, in.Keys)
		}
		callers.Add(1)
		go func() { // As in [measure.Gather]: WaitGroup.Go would take room on the stack.
			for due := first + in.Each; call(key); due += in.Each {
				if at := time.Since(began); from.Load() <= int64(at) && int64(at) < to.Load() {
					if n := used.Add(1) - 1; n < int64(len(late)) {
						late[n] = float64(at - due)
					}
				}
			}
			if ctx.Err() == nil {
				refused.Add(1)
			}
			callers.Done()
		}()
	}
	// If the machine has stalled for the whole of the window, there is another.
	var cpu float64
	for begins := max(in.Each, time.Since(began)) + in.Warm; ; begins = time.Since(began) {
		to.Store(int64(begins + in.Window))
		from.Store(int64(begins))
		time.Sleep(begins - time.Since(began))
		cpu = measure.CPUTime()
		time.Sleep(begins + in.Window - time.Since(began))
		cpu = measure.CPUTime() - cpu
		if used.Load() > 0 || time.Since(began) > activeWithin {
			break
		}
	}
	after := measure.ResidentBytes()
	cancel()
	callers.Wait()
	n := used.Load()
	switch {
	case refused.Load() > 0:
		return found, fmt.Errorf("%d callers were refused", refused.Load())
	case n == 0 || n > int64(len(late)):
		return found, fmt.Errorf("%d have left in %v, of about %.0f", n, in.Window, wanted)
	}
	late = late[:n]
	found.RateReached = float64(n) / wanted
	found.LateP50, found.LateP99, found.LateMax = measure.Quantile(late, 0.5), measure.Quantile(late, 0.99), measure.Quantile(late, 1)
	found.CPU = cpu / float64(n)
	found.Bytes = (after - before) / float64(in.Keys)
	return found, nil
}

func activeCases(o run.Options) (cases []run.Case[activeInput]) {
	in := activeInput{Keys: 100_000, Each: 5 * time.Second, Warm: time.Second, Window: 5 * time.Second}
	if o.Quick {
		in = activeInput{Keys: 20_000, Each: time.Second, Warm: 200 * time.Millisecond, Window: 500 * time.Millisecond}
	}
	for _, name := range activeLimiters {
		in.Limiter = name
		cases = append(cases, run.Case[activeInput]{
			Name:  fmt.Sprintf("KeysActive/limiter=%s/keys=%d", name, in.Keys),
			Input: in, Rounds: o.Times(3, 1), Estimate: in.Each + in.Warm + in.Window + time.Second,
		})
	}
	return cases
}

func activeTable(results []activeResult) report.Table {
	in := results[0].Input
	t := report.Table{
		Title: fmt.Sprintf("%s active at once", report.Counted(in.Keys, "key")),
		Note: fmt.Sprintf("In the line of each key there is a caller, which comes again as soon as it has left; it may leave once in %v: %s together. "+
			"Late: from its slot until it ran again; medians of %d, over %v. x-time: a limiter for each key. "+
			"Memory: resident beyond that of the process before, with the goroutine of the caller.",
			in.Each, report.PerSecond(float64(in.Keys)/in.Each.Seconds()), len(results[0].Found), in.Window),
		Columns: []string{"limiter", "rate reached", "late p50 µs", "late p99 µs", "late max µs", "CPU s per 100,000", "bytes per key"},
	}
	for _, r := range results {
		m := r.Median
		t.Rows = append(t.Rows, []string{
			r.Input.Limiter, report.Fixed(m.RateReached, 3), report.Figure(m.LateP50 / 1000), report.Figure(m.LateP99 / 1000),
			report.Figure(m.LateMax / 1000), report.Figure(m.CPU / 1e4), report.Fixed(m.Bytes, 0),
		})
	}
	return t
}

// activeGoal holds ours against x/time.
func activeGoal(results []activeResult) report.Goal {
	late := func(limiter string) float64 {
		m, _ := run.MedianWhere(results, func(in activeInput) bool { return in.Limiter == limiter })
		return m.LateP50 / 1000
	}
	return report.AtMost("median lateness with a line for each of many keys, against x-time", 0.1, late(rivals.Ours), late("x-time"), "µs")
}
