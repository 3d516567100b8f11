package shaper_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

func TestWhoWouldLeaveLastIsRefused(t *testing.T) {
	play(t, "10/s depth 4", func(g *stage) {
		g.comes("z", "a1", "a2", "a3", "a4") // a fills all places.
		g.saw("0s z left")
		g.at(30 * ms)
		g.comes("a5") // It would be the last of the longest line.
		g.saw("30ms a5 full, retry 70ms")
		g.comes("b1")
		g.saw("30ms a4 full, retry 70ms")
		g.comes("b2")
		g.saw("30ms a3 full, retry 70ms")
		g.comes("b3") // Now both lines are equally long, and it would be one more.
		g.saw("30ms b3 full, retry 70ms")
		g.comes("c1") // Both have two, and the one that was admitted last is refused.
		g.saw("30ms b2 full, retry 70ms")
		g.comesFor("d1", 9) // It costs more than the line of any other.
		g.saw("30ms d1 full, retry 70ms")
		g.at(10 * time.Second)
		g.saw("100ms a1 left", "200ms b1 left", "300ms c1 left", "400ms a2 left")
		st := g.Stats()
		require.EqualValues(t, []uint64{6, 6, 0, 5}, []uint64{st.Refused, st.QueueFull, st.Abandoned, st.Departed})
	}, shaper.WithFairQueue(nil))
}

// A dear request may be pushed out as the head of the line. The cheaper ones behind it could not leave before, so
// none of them counts as late.
func TestAHeadThatIsPushedOutLeavesNoneLate(t *testing.T) {
	play(t, "1/s burst 6 depth 2", func(g *stage) {
		g.comesFor("z", 6)
		g.comesFor("d", 5)
		g.comesFor("a", 4)
		g.at(5 * time.Second)
		g.comes("c") // It costs its key as much as d does, which came earlier.
		g.at(8 * time.Second)
		g.saw("0s z left", "4s a left")
		g.comes("b")
		g.comesFor("e", 2) // c and b have taken up 2 of the 4 units that had drained.
		g.at(10 * time.Second)
		g.saw("8s d full, retry 1ns", "8s c left", "8s b left", "8s e left")
		require.Zero(t, g.Stats().Missed)
	}, shaper.WithFairQueue(nil))
}

// A request that is pushed out is told as a refusal after a wait, with its key, and the newcomer
// as one that has entered.
func TestARefusalAfterAWaitIsToldWithItsKey(t *testing.T) {
	var mu sync.Mutex
	var told []string
	tell := func(hook string) func(context.Context, shaper.Event) {
		return func(_ context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s %q after %v, waiting %d", hook, e.Key, e.Waited, e.Waiting))
		}
	}
	play(t, "10/s depth 2", func(g *stage) {
		g.arrive("z", 1)
		g.comes("a1", "a2")
		g.at(40 * ms)
		g.comes("b1")
		require.Equal(t, []string{
			`departed "" after 0s, waiting 0`, `enqueued "a" after 0s, waiting 1`, `enqueued "a" after 0s, waiting 2`,
		}, told[:3])
		require.ElementsMatch(t, []string{`refused "a" after 40ms, waiting 1`, `enqueued "b" after 0s, waiting 2`}, told[3:])
		refusals := g.Refusals()
		require.Len(t, refusals, 1)
		require.Equal(t, watch.Refusal{At: g.start.Add(40 * ms), Reason: shaper.ErrQueueFull, RetryAfter: 60 * ms, Cost: 1, Key: "a"}, refusals[0])
		require.False(t, g.For("c").Allow())
		require.Equal(t, "c", g.Refusals()[1].Key)
		require.Equal(t, []watch.Waiter{
			{Key: "a", Cost: 1, Since: g.start, Leaves: g.start.Add(100 * ms)},
			{Key: "b", Cost: 1, Since: g.start.Add(40 * ms), Leaves: g.start.Add(200 * ms)},
		}, g.Line(9))
		require.Equal(t, []string{"a weight 1: 1 cost 1, 40ms, at 100ms"}, g.keys(1))
		for _, by := range []watch.KeyOrder{watch.ByTurn, watch.ByLength} {
			require.Equal(t, []watch.KeyLine{}, g.Keys(0, by))
			require.Equal(t, []watch.KeyLine{}, g.Keys(math.MinInt, by))
			require.Len(t, g.Keys(math.MaxInt, by), g.Stats().Keys)
		}
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(nil), shaper.WithTrace(&shaper.Trace{
		Enqueued: tell("enqueued"), Departed: tell("departed"), Refused: tell("refused"), Abandoned: tell("abandoned"),
	}))
}

// A newcomer that is too late or too costly takes no place.
func TestARefusedNewcomerPushesNobodyOut(t *testing.T) {
	play(t, "10/s depth 3", func(g *stage) {
		g.comes("z", "a1", "a2", "a3")
		late, cancel := context.WithTimeout(context.Background(), 200*ms)
		defer cancel()
		g.comesWith(late, "b1", 1) // It would leave after a1, at 200 ms.
		g.saw("0s z left", "0s b1 late, retry 1ns")
		g.comesFor("b2", 1<<31-1)
		g.saw("0s b2 costly, retry 0s")
		require.False(t, g.For("b").Allow(), "somebody waits")
		require.Equal(t, 3, g.Stats().Waiting)
		later, cancel := context.WithTimeout(context.Background(), 200*ms+1)
		defer cancel()
		g.comesWith(later, "b3", 1)
		g.saw("0s a3 full, retry 100ms")
		g.at(10 * time.Second)
		g.saw("100ms a1 left", "200ms b3 left", "300ms a2 left")
	}, shaper.WithFairQueue(nil))
}

// What Forecast says of each key comes true if no other comes, whatever the costs.
func TestForecastsOfKeysComeTrue(t *testing.T) {
	t.Parallel()
	weights := map[string]int{"a": 1, "b": 2, "c": 7, "d": 1}
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 32))
			s, err := shaper.New(shaper.Limits{Rate: 100, Burst: 1 + r.IntN(5), Depth: 100},
				shaper.WithFairQueue(func(key string) int { return weights[key] }))
			require.NoError(t, err)
			for range r.IntN(40) {
				key, n := string(rune('a'+r.IntN(4))), 1+r.IntN(5)
				go func() { _ = s.For(key).WaitN(context.Background(), n) }()
				synctest.Wait()
				time.Sleep(time.Duration(r.IntN(20)) * ms)
			}
			key, n := string(rune('a'+r.IntN(4))), 1+r.IntN(5)
			predicted, err := s.For(key).Forecast(n)
			require.NoError(t, err)
			start := time.Now()
			waits := make(chan time.Duration, 1)
			go func() {
				require.NoError(t, s.For(key).WaitN(context.Background(), n))
				waits <- time.Since(start)
			}()
			synctest.Wait()
			if len(waits) == 0 {
				var last watch.Waiter
				for _, w := range s.Line(100) {
					if w.Key == key {
						last = w
					}
				}
				require.Equal(t, predicted, last.Leaves.Sub(start))
			}
			waited := <-waits
			if predicted == 1 { // Its key has the turn at once, but the line is not passed.
				predicted = 0
			}
			require.Equal(t, predicted, waited)
			require.NoError(t, s.Close())
		})
	}
}

