package shaper_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// This file holds guarantee 7 (change).

func TestSetLimitsReTimesThoseWhoWait(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(500 * ms)
		g.set("10/s depth 9") // The level is 0.5: b leaves when it is 0.
		g.at(600 * ms)
		g.set("2/s depth 9") // The level is 0.5 again, after b.
		g.at(10 * time.Second)
		g.saw("0s a left", "550ms b left", "850ms c left", "1.35s d left")
	})
}

func TestUpdateLimitsChangesOneOfThemAlone(t *testing.T) {
	play(t, "1/s burst 2 depth 9 wait 20s", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(500 * ms)
		require.NoError(t, g.UpdateLimits(func(l shaper.Limits) shaper.Limits {
			l.Rate = 10
			return l
		}))
		require.Equal(t, "10/s burst 2 depth 9 wait 20s", g.Limits().String())
		g.at(10 * time.Second)
		g.saw("0s a left", "0s b left", "550ms c left", "650ms d left") // The level was 1.5.
	})
}

func TestUpdateLimitsLosesNoOtherChange(t *testing.T) {
	play(t, "1/s", func(g *stage) {
		const changes = 40
		var all sync.WaitGroup
		for i := range changes {
			all.Go(func() {
				require.NoError(t, g.UpdateLimits(func(l shaper.Limits) shaper.Limits {
					if i%2 == 0 {
						l.Depth++
					} else {
						l.MaxWait += time.Second
					}
					return l
				}))
			})
		}
		all.Wait()
		require.Equal(t, shaper.Limits{Rate: 1, Depth: changes / 2, MaxWait: changes / 2 * time.Second}, g.Limits())

		// Another change comes while the function runs.
		var saw []int
		require.NoError(t, g.UpdateLimits(func(l shaper.Limits) shaper.Limits {
			saw = append(saw, l.Depth)
			if len(saw) == 1 {
				g.set("7/s depth 70")
			}
			l.Depth++
			return l
		}))
		require.Equal(t, []int{changes / 2, 70}, saw)
		require.Equal(t, shaper.Limits{Rate: 7, Depth: 71}, g.Limits())
	})
}

// An error that a stale value has brought about is not returned: the fresh one may be valid.
func TestUpdateLimitsReturnsTheErrorsOfSetLimits(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		for field, change := range map[string]func(*shaper.Limits){
			"Rate":     func(l *shaper.Limits) { l.Rate = rate.Limit(math.NaN()) },
			"InFlight": func(l *shaper.Limits) { l.InFlight = 1 },
		} {
			err := g.UpdateLimits(func(l shaper.Limits) shaper.Limits {
				change(&l)
				return l
			})
			require.ErrorContains(t, err, field)
			require.Equal(t, "1/s depth 1", g.Limits().String())
		}
		calls := 0
		require.NoError(t, g.UpdateLimits(func(l shaper.Limits) shaper.Limits {
			if calls++; calls == 1 {
				g.set("1/s depth 9")
			}
			l.Depth -= 5
			return l
		}))
		require.Equal(t, "1/s depth 4", g.Limits().String())
	})
}

// The best-known limiter lets those who wait sleep on: after a change from one
// per hour to 1000/s its waiter still leaves after an hour.
func TestAFasterRateWakesTheTicker(t *testing.T) {
	play(t, "1/h depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c")
		g.at(time.Second)
		g.set("1000/s depth 9")
		g.at(2 * time.Second)
		g.saw("0s a left", "1.000999723s b left", "1.001999723s c left")
	})
}

func TestALargerBurstLetsTheLineLeaveAtOnce(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(500 * ms)
		g.set("1/s burst 3 depth 9")
		g.at(10 * time.Second)
		// The level was 0.5: b and c fit on top of it, d when it is 2.
		g.saw("0s a left", "500ms b left", "500ms c left", "1s d left")
	})
}

func TestASmallerBurstKeepsTheLevel(t *testing.T) {
	play(t, "1/s burst 5 depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d", "e")
		g.set("1/s burst 1 depth 9")
		g.arriveAll("f")
		g.at(10 * time.Second)
		require.Contains(t, g.log, "5s f left")
	})
}

func TestASmallerDepthDropsNobody(t *testing.T) {
	play(t, "1/s depth 3", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.set("1/s depth 1")
		g.arriveAll("e") // A place is free when the third in line has left.
		g.set("1/s")
		g.arriveAll("f")
		g.at(10 * time.Second)
		g.saw("0s a left", "0s e full, retry 3s", "0s f full, retry 4s", "1s b left", "2s c left", "3s d left")
	})
}

