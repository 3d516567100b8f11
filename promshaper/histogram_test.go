package promshaper_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/promshaper"
)

// nativeBuckets returns the counts of a native histogram by the number of the bucket.
func nativeBuckets(t testing.TB, h *dto.Histogram) map[int]uint64 {
	require.EqualValues(t, 4, h.GetSchema())
	counts, number, count, deltas := map[int]uint64{}, 0, int64(0), h.PositiveDelta
	for _, span := range h.PositiveSpan {
		number += int(span.GetOffset())
		for range span.GetLength() {
			count += deltas[0]
			deltas = deltas[1:]
			require.GreaterOrEqual(t, count, int64(0))
			counts[number] = uint64(count)
			number++
		}
	}
	require.Empty(t, deltas)
	return counts
}

// upTo returns how many values a native histogram has counted up to the upper bound of a
// bucket.
func upTo(t testing.TB, h *dto.Histogram, number int) uint64 {
	sum := h.GetZeroCount()
	for n, count := range nativeBuckets(t, h) {
		if n <= number {
			sum += count
		}
	}
	return sum
}

// waits returns the histogram of the waits of a Shaper.
func waits(t testing.TB, r prometheus.Gatherer) *dto.Histogram {
	return gather(t, r)["shaper_wait_seconds{x}"].Histogram
}

// All bounds of a Histogram are bounds of the native and of the classic histogram that are
// made of it, and up to each of them all three have counted the same.
func TestCountsUpToTheBoundsOfAHistogramAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "7/s burst 5 depth 1000")
		arrive(s, 700)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		exact := s.Histograms().Wait
		var bounds []float64
		for bound := range exact.Buckets() {
			if bound > 0 {
				bounds = append(bounds, bound)
			}
		}
		require.Greater(t, len(bounds), 30)

		c := promshaper.New(promshaper.WithWaitBuckets(bounds...))
		add(t, c, "x", promshaper.Of(s))
		native := waits(t, registryWith(t, c))
		require.Equal(t, exact.Count(), native.GetSampleCount())
		require.InDelta(t, exact.Sum(), native.GetSampleSum(), 1e-9)
		require.Len(t, native.Bucket, 1+len(bounds))
		require.Zero(t, native.Bucket[0].GetUpperBound())
		require.EqualValues(t, 5, native.Bucket[0].GetCumulativeCount(), "the Burst left at once")

		var sum uint64
		i := 0
		for bound, n := range exact.Buckets() {
			sum += n
			classic := native.Bucket[i]
			i++
			require.InEpsilon(t, 1+bound, 1+classic.GetUpperBound(), 1e-12)
			require.Equal(t, sum, classic.GetCumulativeCount(), "up to %v", bound)
			if bound > 0 {
				number := 16 * math.Log2(bound)
				require.InDelta(t, math.Round(number), number, 1e-9, "%v is no bound of schema 4", bound)
				require.Equal(t, sum, upTo(t, native, int(math.Round(number))), "up to %v", bound)
			}
		}
		require.Equal(t, exact.Count(), sum)
	})
}

// Two requests wait equally long, so each half of a bucket gets one of them, and the two
// halves must enclose the wait.
func TestANativeBucketEnclosesTheWait(t *testing.T) {
	for _, wait := range []time.Duration{time.Microsecond, 3 * time.Microsecond, 990 * time.Microsecond, time.Millisecond, 100 * time.Millisecond, time.Second, 1001 * time.Millisecond, 7 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := made.Shaper(t, "inf depth 9")
			s.Hold(wait)
			arrive(s, 2)
			time.Sleep(wait)
			synctest.Wait()
			h := waits(t, of(t, "x", promshaper.Of(s)))
			require.EqualValues(t, 2, h.GetSampleCount())
			require.Zero(t, h.GetZeroCount())
			counts := nativeBuckets(t, h)
			require.Len(t, counts, 2)
			for number, count := range counts {
				require.EqualValues(t, 1, count)
				if number%2 == 0 {
					require.Less(t, math.Exp2(float64(number-1)/16), wait.Seconds(), "below %v", wait)
				} else {
					require.GreaterOrEqual(t, math.Exp2(float64(number)/16), wait.Seconds(), "above %v", wait)
				}
			}
		})
	}
}

// The last bucket of a Histogram has no upper bound. In a native histogram that would be 2 to
// the power of 1024, and each mean or quantile of it nonsense.
func TestASpacingWithoutBoundDoesNotBecomeInfinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "10/s depth 9")
		arrive(s, 3)
		synctest.Wait()
		s.Hold(time.Hour)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		h := gather(t, of(t, "x", promshaper.Of(s)))["shaper_spacing_intervals{x}"].Histogram
		counts := nativeBuckets(t, h)
		require.EqualValues(t, 1, counts[16*8+1], "256 and above: %v", counts)
		require.EqualValues(t, 1, counts[1], "on schedule: %v", counts)
		require.EqualValues(t, 2, h.GetSampleCount())
		last := h.Bucket[len(h.Bucket)-1]
		require.EqualValues(t, 1, last.GetCumulativeCount(), "only le=+Inf has it, which the text adds")
		require.Less(t, last.GetUpperBound(), 256.)
	})
}

// A histogram that has counted nothing must be native too, or Prometheus would not know what
// it is.
func TestAnEmptyHistogramIsNative(t *testing.T) {
	h := waits(t, of(t, "x", promshaper.Of(made.Shaper(t, "1/s"))))
	require.EqualValues(t, 4, h.GetSchema())
	require.Positive(t, h.GetZeroThreshold())
	require.Zero(t, h.GetSampleCount())
	require.Nil(t, h.CreatedTimestamp, "it is not known")
	require.Len(t, h.Bucket, 21)
}

func TestClassicBoundsAreMovedUpToBoundsOfTheHistogram(t *testing.T) {
	c := promshaper.New(promshaper.WithWaitBuckets(1, 0.5, 1.04, math.Exp2(0.5/8), 30))
	add(t, c, "x", promshaper.Of(made.Shaper(t, "1/s")))
	var bounds []float64
	for _, b := range waits(t, registryWith(t, c)).Bucket {
		bounds = append(bounds, b.GetUpperBound())
	}
	require.InDeltaSlice(t, []float64{0, 0.5221368912137069, 1.0442737824274138, 32 * math.Exp2(-0.5/8)}, bounds, 1e-12)
}

func TestABoundThatIsNoneIsNamed(t *testing.T) {
	for bound, text := range map[float64]string{0: "0", -1: "-1", math.NaN(): "NaN", math.Inf(1): "+Inf"} {
		require.PanicsWithValue(t, "promshaper: WithWaitBuckets: a bound is "+text+"; it must be positive and finite",
			func() { promshaper.New(promshaper.WithWaitBuckets(1, bound)) })
	}
}
