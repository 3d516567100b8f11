package replay_test

import (
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
