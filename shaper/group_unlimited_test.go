package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// This file tests a Group with keys at rate.Inf without a cap. Only their Limits have
// to be remembered, not their calls, so they leave the table to others.

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
			wait, err := g.Limiter(key).Forecast(1)
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
			wait, err := g.Limiter("a").Forecast(1)
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
		g.Limiter("a").Hold(time.Minute)
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.Limiter("b").Hold(time.Minute)
		require.Equal(t, 2, g.Group.Stats().Keys)
		g.Limiter("c").Hold(time.Minute)
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
				g.Limiter("a").Hold(time.Minute)
				g.arriveAll("a1", "a2", "b1")
				wait, err := g.Limiter("a").Forecast(1)
				require.ErrorIs(t, err, shaper.ErrQueueFull)
				require.Zero(t, wait)
				g.at(30 * time.Second)
				g.arriveAll("b2")
				g.at(2 * time.Minute)
				g.arriveAll("a3")
				g.Limiter("a").Hold(time.Minute)
				g.arriveAll("a4")
				g.at(150 * time.Second)
				g.Limiter("a").Hold(0)
				g.at(time.Hour + time.Minute)
				g.saw("0s a0 left", "0s a2 full, retry 1m0s", "0s b1 left", "30s b2 left", "1m0s a1 left",
					"2m0s a3 left", "2m30s a4 left")
				g.alone()
				require.Zero(t, g.Group.Stats().Keys)
			}, shaper.WithMaxKeys(1))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := must(shaper.NewGroup(func(float64) (shaper.Limits, error) { return limitsOf(t, "inf"), nil }))
		shaper.SpreadHomes(g, math.NaN(), 1)
		require.True(t, g.Allow(math.NaN()))
		g.Limiter(math.NaN()).Hold(time.Second)
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
		g.Limiter("a").Hold(time.Minute)
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
		g.Limiter("a").Hold(time.Minute)
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
		late := overdue{context.Background(), g.start.Add(-1)}
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

// This file holds guarantee 7 (change) for Reload.

// What a slower rate takes from a line and a faster one gives it is as it would be
// for a Shaper: the level is kept, and at no rate at all it is 0.
func TestReloadKeepsLevels(t *testing.T) {
	playKeys(t, "1/s burst 8", func(g *groupStage) {
		require.True(t, g.AllowN("a", 8))
		require.True(t, g.AllowN("b", 8))
		g.limit("a", "1/h burst 8")
		g.limit("b", "inf")
		g.at(2 * time.Second)
		g.Reload()
		require.Equal(t, map[string]float64{"a": 6}, g.levels(), "b is drained")
		g.at(10 * time.Second)
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.limit("a", "1000/s burst 8")
		g.Reload()
		require.InDelta(t, 6-8.0/3600, g.levels()["a"], 1e-9)
		g.at(10*time.Second + 6*ms)
		g.gone() // Though it was to be looked at much later.
		g.alone()
	})
}

func TestReloadKeepsTheLastGoodLimits(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.limit("p", "1/s depth 9 inflight 1")
		g.arriveAll("e1", "e2", "i1", "i2", "n1", "n2", "g1", "g2")
		g.acquireAll("p1", "p2")
		g.at(500 * ms)
		broken := func() {
			g.says("e", func() (shaper.Limits, error) { return shaper.Limits{Rate: 9}, errors.New("no answer") })
			g.says("i", func() (shaper.Limits, error) { return shaper.Limits{Rate: -1}, nil })
			g.limit("n", "9/s depth 9 inflight 3")
			g.limit("p", "9/s depth 9")
			g.limit("g", "4/s depth 9")
			g.Reload()
		}
		broken()
		require.EqualValues(t, 4, g.Group.Stats().LimitErrors)
		for key, l := range map[string]string{
			"e": "1/s depth 9", "i": "1/s depth 9", "n": "1/s depth 9", "p": "1/s depth 9 inflight 1", "g": "4/s depth 9",
		} {
			st, ok := g.StatsOf(key)
			require.True(t, ok)
			require.Equal(t, limitsOf(t, l), st.Limits, key)
		}
		g.release("p1")
		g.at(10 * time.Second)
		g.saw("0s e1 left", "0s i1 left", "0s n1 left", "0s g1 left", "0s p1 left",
			"625ms g2 left", "1s e2 left", "1s i2 left", "1s n2 left", "1s p2 left")
		g.release("p2")
		g.at(12 * time.Second)
		require.Zero(t, g.Group.Stats().Keys)
		broken()
		require.EqualValues(t, 4, g.Group.Stats().LimitErrors, "of keys that have no bucket nobody asks")
		// The next use of a key that has drained may bring a cap, or take one away.
		g.acquireAll("n3", "n4", "n5", "n6", "p3")
		g.at(20 * time.Second)
		require.Equal(t, 3, inFlightOf(g, "n"))
		g.release("n3", "p3")
		g.at(30 * time.Second)
		g.release("n4", "n5", "n6")
		g.arriveAll("p4")
	})
}

