package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// spacingInput says what a spacing cell measures: one contestant in a closed
// loop. So many goroutines wait, and wait again as soon as they have left.
type spacingInput struct {
	Contestant string
	Rate       float64 // per second
	Waiters    int
	Load       string        // of loads; idle means none
	Warm       time.Duration // until the window begins
	Window     time.Duration
}

// spacingResult is what one contestant did at one rate, with one number of
// waiters, under one load.
type spacingResult struct {
	Contestant    string  `json:"contestant"`
	Rate          float64 `json:"rate"`
	Waiters       int     `json:"waiters"`
	Load          string  `json:"load"`
	RateReached   float64 `json:"rate_reached"`    // as a share of Rate
	ErrorP50      float64 `json:"error_p50_us"`    // of |spacing - interval|
	ErrorP99      float64 `json:"error_p99_us"`    // of the same
	Bunched       float64 `json:"bunched_percent"` // spacings below half an interval
	Overtaken     float64 `json:"overtaken_percent"`
	BurstMS       float64 `json:"burst_ms"`                // as the receivers saw it
	SlotBurstMS   float64 `json:"slot_burst_ms,omitempty"` // as handed out, in a busy process; of the rounds the largest
	CPUPer100k    float64 `json:"cpu_seconds_per_100k"`    // of the whole process, with the load; 0: not known
	AllocsPerWait float64 `json:"allocs_per_wait"`         // of the whole process, with the load
	Rounds        int     `json:"rounds"`                  // of which these are the medians
	Departures    int     `json:"departures"`
	Histogram     []int   `json:"histogram,omitempty"` // of spacing / interval
}

// measureSpacing runs in a process of its own and leaves goroutines behind,
// some of which sleep for long: the end of the process is theirs.
func measureSpacing(in spacingInput) (spacingResult, error) {
	c, err := contestantNamed(in.Contestant)
	if err != nil {
		return spacingResult{}, err
	}
	work, err := loadNamed(in.Load) // Reckons what a millisecond is, so before anything else runs.
	if err != nil {
		return spacingResult{}, err
	}
	loop := newClosedLoop(in)
	var handedOut slots
	var wait func(context.Context) error
	var stop func()
	if c.traced != nil && in.Load != idle {
		handedOut = slots{began: loop.began, records: newRecords(in)}
		wait, stop = c.traced(in.Rate, in.Waiters, handedOut.tell)
	} else {
		wait, stop = c.open(in.Rate, in.Waiters)
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	for i := range in.Waiters {
		go loop.run(ctx, wait)
		// One after another: of thousands that begin at once many lose the
		// processor between taking their number and entering the line.
		for loop.entries.Load() <= int64(i) {
			runtime.Gosched()
		}
	}
	load := work.start()
	defer load.stop()

	time.Sleep(in.Warm)
	before, err := readMeter(loop)
	if err != nil {
		return spacingResult{}, err
	}
	time.Sleep(in.Window)
	after, err := readMeter(loop)
	if err != nil {
		return spacingResult{}, err
	}
	if work.goroutines > 0 && load.pieces() == 0 {
		return spacingResult{}, fmt.Errorf("the load %q has done nothing", in.Load)
	}
	all, err := loop.departures()
	if err != nil {
		return spacingResult{}, err
	}
	told, err := handedOut.departures()
	if err != nil {
		return spacingResult{}, err
	}
	d := departuresWithin(before.at, after.at, interval(in.Rate), all)
	each := float64(max(1, d.count()))
	errors := d.errors()
	return spacingResult{
		Contestant: in.Contestant, Rate: in.Rate, Waiters: in.Waiters, Load: in.Load,
		RateReached: d.rateReached(),
		ErrorP50:    quantile(errors, 0.5), ErrorP99: quantile(errors, 0.99),
		Bunched: d.bunched(), Overtaken: d.overtaken(), BurstMS: d.burst(),
		SlotBurstMS:   departuresWithin(0, after.at, interval(in.Rate), told).burst(),
		CPUPer100k:    (after.cpu - before.cpu).Seconds() / each * 100_000,
		AllocsPerWait: float64(after.mallocs-before.mallocs) / each,
		Departures:    d.count(), Histogram: d.histogram(),
	}, nil
}

func interval(perSecond float64) time.Duration {
	return time.Duration(float64(time.Second) / perSecond)
}

// A meter is what the process has used up to an instant.
type meter struct {
	at      time.Duration
	cpu     time.Duration
	mallocs uint64
}

func readMeter(l *closedLoop) (meter, error) {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cpu, err := cpuTime()
	return meter{at: time.Since(l.began), cpu: cpu, mallocs: memory.Mallocs}, err
}
