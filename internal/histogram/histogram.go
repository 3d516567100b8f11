// Package histogram counts values in buckets that grow by the same factor. Package shaper makes a [Histogram], and
// package shaper/watch shows it to programs.
package histogram

import (
	"iter"
	"math"
)

// A Histogram counts values in buckets whose bounds grow by the same factor, 2 to the power
// of 1/8, which is 9 %: the upper bound of bucket k is 2 to the power of (k+½)/8. So the
// powers of 2, and with them 1, lie in the middle of a bucket. Values of 0 are counted by
// themselves.
//
// The bounds follow the DDSketch (Masson, Rim and Lee, VLDB 2019, section 2.1) with
// a relative error of 4.4 %, and have the growth of an exponential histogram of OpenTelemetry
// with scale 3, shifted by half a bucket. They never change, so that the
// [Histogram.Buckets] of several Histograms can be added up, bound by bound, and [Histogram.Sub] gives the
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

// New returns the Histogram of counts, which must never change: of the buckets from lowest on, the first of which
// has all smaller values above 0, too, and the last all greater ones. zeros is how many values are 0, and sum the sum
// of all values.
func New(counts []uint64, lowest int, zeros uint64, sum float64) Histogram {
	h := Histogram{counts: counts, lowest: lowest, zeros: zeros, count: zeros, sum: sum}
	for _, n := range counts {
		h.count += n
	}
	return h
}

// PerDoubling is how many buckets there are from one power of 2 to the next.
const PerDoubling = 8

// boundsBelowOne are the upper bounds between ½ and 1, beginning with bucket −8.
var boundsBelowOne = func() (bounds [PerDoubling]float64) {
	for i := range bounds {
		bounds[i] = math.Exp2((float64(i)+0.5)/PerDoubling - 1)
	}
	return bounds
}()

// BucketOf returns the bucket of a value above 0.
func BucketOf(v float64) int {
	fraction, exponent := math.Frexp(v) // v is fraction times 2 to the power of exponent; ½ ≤ fraction < 1.
	k := (exponent - 1) * PerDoubling
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
	doublings := math.Floor(float64(k) / PerDoubling)
	return math.Ldexp(boundsBelowOne[k-int(doublings)*PerDoubling], int(doublings)+1)
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
	value = math.Exp2(float64(k) / PerDoubling)
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

// Sub returns what has been counted since old, an earlier Histogram of the same Shaper or
// Group. With the one of a minute ago it is the last minute's. Where old has more, as it is no
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