// A request that a newcomer would push out takes no seat before it, even if both have the same tag.
func TestAForecastCountsNoRequestThatItWouldPushOut(t *testing.T) {
	playLimits(t, shaper.Limits{Rate: 1000, Burst: 10, Depth: 2, InFlight: 1}, func(g *stage) {
		g.acquiresFor("z", 1)
		g.acquiresFor("a", 1)
		g.acquiresFor("b", 3)
		g.at(2 * time.Second)
		g.release("z")        // Seats are held for 2 s on average. a takes this one, and pays 1.
		g.acquiresFor("e", 1) // It leaves before b.
		wait, err := g.For("f").Forecast(2)
		require.NoError(t, err)
		require.Equal(t, 4*time.Second, wait, "after a and e")
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(nil))
}

// However many keys wait, a request is refused if and only if it could not leave before its deadline. Its
// RetryAfter is no shorter than it needs to be.
func TestARequestThatMayLeaveInTimeIsAdmittedHoweverManyKeysWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 3000
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 4 * keys}, shaper.WithFairQueue(nil))
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(3, 33))
		stay, end := context.WithCancel(context.Background())
		for i := range keys {
			for range 1 + r.IntN(3) {
				go func() { _ = s.For(strconv.Itoa(i)).WaitN(stay, 1+i%3) }()
			}
		}
		synctest.Wait()
		waiting := s.Stats().Waiting
		require.Greater(t, waiting, keys)
		late := 0
		for i := range 200 {
			key, cost := s.For(strconv.Itoa(r.IntN(2*keys))), 1+r.IntN(4)
			wait, err := key.Forecast(cost)
			require.NoError(t, err)
			left := wait + time.Duration(i%2) // A deadline at the instant of the departure is too near.
			if i%3 == 0 {
				left = time.Duration(r.Int64N(2 * int64(wait)))
			}
			ctx, cancel := context.WithTimeout(context.Background(), left)
			result := make(chan error, 1)
			go func() { result <- key.WaitN(ctx, cost) }()
			synctest.Wait()
			if left > wait {
				require.Equal(t, waiting+1, s.Stats().Waiting, "%v left, waits for %v", left, wait)
				cancel()
				require.ErrorIs(t, <-result, context.Canceled)
				continue
			}
			cancel()
			var refusal *shaper.RejectError
			require.ErrorAs(t, <-result, &refusal)
			require.ErrorIs(t, refusal, shaper.ErrTooLate)
			require.GreaterOrEqual(t, refusal.RetryAfter, wait-left+1)
			late++
		}
		require.Greater(t, late, 80)
		end()
		synctest.Wait()
	})
}
