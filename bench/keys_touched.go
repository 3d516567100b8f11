package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"example.com/leakybucket/shaper"
)

// nobodyLimits stands beside us where keys are touched: the same calls, which do
// nothing.
const nobodyLimits = "no limiter"

// A keysTouchedResult is what it takes on one core to let a great number of keys
// leave, one after the other, evenly over a time. Each leaves at once, and its
// bucket drains before it comes again.
type keysTouchedResult struct {
	Contestant  string  `json:"contestant"`
	Keys        int     `json:"keys"`
	PerSecond   float64 `json:"calls_per_second"`
	Seconds     float64 `json:"seconds"`
	RateReached float64 `json:"rate_reached"`
	Refused     int     `json:"refused"`
	Overflowed  uint64  `json:"overflowed"`
	CPU         float64 `json:"cpu_percent_of_a_core"`
	LateP50     float64 `json:"late_p50_us"` // from when a key was to come until its call had returned
	LateP99     float64 `json:"late_p99_us"`
	CallP50     float64 `json:"call_p50_us"`
	CallP99     float64 `json:"call_p99_us"`
	CallMax     float64 `json:"call_max_us"`
	Buckets     int     `json:"buckets_at_the_end"`
	ResidentMiB float64 `json:"resident_mib"` // beyond what it was before; 0: not told
}

type keysTouchedInput struct {
	Contestant string        // oursKeyed or nobodyLimits
	Keys       int           // that come one after the other
	Each       time.Duration // how often each comes
	Drains     time.Duration // of a bucket
	Lasts      time.Duration
}

// keysTouchedCell measures one of both. Nobody waits for those that come late: they
// come at once then.
func keysTouchedCell(in keysTouchedInput) (keysTouchedResult, error) {
	runtime.GOMAXPROCS(1)
	var (
		between = in.Each / time.Duration(in.Keys)
		touches = int(in.Lasts / between)
		late    = make([]float64, touches)
		took    = make([]float64, touches)
		r       = keysTouchedResult{Contestant: in.Contestant, Keys: in.Keys, PerSecond: 1 / between.Seconds()}
		call    = func(string) bool { return true }
		group   *shaper.Group[string]
	)
	for i := range late {
		late[i], took[i] = -1, -1 // The memory is there from now on.
	}
	before, err := residentIfTold()
	if err != nil {
		return r, err
	}
	if in.Contestant == oursKeyed {
		l := keyedBucket{every: in.Drains, burst: 1}.limits()
		if group, err = shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }, shaper.WithMaxKeys(in.Keys)); err != nil {
			return r, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		call = func(key string) bool { return group.Wait(ctx, key) == nil }
	}
	used, err := cpuTime()
	if err != nil {
		return r, err
	}
	began := time.Now()
	for i := range touches {
		due := time.Duration(i) * between
		if ahead := due - time.Since(began); ahead > 0 {
			time.Sleep(ahead)
		}
		key := keyName(i % in.Keys) // A new one, as requests bring it.
		start := time.Since(began)
		if !call(key) {
			r.Refused++
		}
		end := time.Since(began)
		late[i], took[i] = microseconds(end-due), microseconds(end-start)
	}
	lasted := time.Since(began)
	usedSince, err := cpuTime()
	if err != nil {
		return r, err
	}
	after, err := residentIfTold()
	if err != nil {
		return r, err
	}
	if group != nil {
		st := group.Stats()
		r.Buckets, r.Overflowed = st.Keys, st.Overflowed
		_ = group.Close()
	}
	r.Seconds = lasted.Seconds()
	r.RateReached = (time.Duration(touches) * between).Seconds() / lasted.Seconds()
	r.CPU = 100 * float64(usedSince-used) / float64(lasted)
	r.LateP50, r.LateP99 = quantile(late, 0.5), quantile(late, 0.99)
	r.CallP50, r.CallP99, r.CallMax = quantile(took, 0.5), quantile(took, 0.99), slices.Max(took)
	r.ResidentMiB = float64(after-before) / (1 << 20)
	return r, nil
}

// residentIfTold is residentBytes, and 0 where the system does not tell.
func residentIfTold() (int64, error) {
	if !memoryIsTold() {
		return 0, nil
	}
	return residentBytes()
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// keysTouchedInputs are a million keys, each once a minute, and a bit more, so that
// some come a second time.
func keysTouchedInputs(o options) []keysTouchedInput {
	ours := keysTouchedInput{Contestant: oursKeyed, Keys: 1_000_000, Each: time.Minute, Drains: 10 * time.Second, Lasts: 63 * time.Second}
	nobody := ours
	nobody.Contestant, nobody.Lasts = nobodyLimits, 5*time.Second
	if o.quick {
		ours.Drains, ours.Lasts, nobody.Lasts = time.Second/2, 2*time.Second, time.Second/2
	}
	return []keysTouchedInput{ours, nobody}
}

func measureKeysTouched(ctx context.Context, o options) ([]keysTouchedResult, error) {
	var results []keysTouchedResult
	for _, in := range keysTouchedInputs(o) {
		o.say("%s, each once in %v, on one core: %s, for %v", counted(in.Keys, "key"), in.Each, in.Contestant, in.Lasts)
		var r keysTouchedResult
		if err := measureCell(ctx, "keys-touched", in, &r); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

func keysTouchedTable(results []keysTouchedResult, o options) table {
	in := keysTouchedInputs(o)[0]
	t := table{
		Title: fmt.Sprintf("%s, each touched once in %v, on one core", counted(in.Keys, "key"), in.Each),
		Note: fmt.Sprintf("%s evenly over that time, each with a new string for its key; GOMAXPROCS 1, one run. "+
			"Each leaves at once, and its bucket drains in %v. Late: from when a key was to come until its call had returned, "+
			"most of which is the Go timer that the caller sleeps by. "+
			"CPU time is that of the process with its caller, in percent of a core. Resident: memory beyond that of the process before, after a collection.",
			perSecond(float64(in.Keys)/in.Each.Seconds()), in.Drains),
		Columns: []string{"contestant", "seconds", "rate reached", "CPU %", "late p50 µs", "late p99 µs",
			"call p50 µs", "call p99 µs", "call max µs", "buckets at the end", "resident MiB"},
	}
	for _, r := range results {
		resident := "-"
		if memoryIsTold() {
			resident = fmt.Sprintf("%.1f", r.ResidentMiB)
		}
		t.Rows = append(t.Rows, []string{
			r.Contestant, fmt.Sprintf("%.0f", r.Seconds), fmt.Sprintf("%.3f", r.RateReached), figureOrDash(r.CPU),
			figure(r.LateP50), figure(r.LateP99), figure(r.CallP50), figure(r.CallP99), figure(r.CallMax),
			grouped(r.Buckets), resident,
		})
	}
	return t
}

// keysTouchedGoal asks for nothing of the machine but that it keeps up.
func keysTouchedGoal(results []keysTouchedResult) goal {
	g := goal{Want: "all leave at once, from buckets of their own", Got: "not measured"}
	g.What = "a million keys, each once a minute, on one core"
	for _, r := range results {
		if r.Contestant == oursKeyed {
			g.Got = fmt.Sprintf("%.1f %% of the rate at %.0f %% of a core, %d refused, %d shared a bucket", 100*r.RateReached, r.CPU, r.Refused, r.Overflowed)
			g.Reached = r.RateReached >= 0.999 && r.Refused == 0 && r.Overflowed == 0
		}
	}
	return g
}
