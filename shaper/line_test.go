package shaper_test

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

const msec = time.Millisecond

// enters lets a request of each cost enter a line, one after the other at this instant.
func enters(wait func(ctx context.Context, n int) error, costs ...int) {
	for _, n := range costs {
		go func() { _ = wait(context.Background(), n) }()
		synctest.Wait()
	}
}

// A line is shown from its head on, with the instants at which its requests will leave.
func TestLineShowsWhoLeavesWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 100, Burst: 2, Depth: 10})
		t0 := time.Now()
		require.Nil(t, s.Line(5), "nobody waits")
		enters(s.WaitN, 1, 1, 1, 3) // Two leave at once.
		time.Sleep(5 * msec)
		enters(s.WaitN, 1)
		want := []watch.Waiter{
			{Cost: 1, Since: t0, Leaves: t0.Add(10 * msec)},
			{Cost: 3, Since: t0, Leaves: t0.Add(30 * msec)},
			{Cost: 1, Since: t0.Add(5 * msec), Leaves: t0.Add(50 * msec)},
		}
		require.Equal(t, want, s.Line(math.MaxInt))
		require.Equal(t, want[:2], s.Line(2))
		require.Nil(t, s.Line(0))
		require.Nil(t, s.Line(-1))

		s.Hold(100 * msec)
		require.Equal(t, t0.Add(105*msec), s.Line(1)[0].Leaves, "a hold keeps the head")
		s.Hold(0)
		require.NoError(t, s.SetLimits(shaper.Limits{Rate: 50, Burst: 2, Depth: 10}))
		require.Equal(t, t0.Add(15*msec), s.Line(1)[0].Leaves, "half a unit is left to leak, at half the rate")
		require.NoError(t, s.Close())
		require.Nil(t, s.Line(5))
	})
}

// What Line predicts comes true if nothing happens, whatever the costs.
func TestLinePredictsEachDeparture(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			l := shaper.Limits{Rate: rate.Limit(1 + r.IntN(1000)), Burst: r.IntN(6), Depth: 100}
			dry := r.IntN(4) == 0
			var mu sync.Mutex
			var left []shaper.Event
			opts := []shaper.Option{shaper.WithTrace(&shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, e)
			}})}
			if dry {
				opts = append(opts, shaper.WithDryRun())
			}
			s := must(shaper.New(l, opts...))
			for range 1 + r.IntN(30) {
				enters(s.WaitN, 1+r.IntN(5))
				time.Sleep(time.Duration(r.IntN(3)) * msec)
				if r.IntN(10) == 0 {
					s.Hold(time.Duration(r.IntN(50)) * msec)
				}
			}
			now, line := time.Now(), s.Line(100)
			st := s.Stats()
			require.Len(t, line, st.Waiting)
			time.Sleep(time.Hour)
			mu.Lock()
			defer mu.Unlock()
			slices.SortStableFunc(left, func(a, b shaper.Event) int {
				return cmp.Or(a.At.Compare(b.At), a.At.Add(-a.Waited).Compare(b.At.Add(-b.Waited)), cmp.Compare(a.Cost, b.Cost))
			})
			// The hooks of those who came and leave at the same instants run in any order.
			slices.SortStableFunc(line, func(a, b watch.Waiter) int {
				return cmp.Or(a.Leaves.Compare(b.Leaves), a.Since.Compare(b.Since), cmp.Compare(a.Cost, b.Cost))
			})
			for i, w := range line {
				require.True(t, w.Leaves.After(now))
				if !dry { // Its verdict was given before the holds that came later.
					e := left[len(left)-len(line)+i]
					require.Equal(t, w, watch.Waiter{Cost: e.Cost, Since: e.At.Add(-e.Waited), Leaves: e.At}, "seed %d, %d of %d", seed, i, len(line))
				}
			}
		})
	}
}

