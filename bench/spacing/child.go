package spacing

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
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

// A result has the figures of one limiter at one rate, with one number of waiters, under one load.
type result struct {
	measure.Spread
	Burst     float64 `unit:"burst-ns"`         // as the receivers saw it
	SlotBurst float64 `unit:"slot-burst-ns"`    // as handed out, in a busy process
	CPU       float64 `unit:"cpu-ns/departure"` // of the whole process, with the load
	Allocs    float64 `unit:"allocs/departure"` // of the whole process, with the load
}

var child = run.NewMeasurement("spacing", measureSpacing)

// measureSpacing leaves goroutines behind, and some of them sleep for long. They end with the
// process.
func measureSpacing(in input) (result, error) {
	r := rivals.Named(in.Limiter)
	// A load measures how much work fills a millisecond, so it is made before anything else runs.
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

// A meter is the usage of the process up to an instant.
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

// A closedLoop records the departures of callers that wait again and again.
type closedLoop struct {
	began   time.Time
	entries atomic.Int64
	records records
	refused chan error
}

func newClosedLoop(in input) *closedLoop {
	return &closedLoop{
		began:   time.Now(),
		records: newRecords(in),
		refused: make(chan error, 1), // The first error is enough; the others are dropped.
	}
}

// run waits and leaves until the context ends.
func (l *closedLoop) run(ctx context.Context, wait rivals.Wait) {
	for {
		entered := l.entries.Add(1)
		err := wait(ctx)
		at := time.Since(l.began)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			select {
			case l.refused <- err:
			default:
			}
			return
		}
		l.records.add(entered, at)
	}
}

// departures returns those so far. A refusal is an error, as then fewer wait than
// were to.
func (l *closedLoop) departures() ([]measure.Departure, error) {
	select {
	case err := <-l.refused:
		return nil, fmt.Errorf("a caller was refused: %w", err)
	default:
		return l.records.departures()
	}
}

// slots records when slots were handed out. The zero value has no room for any.
type slots struct {
	began time.Time
	records
}

func (s *slots) record(at time.Time) { s.add(0, at.Sub(s.began)) }

// records are departures, for which room is made beforehand. They are safe for
// concurrent use.
type records struct {
	used atomic.Int64
	all  []record
}

// A record is a departure whose instant is written last: 0 means not yet.
type record struct {
	entered int64
	at      atomic.Int64
}

// newRecords makes room for forty times as many as may leave in the time. x/time
// lets several times the rate leave where thousands contend for it, as it sets
// its clock back when a caller has lost the processor between reading the time
// and locking. More departures than there is room for are an error.
func newRecords(in input) records {
	return records{all: make([]record, 40*int(in.Rate*(in.Warm+in.Window).Seconds())+4096)}
}

func (r *records) add(entered int64, at time.Duration) {
	if i := r.used.Add(1) - 1; i < int64(len(r.all)) {
		r.all[i].entered = entered
		r.all[i].at.Store(int64(at))
	}
}

func (r *records) departures() ([]measure.Departure, error) {
	used := int(r.used.Load())
	if used > len(r.all) {
		return nil, fmt.Errorf("%d have left, of which only %d have a record", used, len(r.all))
	}
	var all []measure.Departure
	for i := range r.all[:used] {
		if at := r.all[i].at.Load(); at > 0 {
			all = append(all, measure.Departure{Entered: r.all[i].entered, At: time.Duration(at)})
		}
	}
	return all, nil
}
