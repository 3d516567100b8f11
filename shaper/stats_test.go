package shaper_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
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
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 0.1}, nil }))
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

// spread returns the bounds and counts of a Histogram.
func spread(h watch.Histogram) map[float64]uint64 { return maps.Collect(h.Buckets()) }

// atOne is the upper bound of the bucket around 1.
var atOne = math.Exp2(1. / 16)

// A line leaves as a comb, so that all spacings are 1: also of requests that differ in
// cost, below Burst and beyond, and from a departure before the line began.
func TestSpacingOfACombIsOne(t *testing.T) {
	for name, tt := range map[string]struct {
		limits shaper.Limits
		costs  []int
		line   uint64 // how many of them wait
	}{
		"cost 1":               {shaper.Limits{Rate: 100, Depth: 9}, []int{1, 1, 1}, 2},
		"a rate beside the ns": {shaper.Limits{Rate: 3, Depth: 9}, []int{1, 1, 1, 1}, 3},
		"costs beyond Burst":   {shaper.Limits{Rate: 100, Depth: 9}, []int{3, 1, 5, 2, 7}, 4},
		"costs within Burst":   {shaper.Limits{Rate: 100, Burst: 10, Depth: 9}, []int{10, 3, 1, 5, 2, 7}, 5},
		"costs on both sides":  {shaper.Limits{Rate: 100, Burst: 4, Depth: 9}, []int{9, 3, 6, 4, 5, 1, 1}, 6},
		"after a burst":        {shaper.Limits{Rate: 100, Burst: 3, Depth: 9}, []int{1, 1, 1, 1, 1}, 2},
		"a high rate":          {shaper.Limits{Rate: 1e6, Depth: 9}, []int{1, 1, 1}, 2},
		"a low rate":           {shaper.Limits{Rate: 1. / 86400, Depth: 9}, []int{1, 1, 1}, 2},
	} {
		bubble(t, name, func(t *testing.T) {
			time.Sleep(12345 * time.Microsecond)
			s := mustMake(t, tt.limits)
			dry := must(shaper.New(tt.limits, shaper.WithDryRun()))
			g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return tt.limits, nil }))
			time.Sleep(678 * time.Microsecond)
			for _, wait := range []func(context.Context, int) error{s.WaitN, dry.WaitN, g.Limiter("key").WaitN} {
				enters(wait, tt.costs...)
			}
			time.Sleep(30 * 24 * time.Hour)
			for name, h := range map[string]watch.Histograms{"Shaper": s.Histograms(), "dry run": dry.Histograms(), "Group": g.Histograms()} {
				require.Equal(t, map[float64]uint64{atOne: tt.line}, spread(h.Spacing), name)
				require.InDelta(t, float64(tt.line), h.Spacing.Sum(), 1e-4, name)
				require.Equal(t, uint64(len(tt.costs)), h.Wait.Count(), name)
				require.Equal(t, uint64(len(tt.costs))-tt.line, spread(h.Wait)[0], name)
			}
			require.InDelta(t, s.Stats().TotalWait.Seconds(), s.Histograms().Wait.Sum(), 1e-9)
		})
	}
}

// What keeps a line beside the schedule shows as a longer spacing, as long as there is a
// departure from which to count.
func TestSpacingTellsWhatIsNoComb(t *testing.T) {
	spacings := func(t *testing.T, l shaper.Limits, timeline func(s *shaper.Shaper)) []float64 {
		var got []float64
		synctest.Test(t, func(t *testing.T) {
			s := mustMake(t, l)
			timeline(s)
			time.Sleep(time.Hour)
			h := s.Histograms().Spacing
			for bound, n := range h.Buckets() {
				got = append(got, slices.Repeat([]float64{math.Round(bound/atOne*10) / 10}, int(n))...)
			}
		})
		return got
	}
	plain := shaper.Limits{Rate: 100, Depth: 9}
	require.Equal(t, []float64{1, 10.4}, spacings(t, plain, func(s *shaper.Shaper) {
		enters(s.WaitN, 1, 1, 1)
		s.Hold(100 * msec)
	}), "the second leaves at 100 ms, and the third at 110: the bucket has leaked meanwhile")
	require.Equal(t, []float64{1}, spacings(t, plain, func(s *shaper.Shaper) {
		s.Hold(100 * msec)
		enters(s.WaitN, 1, 1)
	}), "nothing left before the hold")
	require.Equal(t, []float64{1, 10.4}, spacings(t, plain, func(s *shaper.Shaper) {
		enters(s.WaitN, 2, 3, 1)
		s.Hold(200 * msec)
		time.Sleep(150 * msec)
		s.Stats() // Brings the level up to now.
	}), "the second leaves at 200 ms instead of 20")
	require.Empty(t, spacings(t, shaper.Limits{Rate: rate.Inf, Depth: 9}, func(s *shaper.Shaper) {
		s.Hold(100 * msec)
		enters(s.WaitN, 1, 1)
	}), "at rate.Inf there is no interval")
	require.Equal(t, []float64{1, 1}, spacings(t, plain, func(s *shaper.Shaper) {
		enters(s.WaitN, 1, 1, 1, 1)
		time.Sleep(5 * msec)
		require.NoError(t, s.SetLimits(shaper.Limits{Rate: 10, Depth: 9}))
	}), "a spacing of two rates is not counted, and those after it are of the new one")
	require.Empty(t, spacings(t, shaper.Limits{Rate: 100, Burst: 5}, func(s *shaper.Shaper) {
		for range 9 {
			s.Allow()
			time.Sleep(msec)
		}
	}), "requests that find no line are not counted")
}

