package keys

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/shaper"
)

type touchedInput struct {
	Keys   int           // that come one after the other
	Each   time.Duration // how often each comes
	Drains time.Duration // of a bucket
	Lasts  time.Duration
}

// A touchedFound is what it takes on one core to let a great number of keys
// leave, one after the other, evenly over a time. Each leaves at once, and its
// bucket drains before it comes again.
type touchedFound struct {
	Seconds     float64
	RateReached float64 `unit:"of-rate"`
	Refused     int     `unit:"refused"`
	Overflowed  int     `unit:"overflowed"`
	CPU         float64 `unit:"cpu-%"`       // of a core
	LateP50     float64 `unit:"late-p50-ns"` // from when a key was to come until its call had returned
	LateP99     float64 `unit:"late-p99-ns"`
	CallP50     float64 `unit:"call-p50-ns"`
	CallP99     float64 `unit:"call-p99-ns"`
	CallMax     float64 `unit:"call-max-ns"`
	Buckets     int     `unit:"buckets"`    // at the end
	Resident    float64 `unit:"resident-B"` // beyond what it was before
}

type touchedResult = run.Result[touchedInput, touchedFound]

var touchedChild = run.NewMeasurement("keys-touched", touched)

// touched measures ours alone. Keys that are late come at once.
func touched(in touchedInput) (touchedFound, error) {
	runtime.GOMAXPROCS(1)
	var (
		between = in.Each / time.Duration(in.Keys)
		touches = int(in.Lasts / between)
		late    = make([]float64, touches)
		took    = make([]float64, touches)
		found   touchedFound
	)
	for i := range late {
		late[i], took[i] = -1, -1 // The memory is there from now on.
	}
	before := measure.ResidentBytes()
	l := rivals.Bucket{Every: in.Drains, Burst: 1}.Limits()
	group := rivals.Must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithMaxKeys(in.Keys)))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	used := measure.CPUTime()
	began := time.Now()
	for i := range touches {
		due := time.Duration(i) * between
		if ahead := due - time.Since(began); ahead > 0 {
			time.Sleep(ahead)
		}
		key := keyName(i % in.Keys) // A new one, as requests bring it.
		start := time.Since(began)
		if group.Wait(ctx, key) != nil {
			found.Refused++
		}
		end := time.Since(began)
		late[i], took[i] = float64(end-due), float64(end-start)
	}
	lasted := time.Since(began)
	used = measure.CPUTime() - used
	after := measure.ResidentBytes()
	st := group.Stats()
	found.Buckets, found.Overflowed = st.Keys, int(st.Overflowed)
	_ = group.Close() // It returns nil.
	found.Seconds = lasted.Seconds()
	found.RateReached = (time.Duration(touches) * between).Seconds() / lasted.Seconds()
	found.CPU = 100 * used / float64(lasted)
	found.LateP50, found.LateP99 = measure.Quantile(late, 0.5), measure.Quantile(late, 0.99)
	found.CallP50, found.CallP99, found.CallMax = measure.Quantile(took, 0.5), measure.Quantile(took, 0.99), slices.Max(took)
	found.Resident = after - before
	return found, nil
}

// touchedCases are a million keys, each once a minute, and a bit more, so that
// some come a second time.
func touchedCases(o run.Options) []run.Case[touchedInput] {
	in := touchedInput{Keys: 1_000_000, Each: time.Minute, Drains: 10 * time.Second, Lasts: 63 * time.Second}
	if o.Quick {
		in.Drains, in.Lasts = time.Second/2, 2*time.Second
	}
	return []run.Case[touchedInput]{{
		Name: fmt.Sprintf("KeysTouched/limiter=%s/keys=%d", rivals.Ours, in.Keys), Input: in, Rounds: 1, Estimate: in.Lasts,
	}}
}

func touchedTable(results []touchedResult) report.Table {
	in := results[0].Input
	t := report.Table{
		Title: fmt.Sprintf("%s, each touched once in %g s, on one core", report.Counted(in.Keys, "key"), in.Each.Seconds()),
		Note: fmt.Sprintf("%s evenly over that time, each with a new string for its key; GOMAXPROCS 1, one run. "+
			"Each leaves at once, and its bucket drains in %v. Late: from when a key was to come until its call had returned, "+
			"most of which is the Go timer that the caller sleeps by. "+
			"CPU time is that of the process with its caller, in percent of a core. Resident: memory beyond that of the process before, after a collection.",
			report.PerSecond(float64(in.Keys)/in.Each.Seconds()), in.Drains),
		Columns: []string{"seconds", "rate reached", "CPU %", "late p50 µs", "late p99 µs",
			"call p50 µs", "call p99 µs", "call max µs", "buckets at the end", "resident MiB"},
	}
	for _, r := range results {
		m := r.Median
		t.Rows = append(t.Rows, []string{
			report.Fixed(m.Seconds, 0), report.Fixed(m.RateReached, 3), report.Figure(m.CPU),
			report.Figure(m.LateP50 / 1000), report.Figure(m.LateP99 / 1000), report.Figure(m.CallP50 / 1000), report.Figure(m.CallP99 / 1000),
			report.Figure(m.CallMax / 1000), report.Grouped(m.Buckets), report.Fixed(m.Resident/(1<<20), 1),
		})
	}
	return t
}

// touchedGoal asks for nothing of the machine but that it keeps up.
func touchedGoal(results []touchedResult) report.Goal {
	g := report.Goal{
		What: "a million keys, each once a minute, on one core",
		Want: "all leave at once, from buckets of their own", Got: report.NotMeasured,
	}
	for _, r := range results {
		m := r.Median
		g.Got = fmt.Sprintf("%.1f %% of the rate at %s %% of a core, %d refused, %d shared a bucket", 100*m.RateReached, report.Fixed(m.CPU, 0), m.Refused, m.Overflowed)
		g.Reached = m.RateReached >= 0.999 && m.Refused == 0 && m.Overflowed == 0
	}
	return g
}
