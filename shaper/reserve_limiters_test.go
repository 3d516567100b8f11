package shaper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// In a dry run nobody waits, and a settle changes the shadow when the request has left that.
func TestInADryRunASettleChangesTheShadow(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 2", func(g *reserving) {
		verdict := func(estimate int) (shaper.Verdict, func(int)) {
			ctx := shaper.ContextWithVerdict(context.Background())
			settle, err := g.Reserve(ctx, estimate)
			require.NoError(t, err)
			v, ok := shaper.VerdictOf(ctx)
			require.True(t, ok)
			return v, settle
		}
		v, a := verdict(10)
		require.Equal(t, shaper.Verdict{}, v)
		v, b := verdict(10)
		require.Equal(t, time.Second, v.Wait)
		v, c := verdict(10)
		require.Equal(t, 2*time.Second, v.Wait)
		v, d := verdict(10)
		require.ErrorIs(t, v.Err, shaper.ErrQueueFull)
		a(4) // b would leave 600 ms sooner.
		b(2) // It has ended before its turn in the shadow, and counts there from 400 ms on.
		d(0) // It would have been refused.
		require.InDelta(t, 4, g.Stats().Level, 1e-9)
		v, _ = verdict(1)
		require.ErrorIs(t, v.Err, shaper.ErrQueueFull, "two are still in the shadow's line")
		g.at(400 * ms)
		require.InDelta(t, 2, g.Stats().Level, 1e-9)
		require.Equal(t, 1, g.Stats().Waiting)
		g.at(600 * ms)
		require.InDelta(t, 10, g.Stats().Level, 1e-9)
		c(-1)
		require.Equal(t, [4]int{0, 6 + 8, 0, 0}, figures(g.Stats()))
	}, shaper.WithDryRun())
}

// What Close refuses never leaves the shadow, so nothing of it is kept, and its estimate stands.
func TestReservationsThatCloseRefusesInAShadowAreForgotten(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 2", func(g *reserving) {
		var settles []func(int)
		for range 3 {
			settle, err := g.Reserve(context.Background(), 10)
			require.NoError(t, err)
			settles = append(settles, settle)
		}
		settles[1](4)
		require.Equal(t, 2, shaper.Shadows(g.Shaper))
		require.NoError(t, g.Close())
		require.Zero(t, shaper.Shadows(g.Shaper))
		settles[2](4)
		require.Equal(t, 10, int(g.Stats().Level), "neither has left, so nothing comes back")
	}, shaper.WithDryRun())
}

// The bucket of a key is charged that the key has then.
func TestASettleChargesTheBucketThatTheKeyHasThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 10, Burst: 10, Depth: 9}, nil })
		require.NoError(t, err)
		ctx := context.Background()
		a, err := g.Limiter("a").Reserve(ctx, 5)
		require.NoError(t, err)
		b, err := g.Limiter("b").Reserve(ctx, 5)
		require.NoError(t, err)
		zero, err := g.Limiter("c").Reserve(ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 10, g.Stats().Reserved)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, g.Stats().Keys, "both have drained, and are gone")
		a(8)
		b(1)
		zero(2)
		for key, level := range map[string]float64{"a": 3, "b": 0, "c": 2} {
			require.InDelta(t, level, g.Limiter(key).Stats().Level, 1e-9, key)
		}
		st := g.Stats()
		require.Equal(t, [4]int{0, 0, 5, 4}, [4]int{st.Reserved, int(st.GivenBack), int(st.Charged), int(st.Forfeited)})
		require.NoError(t, g.Limiter("a").Spend(ctx, 6, func(context.Context) (int, error) { return 1, nil }))
		require.InDelta(t, 4, g.Limiter("a").Stats().Level, 1e-9)
		g.Limiter("d").AtMost(3)
		require.InDelta(t, 7, g.Limiter("d").Stats().Level, 1e-9)
		again, err := g.Limiter("d").Reserve(ctx, 3)
		require.NoError(t, err)
		require.NoError(t, g.Close())
		again(9)
		again(9)
		require.EqualValues(t, 11, g.Stats().Charged, "on a closed Group it is counted, and there is nothing to charge")
	})
}