func inFlightOf(g *groupStage, key string) int {
	st, _ := g.StatsOf(key)
	return st.InFlight
}

// A bucket that has drained and not gone yet is really new if it gets a cap, or loses
// it: a call that has left it before, and has not returned, has no seat to give back.
func TestADrainedBucketThatGetsACapIsANewOne(t *testing.T) {
	for _, ends := range []bool{false, true} {
		playKeys(t, "1000/s depth 9", func(g *groupStage) {
			g.arriveAll("a1")
			returns := make(chan struct{})
			ctx := &meddling{Context: context.Background(), meddle: func() { <-returns }}
			var late context.Context = ctx
			if !ends {
				late = patient{ctx}
			}
			go func() {
				release, err := g.Acquire(late, "a", 1)
				release()
				g.note("a2 " + outcome(err))
			}()
			g.at(10 * ms) // It has its slot, and the bucket is drained.
			g.limit("a", "1000/s depth 9 inflight 1")
			g.Reload()
			g.acquireAll("a3", "a4")
			require.Equal(t, 1, inFlightOf(g, "a"))
			close(returns)
			synctest.Wait()
			require.Equal(t, 1, inFlightOf(g, "a"))
			g.release("a3")
			g.at(time.Second)
			g.release("a4")
			became := map[bool]string{false: "left", true: "cancelled"}[ends]
			g.saw("0s a1 left", "10ms a3 left", "10ms a2 "+became, "11ms a4 left")
			require.Equal(t, 1, g.Group.Stats().Keys)
			g.gone()
		})
	}
}

// patient is a context that acts when it is asked, as meddling does, but does not end.
type patient struct{ *meddling }

func (c patient) Err() error {
	_ = c.meddling.Err()
	return nil
}

// A key that is new while Reload runs gets no limits from before.
func TestWhatWasAskedBeforeAReloadIsAskedAgain(t *testing.T) {
	playKeys(t, "1/s burst 2", func(g *groupStage) {
		old, fresh := limitsOf(t, "1/h"), limitsOf(t, "7/s burst 7")
		inForce := old
		g.says("a", func() (shaper.Limits, error) {
			l := inForce
			time.Sleep(time.Second)
			return l, nil
		})
		g.arriveAll("a1", "a2")
		g.at(500 * ms)
		g.Reload()
		require.Equal(t, 500*ms, time.Since(g.start), "it waits for no question of others")
		g.at(1500 * ms) // They ask again.
		g.Reload()
		inForce = fresh
		g.Reload()
		g.at(time.Minute)
		g.saw("3s a1 left", "3s a2 left")
		require.Len(t, g.wasAsked(), 3)
	})
}

