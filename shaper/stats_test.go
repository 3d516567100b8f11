package shaper_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func TestStatsAreTheStateOfOneInstant(t *testing.T) {
	play(t, "10/s burst 2 depth 3 wait 1s", func(g *stage) {
		fresh := g.Stats()
		require.Equal(t, shaper.Stats{Name: "api", Limits: g.Limits(), Free: 2}, fresh)
		g.at(time.Second)
		g.arriveAll("a", "b", "c", "d", "e", "f") // f finds no place
		g.arrive("huge", math.MaxInt)
		g.at(1050 * ms)
		g.cancel("d")
		require.True(t, g.Wait(closedContext()) == context.Canceled)
		require.Equal(t, shaper.Stats{
			Name: "api", Limits: g.Limits(),
			Waiting: 2, Level: 1.5, EmptyAt: g.start.Add(1200 * ms), OldestWait: 50 * ms,
			LastCall: g.start.Add(time.Second), LastRefusal: g.start.Add(time.Second),
			Departed: 2, Refused: 2, Abandoned: 1, QueueFull: 1, TooCostly: 1,
		}, g.Stats())
		g.at(3 * time.Second)
		require.Equal(t, shaper.Stats{
			Name: "api", Limits: g.Limits(), Free: 2,
			LastCall: g.start.Add(time.Second), LastRefusal: g.start.Add(time.Second),
			Departed: 4, Refused: 2, Abandoned: 1, QueueFull: 1, TooCostly: 1,
			TotalWait: 300 * ms,
		}, g.Stats())
		g.set("1/s depth 3 wait 1s")
		g.arriveAll("h", "i", "j")
		require.EqualValues(t, 1, g.Stats().TooLate)
		require.NoError(t, g.Close())
		g.at(3 * time.Second)
		st := g.Stats()
		require.EqualValues(t, 1, st.Closed)
		require.Equal(t, st.Refused, st.QueueFull+st.TooLate+st.TooCostly+st.Closed+st.Unavailable)
		require.Equal(t, g.start.Add(3*time.Second), st.LastCall)
	}, shaper.WithName("api"))
}

// What Stats says is free is what Forecast lets leave at once, and no more, at rates that a float
// does not hold exactly too.
func TestFreeIsTheGreatestCostThatMayLeaveNow(t *testing.T) {
	for _, limits := range []string{"7/s burst 5", "0.7/s burst 21 depth 3", "1 per 3s burst 3", "4/s burst 6 depth 1", "1/s"} {
		t.Run(limits, func(t *testing.T) {
			play(t, limits, func(g *stage) {
				seen := map[int]bool{}
				for step := range 200 {
					st := g.Stats()
					for n, free := range map[int]bool{st.Free: st.Free > 0, st.Free + 1: false} {
						if n < 1 || n > max(1, st.Limits.Burst) {
							continue
						}
						wait, err := g.Forecast(n)
						require.Equal(t, free, err == nil && wait == 0, "a cost of %d at %+v", n, st)
					}
					require.Equal(t, st.Level > 0, !st.EmptyAt.IsZero())
					seen[st.Free] = true
					g.AllowN(step%3 + 1)
					g.at(time.Since(g.start) + time.Duration(step*step%17)*97*ms)
				}
				require.True(t, seen[0] && seen[max(1, g.Limits().Burst)], "%v", seen)
			})
		})
	}
}

func TestNothingIsFreeForANewcomerThatCannotLeave(t *testing.T) {
	free := func(s *shaper.Shaper) int { return s.Stats().Free }
	play(t, "1/s burst 3 depth 2 inflight 2", func(g *stage) {
		require.Equal(t, 3, free(g.Shaper))
		first, err := g.Acquire(context.Background(), 1)
		require.NoError(t, err)
		require.Equal(t, 2, free(g.Shaper))
		second, err := g.Acquire(context.Background(), 1)
		require.NoError(t, err)
		require.Zero(t, free(g.Shaper), "all seats are taken")
		require.Equal(t, g.start.Add(2*time.Second), g.Stats().EmptyAt)
		first()
		second()
		require.Equal(t, 1, free(g.Shaper))
		g.Hold(time.Minute)
		require.Zero(t, free(g.Shaper))
		g.Hold(0)
		require.Equal(t, 1, free(g.Shaper))
		require.NoError(t, g.Close())
		require.Zero(t, free(g.Shaper))
	})
	play(t, "1/s burst 3 depth 2", func(g *stage) {
		g.arriveAll("a", "b")
		g.arrive("c", 3)
		require.Zero(t, free(g.Shaper), "c waits until the level is 0, and none overtakes it")
		g.at(10 * time.Second)
		require.Equal(t, 3, free(g.Shaper))
	})
	play(t, "1/s burst 3", func(g *stage) {
		require.True(t, g.AllowN(3))
		require.False(t, g.Allow())
		g.at(2 * time.Second)
		st := g.Stats()
		require.Zero(t, st.Free)
		require.Equal(t, g.start.Add(time.Minute), st.BlockedUntil)
		require.Equal(t, g.start.Add(3*time.Second), st.EmptyAt)
	}, shaper.WithBlock(time.Minute))
	play(t, "inf", func(g *stage) {
		require.True(t, g.Allow())
		require.Equal(t, math.MaxInt, free(g.Shaper))
		require.Zero(t, g.Stats().EmptyAt)
	})
}

