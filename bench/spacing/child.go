package spacing

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
)

// An input says what one child process measures: one limiter in a closed loop.
// So many goroutines wait, and wait again as soon as they have left.
type input struct {
	Limiter string
	Rate    float64 // per second
	Waiters int
	Load    string        // of loads; idle means none
	Warm    time.Duration // until the window begins
	Window  time.Duration
}

// A result is what one limiter did at one rate, with one number of waiters, under
// one load.
type result struct {
	measure.Spread
	Burst     float64 `unit:"burst-ns"`         // as the receivers saw it
	SlotBurst float64 `unit:"slot-burst-ns"`    // as handed out, in a busy process
	CPU       float64 `unit:"cpu-ns/departure"` // of the whole process, with the load
	Allocs    float64 `unit:"allocs/departure"` // of the whole process, with the load
}

var child = run.NewMeasurement("spacing", measureSpacing)

// measureSpacing leaves goroutines behind, some of which sleep for long. They end
// with the process.
func measureSpacing(in input) (result, error) {
	r := rivals.Named(in.Limiter)
	// A load finds out what a millisecond of work is, so it is made before anything
	// else runs.
	work := loadNamed(in.Load)
	loop := newClosedLoop(in)
	var handedOut slots
	var slot func(time.Time)
	if r.Traced && in.Load != idle {
		handedOut = slots{began: loop.began, records: newRecords(in)}
		slot = handedOut.record
	}
	line := r.Open(in.Rate, in.Waiters, slot)
	defer line.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	for i := range in.Waiters {
		go loop.run(ctx, line.Wait)
		// They begin one after another. If thousands began at once, many would lose
		// the processor between taking their number and entering the line.
		for loop.entries.Load() <= int64(i) {
			runtime.Gosched()
		}
	}
	load := work.start()
	defer load.stop()

	time.Sleep(in.Warm)
	if work.goroutines > 0 {
		load.begun()
	}
	before := readMeter(loop)
	time.Sleep(in.Window)
	after := readMeter(loop)
	if work.goroutines > 0 && load.pieces() == 0 {
		return result{}, fmt.Errorf("the load %q has done nothing", in.Load)
	}
	all, err := loop.departures()
	if err != nil {
		return result{}, err
	}
	slots, err := handedOut.departures()
	if err != nil {
		return result{}, err
	}
	d := measure.DeparturesWithin(before.at, after.at, measure.Interval(in.Rate), all)
	each := float64(max(1, d.Count()))
	found := result{
		Spread: d.Spread(), Burst: d.Burst(), SlotBurst: measure.Unknown,
		CPU: (after.cpu - before.cpu) / each, Allocs: float64(after.mallocs-before.mallocs) / each,
	}
	if len(slots) > 0 {
		found.SlotBurst = measure.DeparturesWithin(0, after.at, measure.Interval(in.Rate), slots).Burst()
	}
	return found, nil
}

// A meter is what the process has used up to an instant.
type meter struct {
	at      time.Duration
	cpu     float64
	mallocs uint64
}

func readMeter(l *closedLoop) meter {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cpu := measure.CPUTime()
	return meter{at: time.Since(l.began), cpu: cpu, mallocs: memory.Mallocs}
}
