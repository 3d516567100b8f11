package shaper_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// The timelines of this file hold guarantees 1 (pace), 2 (order), 3 (bound) and
// 10 (one instant). Those of abandonment, prediction, change and end have
// files of their own.

func TestABurstLeavesAsAComb(t *testing.T) {
	play(t, "50/s depth 4", func(g *stage) {
		g.arriveAll("a", "b", "c", "d", "e", "f")
		g.saw("0s a left", "0s f full, retry 20ms")
		g.at(time.Second)
		g.saw("20ms b left", "40ms c left", "60ms d left", "80ms e left")
	})
}

func TestBurstLeavesAtOnceAndThenALine(t *testing.T) {
	play(t, "10/s burst 3 depth 2", func(g *stage) {
		g.arriveAll("a", "b", "c", "d", "e", "f")
		g.saw("0s a left", "0s b left", "0s c left", "0s f full, retry 100ms")
		g.at(time.Second)
		g.saw("100ms d left", "200ms e left")
	})
}

// A capacity of 3 that leaks 1.5 a second.
func TestDepthZeroIsAMeter(t *testing.T) {
	play(t, "1.5/s burst 3", func(g *stage) {
		g.arriveAll("a", "b", "c", "d")
		g.saw("0s a left", "0s b left", "0s c left", "0s d full, retry 666.666667ms")
		g.at(666666666 * ns)
		g.arriveAll("e")
		g.at(666666667 * ns)
		g.arriveAll("f", "g")
		g.saw("666.666666ms e full, retry 1ns", "666.666667ms f left", "666.666667ms g full, retry 666.666667ms")
	})
}

func TestCostAboveBurstWaitsForAnEmptyBucketAndHoldsIt(t *testing.T) {
	play(t, "10/s burst 2 depth 9", func(g *stage) {
		g.arriveAll("a")
		g.arrive("five", 5)
		g.arriveAll("b")
		g.at(time.Second)
		// a is gone from the bucket at 100 ms, five holds it until 600 ms, and
		// b may leave when the level is 1.
		g.saw("0s a left", "100ms five left", "500ms b left")
	})
}

func TestWeightsTakeTheirTime(t *testing.T) {
	play(t, "10/s burst 4 depth 9", func(g *stage) {
		g.arrive("three", 3) // level 3
		g.arrive("two", 2)   // at level 2
		g.arrive("one", 1)   // at level 3
		g.arrive("four", 4)  // at level 0
		g.at(time.Second)
		g.saw("0s three left", "100ms two left", "200ms one left", "600ms four left")
	})
}