// A call is counted when it returns, so one that waits is not the last yet.
func TestLastCallIsTheEntryOfTheLastCountedCall(t *testing.T) {
	play(t, "1/s depth 9", func(g *stage) {
		g.arriveAll("a")
		g.at(100 * ms)
		g.arriveAll("b", "c")
		require.Equal(t, g.start, g.Stats().LastCall)
		g.at(500 * ms)
		g.cancel("c")
		require.Equal(t, g.start.Add(100*ms), g.Stats().LastCall)
		require.False(t, g.Allow())
		g.at(2 * time.Second)
		require.Equal(t, g.start.Add(500*ms), g.Stats().LastCall, "b was counted later, and came sooner")
	})
}

// A later call that leaves must not look like one that was refused; nor may it be forgotten when
// the latest refusal was, whether it was made under the lock or without it.
func TestLastRefusalIsTheInstantOfTheLatestRefusal(t *testing.T) {
	play(t, "1/s depth 1", func(g *stage) {
		require.Zero(t, g.Stats().LastRefusal)
		g.arriveAll("a", "b")
		require.Zero(t, g.Stats().LastRefusal, "nobody was refused")
		g.at(100 * ms)
		require.False(t, g.Allow())
		require.Equal(t, g.start.Add(100*ms), g.Stats().LastRefusal)
		for k := range 20 { // From the eighth in a row on they are refused without the lock.
			g.at(200*ms + time.Duration(k)*ms)
			g.arrive("refused", 1)
		}
		require.Equal(t, g.start.Add(219*ms), g.Stats().LastRefusal)
		g.at(3 * time.Second)
		g.arriveAll("c", "d")
		require.Equal(t, g.start.Add(3*time.Second), g.Stats().LastCall)
		require.Equal(t, g.start.Add(219*ms), g.Stats().LastRefusal, "c has left")
		g.at(3100 * ms)
		require.NoError(t, g.Close())
		g.at(3200 * ms)
		require.Equal(t, g.start.Add(3100*ms), g.Stats().LastRefusal, "d, which had come before")
	})
	play(t, "1/s depth 1", func(g *stage) {
		g.arriveAll("a", "b", "c")
		g.at(50 * ms)
		g.arriveAll("d")
		require.Equal(t, g.start.Add(50*ms), g.Stats().LastRefusal, "its shadow")
	}, shaper.WithDryRun())
}

func TestTheLatestRefusalOfAKeyIsKeptWithItsBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 0.1}, nil })
		require.NoError(t, err)
		defer g.Close()
		start := time.Now()
		_, ok := g.StatsOf("a")
		require.False(t, ok)
		require.True(t, g.Allow("a"))
		st, ok := g.StatsOf("a")
		require.True(t, ok)
		require.Zero(t, st.LastRefusal)
		time.Sleep(time.Second)
		require.False(t, g.Allow("a"))
		time.Sleep(time.Second)
		require.True(t, g.Allow("b"))
		for range 100 { // More than are remembered one by one.
			require.False(t, g.Allow("b"))
		}
		st, _ = g.StatsOf("a")
		require.Equal(t, start.Add(time.Second), st.LastRefusal)
	})
}

type traceKey struct{}

// diary is a trace that writes down each event.
func diary(start func() time.Time, lines *[]string) *shaper.Trace {
	var mu sync.Mutex
	hook := func(what string) func(context.Context, shaper.Event) {
		return func(ctx context.Context, e shaper.Event) {
			mu.Lock()
			defer mu.Unlock()
			*lines = append(*lines, fmt.Sprintf("%v %s: %s %v cost %d waiting %d ahead %d waited %v: %v",
				e.At.Sub(start()), e.Name, what, ctx.Value(traceKey{}), e.Cost, e.Waiting, e.Ahead, e.Waited, e.Err))
		}
	}
	return &shaper.Trace{Enqueued: hook("enqueued"), Departed: hook("departed"), Refused: hook("refused"), Abandoned: hook("abandoned")}
}

