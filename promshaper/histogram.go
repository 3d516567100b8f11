package promshaper

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.com/leakybucket/shaper"
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
func newHistogram(desc *prometheus.Desc, h shaper.Histogram, classic []int, rule string) prometheus.Metric {
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

// schema is that of the native histograms. The upper bound of bucket i of schema 4 is 2 to the
// power of i/16, and that of bucket k of a [shaper.Histogram] is 2 to the power of (2k+1)/16. So
// bucket k is exactly the two buckets 2k and 2k+1. (The buckets of schema 3 are as wide as those
// of a shaper.Histogram, but each of their bounds is in the middle of one of its buckets, so no
// count would be exact.)
const schema = 4

// nativeBuckets returns the buckets of a native histogram by their numbers. How the values of a
// bucket of a Histogram spread over its two is not known, so each gets half of them, and the
// upper one also the odd one. As both halves of a growing count grow, no bucket ever goes back.
func nativeBuckets(h shaper.Histogram) (zeros uint64, positive map[int]int64) {
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
func numberOf(h shaper.Histogram, bound float64) int {
	if math.IsInf(bound, 1) { // The last one. The greatest value stands in the middle of its bucket.
		middle, _ := h.Quantile(1)
		return int(math.Round(8 * math.Log2(middle)))
	}
	return int(math.Round(8*math.Log2(bound) - 0.5))
}

// boundOf returns the upper bound of a bucket of a Histogram.
func boundOf(k int) float64 { return math.Exp2((float64(k) + 0.5) / 8) }
