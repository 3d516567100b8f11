package replay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

func TestABucketKnowsItsLine(t *testing.T) {
	plan, bucket := replay.NewPlan(shaper.Limits{Rate: 50, Burst: 2, Depth: 3}), replay.Bucket{}
	for _, line := range []int{0, 0, 1, 2, 3, 3} {
		bucket.Arrive(plan, 0, 1)
		require.Equal(t, line, bucket.Line())
	}
	bucket.Arrive(plan, 40*ms, 1) // It takes the place of one that leaves at 20 ms, as 40 ms do.
	require.Equal(t, 2, bucket.Line())
}

// However long the log is, only those in line are remembered, and a request that does not
// wait costs no memory.
func TestRequestsThatDoNotWaitAllocateNothing(t *testing.T) {
	plan, bucket, at := replay.NewPlan(shaper.Limits{Rate: 1000.0 / 7, Burst: 3, Depth: 10}), replay.Bucket{}, time.Duration(0)
	waited := false
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		at += 8 * ms
		waited = waited || bucket.Arrive(plan, at, 1) != replay.Fate{Result: replay.Departed}
	}))
	require.False(t, waited)
	// A line that has been as long before does not either.
	four := func() {
		at += time.Second
		for range 7 {
			bucket.Arrive(plan, at, 1)
		}
	}
	four()
	require.Equal(t, 4, bucket.Line())
	require.Zero(t, testing.AllocsPerRun(1000, four))
}

// A million requests of a log must not take long: BenchmarkBucket reports one of them.
func BenchmarkBucket(b *testing.B) {
	plan, bucket, at := replay.NewPlan(shaper.Limits{Rate: 50.0 / 3, Burst: 3, Depth: 100}), replay.Bucket{}, time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		at += 59 * ms
		bucket.Arrive(plan, at, 1)
	}
}