func TestHooksTellOfEachCall(t *testing.T) {
	var lines []string
	var start time.Time
	trace := diary(func() time.Time { return start }, &lines)
	options := []shaper.Option{shaper.WithName("api"), shaper.WithTrace(trace), nil, shaper.WithTrace(nil)}
	play(t, "1/s depth 2", func(g *stage) {
		*trace = shaper.Trace{} // New has copied it.
		start = g.start
		arrive := func(name string, n int) {
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), traceKey{}, name))
			g.cancels[name] = cancel
			g.arriveWith(ctx, name, n)
		}
		arrive("a", 1)
		arrive("b", 1)
		arrive("c", 2)
		arrive("d", 1)
		require.False(t, g.Allow())
		g.at(500 * ms)
		g.cancel("c")
		g.at(2 * time.Second)
		require.True(t, g.Allow())
		arrive("e", 1)
		require.NoError(t, g.Close())
		g.at(3 * time.Second)
		require.Equal(t, []string{ // All hooks have run; the bubble rests.
			"0s api: departed a cost 1 waiting 0 ahead 0 waited 0s: <nil>",
			"0s api: enqueued b cost 1 waiting 1 ahead 0 waited 0s: <nil>",
			"0s api: enqueued c cost 2 waiting 2 ahead 1 waited 0s: <nil>",
			"0s api: refused d cost 1 waiting 2 ahead 0 waited 0s: shaper: queue is full (retry after 1s)",
			// AllowN is judged as with a depth of 0: it would have to wait until the line has gone.
			"0s api: refused <nil> cost 1 waiting 2 ahead 0 waited 0s: shaper: queue is full (retry after 4s)",
			"500ms api: abandoned c cost 2 waiting 1 ahead 1 waited 500ms: context canceled",
			"1s api: departed b cost 1 waiting 0 ahead 0 waited 1s: <nil>",
			"2s api: departed <nil> cost 1 waiting 0 ahead 0 waited 0s: <nil>",
			"2s api: enqueued e cost 1 waiting 1 ahead 0 waited 0s: <nil>",
			"2s api: refused e cost 1 waiting 0 ahead 0 waited 0s: shaper: closed",
		}, lines)
	}, options...)
}

// A slow hook delays its own call, and nobody else's.
func TestASlowHookDelaysItsOwnCallOnly(t *testing.T) {
	slow := func(_ context.Context, e shaper.Event) {
		if e.Cost == 2 {
			time.Sleep(10 * time.Second)
		}
	}
	play(t, "1/s burst 2 depth 9", func(g *stage) {
		g.arrive("slow", 2)
		g.arriveAll("a", "b")
		g.arrive("slow too", 2)
		g.arriveAll("c")
		g.at(time.Minute)
		g.saw("1s a left", "2s b left", "5s c left", "10s slow left", "14s slow too left")
	}, shaper.WithTrace(&shaper.Trace{Departed: slow}))
}

func TestAHookMayCallTheShaper(t *testing.T) {
	var s *shaper.Shaper
	var mu sync.Mutex
	var waiting []int
	ask := func(context.Context, shaper.Event) {
		mu.Lock()
		waiting = append(waiting, s.Stats().Waiting)
		mu.Unlock()
		_, _ = s.Forecast(1)
		_ = s.SetLimits(s.Limits())
	}
	play(t, "1/s depth 1", func(g *stage) {
		s = g.Shaper
		g.arriveAll("a", "b", "c")
		g.cancel("b")
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []int{0, 1, 1, 0}, waiting)
	}, shaper.WithTrace(&shaper.Trace{Enqueued: ask, Departed: ask, Refused: ask, Abandoned: ask}))
}

// An abandonment comes before the departures that it makes way for.
func TestAnAbandonmentIsToldBeforeThoseItLetsGo(t *testing.T) {
	var lines []string
	var start time.Time
	trace := diary(func() time.Time { return start }, &lines)
	play(t, "1/s burst 5 depth 9", func(g *stage) {
		start = g.start
		g.arrive("a", 4)
		g.arrive("dear", 5)
		g.arrive("x", 1)
		g.arrive("y", 4)
		g.at(500 * ms)
		lines = nil
		g.cancel("dear")
		require.ElementsMatch(t, []string{
			"500ms : abandoned <nil> cost 5 waiting 2 ahead 0 waited 500ms: context canceled",
			"500ms : departed <nil> cost 1 waiting 1 ahead 1 waited 500ms: <nil>",
		}, lines)
		require.NoError(t, g.Close())
	}, shaper.WithTrace(trace))
}