// Whichever way a request of a key comes, it is in the bucket of the key.
func TestAllEntrancesOfAKeyLeadToItsBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := shaper.Limits{Rate: 1, Burst: 10, Depth: 9}
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil })
		require.NoError(t, err)
		a := g.Limiter("a")
		require.NoError(t, a.Do(ctx, 2, func(context.Context) error { return nil }))
		require.True(t, a.AllowN(1))
		require.NoError(t, g.Limiter("a").Spend(ctx, 3, func(context.Context) (int, error) { return 1, nil }))
		require.ErrorIs(t, g.Limiter("a").Spend(ctx, -1, nil), shaper.ErrNegativeCost)
		require.InDelta(t, 4, a.Stats().Level, 1e-9)
		require.Zero(t, g.Limiter("b").Stats().Level)

		s, err := shaper.New(l, shaper.WithFairQueue(nil))
		require.NoError(t, err)
		s.For("a").AtMost(6)
		require.InDelta(t, 4, s.Stats().Level, 1e-9)
		wait, err := s.For("b").Forecast(7)
		require.NoError(t, err)
		require.Equal(t, time.Second, wait)

		dear := shaper.Priced(s.For("a"), func(n int) int { return 2 * n })
		settle, err := dear.(interface {
			Reserve(ctx context.Context, estimate int) (settle func(actual int), err error)
		}).Reserve(ctx, 3)
		require.NoError(t, err)
		require.InDelta(t, 10, s.Stats().Level, 1e-9)
		settle(1)
		require.InDelta(t, 6, s.Stats().Level, 1e-9)
	})
}

// A Chain reserves in each of its Limiters, and gives back what a later one refuses.
func TestAChainSettlesWithAllItsLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, err := shaper.New(shaper.Limits{Rate: 1, Burst: 10})
		require.NoError(t, err)
		tokens, err := shaper.New(shaper.Limits{Rate: 10, Burst: 100})
		require.NoError(t, err)
		c := shaper.Chain(shaper.Priced(requests, func(int) int { return 1 }), tokens)
		settle, err := c.Reserve(context.Background(), 80)
		require.NoError(t, err)
		settle(30)
		settle(0)
		require.InDelta(t, 1, requests.Stats().Level, 1e-9)
		require.InDelta(t, 30, tokens.Stats().Level, 1e-9)
		refused, err := c.Reserve(context.Background(), 80)
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		refused(99)
		require.InDelta(t, 1, requests.Stats().Level, 1e-9, "the request has not been sent")
		require.NoError(t, c.Spend(context.Background(), 10, func(context.Context) (int, error) { return 20, nil }))
		require.InDelta(t, 50, tokens.Stats().Level, 1e-9)
	})
}

// A level in a Bucket is not this process's alone: estimates stand there, and settle only gives the seat back.
func TestInASharedBucketTheEstimateStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := shaper.Limits{Rate: 1, Burst: 100, Depth: 9, InFlight: 1}
		s := sharedShaper(t, buckettest.NewMemory(), l)
		g := sharedGroup(t, buckettest.NewMemory(), l)
		for _, reserve := range []func(estimate int) (settle func(actual int), err error){
			func(n int) (func(int), error) { return s.Reserve(ctx, n) },
			func(n int) (func(int), error) { return g.Limiter("key").Reserve(ctx, n) },
		} {
			start := time.Now()
			settle, err := reserve(80)
			require.NoError(t, err)
			settle(0) // gives back no unit, but the only seat
			settle, err = reserve(10)
			require.NoError(t, err)
			settle(50) // charges none
			settle, err = reserve(10)
			require.NoError(t, err)
			settle(10)
			require.Zero(t, time.Since(start), "80, 10 and 10 fit into the burst")
			_, err = reserve(5)
			require.NoError(t, err)
			require.InDelta(t, 5, time.Since(start).Seconds(), 0.001)
		}
		s.AtMost(0)
		g.Limiter("key").AtMost(0)
		require.Equal(t, [4]int{5, 0, 0, 0}, figures(s.Stats()))
		require.Equal(t, [4]int{5, 0, 0, 0}, figures(g.Limiter("key").Stats()))
	})
}

// With a fair queue a settle lets those in line leave sooner, in the order of their turns; one that is pushed
// out of the line has reserved nothing.
func TestASettleKeepsTheTurnsOfAFairQueue(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 3", func(g *reserving) {
		reserve := func(name string, estimate int) {
			go func() {
				settle, err := g.For(teamOf(name)).Reserve(context.Background(), estimate)
				g.mu.Lock()
				g.settles[name] = settle
				g.mu.Unlock()
				g.note(name + " " + outcome(err))
			}()
			synctest.Wait()
		}
		reserve("a1", 10)
		reserve("a2", 5)
		reserve("a3", 5)
		reserve("a4", 5)
		reserve("b1", 5) // pushes a4 out
		g.at(100 * ms)
		g.settle("a4", 0)
		g.settle("a1", 1) // 9 units have not drained, and come back
		g.at(time.Minute)
		g.saw("0s a1 left", "0s a4 full, retry 500ms", "100ms a2 left", "100ms b1 left", "600ms a3 left")
		require.Equal(t, [4]int{15, 9, 0, 0}, figures(g.Stats()))
	}, shaper.WithFairQueue(nil))
}
