package promshaper

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"example.com/leakybucket/shaper/watch"
)

var (
	waitDesc    = newDesc("wait_seconds", "How long requests have waited that left; 0 for those that left at once.")
	spacingDesc = newDesc("spacing_intervals", "Time between two departures out of a line, as a multiple of what the rate puts between them: 1 is on schedule.")
)

// A histogram is a metric that is a native and a classic histogram at once.
type histogram struct {
	prometheus.Metric // a native histogram
	classic           []*dto.Bucket
}

// newHistogram makes a metric of a Histogram. classic has the classic buckets, as numbers of
// the buckets of the Histogram.
func newHistogram(desc *prometheus.Desc, h watch.Histogram, classic []int, rule string) prometheus.Metric {
	zeros, positive := nativeBuckets(h)
	m, err := prometheus.NewConstNativeHistogram(desc, h.Count(), h.Sum(), positive, nil, zeros,
		schema, prometheus.DefNativeHistogramZeroThreshold, time.Time{}, rule)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return histogram{m, classicBuckets(h, classic)}
}

// Write writes the native histogram, adds the classic buckets, and takes the time of its
// creation away: a Shaper does not tell since when it counts.
func (h histogram) Write(to *dto.Metric) error {
	if err := h.Metric.Write(to); err != nil {
		return err
	}
	to.Histogram.Bucket, to.Histogram.CreatedTimestamp = h.classic, nil
	return nil
}

// schema is the resolution of the native histograms. The upper bound of bucket i of schema 4 is
// 2 to the power of i/16, and bucket k of a [watch.Histogram] ends at 2 to the power of (2k+1)/16. So
// bucket k is exactly the two buckets 2k and 2k+1. (The buckets of schema 3 are as wide as those
// of a watch.Histogram, but each of their bounds is in the middle of one of its buckets, so no
// count would be exact.)
const schema = 4

// nativeBuckets returns the buckets of a native histogram by their numbers. How the values of a
// bucket of a Histogram spread over its two is not known, so each gets half of them, and the
// upper one also the odd one. As both halves of a growing count grow, no bucket ever goes back.
func nativeBuckets(h watch.Histogram) (zeros uint64, positive map[int]int64) {
	positive = map[int]int64{}
	for bound, n := range h.Buckets() {
		if bound == 0 {
			zeros = n
			continue
		}
		k := numberOf(h, bound)
		if half := n / 2; half > 0 {
			positive[2*k] = int64(half)
		}
		positive[2*k+1] = int64(n - n/2)
	}
	return zeros, positive
}

// numberOf returns the number of the bucket of a Histogram with an upper bound above 0.
func numberOf(h watch.Histogram, bound float64) int {
	if math.IsInf(bound, 1) { // The last one. The greatest value stands in the middle of its bucket.
		middle, _ := h.Quantile(1)
		return int(math.Round(8 * math.Log2(middle)))
	}
	return int(math.Round(8*math.Log2(bound) - 0.5))
}

// boundOf returns the upper bound of a bucket of a Histogram.
func boundOf(k int) float64 { return math.Exp2((float64(k) + 0.5) / 8) }

// defaultWaitBuckets double from a millisecond to nine minutes.
var defaultWaitBuckets = func() (numbers []int) {
	for exponent := -10; exponent <= 9; exponent++ {
		numbers = append(numbers, 8*exponent)
	}
	return numbers
}()

// spacingBuckets are dense around 1, which is on schedule.
var spacingBuckets = []int{-24, -16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16, 24, 32, 48}

// WithWaitBuckets sets the upper bounds of the classic buckets of shaper_wait_seconds, in
// seconds, and in any order. A shaper counts waits in buckets of its own, so each bound is
// moved up to the next of theirs, by at most 9 %. What a bucket holds is therefore exact for
// the bound that it shows. A bucket for a wait of 0 is always there. Without any bounds it is
// the only one.
//
// The default are 20 bounds, each twice the one before, from 1.02 ms to 535 s. The native
// histogram always has all buckets. New panics if a bound is not positive and finite.
func WithWaitBuckets(bounds ...float64) Option {
	return option(func(c *Collector) {
		c.waitBuckets = nil
		for _, bound := range bounds {
			if !(bound > 0) || math.IsInf(bound, 1) {
				panic(fmt.Sprintf("promshaper: WithWaitBuckets: a bound is %v; it must be positive and finite", bound))
			}
			c.waitBuckets = append(c.waitBuckets, numberUpTo(bound))
		}
		slices.Sort(c.waitBuckets)
		c.waitBuckets = slices.Compact(c.waitBuckets)
	})
}

// numberUpTo returns the number of the first bucket of a Histogram whose upper bound is at
// least v.
func numberUpTo(v float64) int {
	k := int(math.Floor(8*math.Log2(v))) - 1
	for boundOf(k) < v {
		k++
	}
	return k
}

// classicBuckets returns the cumulative counts of a Histogram up to 0, and up to and with each of
// the buckets of the given numbers, which ascend.
func classicBuckets(h watch.Histogram, numbers []int) []*dto.Bucket {
	counts := make([]uint64, 1+len(numbers)+1) // not cumulative; the last is of all that is above
	for bound, n := range h.Buckets() {
		if bound == 0 {
			counts[0] = n
			continue
		}
		next, _ := slices.BinarySearch(numbers, numberOf(h, bound))
		counts[1+next] += n
	}
	buckets := make([]*dto.Bucket, 1+len(numbers))
	var sum uint64
	for i := range buckets {
		sum += counts[i]
		bound := 0.
		if i > 0 {
			bound = boundOf(numbers[i-1])
		}
		buckets[i] = &dto.Bucket{UpperBound: proto.Float64(bound), CumulativeCount: proto.Uint64(sum)}
	}
	return buckets
}
