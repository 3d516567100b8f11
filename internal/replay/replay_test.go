package replay_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/replay"
	"example.com/leakybucket/shaper"
)

const ms = time.Millisecond

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

// An arrival is a request that comes to the bucket of a key.
type arrival struct {
	at        time.Duration
	key, cost int
}

// A replay that differed from the shaper by one request or by one nanosecond would give
// operators numbers of something else. So the same random requests are played to a Group
// and to Buckets.
func TestBucketsDoWhatAGroupDoes(t *testing.T) {
	chance := rand.New(rand.NewPCG(16, 1))
	met, waited := map[replay.Result]int{}, 0
	for n := range 120 {
		limits, arrivals := randomGroup(chance)
		want := playedByGroup(t, limits, arrivals)
		plans, buckets := make([]*replay.Plan, len(limits)), make([]replay.Bucket, len(limits))
		for i, l := range limits {
			plans[i] = replay.NewPlan(l)
		}
		for i, a := range arrivals {
			got := buckets[a.key].Arrive(plans[a.key], a.at, a.cost)
			require.Equal(t, want[i], got, "load %d, request %d: %+v under %v", n, i, a, limits[a.key])
			met[got.Result]++
			if got.Waited > 0 {
				waited++
			}
		}
	}
	require.Greater(t, waited, 3000)
	for _, result := range []replay.Result{replay.Departed, replay.QueueFull, replay.TooLate, replay.TooCostly} {
		require.Greater(t, met[result], 200, "requests with result %d, of %v", result, met)
	}
}

// randomGroup returns the limits of some keys, and arrivals that are near to the instants
// at which requests of these keys leave.
func randomGroup(chance *rand.Rand) ([]shaper.Limits, []arrival) {
	limits := make([]shaper.Limits, 1+chance.IntN(12))
	steps := make([]time.Duration, len(limits))
	for i := range limits {
		limits[i], steps[i] = randomLimits(chance)
	}
	at := time.Duration(0)
	arrivals := make([]arrival, 150)
	for i := range arrivals {
		key := chance.IntN(len(limits))
		if chance.IntN(2) == 0 {
			at += max(0, time.Duration(chance.IntN(6))*steps[key]/time.Duration(1+chance.IntN(2*len(limits)))+time.Duration(chance.IntN(3)-1))
		}
		arrivals[i] = arrival{at, key, 1}
		switch chance.IntN(12) {
		case 0, 1:
			arrivals[i].cost += chance.IntN(8)
		case 2:
			arrivals[i].cost = tooCostly(steps[key])
		}
	}
	return limits, arrivals
}

// randomLimits returns limits, and about how long a cost unit takes.
func randomLimits(chance *rand.Rand) (l shaper.Limits, step time.Duration) {
	l = shaper.Limits{
		Rate:  rate.Limit(math.Exp(chance.Float64()*10 - 1)), // up to 8,000 per second
		Burst: chance.IntN(6),
		Depth: []int{0, 1, 2, 5, 20}[chance.IntN(5)],
	}
	switch chance.IntN(4) {
	case 0:
		l.Rate = []rate.Limit{7, 50, 1.0 / 3, 1000.0 / 7, 1e6, rate.Every(3 * time.Second)}[chance.IntN(6)]
	case 1:
		l.Rate = rate.Limit(math.Round(float64(l.Rate)) + 1)
	}
	step = time.Duration(float64(time.Second) / float64(l.Rate))
	if chance.IntN(3) == 0 {
		l.MaxWait = 1 + time.Duration(chance.IntN(8))*step
	}
	if chance.IntN(12) == 0 {
		l.Rate = rate.Inf
	}
	return l, step
}

// tooCostly returns a cost of more than a year, or 1 if an int of 32 bits can't hold it.
func tooCostly(step time.Duration) int {
	if cost := 400 * 24 * time.Hour / step; cost <= math.MaxInt {
		return int(cost)
	}
	return 1
}

// playedByGroup returns the fates of the arrivals at a Group in a bubble.
func playedByGroup(t *testing.T, limits []shaper.Limits, arrivals []arrival) []replay.Fate {
	t.Helper()
	fates := make([]replay.Fate, len(arrivals))
	synctest.Test(t, func(t *testing.T) {
		group, err := shaper.NewGroup(func(key int) (shaper.Limits, error) { return limits[key], nil })
		require.NoError(t, err)
		defer group.Close()
		start := time.Now()
		var calls sync.WaitGroup
		for i, a := range arrivals {
			time.Sleep(a.at - time.Since(start))
			calls.Go(func() {
				err := group.WaitN(t.Context(), a.key, a.cost)
				fates[i] = replay.Fate{Result: resultOf(err), Waited: time.Since(start) - a.at}
			})
			synctest.Wait()
		}
		calls.Wait()
	})
	return fates
}

// resultOf returns the result that the error of a call means.
func resultOf(err error) replay.Result {
	switch {
	case err == nil:
		return replay.Departed
	case errors.Is(err, shaper.ErrQueueFull):
		return replay.QueueFull
	case errors.Is(err, shaper.ErrTooLate):
		return replay.TooLate
	case errors.Is(err, shaper.ErrTooCostly):
		return replay.TooCostly
	}
	panic(err)
}
