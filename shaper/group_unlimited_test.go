package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file holds what a Group does with keys at rate.Inf without a cap. There is
// nothing to remember of their calls but their Limits, so that they leave the table to
// others.

func TestUnlimitedKeysLeaveTheTableToOthers(t *testing.T) {
	playKeys(t, "inf depth 9", func(g *groupStage) {
		g.at(5 * ms) // Not at the instant of a sweep.
		use := func(key string) {
			require.NoError(t, g.Wait(context.Background(), key))
			require.True(t, g.AllowN(key, math.MaxInt))
			release, err := g.Acquire(context.Background(), key, 1)
			require.NoError(t, err)
			release()
			require.NoError(t, g.Do(context.Background(), key, 1, func(context.Context) error { return nil }))
			wait, err := g.Forecast(key, 1)
			require.NoError(t, err)
			require.Zero(t, wait)
		}
		for i := range 100 {
			use(fmt.Sprint("unlimited ", i))
		}
		require.Equal(t, shaper.GroupStats{Departed: 400}, g.Group.Stats())
		require.Len(t, g.wasAsked(), 10+90*5, "once for each of the first ten, and once for each call of the others")
		require.Empty(t, g.levels())
		g.alone()

		for i := range 10 {
			key := fmt.Sprint("limited ", i)
			g.limit(key, "1/h")
			require.True(t, g.Allow(key))
			require.False(t, g.Allow(key))
		}
		for i := range 100 {
			use(fmt.Sprint("unlimited ", i)) // The table is full, and they don't share either.
		}
		st := g.Group.Stats()
		require.Equal(t, 10, st.Keys)
		require.Zero(t, st.Overflowed)
		require.EqualValues(t, 810, st.Departed)
	}, shaper.WithMaxKeys(10))
}

// A limits function that looks into a database is not called for each call of a busy key
// without a limit, such as a tenant of the house.
func TestABusyUnlimitedKeyIsLookedUpTwiceASecond(t *testing.T) {
	playKeys(t, "inf", func(g *groupStage) {
		g.at(5 * ms)
		for i := range 1000 { // None is at the instant of a sweep.
			require.NoError(t, g.Wait(context.Background(), "a"))
			require.True(t, g.Allow("a"))
			wait, err := g.Forecast("a", 1)
			require.NoError(t, err)
			require.Zero(t, wait)
			g.at(time.Duration(i+1)*10*ms + 5*ms)
		}
		require.Len(t, g.wasAsked(), 20, "in ten seconds")
		g.at(time.Minute + 5*ms)
		g.arriveAll("a1", "a2")
		require.Equal(t, []string{"a"}, g.wasAsked(), "no timer asks for a key that rests")

		g.Reload()
		require.Empty(t, g.wasAsked(), "Reload forgets it, so that the next call asks")
		g.arriveAll("a3", "a4")
		require.Equal(t, []string{"a"}, g.wasAsked())
		require.Equal(t, shaper.GroupStats{Departed: 2004}, g.Group.Stats())
		require.NoError(t, g.Close())
		require.False(t, g.Allow("a"))
		require.Empty(t, g.wasAsked())
	})
}

// What is remembered of unlimited keys is bounded, and a NaN could not be found again.
func TestAFloodOfUnlimitedKeysIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		g, err := shaper.NewGroup(func(float64) (shaper.Limits, error) {
			calls++
			return limitsOf(t, "inf"), nil
		}, shaper.WithMaxKeys(3))
		require.NoError(t, err)
		defer g.Close()
		time.Sleep(ms)
		for _, key := range []float64{1, 2, 3, 4, math.NaN(), 1, 2, 3, 4, math.NaN()} {
			require.True(t, g.Allow(key))
		}
		require.Equal(t, 7, calls)
		time.Sleep(time.Second)
		require.True(t, g.Allow(4))
		require.True(t, g.Allow(4))
		require.Equal(t, 8, calls, "there is room again")
	})
}

// A held key counts against WithMaxKeys even if it was remembered before, as whoever can
// have keys held could otherwise have any number of buckets.
func TestAnUnlimitedKeyCountsWhileItIsHeld(t *testing.T) {
	playKeys(t, "inf depth 9", func(g *groupStage) {
		g.at(5 * ms)
		g.arriveAll("a", "b", "c")
		require.Zero(t, g.Group.Stats().Keys)
		g.Hold("a", time.Minute)
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.Hold("b", time.Minute)
		require.Equal(t, 2, g.Group.Stats().Keys)
		g.Hold("c", time.Minute)
		require.Equal(t, 2, g.Group.Stats().Keys, "c shares a bucket, as the table is full")
		g.arriveAll("a", "b", "c", "d")
		require.EqualValues(t, 1, g.Group.Stats().Overflowed, "the request of c, and not its hold")
		g.at(2 * time.Minute)
		g.saw("5ms a left", "5ms b left", "5ms c left", "5ms d left", "1m0.005s a left", "1m0.005s b left", "1m0.005s c left")
		require.Zero(t, g.Group.Stats().Keys)
		g.alone()
	}, shaper.WithMaxKeys(2))
}

