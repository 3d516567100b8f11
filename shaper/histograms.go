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
	// are the costs of the earlier and the later request. The departure before the first one
	// out of a line may have left the level below Burst, so there the level just after it
	// takes the place of max(Burst, m).
	//
	// A perfect comb has nothing but 1. Above it are late departures, and waits for a seat
	// or for the end of a hold; below it are those that make up lateness, except the first out
	// of a line, whose schedule begins with the departure before it, late or not. Departures of
	// requests that found no line are not counted: they may come as close together as Burst
	// allows. Nor is the first departure out of a line that began while the level was 0,
	// because of a hold or the cap, nor that of a request which was due and kept only by a
	// costlier one ahead of it, nor the one after that, nor the first one after the Limits have changed while requests
	// waited, nor any at [rate.Inf]. A slot that came just before its request was given up is
	// a departure here.
	Spacing Histogram
}

// Histograms returns what has been counted since the Shaper was made. In a dry run it is
// that of the shadow.
func (s *Shaper) Histograms() Histograms {
	s.mustBeMade()
	var m measures
	s.lockAndAdvance()
	m.addLocked(&s.dispatcher)
	departed, wait := s.flow.departed, s.flow.wait
	s.unlockAndArm()
	return m.histograms(departed, wait)
}

// Histograms is [Shaper.Histograms] for all keys together, since the Group was made.
func (g *Group[K]) Histograms() Histograms {
	g.mustBeMade()
	var m measures
	var sum totals
	for _, s := range g.all {
		s.lockAndAdvance()
		m.addLocked(&s.dispatcher)
		sum.add(&s.totals)
		s.unlockAndArm()
	}
	return m.histograms(sum.departed, sum.wait)
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
	ln.leftAt, ln.above = unknown, 0
	if !b.empty.After(exact.At(now)) {
		return
	}
	ln.leftAt = b.lastLeftAt(now)
	// From the same leftAt, so that on schedule the spacing is 1 even if that is too late by a
	// multiple of 2³² units.
	ln.above = float32(b.interval.Units(b.interval.Minus(b.empty, exact.At(ln.leftAt))) - float64(b.burst))
}

// noteNewHead notes if the head of the line, which has just become it, is due already. Then
// only whoever was the head before it has kept it, not the schedule. So no spacing is counted
// for it, nor for the next one, as the level stays below Burst.
func (ln *line) noteNewHead(now int64) {
	if ln.head != nil && !ln.flow.bucket.due(ln.head.cost).After(exact.At(now)) {
		ln.above = float32(math.NaN())
	}
}

// shortestSpacing is the least that the schedule may put between two departures for their
// spacing to be counted, in intervals. Below it what lastLeftAt rounds off would show.
const shortestSpacing = 1. / 4096

// measureSpacingLocked counts the spacing of the departure that the head of a line, of cost
// n, makes at an instant.
func (d *dispatcher) measureSpacingLocked(ln *line, at, n int64) {
	b := &ln.flow.bucket
	leftAt, scheduled := ln.leftAt, float64(ln.above)+float64(min(b.burst, n))
	ln.leftAt, ln.above = at, float32(max(0, n-b.burst))
	if math.IsNaN(scheduled) {
		ln.leftAt = unknown
		return
	}
	if leftAt == unknown || b.interval.IsZero() || scheduled < shortestSpacing {
		return
	}
	spacing := b.interval.Units(exact.At(at-leftAt)) / scheduled
	m := d.measuresLocked()
	if spacing <= 0 {
		m.atOnce++
		return
	}
	m.spacingSum += spacing
	countIn(m.spacings[:], lowestSpacing, spacing)
}

// addLocked adds what a dispatcher has counted, if anything.
func (m *measures) addLocked(d *dispatcher) {
	o := d.measures
	if o == nil {
		return
	}
	for i, n := range o.waits {
		m.waits[i] += n
	}
	for i, n := range o.spacings {
		m.spacings[i] += n
	}
	m.atOnce += o.atOnce
	m.spacingSum += o.spacingSum
}

// histograms is Histograms for so many requests that have left, and have waited for so many
// nanoseconds.
func (m *measures) histograms(departed uint64, wait int64) Histograms {
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