func TestToInfAndBackEmptiesTheBucket(t *testing.T) {
	play(t, "1/s burst 2 depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(100 * ms)
		g.set("inf burst 2 depth 9")
		require.Zero(t, g.Stats().Waiting)
		g.set("1/s burst 2 depth 9")
		require.Zero(t, g.Stats().Level)
		require.True(t, g.AllowN(2))
		require.False(t, g.Allow())
	})
}

func TestInvalidLimitsChangeNothing(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		for _, l := range []shaper.Limits{{}, {Rate: rate.Limit(math.NaN()), Depth: 9}, {Rate: 1, Depth: -1}} {
			require.Error(t, g.SetLimits(l))
		}
		require.Equal(t, shaper.Limits{Rate: 1, Depth: 9}, g.Limits())
		g.at(10 * time.Second)
		g.saw("0s a left", "1s b left")
	})
}

// However often the rate changes between awkward fractions, the level is kept
// exactly: over and back again nobody leaves a nanosecond sooner or later.
func TestTheLevelSurvivesAnyNumberOfChanges(t *testing.T) {
	rates := []rate.Limit{1.0 / 3, 7, 1e6, math.Pi, 22.0 / 7, 0.1, 1e9, rate.Every(365 * 24 * time.Hour), 13}
	play(t, "7/s burst 3 depth 9", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.at(100 * ms)
		for range 50 {
			for _, r := range rates {
				require.NoError(t, g.SetLimits(shaper.Limits{Rate: r, Depth: 9}))
				require.InDelta(t, 2.3, g.Stats().Level, 1e-12)
			}
		}
		g.set("7/s burst 3 depth 9")
		g.at(time.Second)
		require.Contains(t, g.log, "142.857143ms d left")
	})
}

// A level that would take longer than an instant can hold is not forgotten.
func TestAGreatLevelSurvivesASlowRate(t *testing.T) {
	play(t, "1000000000/s burst 1000000000 depth 9", func(g *stage) {
		require.True(t, g.AllowN(1_000_000_000))
		require.NoError(t, g.SetLimits(shaper.Limits{Rate: rate.Every(365 * 24 * time.Hour), Depth: 9}))
		require.InEpsilon(t, 1e9, g.Stats().Level, 1e-12)
		require.False(t, g.Allow())
		_, err := g.Forecast(1)
		require.ErrorIs(t, err, shaper.ErrTooLate)
		g.set("1000000000/s depth 9")
		require.InEpsilon(t, 1e9, g.Stats().Level, 1e-12)
		wait, err := g.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, time.Second, wait)
	})
}

// This file holds what Hold promises.

// What Hold does to those in line, to newcomers, and at the ends of each is compared with the model
// in TestModel. These are the timelines by which one understands it.
func TestNobodyLeavesDuringAHold(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		g.at(50 * ms)
		g.Hold(time.Second)
		g.arriveAll("c")
		require.False(t, g.Allow())
		g.at(time.Minute)
		g.saw("0s a left", "1.05s b left", "1.15s c left")
		require.Zero(t, g.Stats().Missed, "who could not leave is not late")
	})
}

// When the hold is over the bucket is as one that nobody has used since: Burst
// leave at once, and not one more.
func TestAHoldEarnsNothingBeyondBurst(t *testing.T) {
	play(t, "10/s burst 3 depth 9", func(g *stage) {
		g.arriveAll("1", "2", "3", "4", "5", "6", "7")
		g.Hold(time.Minute)
		g.arriveAll("8")
		g.at(2 * time.Minute)
		g.saw("0s 1 left", "0s 2 left", "0s 3 left", "1m0s 4 left", "1m0s 5 left", "1m0s 6 left",
			"1m0.1s 7 left", "1m0.2s 8 left")
		require.Zero(t, g.Stats().Missed)
	})
}

func TestTheLaterEndOfTwoHoldsWins(t *testing.T) {
	for _, c := range []struct{ first, then, want time.Duration }{
		{time.Second, 2 * time.Second, 2500 * ms},
		{2 * time.Second, time.Second, 2 * time.Second},
		{time.Second, -1, time.Second},
		{time.Second, math.MinInt64, time.Second},
	} {
		play(t, "10/s depth 9", func(g *stage) {
			g.Hold(c.first)
			g.arriveAll("a")
			g.at(500 * ms)
			g.Hold(c.then)
			require.Equal(t, g.start.Add(c.want), g.Stats().HeldUntil)
			g.at(time.Minute)
			g.saw(c.want.String() + " a left")
		})
	}
}