// One at a time, and each with limits that were asked for after it was called.
func TestReloadsAtOnce(t *testing.T) {
	playKeys(t, "1/h burst 9", func(g *groupStage) {
		g.arriveAll("a1", "b1")
		n := 0
		slow := func() (shaper.Limits, error) {
			n++
			l := shaper.Limits{Rate: 1.0 / 3600, Burst: 10 + n}
			time.Sleep(time.Second)
			return l, nil
		}
		g.says("a", slow)
		g.says("b", slow)
		for range 3 {
			go g.Reload()
		}
		g.at(1500 * ms)
		g.arriveAll("a2", "b2") // Nobody waits for a Reload.
		g.at(6 * time.Second)
		require.Equal(t, 6, n)
		a, _ := g.StatsOf("a")
		b, _ := g.StatsOf("b")
		require.ElementsMatch(t, []int{15, 16}, []int{a.Limits.Burst, b.Limits.Burst})
		g.saw("0s a1 left", "0s b1 left", "1.5s a2 left", "1.5s b2 left")
	})
}

func TestReloadOfAClosedGroupAsksNobody(t *testing.T) {
	playKeys(t, "1/h", func(g *groupStage) {
		g.arriveAll("a1")
		require.NoError(t, g.Close())
		g.wasAsked()
		g.Reload()
		require.Empty(t, g.wasAsked())
	})
}

// This file holds that a bucket is deleted within a second of being drained, and
// not before: when it is empty, nobody waits, none of its requests is in flight, and
// it is not held.

// isThereUntil asserts that the bucket of a is not drained a nanosecond before an
// instant, is drained then, and has gone a second later with all else of the Group.
func (g *groupStage) isThereUntil(drained time.Duration) {
	g.t.Helper()
	g.at(drained - ns)
	require.Contains(g.t, g.levels(), "a", "at %v", drained-ns)
	require.Equal(g.t, 1, g.Group.Stats().Keys)
	g.at(drained)
	g.gone()
	g.alone()
}

func TestADrainedBucketIsDeleted(t *testing.T) {
	t.Parallel()
	for drains, limits := range map[time.Duration]string{
		ns:                      "1000000000/s",
		100 * ms:                "10/s",
		499 * ms:                "1 per 499ms",
		500 * ms:                "2/s",
		500001 * us:             "1 per 500001us",
		time.Second:             "1/s",
		31500 * ms:              "1 per 31500ms",
		32 * time.Second:        "1 per 32s",
		time.Hour + 7*ms:        "1 per 3600007ms",
		24 * time.Hour:          "1/d",
		7*24*time.Hour + 333*ms: "1 per 604800333ms",
	} {
		for _, begin := range []time.Duration{0, ns, 499 * ms, 500 * ms, 1234567 * us} {
			if drains > 24*time.Hour && begin > 0 && !long {
				continue // A million sweeps take most of the processor time of all.
			}
			t.Run(fmt.Sprint(limits, " from ", begin), func(t *testing.T) {
				playKeys(t, limits, func(g *groupStage) {
					g.at(begin)
					require.True(t, g.Allow("a"))
					g.isThereUntil(begin + drains)
					// And so it is the second time, and if it is used on and on.
					begin = time.Since(g.start)
					require.True(t, g.Allow("a"))
					g.isThereUntil(begin + drains)
				})
			})
		}
	}
}

func TestABucketInUseIsNotDeleted(t *testing.T) {
	playKeys(t, "1 per 2s burst 3", func(g *groupStage) {
		for i := range 100 {
			g.at(time.Duration(i) * 1999 * ms)
			require.True(t, g.Allow("a"))
		}
		require.Len(t, g.wasAsked(), 1)
		// 100 have left, one each 1,999 ms. The first 99 of these spans leak 999.5 in 2 s.
		g.isThereUntil(200 * time.Second)
	})
}

func TestABucketWithALineIsNotDeleted(t *testing.T) {
	playKeys(t, "1 per 10s depth 99", func(g *groupStage) {
		for range 12 {
			g.arriveAll("a")
		}
		g.isThereUntil(120 * time.Second)
		require.EqualValues(t, 12, g.Group.Stats().Departed)
	})
}

// What a settle gives back drains no more, and what it charges drains, too.
func TestABucketWhoseRequestsWereSettledIsDeletedThen(t *testing.T) {
	for actual, drains := range map[int]time.Duration{0: time.Minute, 3: 3 * time.Hour, 30: 30 * time.Hour} {
		playKeys(t, "1/h burst 24", func(g *groupStage) {
			settle, err := g.Limiter("a").Reserve(context.Background(), 24)
			require.NoError(t, err)
			g.at(time.Minute - ns)
			require.Contains(t, g.levels(), "a")
			g.at(time.Minute)
			settle(actual)
			if actual == 0 {
				g.gone()
				g.alone()
				return
			}
			g.isThereUntil(drains)
		})
	}
}