// Whatever the departure before a line was like, one that leaves exactly on schedule must not
// be shown as uneven.
func TestSpacingOfTheFirstOutOfALineDoesNotLookUneven(t *testing.T) {
	wait := func(t *testing.T, s *shaper.Shaper, n int64, waits time.Duration) {
		t.Helper()
		begun := time.Now()
		require.NoError(t, s.WaitN(t.Context(), int(n)))
		require.Equal(t, waits, time.Since(begun))
	}
	abandoned := func(t *testing.T, s *shaper.Shaper, n int) (giveUp func()) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = s.WaitN(ctx, n) }()
		synctest.Wait()
		return cancel
	}
	const beyond32 = "a cost beyond 32 bits"
	for name, tt := range map[string]struct {
		limits   shaper.Limits
		timeline func(t *testing.T, s *shaper.Shaper)
		counted  uint64
	}{
		"a level below Burst": {shaper.Limits{Rate: 1, Burst: 2, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 1, 0)
			time.Sleep(500 * msec)
			wait(t, s, 1, 0)
			time.Sleep(100 * msec)
			wait(t, s, 1, 400*msec)
		}, 1},
		"costs within Burst": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 3, 0)
			wait(t, s, 4, 2*time.Second)
		}, 1},
		beyond32: {shaper.Limits{Rate: 1e9, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 6e9, 0)
			wait(t, s, 1, 6*time.Second)
		}, 1},
		"a Burst beyond 24 bits": {shaper.Limits{Rate: 1e6, Burst: 1e9, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 1e9, 0)
			wait(t, s, 1, time.Microsecond)
			enters(s.WaitN, 3, 1, 2)
		}, 4},
		"a departure long ago": {shaper.Limits{Rate: 1000, Burst: 10000, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 10000, 0)
			time.Sleep(5 * time.Second)
			wait(t, s, 8000, 3*time.Second)
		}, 1},
		"a change while nobody waits": {shaper.Limits{Rate: 1, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 1, 0)
			time.Sleep(500 * msec)
			require.NoError(t, s.SetLimits(shaper.Limits{Rate: 10, Depth: 9}))
			wait(t, s, 1, 50*msec)
		}, 1},
		"whom a costlier one kept": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 4, 0)
			giveUp := abandoned(t, s, 5)
			enters(s.WaitN, 1, 1, 1, 1)
			time.Sleep(500 * msec)
			giveUp() // The first leaves at once, the second at level 4, and the others one by one.
		}, 2},
		"whom a costlier one has kept": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 5, 0)
			giveUp := abandoned(t, s, 5)
			enters(s.WaitN, 1)
			time.Sleep(2 * time.Second)
			giveUp()
		}, 0},
		"a retry that is due": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 5, 0)
			enters(s.WaitN, 5, 1)
			time.Sleep(2 * time.Second)
			_, err := shaper.EnterAsReentry(s, t.Context(), 1)
			require.NoError(t, err)
		}, 1}, // That of the last one.
		"a settle while requests wait": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			settle, err := s.Reserve(t.Context(), 5)
			require.NoError(t, err)
			enters(s.WaitN, 1, 1, 1)
			time.Sleep(500 * msec)
			settle(6)
			leaveAfter(t, s, 1500*msec)
		}, 2},
		"AtMost while requests wait": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 5, 0)
			enters(s.WaitN, 1, 1, 1)
			time.Sleep(500 * msec)
			s.AtMost(0)
			leaveAfter(t, s, time.Second)
		}, 2},
		"Restore while requests wait": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 5, 0)
			enters(s.WaitN, 1, 1, 1)
			time.Sleep(500 * msec)
			other := mustMake(t, s.Limits())
			wait(t, other, 5, 0)
			saved, err := other.Snapshot()
			require.NoError(t, err)
			require.NoError(t, s.Restore(saved))
			leaveAfter(t, s, time.Second)
		}, 2},
		"new Limits while requests wait": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 5, 0)
			enters(s.WaitN, 1, 1, 1)
			time.Sleep(500 * msec)
			require.NoError(t, s.SetLimits(shaper.Limits{Rate: 0.5, Burst: 5, Depth: 9}))
			leaveAfter(t, s, time.Second)
		}, 2},
		"a slot that is given back": {shaper.Limits{Rate: 1, Burst: 5, Depth: 9}, func(t *testing.T, s *shaper.Shaper) {
			wait(t, s, 5, 0)
			late := newLateCancel()
			go func() { _ = s.Wait(late) }()
			synctest.Wait()
			enters(s.WaitN, 1, 1, 1)
			late.end()
			leaveAfter(t, s, time.Second)
		}, 3}, // With that of the one that has given it back.
	} {
		t.Run(name, func(t *testing.T) {
			if name == beyond32 && strconv.IntSize == 32 {
				t.Skip("no cost is")
			}
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(12345 * time.Microsecond)
				s := mustMake(t, tt.limits)
				time.Sleep(678 * time.Microsecond)
				tt.timeline(t, s)
				time.Sleep(time.Hour)
				if tt.counted == 0 {
					require.Empty(t, spread(s.Histograms().Spacing))
					return
				}
				require.Equal(t, map[float64]uint64{atOne: tt.counted}, spread(s.Histograms().Spacing))
			})
		})
	}
}

