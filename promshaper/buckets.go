package promshaper

import (
	"fmt"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"example.com/leakybucket/shaper"
)

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
func classicBuckets(h shaper.Histogram, numbers []int) []*dto.Bucket {
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
