package shaper

import (
	"iter"
	"math"
	"slices"
	"time"
)

// A Histogram counts values in buckets whose bounds grow by the same factor, 2 to the power
// of 1/8, which is 9 %: the upper bound of bucket k is 2 to the power of (k+½)/8. So the
// powers of 2, and with them 1, lie in the middle of a bucket. Values of 0 are counted by
// themselves.
//
// The bounds follow the DDSketch (Masson, Rim and Lee, VLDB 2019, section 2.1) with
// a relative error of 4.4 %, and have the growth of an exponential histogram of OpenTelemetry
// with scale 3, shifted by half a bucket. They never change, so that the
// [Histogram.Buckets] of several Shapers can be added up, bound by bound, and [Histogram.Sub] gives the
// counts between two of them.
//
// A Histogram is a value: it does not change after it was taken, and copies may be made. The
// zero Histogram is empty.
type Histogram struct {
	counts []uint64 // of the buckets, from lowest on; never changed
	lowest int      // the bucket of counts[0]; it holds all smaller values above 0 too, and the last all greater ones
	zeros  uint64
	count  uint64 // zeros and counts together
	sum    float64
}

// bucketsPerDoubling is how many buckets there are from one power of 2 to the next.
const bucketsPerDoubling = 8

// boundsBelowOne are the upper bounds between ½ and 1, beginning with bucket −8.
var boundsBelowOne = func() (bounds [bucketsPerDoubling]float64) {
	for i := range bounds {
		bounds[i] = math.Exp2((float64(i)+0.5)/bucketsPerDoubling - 1)
	}
	return bounds
}()

// bucketOf returns the bucket of a value above 0.
func bucketOf(v float64) int {
	fraction, exponent := math.Frexp(v) // v is fraction times 2 to the power of exponent; ½ ≤ fraction < 1.
	k := (exponent - 1) * bucketsPerDoubling
	for _, bound := range boundsBelowOne {
		if fraction <= bound {
			break
		}
		k++
	}
	return k
}

// boundOf returns the upper bound of a bucket.
func boundOf(k int) float64 {
	doublings := math.Floor(float64(k) / bucketsPerDoubling)
	return math.Ldexp(boundsBelowOne[k-int(doublings)*bucketsPerDoubling], int(doublings)+1)
}

// Count returns how many values have been counted.
func (h Histogram) Count() uint64 { return h.count }

// Sum returns the sum of the values, as they were before they were put into buckets.
func (h Histogram) Sum() float64 { return h.sum }

// Quantile returns the value that a part q of all values do not exceed: 0.5 gives the
// median, 0.99 the value that one in a hundred exceeds, 0 the smallest and 1 the
// greatest. The true one is in the same bucket, so it is at most within away from
// value: 4.4 % of it. In the outermost buckets within says how far the greatest or
// smallest value that could be there is away.
//
// If the Histogram is empty, or q is not from 0 to 1, both are NaN.
func (h Histogram) Quantile(q float64) (value, within float64) {
	if h.count == 0 || !(q >= 0 && q <= 1) {
		return math.NaN(), math.NaN()
	}
	rank := max(uint64(math.Ceil(q*float64(h.count))), 1) // The nearest rank, from 1.
	if rank <= h.zeros {
		return 0, 0
	}
	seen, last := h.zeros, -1
	for i, n := range h.counts {
		if n == 0 {
			continue
		}
		seen, last = seen+n, i
		if seen >= rank {
			break
		}
	}
	k := h.lowest + last
	value = math.Exp2(float64(k) / bucketsPerDoubling)
	switch last {
	case 0:
		return value, value
	case len(h.counts) - 1:
		return value, math.Inf(1)
	}
	return value, boundOf(k) - value
}

// Buckets returns an iterator over the buckets that are not empty, in ascending order: the
// upper bound of the bucket, and how many values are in it. The bound of the values that
// are 0 is 0, and the bound of the last possible bucket is +Inf.
func (h Histogram) Buckets() iter.Seq2[float64, uint64] {
	return func(yield func(float64, uint64) bool) {
		if h.zeros > 0 && !yield(0, h.zeros) {
			return
		}
		for i, n := range h.counts {
			bound := boundOf(h.lowest + i)
			if i == len(h.counts)-1 {
				bound = math.Inf(1)
			}
			if n > 0 && !yield(bound, n) {
				return
			}
		}
	}
}