func TestAnUnlimitedKeyCanBeHeld(t *testing.T) {
	for name, fill := range map[string]func(g *groupStage){
		"with a bucket of its own": func(*groupStage) {},
		"with a shared one": func(g *groupStage) {
			g.limit("z", "1/h")
			require.True(g.t, g.Allow("z"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			playKeys(t, "inf depth 1", func(g *groupStage) {
				g.limit("b", "inf depth 9") // Other Limits, so it shares no bucket with a.
				fill(g)
				g.arriveAll("a0")
				g.Hold("a", time.Minute)
				g.arriveAll("a1", "a2", "b1")
				wait, err := g.Forecast("a", 1)
				require.ErrorIs(t, err, shaper.ErrQueueFull)
				require.Zero(t, wait)
				g.at(30 * time.Second)
				g.arriveAll("b2")
				g.at(2 * time.Minute)
				g.arriveAll("a3")
				g.Hold("a", time.Minute)
				g.arriveAll("a4")
				g.at(150 * time.Second)
				g.Hold("a", 0)
				g.at(time.Hour + time.Minute)
				g.saw("0s a0 left", "0s a2 full, retry 1m0s", "0s b1 left", "30s b2 left", "1m0s a1 left",
					"2m0s a3 left", "2m30s a4 left")
				g.alone()
				require.Zero(t, g.Group.Stats().Keys)
			}, shaper.WithMaxKeys(1))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(float64) (shaper.Limits, error) { return limitsOf(t, "inf"), nil })
		require.NoError(t, err)
		shaper.SpreadHomes(g, math.NaN(), 1)
		require.True(t, g.Allow(math.NaN()))
		g.Hold(math.NaN(), time.Second)
		require.False(t, g.Allow(math.NaN()))
		require.True(t, g.Allow(1))
		time.Sleep(time.Second)
		require.True(t, g.Allow(math.NaN()))
	})
}

// A hold that was put on a key while the table was full still counts when it has room.
func TestAHeldUnlimitedKeyStaysHeldOutOfOverflow(t *testing.T) {
	playKeys(t, "inf depth 9", func(g *groupStage) {
		g.limit("z", "1/s")
		g.arriveAll("z")
		g.Hold("a", time.Minute)
		g.at(2 * time.Second)
		g.arriveAll("a1")
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.at(time.Hour)
		g.saw("0s z left", "1m0s a1 left")
	}, shaper.WithMaxKeys(1))
}

func TestChangedLimitsOfAnUnlimitedKeyTakeEffectAtOnce(t *testing.T) {
	playKeys(t, "inf", func(g *groupStage) {
		g.arriveAll("a1", "a2")
		g.limit("a", "1/s")
		g.Reload()
		g.arriveAll("a3", "a4")
		g.limit("a", "inf")
		g.Reload()
		g.arriveAll("a5", "a6")
		g.at(time.Second)
		g.gone()
		g.says("a", func() (shaper.Limits, error) { return shaper.Limits{}, errNoUser })
		require.ErrorIs(t, g.Wait(context.Background(), "a"), errNoUser)
		require.EqualValues(t, 1, g.Group.Stats().LimitErrors)
		g.saw("0s a1 left", "0s a2 left", "0s a3 left", "0s a4 full, retry 1s", "0s a5 left", "0s a6 left")
	})
	playKeys(t, "inf depth 9", func(g *groupStage) { // One that is held has a bucket.
		g.Hold("a", time.Minute)
		g.arriveAll("a1", "a2", "a3")
		g.limit("a", "1/s depth 9")
		g.Reload()
		g.at(time.Hour)
		g.saw("1m0s a1 left", "1m1s a2 left", "1m2s a3 left")
	})
}

// What an unlimited key meets is counted and told to hooks as for any other.
func TestCallsOfUnlimitedKeysAreCounted(t *testing.T) {
	var told []string
	tell := func(what string) func(context.Context, shaper.Event) {
		return func(_ context.Context, e shaper.Event) {
			told = append(told, fmt.Sprintf("%s %v %d of %d: %v", what, e.Key, e.Cost, e.Waiting, e.Err))
		}
	}
	trace := shaper.WithTrace(&shaper.Trace{Departed: tell("departed"), Refused: tell("refused"), Abandoned: tell("abandoned")})
	playKeys(t, "inf", func(g *groupStage) {
		require.NoError(t, g.WaitN(context.Background(), "a", 5))
		late := stated{context.Background(), g.start.Add(-1)}
		err := g.Wait(late, "b")
		require.ErrorIs(t, err, shaper.ErrTooLate)
		require.True(t, errors.Is(err, context.DeadlineExceeded))
		require.NoError(t, g.Close())
		require.ErrorIs(t, g.Wait(context.Background(), "a"), shaper.ErrClosed)
		st := g.Group.Stats()
		require.Equal(t, shaper.GroupStats{Departed: 1, Refused: 2, TooLate: 1, Closed: 1, RefusedKeys: st.RefusedKeys}, st)
		require.Len(t, g.Top(9), 2)
		require.Equal(t, []string{"departed a 5 of 0: <nil>", fmt.Sprintf("refused b 1 of 0: %v", err), "refused a 1 of 0: shaper: closed"}, told)
	}, trace)
	told = nil
	playKeys(t, "inf", func(g *groupStage) {
		require.NoError(t, g.Wait(context.Background(), "a"))
		require.True(t, g.Allow("a"))
		require.Equal(t, shaper.GroupStats{Departed: 2, DryRun: true}, g.Group.Stats())
		require.Equal(t, []string{"departed a 1 of 0: <nil>", "departed a 1 of 0: <nil>"}, told)
	}, trace, shaper.WithDryRun())
}