// 604,800 departures at 7/s fill 24 hours exactly, and so do the departures at
// the other rates. The rate gives the instant of each, rounded up to a
// nanosecond and never summed from rounded ones.
func TestScheduleNeitherDriftsNorRunsEarly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rate rate.Limit
		// num/den seconds are one interval, exactly.
		num, den int64
		// cost of each departure: the great rates need great ones to get far.
		cost int
	}{
		{"7/s", 7, 1, 7, 1},
		{"3/min", 3.0 / 60, 20, 1, 1},
		{"1 per 3s", rate.Every(3 * time.Second), 3, 1, 1},
		{"one third", 1.0 / 3, 3, 1, 1},
		{"1,000,000/s", 1e6, 1, 1e6, 1e6},
		{"999,999/s", 999999, 1, 999999, 1234567},
		{"7/9 per s", 7.0 / 9, 9, 7, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			span := time.Hour
			if long {
				span = 24 * time.Hour
			}
			playLimits(t, shaper.Limits{Rate: c.rate, Depth: 2}, func(g *stage) {
				perDeparture := float64(c.num) / float64(c.den) * float64(c.cost)
				n := int64(span.Seconds()/perDeparture) + 1
				var wg sync.WaitGroup
				var mu sync.Mutex
				var left int64
				for range 2 { // Two callers: one always waits.
					wg.Go(func() {
						for {
							err := g.WaitN(context.Background(), c.cost)
							mu.Lock()
							// The i-th leaves i·cost·num/den seconds after the first.
							i := left
							left++
							mu.Unlock()
							units := i * int64(c.cost)
							want := units / c.den * c.num * 1e9
							rest := units % c.den * c.num * 1e9
							want += (rest + c.den - 1) / c.den
							if at := time.Since(g.start); err != nil || at != time.Duration(want) {
								t.Errorf("departure %d at %v instead of %v, with %v", i, at, time.Duration(want), err)
								return
							}
							if i >= n {
								return
							}
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

func TestAnIdleBucketEarnsNothingBeyondBurst(t *testing.T) {
	play(t, "10/s burst 2 depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		g.at(200 * 365 * 24 * time.Hour)
		g.arriveAll("c", "d", "e")
		g.saw("0s a left", "0s b left", "1752000h0m0s c left", "1752000h0m0s d left")
		g.at(201 * 365 * 24 * time.Hour)
		g.saw("1752000h0m0.1s e left")
	})
}

func TestAPhaseIsNotKeptAfterIdleTime(t *testing.T) {
	play(t, "10/s depth 9", func(g *stage) {
		g.arriveAll("a", "b")
		g.at(295 * ms)
		g.arriveAll("c", "d")
		g.at(time.Second)
		// Not at 300 ms, as a ticker would have it that had kept its beat.
		g.saw("0s a left", "100ms b left", "295ms c left", "395ms d left")
	})
}

func TestNobodyOvertakes(t *testing.T) {
	play(t, "10/s burst 5 depth 9", func(g *stage) {
		g.arrive("a", 5)
		g.arrive("dear", 5)
		g.arrive("cheap", 1)
		require.False(t, g.Allow(), "a newcomer would have overtaken the line")
		g.at(499 * ms)
		require.False(t, g.Allow(), "there is room for 4.99, but a dear one waits for it")
		g.at(time.Second)
		g.saw("0s a left", "500ms dear left", "600ms cheap left")
	})
}

func TestAllowLeavesNowOrNotAtAll(t *testing.T) {
	play(t, "10/s burst 2 depth 9", func(g *stage) {
		require.True(t, g.Allow())
		require.True(t, g.Allow())
		require.False(t, g.Allow())
		require.True(t, g.AllowN(0))
		require.False(t, g.AllowN(-1))
		g.at(100 * ms)
		require.False(t, g.AllowN(2))
		require.True(t, g.AllowN(1))
		g.at(300 * ms)
		require.True(t, g.AllowN(3), "the bucket is empty")
		require.EqualValues(t, 4, g.Stats().Departed)
		require.EqualValues(t, 2, g.Stats().QueueFull)
		require.EqualValues(t, 6, g.Stats().Departed+g.Stats().Refused)
	})
}

func TestTheLineIsBounded(t *testing.T) {
	play(t, "1/s depth 3", func(g *stage) {
		g.arriveAll("a", "b", "c", "d", "e", "f")
		require.Equal(t, 3, g.Stats().Waiting)
		g.saw("0s a left", "0s e full, retry 1s", "0s f full, retry 1s")
		g.at(time.Second)
		g.arriveAll("g", "h")
		g.saw("1s b left", "1s h full, retry 1s")
		require.NoError(t, g.Close())
	})
}

func TestCostZeroAndNegativeCost(t *testing.T) {
	play(t, "1/s depth 3", func(g *stage) {
		require.NoError(t, g.Wait(context.Background()))
		require.NoError(t, g.WaitN(context.Background(), 0), "a cost of 0 passes")
		err := g.WaitN(context.Background(), -1)
		require.True(t, err == shaper.ErrNegativeCost, "bare: %v", err)
		done, cancel := context.WithCancel(context.Background())
		cancel()
		require.True(t, g.WaitN(done, -1) == shaper.ErrNegativeCost, "the cost is looked at first")
		require.True(t, g.WaitN(done, 0) == context.Canceled, "then the context")
		require.NoError(t, g.Close())
		require.NoError(t, g.WaitN(context.Background(), 0), "then whether there is a cost at all")
		require.True(t, g.AllowN(0))
		require.EqualValues(t, 1, g.Stats().Departed)
		require.Zero(t, g.Stats().Refused)
		require.Zero(t, g.Stats().Abandoned)
	})
}

func TestTooCostly(t *testing.T) {
	const year = 365 * 24 * 3600
	play(t, "10/s burst 5 depth 9", func(g *stage) {
		g.arrive("year", 10*year)
		g.arrive("longer", 10*year+1)
		g.arrive("largest", math.MaxInt)
		g.saw("0s year left", "0s longer costly, retry 0s", "0s largest costly, retry 0s")
		require.False(t, g.AllowN(math.MaxInt))
		require.EqualValues(t, 3, g.Stats().TooCostly)
	})
	play(t, "10/s burst 5", func(g *stage) {
		g.arrive("six", 6)
		require.False(t, g.AllowN(6), "with Depth 0 not even an empty bucket takes more than Burst")
		g.arrive("five", 5)
		g.saw("0s six costly, retry 0s", "0s five left")
		require.EqualValues(t, 2, g.Stats().TooCostly)
	})
}

func TestAtInfNobodyWaits(t *testing.T) {
	play(t, "inf burst 2", func(g *stage) {
		g.arrive("a", 1)
		g.arrive("largest", math.MaxInt)
		require.True(t, g.AllowN(math.MaxInt))
		g.saw("0s a left", "0s largest left")
		require.Zero(t, g.Stats().Level)
		g.set("1/s burst 2")
		g.arriveAll("b", "c", "d")
		g.saw("0s b left", "0s c left", "0s d full, retry 1s")
	})
}

func TestExtremeRates(t *testing.T) {
	year := 365 * 24 * time.Hour
	t.Run("1 per 365 days", func(t *testing.T) {
		playLimits(t, shaper.Limits{Rate: rate.Every(year), Depth: 9}, func(g *stage) {
			g.arriveAll("a", "b", "c")
			g.arrive("two", 2)
			g.saw("0s a left", "0s c late, retry 8760h0m0s", "0s two costly, retry 0s")
			g.at(year)
			g.saw("8760h0m0s b left")
		})
	})
	t.Run("1e9/s", func(t *testing.T) {
		playLimits(t, shaper.Limits{Rate: 1e9, Depth: 9}, func(g *stage) {
			g.arriveAll("a")
			most := int(min(year, math.MaxInt)) // A year, where an int has 64 bits.
			g.arrive("year", most)
			g.saw("0s a left")
			g.at(1 * ns)
			g.saw("1ns year left")
			require.InEpsilon(t, float64(most), g.Stats().Level, 1e-15)
		})
	})
}

// Guarantee 10: in whichever order the runtime fires the timers of one instant,
// a departure comes before an arrival, a change, an end or a look.
func TestDeparturesComeFirstWithinAnInstant(t *testing.T) {
	for range 200 {
		play(t, "10/s depth 1", func(g *stage) {
			g.arriveAll("a", "b")
			g.at(100*ms - 1)
			go func() { time.Sleep(1 * ns); g.note("c " + outcome(g.Wait(context.Background()))) }()
			time.Sleep(1 * ns)
			require.NoError(t, g.Close())
			synctest.Wait()
			// b left first. c found its place free, or the shaper closed.
			g.saw("0s a left", "100ms b left", "100ms c closed, retry 0s")
		})
	}
	for range 200 {
		play(t, "10/s depth 1", func(g *stage) {
			g.arriveAll("a", "b")
			time.Sleep(100 * ms)
			require.Zero(t, g.Stats().Waiting, "a look")
			g.arrive("c", 1)
			g.at(300 * ms)
			g.saw("0s a left", "100ms b left", "200ms c left")
		})
		play(t, "10/s depth 1", func(g *stage) {
			g.arriveAll("a", "b")
			time.Sleep(100 * ms)
			require.NoError(t, g.SetLimits(shaper.Limits{Rate: 0.1, Depth: 1}))
			g.saw("0s a left", "100ms b left")
		})
		play(t, "10/s depth 1", func(g *stage) {
			g.arriveAll("a", "b")
			time.Sleep(100 * ms)
			wait, err := g.Forecast(1)
			require.NoError(t, err)
			require.Equal(t, 100*ms, wait)
		})
	}
}

// Guarantee 11.
func TestInvalidLimitsMakeNoShaper(t *testing.T) {
	for _, l := range []shaper.Limits{
		{}, {Rate: rate.Limit(math.NaN())}, {Rate: rate.Limit(math.Inf(1))}, {Rate: -1},
		{Rate: 1, Burst: -1}, {Rate: 1, Depth: -1}, {Rate: 1, MaxWait: -1}, {Rate: 1, Slack: -1},
	} {
		s, err := shaper.New(l)
		require.ErrorContains(t, err, "shaper: Limits.", "%+v", l)
		require.Nil(t, s)
	}
}

func TestTheZeroShaperSaysToUseNew(t *testing.T) {
	for name, use := range map[string]func(s *shaper.Shaper){
		"Wait":      func(s *shaper.Shaper) { _ = s.Wait(context.Background()) },
		"WaitN":     func(s *shaper.Shaper) { _ = s.WaitN(context.Background(), 0) },
		"Allow":     func(s *shaper.Shaper) { s.Allow() },
		"AllowN":    func(s *shaper.Shaper) { s.AllowN(0) },
		"Forecast":  func(s *shaper.Shaper) { _, _ = s.Forecast(0) },
		"Limits":    func(s *shaper.Shaper) { s.Limits() },
		"SetLimits": func(s *shaper.Shaper) { _ = s.SetLimits(shaper.Limits{}) },
		"Stats":     func(s *shaper.Shaper) { s.Stats() },
		"Acquire":   func(s *shaper.Shaper) { _, _ = s.Acquire(context.Background(), 0) },
		"Do":        func(s *shaper.Shaper) { _ = s.Do(context.Background(), 0, nil) },
		"Hold":      func(s *shaper.Shaper) { s.Hold(-1) },
		"Shutdown":  func(s *shaper.Shaper) { _ = s.Shutdown(context.Background()) },
		"Close":     func(s *shaper.Shaper) { _ = s.Close() },
	} {
		require.PanicsWithValue(t,
			"shaper: this Shaper is nil or zero and can't be used; make one with shaper.New",
			func() { use(new(shaper.Shaper)) }, name)
	}
}

// Waiters are kept per shaper. A pool of the process would hand a channel of
// one bubble to another, or to plain code, which is a fatal error.
func TestBubblesAndPlainCodeShareAProcess(t *testing.T) {
	waitThrice := func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 10_000, Depth: 3}))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _ = s.Wait(context.Background()) })
		}
		wg.Wait()
		require.EqualValues(t, 4, s.Stats().Departed)
		require.NoError(t, s.Close())
	}
	inABubble := func(t *testing.T) { synctest.Test(t, waitThrice) }
	t.Run("a bubble", inABubble)
	t.Run("plain code", waitThrice)
	t.Run("another bubble", inABubble)
	t.Run("plain code again", waitThrice)
}