// While all seats are taken Leaves is the estimate that Forecast gives a newcomer, for each
// place; and a retry stands before those who came first.
func TestLineWithACapAndARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: rate.Inf, Depth: 10, InFlight: 1})
		release, err := s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(100 * msec)
		release()
		release, err = s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		now := time.Now()
		ends := make(chan func(), 3)
		acquire := func(_ context.Context, n int) error {
			release, err := s.Acquire(context.Background(), n)
			ends <- release
			return err
		}
		wait, err := s.Forecast(1)
		require.NoError(t, err)
		enters(acquire, 1, 2)
		go func() { release, _ := shaper.EnterAsReentry(s, context.Background(), 7); ends <- release }()
		synctest.Wait()
		require.Equal(t, 100*msec, wait)
		require.Equal(t, []watch.Waiter{
			{Cost: 7, Since: now, Leaves: now.Add(100 * msec)},
			{Cost: 1, Since: now, Leaves: now.Add(200 * msec)},
			{Cost: 2, Since: now, Leaves: now.Add(300 * msec)},
		}, s.Line(9))
		release()
		for range 3 {
			(<-ends)()
		}
	})
}

// While all seats are taken the bucket empties. What it has not leaked since then must not be
// credited to those who wait, or all of them would be shown to leave at once.
func TestLineWithACapDoesNotShowAStampede(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := shaper.Limits{Rate: 1, Depth: 10, InFlight: 1}
		s := mustMake(t, limits)
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }))
		t0 := time.Now()
		var ends []func()
		left := make(chan time.Duration, 6)
		for _, acquire := range []func(context.Context, int) (func(), error){
			s.Acquire,
			func(ctx context.Context, n int) (func(), error) { return g.Acquire(ctx, "key", n) },
		} {
			release, err := acquire(t.Context(), 1)
			require.NoError(t, err)
			ends = append(ends, release)
			enters(func(ctx context.Context, n int) error {
				release, err := acquire(ctx, n)
				left <- time.Since(t0)
				release()
				return err
			}, 1, 1, 1)
		}
		time.Sleep(50 * time.Second)
		want := []time.Duration{50*time.Second + msec, 51 * time.Second, 52 * time.Second}
		shown := func(line []watch.Waiter) (leave []time.Duration) {
			for _, w := range line {
				leave = append(leave, w.Leaves.Sub(t0))
			}
			return leave
		}
		require.Equal(t, want, shown(s.Line(9)), "before anything else has looked")
		require.Equal(t, want, shown(g.Limiter("key").Line(9)))
		_, err := s.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, want, shown(s.Line(9)))
		ends[0]()
		ends[1]()
		time.Sleep(time.Minute)
		for _, at := range []time.Duration{50, 50, 51, 51, 52, 52} { // A millisecond was the guess for the seat.
			require.Equal(t, at*time.Second, <-left)
		}
	})
}

// Looking makes no bucket. Keys that share one show its line.
func TestLineOfAKeyMakesNoBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		limits := func(string) (shaper.Limits, error) { asked++; return shaper.Limits{Rate: 1, Depth: 9}, nil }
		g := must(shaper.NewGroup(limits, shaper.WithMaxKeys(1)))
		require.Nil(t, g.Limiter("a").Line(5))
		require.Zero(t, g.Stats().Keys)
		require.Zero(t, asked)
		now := time.Now()
		enters(g.Limiter("a").WaitN, 1, 2)
		require.Equal(t, []watch.Waiter{{Cost: 2, Since: now, Leaves: now.Add(time.Second)}}, g.Limiter("a").Line(5))
		require.Nil(t, g.Limiter("b").Line(5))
		enters(g.Limiter("b").WaitN, 1, 3)
		require.Equal(t, []watch.Waiter{{Cost: 3, Since: now, Leaves: now.Add(time.Second)}}, g.Limiter("b").Line(5))
		require.Nil(t, g.Limiter("a").Line(0))
		require.NoError(t, g.Close())
		require.Nil(t, g.Limiter("a").Line(5))
		require.Nil(t, g.Limiter("b").Line(5))
	})
}