func TestHoldZeroReleases(t *testing.T) {
	play(t, "10/s burst 2 depth 9", func(g *stage) {
		g.Hold(time.Hour)
		g.Hold(time.Minute)
		g.arriveAll("a", "b", "c", "d")
		g.at(time.Second)
		g.Hold(0)
		require.True(t, g.Stats().HeldUntil.IsZero())
		g.at(2 * time.Minute)
		g.saw("1s a left", "1s b left", "1.1s c left", "1.2s d left")
		require.Zero(t, g.Stats().Missed)
		g.Hold(0) // There is none to end.
		g.arriveAll("e")
		g.saw("2m0s e left")
	})
}

// Hold(0) ends a hold, and not the wait for a slot; where there is no hold it
// leaves the schedule alone, to the fraction of a nanosecond.
func TestHoldZeroDoesNotShiftTheSchedule(t *testing.T) {
	play(t, "7/s depth 9", func(g *stage) {
		g.arriveAll("1", "2", "3", "4", "5", "6", "7", "8")
		for range 1000 {
			g.at(time.Since(g.start) + ms)
			g.Hold(0)
			g.Hold(1)
		}
		require.Contains(t, g.log, "1s 8 left")
	})
}

// An end that is centuries away would never come in the life of a process.
func TestAHoldReachesNoFurtherThanTheHorizon(t *testing.T) {
	const year = 365 * 24 * time.Hour
	play(t, "10/s depth 9", func(g *stage) {
		g.Hold(math.MaxInt64)
		require.Equal(t, g.start.Add(year), g.Stats().HeldUntil)
		g.arriveAll("a", "b")
		g.at(year)
		g.saw("0s b late, retry 100ms", "8760h0m0s a left")
	})
}

func TestPredictionCountsTheHold(t *testing.T) {
	play(t, "10/s burst 2 depth 3 wait 2s", func(g *stage) {
		g.Hold(time.Second)
		wait, err := g.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, time.Second, wait)
		g.arriveWithin(time.Second, "too late", 1)
		g.arriveWithin(time.Second+1, "in time", 1)
		g.arriveAll("b", "c")
		wait, err = g.Forecast(1)
		require.Error(t, err)
		require.Zero(t, wait)
		g.arriveAll("full")
		g.at(500 * ms)
		g.Hold(1600 * ms) // 100 ms more than may be waited for.
		g.saw("0s too late late, retry 1ns", "0s full full, retry 1s")
		g.cancel("b", "c")
		g.arriveAll("held")
		g.at(time.Minute)
		g.saw("500ms b cancelled", "500ms c cancelled", "1.000000001s in time expired", "2.1s held left")
	})
}

func TestHoldAndCapBothHaveToAllow(t *testing.T) {
	play(t, "10/s burst 9 depth 9 inflight 1", func(g *stage) {
		g.acquireAll("a", "b", "c")
		g.Hold(time.Second)
		g.at(500 * ms)
		g.release("a") // There is a seat, but the line is held.
		g.at(2 * time.Second)
		g.saw("0s a left", "1s b left") // The hold is over, but there is no seat.
		g.release("b")
		g.saw("2s c left")
		g.Hold(time.Second)
		g.acquireAll("d")
		g.release("c")
		g.at(2500 * ms)
		g.Hold(0)
		g.saw("2.5s d left")
		require.Zero(t, g.Stats().Missed)
	})
}

// The slot of a departure that is abandoned is the next waiter's, but not before
// a hold that has begun in between is over.
func TestASlotIsNotHandedOnDuringAHold(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a")
		g.arriveWith(&meddling{Context: context.Background(), meddle: func() { g.Hold(time.Second) }}, "gone", 1)
		g.arriveAll("b")
		g.at(time.Minute)
		g.saw("0s a left", "100ms gone cancelled", "1.1s b left")
	})
}

// meddling is the context of a call whose last question, asked when it has its
// slot, does something and is then answered by the end of the context.
type meddling struct {
	context.Context
	meddle func()
	asked  int
}

func (c *meddling) Err() error {
	if c.asked++; c.asked == 1 {
		return nil // at entry
	}
	c.meddle()
	return context.Canceled
}

func TestHoldMayBeCalledFromAHook(t *testing.T) {
	var g *stage
	trace := &shaper.Trace{Departed: func(context.Context, shaper.Event) { g.Hold(time.Second) }}
	play(t, "10/s depth 9", func(stage *stage) {
		g = stage
		g.arriveAll("a", "b", "c")
		g.at(time.Minute)
		g.saw("0s a left", "1s b left", "2s c left")
	}, shaper.WithTrace(trace))
}