// leaveAfter asserts that a request leaves after a time, and none before it.
func leaveAfter(t *testing.T, s *shaper.Shaper, d time.Duration) {
	t.Helper()
	waiting := s.Stats().Waiting
	time.Sleep(d - 1)
	require.Equal(t, waiting, s.Stats().Waiting)
	time.Sleep(time.Nanosecond)
	synctest.Wait()
	require.Less(t, s.Stats().Waiting, waiting)
}

// A key that gets a bucket of its own goes on from the latest departure of the one that it has
// shared. Counted from when the Group was made, a long pause would look like a comb.
func TestSpacingGoesOnFromASharedBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1, Depth: 9}, nil }
		g := must(shaper.NewGroup(limits, shaper.WithMaxKeys(1)))
		time.Sleep(1000 * time.Second)
		require.True(t, g.Allow("a"), "takes the only place")
		enters(g.Limiter("b").WaitN, 1, 1, 1, 1) // They share a bucket, and leave until 1003 s.
		time.Sleep(2500 * msec)
		enters(g.Limiter("b").WaitN, 1) // At 1004 s, from a bucket of its own.
		require.Len(t, g.Limiter("b").Line(9), 1)
		g.Limiter("b").Hold(10 * time.Second) // At 1012.5 s instead; the latest left at 1002 s.
		time.Sleep(time.Minute)
		h := g.Histograms().Spacing
		require.Equal(t, uint64(4), h.Count())
		require.InDelta(t, 3+10.5/2, h.Sum(), 1e-4)
	})
}

// A single caller in a loop finds no line, and leaves one behind that a Group forgets.
func TestSpacingOfASingleCallerInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := shaper.Limits{Rate: 100, Depth: 1}
		s := mustMake(t, limits)
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }))
		for _, wait := range []func(context.Context) error{s.Wait, func(ctx context.Context) error { return g.Wait(ctx, "key") }} {
			for range 10 {
				require.NoError(t, wait(t.Context()))
			}
		}
		require.Equal(t, map[float64]uint64{atOne: 9}, spread(s.Histograms().Spacing))
		require.Equal(t, map[float64]uint64{atOne: 9}, spread(g.Histograms().Spacing))
	})
}

