package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A departure is one caller who has waited and left.
type departure struct {
	entered int64         // the callers are numbered in the order in which they began to wait
	at      time.Duration // the instant at which the caller ran again, since the start
}

// departures are seen from the receivers' side: in the order in which the
// callers ran. Made by departuresWithin, they end with a window of time. The
// first of them is the last before the window, so that each in the window has
// a spacing to the one before it.
type departures struct {
	interval time.Duration // that which was asked for
	all      []departure
	silence  time.Duration // from the last of them to the end of the window
	longest  time.Duration // of their spacings
}

func departuresWithin(from, to, interval time.Duration, all []departure) departures {
	d := departures{interval: interval}
	d.all = slices.DeleteFunc(slices.Clone(all), func(one departure) bool { return one.at > to })
	slices.SortStableFunc(d.all, func(a, b departure) int { return cmp.Compare(a.at, b.at) })
	first, _ := slices.BinarySearchFunc(d.all, from, func(one departure, from time.Duration) int { return cmp.Compare(one.at, from) })
	if first == 0 {
		// Nobody has left before the window: its start stands for one who has.
		// Everybody has entered later than that one.
		d.all = append([]departure{{at: from}}, d.all...)
		first = 1
	}
	d.all = d.all[first-1:]
	d.silence = to - d.all[len(d.all)-1].at
	for i := 1; i < len(d.all); i++ {
		d.longest = max(d.longest, d.all[i].at-d.all[i-1].at)
	}
	return d
}

// count is how many left within the window.
func (d departures) count() int { return len(d.all) - 1 }

// spacings are the times between one departure and the next. If nobody left,
// the silence is the only one.
func (d departures) spacings() []time.Duration {
	if d.count() == 0 {
		return []time.Duration{d.silence}
	}
	spacings := make([]time.Duration, d.count())
	for i := range spacings {
		spacings[i] = d.all[i+1].at - d.all[i].at
	}
	return spacings
}

// rateReached is the rate of the departures as a share of what was asked for.
// It is counted from one departure to another, as the ends of the window cut
// spacings in two. But a last silence that is longer than any spacing is part
// of it: else one who lets nobody leave any more would seem to keep the rate.
func (d departures) rateReached() float64 {
	took := d.all[len(d.all)-1].at - d.all[0].at
	if d.silence > d.longest {
		took += d.silence
	}
	if took <= 0 {
		return 0
	}
	return float64(d.count()) * float64(d.interval) / float64(took)
}

// errors are by how much the spacings miss the interval, in microseconds.
func (d departures) errors() []float64 {
	var errors []float64
	for _, spacing := range d.spacings() {
		errors = append(errors, float64((spacing-d.interval).Abs())/float64(time.Microsecond))
	}
	return errors
}

// bunched is the percentage of spacings below half an interval.
func (d departures) bunched() float64 {
	spacings := d.spacings()
	below := 0
	for _, spacing := range spacings {
		if spacing < d.interval/2 {
			below++
		}
	}
	return percent(below, len(spacings))
}

// overtaken is the percentage of departures before which somebody left who had
// entered later.
func (d departures) overtaken() float64 {
	overtaken := 0
	latest := int64(math.MinInt64) // of those who have left
	for _, one := range d.all[1:] {
		if one.entered < latest {
			overtaken++
		}
		latest = max(latest, one.entered)
	}
	return percent(overtaken, d.count())
}

// burst is the largest excess over the rate within any window of time, beyond
// the one departure with which a window may begin. Its unit is the time in
// which that many leave at the rate, in milliseconds.
func (d departures) burst() float64 {
	largest, lowest := 0.0, math.Inf(1)
	for i, one := range d.all[1:] {
		ahead := float64(i)*float64(d.interval) - float64(one.at)
		lowest = min(lowest, ahead)
		largest = max(largest, ahead-lowest)
	}
	return largest / float64(time.Millisecond)
}

const (
	histogramBins  = 120
	histogramReach = 3 // in intervals
)

// histogram counts the spacings in bins of equal width from 0 to 3 intervals.
// Those beyond are in none.
func (d departures) histogram() []int {
	bins := make([]int, histogramBins)
	for _, spacing := range d.spacings() {
		if bin := spacing * histogramBins / (histogramReach * d.interval); bin < histogramBins {
			bins[bin]++
		}
	}
	return bins
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
