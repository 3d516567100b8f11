package shaper

import (
	"math"
	"slices"
	"time"

	"example.com/leakybucket/shaper/internal/exact"
)

// Histograms says how long requests have waited, and how evenly they have left.
type Histograms struct {
	// Wait counts how long the requests that left have waited, in seconds: those of
	// [Stats.Departed]. A request that left at once has waited for 0.
	Wait Histogram
	// Spacing counts the departures out of a line, by the time since the departure
	// before it from the same bucket, as a multiple of what the schedule puts between the
	// two. For requests of cost 1 that is the interval, 1/[Limits.Rate]. In general it is
	// the time in which max(Burst, m) − max(0, Burst − n) cost units leak, where m and n
	// are the costs of the earlier and the later request.
	//
	// A perfect comb has nothing but 1. Above it are late departures, and waits for a seat
	// or for the end of a hold; below it are those that make up lateness. Departures of
	// requests that found no line are not counted: they may come as close together as Burst
	// allows. Nor is the first departure out of a line that began while the level was 0,
	// because of a hold or the cap, nor the first one after a change of the Limits, nor any at
	// [rate.Inf]. A slot that came just before its request was given up is a departure here.
	Spacing Histogram
}

// Histograms returns what has been counted since the Shaper was made. In a dry run it is
// that of the shadow.
func (s *Shaper) Histograms() Histograms {
	s.mustBeMade()
	return s.histograms(func() (departed uint64, wait int64) { return s.flow.departed, s.flow.wait })
}

// Histograms is [Shaper.Histograms] for all keys together, since the Group was made.
func (g *Group[K]) Histograms() Histograms {
	g.mustBeMade()
	return g.histograms(func() (departed uint64, wait int64) { return g.totals.departed, g.totals.wait })
}

// The buckets of a Histogram of waits go from a microsecond to 388 days, those of spacings
// from 1/256 to 256. All of them take 4 KB.
const (
	lowestWait     = -20 * bucketsPerDoubling
	highestWait    = 25 * bucketsPerDoubling
	lowestSpacing  = -8 * bucketsPerDoubling
	highestSpacing = 8 * bucketsPerDoubling
)

// measures has the counts of the Histograms. A dispatcher gets them with the first request
// that waits. Requests that leave at once are not counted here: that would add a tenth to
// what their calls take. How many they are follows from the counts of departures.
type measures struct {
	waits      [highestWait - lowestWait + 1]uint64
	spacings   [highestSpacing - lowestSpacing + 1]uint64
	atOnce     uint64 // departures out of a line with a spacing of 0
	spacingSum float64
}

// countIn counts a value above 0 in the buckets that begin with lowest.
func countIn(counts []uint64, lowest int, v float64) {
	counts[min(max(bucketOf(v)-lowest, 0), len(counts)-1)]++
}

// measuresLocked returns the measures of a dispatcher, and makes them if there are none.
func (d *dispatcher) measuresLocked() *measures {
	if d.measures == nil {
		d.measures = new(measures)
	}
	return d.measures
}

// measureWaitLocked counts for how long a request that has left has waited.
func (d *dispatcher) measureWaitLocked(waited int64) {
	if waited > 0 {
		countIn(d.measuresLocked().waits[:], lowestWait, time.Duration(waited).Seconds())
	}
}

// beginAfter notes, when a line begins, which departure the first one out of it follows. If
// the level is 0, that may be long ago, and whatever keeps the request is not the schedule.
func (ln *line) beginAfter(now int64) {
	b := &ln.flow.bucket
	ln.left = unknown
	if !b.empty.After(exact.At(now)) {
		return
	}
	ln.left = b.lastLeft(now)
	ln.setRaised(b.interval.Units(b.interval.Minus(b.empty, exact.At(ln.left))))
}

// setRaised sets raised. A level of many units need not be exact.
func (ln *line) setRaised(level float64) { ln.raised = int32(min(math.Round(level), math.MaxInt32)) }

// measureSpacingLocked counts the spacing of the departure that the head of a line, of cost
// n, makes at an instant.
func (d *dispatcher) measureSpacingLocked(ln *line, at, n int64) {
	b := &ln.flow.bucket
	left, raised := ln.left, float64(max(b.burst, int64(ln.raised)))
	ln.left = at
	ln.setRaised(float64(n))
	if left == unknown || b.interval.IsZero() {
		return
	}
	spacing := b.interval.Units(exact.At(at-left)) / (raised - float64(max(0, b.burst-n)))
	m := d.measuresLocked()
	if spacing <= 0 {
		m.atOnce++
		return
	}
	m.spacingSum += spacing
	countIn(m.spacings[:], lowestSpacing, spacing)
}

// histograms is Histograms. departures returns, under the lock, how many requests have left
// and for how many nanoseconds they have waited.
func (d *dispatcher) histograms(departures func() (departed uint64, wait int64)) Histograms {
	m := new(measures)
	d.lockAndAdvance()
	departed, wait := departures()
	if d.measures != nil {
		*m = *d.measures
	}
	d.unlockAndArm()
	h := Histograms{
		Wait:    Histogram{counts: trimmed(m.waits[:]), lowest: lowestWait, count: departed, zeros: departed, sum: time.Duration(wait).Seconds()},
		Spacing: Histogram{counts: trimmed(m.spacings[:]), lowest: lowestSpacing, count: m.atOnce, zeros: m.atOnce, sum: m.spacingSum},
	}
	for _, n := range h.Wait.counts {
		h.Wait.zeros -= n
	}
	for _, n := range h.Spacing.counts {
		h.Spacing.count += n
	}
	return h
}

// trimmed returns the counts as they are; nil if all of them are 0.
func trimmed(counts []uint64) []uint64 {
	if !slices.ContainsFunc(counts, func(n uint64) bool { return n > 0 }) {
		return nil
	}
	return counts
}