// No quantile is further off than it says.
func TestQuantilesKeepTheirBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		s := must(shaper.New(shaper.Limits{Rate: 1000, Burst: 3, Depth: 1 << 20}, shaper.WithDryRun()))
		var waits []float64
		for range 2000 {
			ctx := shaper.ContextWithVerdict(t.Context())
			require.NoError(t, s.WaitN(ctx, 1+r.IntN(4)))
			verdict, _ := shaper.VerdictOf(ctx)
			waits = append(waits, verdict.Wait.Seconds())
			time.Sleep(time.Duration(r.ExpFloat64() * float64(2500*time.Microsecond)))
		}
		time.Sleep(time.Hour)
		require.Zero(t, s.Stats().Waiting)
		slices.Sort(waits)
		h := s.Histograms().Wait
		require.Equal(t, uint64(len(waits)), h.Count())
		for _, q := range []float64{0, 0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1} {
			value, within := h.Quantile(q)
			want := waits[max(int(math.Ceil(q*float64(len(waits)))), 1)-1]
			require.InDelta(t, want, value, within, "q=%v", q)
			require.LessOrEqual(t, within, 0.0443*value+1e-12, "q=%v", q)
		}
	})
}

func TestAnEmptyHistogramHasNoQuantiles(t *testing.T) {
	requireNaN := func(h watch.Histogram, q float64) {
		t.Helper()
		value, within := h.Quantile(q)
		require.True(t, math.IsNaN(value) && math.IsNaN(within), q)
	}
	s := mustMake(t, shaper.Limits{Rate: 1})
	requireNaN(watch.Histogram{}, 0.5)
	requireNaN(s.Histograms().Wait, 0.5)
	require.Empty(t, spread(s.Histograms().Wait))
	require.True(t, s.Allow())
	h := s.Histograms().Wait
	for _, q := range []float64{-0.1, 1.1, math.NaN()} {
		requireNaN(h, q)
	}
	value, within := h.Quantile(1)
	require.Zero(t, value)
	require.Zero(t, within)
}

// Sub gives the histogram of a window, and a Histogram does not change after it was taken.
func TestHistogramOfAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 100, Depth: 9})
		empty := s.Histograms()
		enters(s.WaitN, 1, 1)
		time.Sleep(time.Second)
		first := s.Histograms()
		enters(s.WaitN, 1, 3, 1)
		time.Sleep(time.Second)
		both := s.Histograms()
		second := both.Wait.Sub(first.Wait)
		require.Equal(t, uint64(3), second.Count())
		require.InDelta(t, 0.05, second.Sum(), 1e-9)
		require.Len(t, spread(second), 3)
		require.Equal(t, uint64(1), spread(second)[0])
		require.Equal(t, uint64(2), both.Spacing.Sub(first.Spacing).Count())
		require.Equal(t, uint64(2), first.Wait.Count())
		require.Equal(t, spread(first.Wait), spread(first.Wait.Sub(empty.Wait)))
		require.Equal(t, spread(both.Wait), spread(both.Wait.Sub(watch.Histogram{})))
		require.Zero(t, both.Wait.Sub(both.Wait).Count())
		require.Zero(t, both.Wait.Sub(both.Wait).Sum())
		require.Zero(t, first.Wait.Sub(both.Wait).Count(), "not earlier")
		for range second.Buckets() {
			break // An iterator may be left.
		}
	})
}

// eventHistograms counts what Histograms tells, but from the events of a Trace.
type eventHistograms struct {
	mu              sync.Mutex
	left            time.Time
	waits, spacings [512]uint64
}

func (h *eventHistograms) departed(_ context.Context, e shaper.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count(&h.waits, e.Waited.Seconds())
	if e.Waited > 0 { // Of the others Spacing says nothing.
		h.count(&h.spacings, e.At.Sub(h.left).Seconds())
	}
	h.left = e.At
}

func (h *eventHistograms) count(into *[512]uint64, v float64) {
	if v == 0 {
		into[0]++
		return
	}
	_, exponent := math.Frexp(v)
	into[256+exponent]++
}

// BenchmarkHistogramsFedByEvents is a call of Wait that may leave at once, with the histograms fed by a
// hook. Those of the Shaper itself are part of every other benchmark.
func BenchmarkHistogramsFedByEvents(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	eachParallelism(b, "call=Wait", func(b *testing.B) func() {
		h := new(eventHistograms)
		s, err := shaper.New(shaper.Limits{Rate: 1e9, Burst: 1e9, Depth: 1}, shaper.WithTrace(&shaper.Trace{Departed: h.departed}))
		if err != nil {
			b.Fatal(err)
		}
		return func() { _ = s.Wait(ctx) }
	})
}
