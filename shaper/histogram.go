package shaper

import (
	"slices"
	"time"

	"example.com/leakybucket/internal/histogram"
	"example.com/leakybucket/shaper/watch"
)

// Histograms returns the counts since the Shaper was made. In a dry run it
// describes the shadow.
func (s *Shaper) Histograms() watch.Histograms {
	s.mustBeMade()
	var m measures
	s.lockAndAdvance()
	m.addLocked(s.measures)
	departed, wait := s.flow.departed, s.flow.wait
	s.unlockAndArm()
	return m.histograms(departed, wait)
}

// Histograms is [Shaper.Histograms] for all keys together.
func (g *Group[K]) Histograms() watch.Histograms {
	g.mustBeMade()
	var m measures
	var sum totals
	for _, s := range g.all {
		s.lockAndAdvance()
		m.addLocked(s.measures)
		sum.add(s.totals)
		s.unlockAndArm()
	}
	return m.histograms(sum.departed, sum.wait)
}

// The buckets of a histogram of waits go from a microsecond to 388 days, and the buckets of spacings
// from 1/256 to 256. All of them take 4 KB.
const (
	lowestWait     = -20 * histogram.PerDoubling
	highestWait    = 25 * histogram.PerDoubling
	lowestSpacing  = -8 * histogram.PerDoubling
	highestSpacing = 8 * histogram.PerDoubling
)

// measures has the counts of the [watch.Histograms]. A dispatcher gets them with the first request
// that waits. Requests that leave at once are not counted here: that would make their calls
// a tenth slower. Their number follows from the counts of departures.
type measures struct {
	waits      [highestWait - lowestWait + 1]uint64
	spacings   [highestSpacing - lowestSpacing + 1]uint64
	atOnce     uint64 // departures out of a line with a spacing of 0
	spacingSum float64
}

// countIn counts a value above 0 in the buckets that begin with lowest.
func countIn(counts []uint64, lowest int, v float64) {
	counts[min(max(histogram.BucketOf(v)-lowest, 0), len(counts)-1)]++
}

// addLocked adds the counts of others; nil: there are none.
func (m *measures) addLocked(o *measures) {
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

// histograms is [watch.Histograms] for so many requests that have left, and have waited for so many
// nanoseconds.
func (m *measures) histograms(departed uint64, wait int64) watch.Histograms {
	waits, atOnce := trimmed(m.waits[:]), departed
	for _, n := range waits {
		atOnce -= n
	}
	return watch.Histograms{
		Wait:    histogram.New(waits, lowestWait, atOnce, time.Duration(wait).Seconds()),
		Spacing: histogram.New(trimmed(m.spacings[:]), lowestSpacing, m.atOnce, m.spacingSum),
	}
}

// trimmed returns the counts as they are; nil if all of them are 0.
func trimmed(counts []uint64) []uint64 {
	if !slices.ContainsFunc(counts, func(n uint64) bool { return n > 0 }) {
		return nil
	}
	return counts
}