// The level of the requests given back drains no more.
func TestABucketWhoseWaitersGaveUpIsDeletedSooner(t *testing.T) {
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1")
		g.arrive("dear", "a", 24)
		g.arriveAll("a2")
		g.at(time.Minute)
		g.cancel("dear", "a2")
		g.isThereUntil(time.Hour)
	})
	playKeys(t, "1/h depth 9", func(g *groupStage) {
		g.arriveAll("a1")
		late := newLateCancel()
		g.arriveWith(late, "dear", "a", 24)
		late.end()
		g.at(time.Hour) // It leaves, is seen to have gone, and gives 24 hours back.
		g.saw("0s a1 left", "1h0m0s dear cancelled")
		g.gone()
		g.alone()
	})
}

func TestAHeldBucketIsDeletedAfterTheHold(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.Limiter("a").Hold(time.Hour) // Nobody has used it before.
		g.isThereUntil(time.Hour)
		g.Limiter("a").Hold(time.Hour)
		g.at(2 * time.Hour)
		g.Limiter("a").Hold(0)
		g.gone()
		g.alone()
	})
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.Limiter("a").Hold(time.Hour)
		g.arriveAll("a1", "a2")
		g.isThereUntil(time.Hour + 2*time.Second)
	})
}

func TestABucketWithASeatTakenIsNotDeleted(t *testing.T) {
	playKeys(t, "inf depth 9 inflight 2", func(g *groupStage) {
		g.acquireAll("a1", "a2", "a3", "a4")
		g.at(time.Hour)
		g.cancel("a3")
		g.release("a1")
		g.at(2 * time.Hour)
		st, ok := g.StatsOf("a")
		require.True(t, ok)
		require.Equal(t, 2, st.InFlight)
		g.release("a2", "a2", "a4", "a3")
		g.gone()
		g.alone()
		g.release("a1", "a2", "a4") // What has been given back is nobody else's.
		g.acquireAll("a5", "a6", "a7")
		g.release("a1", "a2", "a4")
		g.saw("0s a1 left", "0s a2 left", "1h0m0s a3 cancelled", "1h0m0s a4 left", "2h0m1s a5 left", "2h0m1s a6 left")
		g.release("a5", "a6", "a7")
		g.gone()
	})
}

// A call that is refused or misused makes a bucket that nobody has used.
func TestABucketThatNobodyUsedIsDeleted(t *testing.T) {
	playKeys(t, "1/s inflight 1", func(g *groupStage) {
		require.ErrorContains(t, g.Wait(context.Background(), "a"), "Acquire")
		require.False(t, g.Allow("a"))
		_, err := g.Acquire(context.Background(), "a", 2)
		require.ErrorIs(t, err, shaper.ErrTooCostly)
		g.gone()
		g.alone()
	})
}

// A ticker that serves lines deletes buckets that have drained meanwhile, and one
// that only waits for buckets to drain lets a line leave that is formed after it
// has gone to sleep.
func TestTheTickerServesLinesAndDrains(t *testing.T) {
	playKeys(t, "1/s depth 9", func(g *groupStage) {
		g.limit("h", "1/h depth 9")
		g.arriveAll("h1", "h2")
		g.at(10*time.Second + 250*ms)
		g.arriveAll("a1", "a2")
		g.at(20 * time.Second)
		require.Equal(t, 1, g.Group.Stats().Keys)
		g.arriveAll("b1", "b2", "b3")
		g.cancel("h2")
		g.at(time.Minute)
		g.saw("0s h1 left", "10.25s a1 left", "11.25s a2 left", "20s b1 left", "20s h2 cancelled", "21s b2 left", "22s b3 left")
		require.Equal(t, []string{"h"}, slices.Collect(maps.Keys(g.levels())))
	})
}
