package replay_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
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

// A comingCall is a call that comes to a bucket that keys share.
type comingCall struct {
	at time.Duration
	replay.Call
}

// The same random calls are played to a Shaper and to a FairBucket: each must meet the same
// fate at the same nanosecond, and give back as much.
func TestAFairBucketDoesWhatAShaperDoes(t *testing.T) {
	chance := rand.New(rand.NewPCG(30, 1))
	met, waited, settled := map[replay.Result]int{}, 0, replay.Settled{}
	for n := range 150 {
		limits, calls := randomCalls(chance)
		want, stats := playedByShaper(t, limits, calls)
		got := make([]replay.Fate, len(calls))
		b := replay.NewFairBucket(replay.NewPlan(limits))
		for i := range calls {
			calls[i].Done = func(at time.Duration, f replay.Fate) {
				require.Equal(t, calls[i].at+f.Waited, at)
				got[i] = f
			}
			b.Arrive(calls[i].at, &calls[i].Call)
		}
		b.End()
		for i := range calls {
			fate := got[i]
			require.Equal(t, want[i], fate, "load %d, call %d: %v %d under %v", n, i, calls[i].at, calls[i].Estimate, limits)
			met[fate.Result]++
			if fate.Waited > 0 {
				waited++
			}
		}
		require.Equal(t, replay.Settled{GivenBack: stats.GivenBack, Charged: stats.Charged, Forfeited: stats.Forfeited}, b.Settled(), "load %d", n)
		settled.GivenBack += stats.GivenBack
		settled.Charged += stats.Charged
		settled.Forfeited += stats.Forfeited
	}
	require.Greater(t, waited, 3000)
	for _, result := range []replay.Result{replay.Departed, replay.QueueFull, replay.TooLate, replay.TooCostly} {
		require.Greater(t, met[result], 100, "calls with result %d, of %v", result, met)
	}
	require.NotZero(t, settled.GivenBack)
	require.NotZero(t, settled.Charged)
	require.NotZero(t, settled.Forfeited)
}

// randomCalls returns limits, and calls of some keys that crowd around the instants at which others leave and
// end.
func randomCalls(chance *rand.Rand) (shaper.Limits, []comingCall) {
	l := shaper.Limits{
		Rate:  1e6 / 60.0, // as of llm.Quota
		Burst: []int{0, 5_000, 100_000, 500_000}[chance.IntN(4)],
		Depth: []int{0, 1, 3, 10, 50}[chance.IntN(5)],
	}
	if chance.IntN(3) == 0 {
		l.Rate = 1000.0 / 7
	}
	if chance.IntN(3) == 0 {
		l.MaxWait = 1 + time.Duration(chance.Int64N(int64(20*time.Second)))
	}
	typical := 1 + chance.IntN(20_000)
	weights := []int{1 + chance.IntN(4), 1 + chance.IntN(4), 1, 1, 1000}
	at := time.Duration(0)
	calls := make([]comingCall, 120)
	for i := range calls {
		if chance.IntN(2) == 0 {
			at += time.Duration(chance.Int64N(int64(float64(typical) / float64(l.Rate) * 1.5e9)))
		}
		key := chance.IntN(len(weights))
		c := replay.Call{Key: fmt.Sprint(key), Weight: weights[key], Estimate: 1 + chance.IntN(2*typical), Actual: -1, Took: time.Duration(chance.Int64N(int64(8 * time.Second)))}
		switch chance.IntN(8) {
		case 0:
		case 1:
			c.Actual = c.Estimate + chance.IntN(typical)
		default:
			c.Actual = chance.IntN(c.Estimate + 1)
		}
		if chance.IntN(40) == 0 && strconv.IntSize == 64 {
			c.Estimate = math.MaxInt // of more than a year
		}
		calls[i] = comingCall{at, c}
	}
	return l, calls
}

// playedByShaper returns the fates of the calls at a Shaper in a bubble, and its counts at the end.
func playedByShaper(t *testing.T, l shaper.Limits, calls []comingCall) (fates []replay.Fate, stats shaper.Stats) {
	t.Helper()
	fates = make([]replay.Fate, len(calls))
	synctest.Test(t, func(t *testing.T) {
		weights := map[string]int{}
		for _, c := range calls {
			weights[c.Key] = c.Weight
		}
		s, err := shaper.New(l, shaper.WithFairQueue(func(key string) int { return weights[key] }))
		require.NoError(t, err)
		defer s.Close()
		start := time.Now()
		var all sync.WaitGroup
		for i, c := range calls {
			time.Sleep(c.at - time.Since(start))
			all.Go(func() {
				settle, err := s.For(c.Key).Reserve(t.Context(), c.Estimate)
				fates[i] = replay.Fate{Result: resultOf(err), Waited: time.Since(start) - c.at}
				if err == nil {
					time.Sleep(c.Took)
					settle(c.Actual)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		stats = s.Stats()
	})
	return fates, stats
}

// At rate.Inf a level is always 0, so all that was reserved too much has drained, as in a Shaper.
func TestAtAnInfiniteRateNothingComesBack(t *testing.T) {
	b := replay.NewFairBucket(replay.NewPlan(shaper.Limits{Rate: rate.Inf, Depth: 1}))
	for range 2 {
		b.Arrive(0, &replay.Call{Weight: 1, Estimate: 10, Actual: 3, Took: time.Second, Done: func(time.Duration, replay.Fate) {}})
	}
	b.End()
	require.Equal(t, replay.Settled{Forfeited: 14}, b.Settled())
}
