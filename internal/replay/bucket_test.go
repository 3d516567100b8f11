package replay_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

// The two forms of the replay must agree on callers that stay to the end.
func TestABucketSaysWhatARunSays(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 2))
	for range 300 {
		l, requests := randomLoad(chance)
		if chance.IntN(2) == 0 && l.Rate != rate.Inf {
			l.Rate = max(1e-6, rate.Limit(float64(l.Rate)*math.Exp(chance.Float64()-0.5)))
		}
		for i := range requests {
			requests[i].Allow, requests[i].Deadline, requests[i].Patience = false, replay.Never, replay.Never
		}
		want := replay.Run(l, replay.Start{}, requests, replay.Never)
		plan, bucket := replay.NewPlan(l), replay.Bucket{}
		for i, r := range requests {
			require.Equal(t, want[i], bucket.Arrive(plan, r.At, r.Cost), "%v, request %d\n%+v", l, i, requests)
		}
	}
}

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