// Sub returns what has been counted since old, an earlier Histogram of the same [Shaper] or
// [Group]. With the one of a minute ago it is the last minute's. Where old has more, as it is no
// earlier one, the count is 0.
func (h Histogram) Sub(old Histogram) Histogram {
	since := Histogram{counts: make([]uint64, len(h.counts)), lowest: h.lowest, zeros: atLeastZero(h.zeros, old.zeros)}
	since.count = since.zeros
	for i, n := range h.counts {
		if k := i + h.lowest - old.lowest; k >= 0 && k < len(old.counts) {
			n = atLeastZero(n, old.counts[k])
		}
		since.counts[i] = n
		since.count += n
	}
	if since.count > 0 {
		since.sum = max(0, h.sum-old.sum)
	}
	return since
}

// atLeastZero returns a − b, or 0 if b is greater.
func atLeastZero(a, b uint64) uint64 { return a - min(a, b) }

// Histograms says how long requests have waited, and how evenly they have left.
type Histograms struct {
	// Wait counts how long the requests that left have waited, in seconds. They are
	// the requests of [Stats.Departed]. A request that left at once has waited for 0.
	Wait Histogram
	// Spacing says how evenly requests have left a line. For each departure out of a line it
	// counts a ratio: the time since the departure before it from the same bucket, divided by
	// the time that the schedule puts between the two. 1 is on schedule. A departure is
	// above 1 if it is late, or had to wait for a seat or for the end of a hold, and below 1 if
	// it makes up lateness. The first departure out of a line makes up none: it is
	// scheduled from the departure before it, late or not.
	//
	// For requests of cost 1 the scheduled time is the interval, 1/[Limits.Rate]. In general
	// it is the time in which max([Limits.Burst], m) − max(0, Burst − n) cost units leak,
	// where m is the cost of the earlier request and n of the later. For the first departure
	// out of a line, the level just after the departure before it takes the place of
	// max(Burst, m), as that departure may have left the level below Burst.
	//
	// Not counted are
	//   - departures of requests that found no line, as they may be as close together as
	//     Burst allows;
	//   - the first departure out of a line that began while the level was 0, because of a
	//     hold or the cap;
	//   - the departure of a request that was due already and was only kept by a costlier
	//     one ahead of it, and the departure after that;
	//   - the first departure after something else than time and departures has changed the level, or the
	//     rate, while requests waited: [Shaper.SetLimits], a settle ([Shaper.Reserve]), [Shaper.AtMost],
	//     [Shaper.Restore], or a slot that was given back;
	//   - all departures at [rate.Inf].
	//
	// A request that was given up just after its slot had come counts as a departure here.
	Spacing Histogram
}

// Histograms returns the counts since the Shaper was made. In a dry run it
// describes the shadow.
func (s *Shaper) Histograms() Histograms {
	s.mustBeMade()
	var m measures
	s.lockAndAdvance()
	m.addLocked(s.measures)
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
		m.addLocked(s.measures)
		sum.add(s.totals)
		s.unlockAndArm()
	}
	return m.histograms(sum.departed, sum.wait)
}

// The buckets of a [Histogram] of waits go from a microsecond to 388 days, and the buckets of spacings
// from 1/256 to 256. All of them take 4 KB.
const (
	lowestWait     = -20 * bucketsPerDoubling
	highestWait    = 25 * bucketsPerDoubling
	lowestSpacing  = -8 * bucketsPerDoubling
	highestSpacing = 8 * bucketsPerDoubling
)

// measures has the counts of the [Histograms]. A dispatcher gets them with the first request
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
	counts[min(max(bucketOf(v)-lowest, 0), len(counts)-1)]++
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

// histograms is [Histograms] for so many requests that have left, and have waited for so many
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
