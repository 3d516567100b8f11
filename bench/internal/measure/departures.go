// Package measure turns the observations of an experiment into figures:
// quantiles and medians, how even departures are, the cost of a call, and the
// resources of a process. Each figure is computed in one place only, so that
// the figures that the README compares were computed by the same function.
package measure

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// A Departure is one caller, or one request, that has left.
type Departure struct {
	Entered int64         // its number in the order in which they began to wait
	At      time.Duration // the instant at which the receiver saw it, since the start
}

// Departures are seen from the receivers' side, in the order in which they ran.
// The first of them only begins the first spacing: all figures are of those
// after it. [DeparturesWithin] makes them.
type Departures struct {
	interval time.Duration // that which was asked for
	all      []Departure
	spacings []time.Duration // from one departure to the next; if none left, the silence is the only one
	silence  time.Duration   // from the last of them to the end of the window
}

// DeparturesWithin returns those departures of a steady flow that lie within a
// window of time. Each has a spacing to the one before it, and so the last one
// before the window is the first of them.
func DeparturesWithin(from, to, interval time.Duration, all []Departure) Departures {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b Departure) int { return cmp.Compare(a.At, b.At) })
	all = slices.DeleteFunc(all, func(one Departure) bool { return one.At > to })
	first, _ := slices.BinarySearchFunc(all, from, func(one Departure, at time.Duration) int { return cmp.Compare(one.At, at) })
	if first == 0 {
		// Nothing has left before the window: its start stands for a departure,
		// which all others have entered after.
		all, first = append([]Departure{{At: from}}, all...), 1
	}
	d := Departures{interval: interval, all: all[first-1:]}
	d.silence = to - d.all[len(d.all)-1].At
	for i := 1; i < len(d.all); i++ {
		d.spacings = append(d.spacings, d.all[i].At-d.all[i-1].At)
	}
	if d.Count() == 0 {
		d.spacings = []time.Duration{d.silence}
	}
	return d
}

// Spacing is how evenly and in which order departures follow one another, and
// whether they keep the rate. All figures of the README are computed here, for
// callers in one process and for requests at an upstream behind a proxy.
type Spacing struct {
	RateReached float64 `unit:"of-rate"`     // as a share of the rate that was set
	ErrorP50    float64 `unit:"err-p50-ns"`  // of |spacing - interval|
	ErrorP99    float64 `unit:"err-p99-ns"`  // of the same
	Bunched     float64 `unit:"bunched-%"`   // spacings below half an interval
	Overtaken   float64 `unit:"overtaken-%"` // departures after one that had entered later
	Departures  int     `unit:"departures"`
	Bars        []int   // of a histogram of spacing / interval
}

// Histogram returns the bars, for the line of a report.
func (s Spacing) Histogram() []int { return s.Bars }

// Spacing returns all figures of the departures.
func (d Departures) Spacing() Spacing {
	var errors []float64
	bunched, bars := 0, make([]int, HistogramBars)
	for _, spacing := range d.spacings {
		errors = append(errors, float64((spacing - d.interval).Abs()))
		if spacing < d.interval/2 {
			bunched++
		}
		bars[min(int(float64(spacing)/float64(d.interval)/BarWidth+0.5), HistogramBars-1)]++
	}
	overtaken, latest := 0, d.all[0].Entered
	for _, one := range d.all[1:] {
		if one.Entered < latest {
			overtaken++
		}
		latest = max(latest, one.Entered)
	}
	return Spacing{
		RateReached: d.rateReached(),
		ErrorP50:    Quantile(errors, 0.5), ErrorP99: Quantile(errors, 0.99),
		Bunched: 100 * float64(bunched) / float64(len(d.spacings)), Overtaken: 100 * float64(overtaken) / float64(max(1, d.Count())),
		Departures: d.Count(), Bars: bars,
	}
}

// Interval returns the time between two departures at a rate.
func Interval(perSecond float64) time.Duration {
	return time.Duration(float64(time.Second) / perSecond)
}

// Count returns how many have left.
func (d Departures) Count() int { return len(d.all) - 1 }

// rateReached returns the rate of the departures as a share of the rate that
// was set. It counts from one departure to another, as the ends of the window
// cut spacings in two. A last silence that is longer than any spacing counts
// too: otherwise a limiter that lets nothing leave any more would seem to keep
// the rate.
func (d Departures) rateReached() float64 {
	took := d.all[len(d.all)-1].At - d.all[0].At
	if d.silence > slices.Max(d.spacings) {
		took += d.silence
	}
	if took <= 0 {
		return 0
	}
	return float64(d.Count()) * float64(d.interval) / float64(took)
}

// Burst returns the largest excess over the rate within any window of time, beyond
// the one departure with which a window may begin: as the time in which that
// many leave at the rate, in nanoseconds.
func (d Departures) Burst() float64 {
	largest, lowest := 0.0, math.Inf(1)
	for i, one := range d.all[1:] {
		ahead := float64(i)*float64(d.interval) - float64(one.At)
		lowest = min(lowest, ahead)
		largest = max(largest, ahead-lowest)
	}
	return largest
}

// A histogram of spacings has HistogramBars bars. The middle of each is a multiple of BarWidth, in intervals, so that an
// even pace is one bar, and not two at either side of 1. The last one holds all beyond.
const (
	HistogramBars = 61
	BarWidth      = 1. / 20
)

// A Loop records the departures of callers that wait again and again. [NewLoop] makes one.
type Loop struct {
	Began time.Time // Departures are counted from here.

	entries, used atomic.Int64
	records       []record
	refused       chan error
}

// A record is a departure whose instant is written last: 0 means not yet.
type record struct {
	entered int64
	at      atomic.Int64
}

// NewLoop makes room beforehand for so many departures, so that to record one costs next to nothing.
func NewLoop(began time.Time, room int) *Loop {
	return &Loop{
		Began:   began,
		records: make([]record, room),
		refused: make(chan error, 1), // The first error is enough; the others are dropped.
	}
}

// Run is the body of a caller, which waits and leaves until the context ends, or it is refused.
func (l *Loop) Run(ctx context.Context, wait func(context.Context) error) {
	for {
		entered := l.entries.Add(1)
		err := wait(ctx)
		at := time.Since(l.Began)
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
		if i := l.used.Add(1) - 1; i < int64(len(l.records)) {
			l.records[i].entered = entered
			l.records[i].at.Store(int64(at))
		}
	}
}

// Entries returns how often a caller has begun to wait.
func (l *Loop) Entries() int { return int(l.entries.Load()) }

// Departures returns those so far. A refusal is an error, as then fewer wait than were to, and so are
// more departures than there is room for.
func (l *Loop) Departures() ([]Departure, error) {
	select {
	case err := <-l.refused:
		return nil, fmt.Errorf("a caller was refused: %w", err)
	default:
	}
	used := int(l.used.Load())
	if used > len(l.records) {
		return nil, fmt.Errorf("%d have left, of which only %d have a record", used, len(l.records))
	}
	var all []Departure
	for i := range l.records[:used] {
		if at := l.records[i].at.Load(); at > 0 {
			all = append(all, Departure{Entered: l.records[i].entered, At: time.Duration(at)})
		}
	}
	return all, nil
}
