package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRaggedSendsEachOnceInOrder(t *testing.T) {
	const span = 250 * time.Millisecond
	for _, n := range []int{0, 1, 2, 7, 150, 10_000} {
		sends := sendTimes(n, span)
		require.Len(t, sends, n)
		require.IsNonDecreasing(t, append([]time.Duration{0, 0}, sends...))
		if n > 2 {
			require.Zero(t, sends[0])
			require.Equal(t, span, sends[n-1])
		}
	}
}

// The upstream must be at least three times as fast as the shaped rate, and take
// what leaves at once. But it must be too slow for the direct burst.
func TestUpstreamIsFastEnoughForTheShaperAndTooSlowForTheBurst(t *testing.T) {
	for text, burst := range map[string]int{
		"50/s depth 100":         150,
		"60/s depth 20":          120,
		"1/s depth 5":            10,
		"10/min depth 3":         5,
		"20/s burst 30 depth 40": 100,
		"1000/s depth 100":       400,
	} {
		t.Run(text, func(t *testing.T) {
			info := newLimitsInfo(limitsOf(t, text))
			s := capacityFor(info, burst)
			require.GreaterOrEqual(t, s.perSecond(), 3*info.rate)
			require.GreaterOrEqual(t, s.workers, int64(info.atOnce)+1)
			meanwhile := s.perSecond() * burstSpan(burst, s).Seconds()
			require.Greater(t, float64(burst), float64(s.workers)+meanwhile)
		})
	}
	require.Positive(t, capacityFor(newLimitsInfo(limitsOf(t, "inf")), 10).workers)
	require.Positive(t, capacityFor(newLimitsInfo(limitsOf(t, "1000000000/s burst 1000000000")), 10).workers)
	require.Zero(t, burstSpan(3, capacity{workers: 10, serviceTime: time.Second}))
}

func TestCount(t *testing.T) {
	require.Equal(t,
		tally{sent: 8, served: 2, refused: 1, disconnected: 1, failed: 2, other: 2, longestWait: 5},
		countResults([]result{
			{status: 200, wait: 5}, {status: 200, wait: 3}, {status: 429, wait: 9}, {status: 503, wait: 9},
			{status: 502}, {}, {status: 302, wait: 9}, {disconnected: true},
		}))
}

func TestWaitTold(t *testing.T) {
	require.Equal(t, 12500*time.Microsecond, waitFromHeader(http.Header{serverTiming: {"db;dur=7", "shaper;dur=12.500"}}))
	require.Zero(t, waitFromHeader(http.Header{serverTiming: {"shaper;dur=x"}}))
	require.Zero(t, waitFromHeader(nil))
}

func TestGaps(t *testing.T) {
	at := func(ms ...int) (all []time.Time) {
		for _, n := range ms {
			all = append(all, time.UnixMilli(int64(n)))
		}
		return all
	}
	smallest, median, ok := gaps(at(0, 10, 13, 33))
	require.True(t, ok)
	require.Equal(t, 3*time.Millisecond, smallest)
	require.Equal(t, 10*time.Millisecond, median)
	_, _, ok = gaps(at(5))
	require.False(t, ok)
}
