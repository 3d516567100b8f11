package shaper_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/watch"
)

// This file holds what WithFairQueue promises. What it does to each request in random scripts is
// compared with the model (TestFairModel), and the bounds with the order alone (internal/fair).

// teamOf returns the key of a request of a timeline: the letters with which its name begins.
func teamOf(name string) string { return strings.TrimRight(name, "0123456789") }

// comes lets requests of cost 1 come, one after the other, each as the key of its name.
func (g *stage) comes(names ...string) {
	for _, name := range names {
		g.comesFor(name, 1)
	}
}

// comesFor is comes for a request of cost n.
func (g *stage) comesFor(name string, n int) {
	g.comesWith(g.cancellable(name), name, n)
}

func (g *stage) comesWith(ctx context.Context, name string, n int) {
	g.calls(name, func() error { return g.For(teamOf(name)).WaitN(ctx, n) })
}

// acquiresFor is a call of Acquire as the key of a name; release gives back the seat that it has got.
func (g *stage) acquiresFor(name string, n int) {
	g.calls(name, func() error {
		release, err := g.For(teamOf(name)).Acquire(context.Background(), n)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.releases[name] = release
		return err
	})
}

// keys returns what Keys shows, a text for each.
func (g *stage) keys(most int) (shown []string) {
	for _, k := range g.Keys(most, watch.ByTurn) {
		shown = append(shown, fmt.Sprintf("%s weight %d: %d cost %d, %v, at %v", k.Key, k.Weight, k.Waiting, k.Cost, k.OldestWait, k.Leaves.Sub(g.start)))
	}
	return shown
}

func TestABurstOfOneKeyDelaysOthersByOneDeparture(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("a1", "a2", "a3", "a4", "a5", "b1", "c1")
		g.at(350 * ms) // a2, b1 and c1 have left, and a3 has been the head of its line since a2 has.
		g.comes("d1", "d2")
		g.at(10 * time.Second)
		g.saw("0s a1 left", "100ms a2 left", "200ms b1 left", "300ms c1 left", "400ms a3 left", "500ms d1 left",
			"600ms a4 left", "700ms d2 left", "800ms a5 left")
	}, shaper.WithFairQueue(nil))
}

// Whatever keys requests of one cost have, requests leave at the instants at which they would in
// one line, and as many are refused.
func TestKeysChangeNoInstantOfDeparture(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(30, 100, 100)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 31))
			l := shaper.Limits{Rate: 100, Burst: 1 + r.IntN(3), Depth: 1 + r.IntN(20)}
			var mu sync.Mutex
			var instants [2][]time.Time
			trace := func(i int) *shaper.Trace {
				return &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
					mu.Lock()
					defer mu.Unlock()
					instants[i] = append(instants[i], e.At)
				}}
			}
			plain := must(shaper.New(l, shaper.WithTrace(trace(0))))
			weights := map[string]int{"b": 3, "c": 7}
			fair := must(shaper.New(l, shaper.WithTrace(trace(1)), shaper.WithFairQueue(func(key string) int { return weights[key] })))
			for range 100 {
				key := string(rune('a' + r.IntN(5)))
				go func() { _ = plain.Wait(context.Background()) }()
				go func() { _ = fair.For(key).Wait(context.Background()) }()
				synctest.Wait()
				time.Sleep(time.Duration(r.IntN(3)*r.IntN(10)) * ms)
				switch r.IntN(10) {
				case 0:
					plain.Hold(20 * ms)
					fair.Hold(20 * ms)
				case 1:
					l.Rate, l.Depth = []rate.Limit{50, 100, 300}[r.IntN(3)], 1+r.IntN(20)
					require.NoError(t, plain.SetLimits(l))
					require.NoError(t, fair.SetLimits(l))
				}
			}
			require.NoError(t, plain.Shutdown(context.Background()))
			require.NoError(t, fair.Shutdown(context.Background()))
			synctest.Wait()
			slices.SortFunc(instants[0], time.Time.Compare)
			slices.SortFunc(instants[1], time.Time.Compare)
			require.Equal(t, instants[0], instants[1])
			require.Equal(t, plain.Stats().QueueFull, fair.Stats().QueueFull)
			require.Positive(t, fair.Stats().TotalWait)
		})
	}
}

// The second request of a key leaves with the sixth departure, if three keys wait: no sooner and no later.
func TestTheKthRequestOfAKeyLeavesWithTheKTimesNthDeparture(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2") // z finds no line.
		g.at(10 * time.Second)
		g.saw("0s z left", "100ms a1 left", "200ms b1 left", "300ms c1 left", "400ms a2 left", "500ms b2 left",
			"600ms c2 left", "700ms a3 left", "800ms b3 left")
	}, shaper.WithFairQueue(nil))
}

func TestSharesFollowWeights(t *testing.T) {
	var mu sync.Mutex
	left := make(map[string]int)
	weights := map[string]int{"gold": 4, "silver": 2, "none": 0, "much": 5000}
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1000, Depth: 5000}, shaper.WithFairQueue(func(key string) int { return weights[key] })))
		for key := range weights {
			for i := range 1000 {
				go func() {
					if s.For(key).WaitN(context.Background(), 1+i%3) == nil {
						mu.Lock()
						defer mu.Unlock()
						left[key] += 1 + i%3
					}
				}()
			}
		}
		synctest.Wait()
		shown := make(map[string]int)
		for _, k := range s.Keys(10, watch.ByTurn) {
			shown[k.Key] = k.Weight
		}
		require.Equal(t, map[string]int{"gold": 4, "silver": 2, "none": 1, "much": 1000}, shown, "the nearest in range")
		require.Equal(t, 4, s.Stats().Keys)
		time.Sleep(1800 * ms) // Until shortly before much's line is through, and for long enough for one share of each.
		synctest.Wait()
		before := maps.Clone(left)
		require.NoError(t, s.Close())
		synctest.Wait()
		for key, w := range map[string]int{"gold": 4, "silver": 2, "none": 1} {
			for other, v := range map[string]int{"gold": 4, "silver": 2, "none": 1} {
				differ := before[key]*v - before[other]*w
				require.LessOrEqual(t, max(differ, -differ), 3*v+3*w, "%s and %s: %v", key, other, before)
			}
		}
		require.Greater(t, before["much"], 1700)
	})
}

// The weight counts from the first request of a key in line until it has none.
func TestAWeightCountsUntilTheLineOfTheKeyIsEmpty(t *testing.T) {
	weight := 1
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "b1", "b2", "b3", "b4")
		weight = 3
		g.comes("a2", "a3", "a4")
		require.Equal(t, []string{
			"a weight 1: 4 cost 4, 0s, at 100ms", "b weight 1: 4 cost 4, 0s, at 200ms",
		}, g.keys(9))
		g.at(900 * ms)
		g.saw("0s z left", "100ms a1 left", "200ms b1 left", "300ms a2 left", "400ms b2 left", "500ms a3 left",
			"600ms b3 left", "700ms a4 left", "800ms b4 left")
		g.comes("b5", "b6", "a5", "a6", "a7", "a8")
		g.at(10 * time.Second)
		g.saw("900ms b5 left", "1s a5 left", "1.1s a6 left", "1.2s b6 left", "1.3s a7 left", "1.4s a8 left")
	}, shaper.WithFairQueue(func(key string) int {
		if key == "a" {
			return weight
		}
		return 1
	}))
}

// A weight out of range counts as the nearest in range. The function is called outside any lock: it may call
// methods of the Shaper.
func TestAWeightIsFromOneToAThousand(t *testing.T) {
	weights := map[string]int{"a": 0, "b": -1 << 31, "c": 1000, "d": 1001, "e": 1<<31 - 1}
	var asked func() int
	play(t, "10/s depth 20", func(g *stage) {
		asked = func() int { return g.Stats().Keys }
		g.comes("z", "a1", "b1", "c1", "d1", "e1")
		var got []int
		for _, k := range g.Keys(9, watch.ByTurn) {
			got = append(got, k.Weight)
		}
		require.Equal(t, []int{1000, 1000, 1000, 1, 1}, got)
		g.at(10 * time.Second)
		g.saw("0s z left", "100ms c1 left", "200ms d1 left", "300ms e1 left", "400ms a1 left", "500ms b1 left")
	}, shaper.WithFairQueue(func(key string) int {
		asked()
		return weights[key]
	}))
}

// Two new keys come with each departure, so all places are taken. Whoever has none of its key ahead is
// served all the same, and never pushed out.
func TestMadeUpKeysStarveNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 100, Depth: 50}, shaper.WithFairQueue(nil)))
		served := 0
		var refused error
		go func() {
			for refused == nil {
				if refused = s.For("honest").Wait(context.Background()); refused == nil {
					served++
				}
			}
		}()
		time.Sleep(5 * ms) // So that they come between departures, and find the place taken that has become free.
		for i := range 2000 {
			go func() { _ = s.For("made up " + strconv.Itoa(i)).Wait(context.Background()) }()
			if i%2 == 1 {
				time.Sleep(10 * ms)
			}
		}
		synctest.Wait()
		require.NoError(t, refused)
		require.GreaterOrEqual(t, served, 1000/50, "it waits behind 49 others at most")
		require.Greater(t, s.Stats().QueueFull, uint64(900), "half of the others are refused")
		require.NoError(t, s.Close())
		synctest.Wait()
		require.ErrorIs(t, refused, shaper.ErrClosed)
	})
}

// A key that sends its next request when the last one has left gets its share, and no more.
func TestOneByOneGainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 100, Depth: 5000}, shaper.WithFairQueue(nil)))
		for i := range 9 * 400 {
			go func() { _ = s.For(strconv.Itoa(i % 9)).Wait(context.Background()) }()
		}
		synctest.Wait()
		served := 0
		go func() {
			for s.For("one by one").Wait(context.Background()) == nil {
				served++
			}
		}()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Equal(t, 200, served, "a tenth")
		require.NoError(t, s.Close())
		synctest.Wait()
	})
}

func TestKeysThatHaveLeftTakeNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1e6, Depth: 1 << 20}, shaper.WithFairQueue(nil)))
		inUse := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		go func() { _ = s.For("warm").WaitN(context.Background(), 3) }()
		time.Sleep(time.Second)
		before := inUse()
		batches := rounds(20, 1000, 1000)
		for i := range batches {
			for j := range 1000 {
				go func() { _ = s.For(strconv.Itoa(1000*i + j)).Wait(context.Background()) }()
			}
			time.Sleep(2 * ms)
		}
		synctest.Wait()
		require.EqualValues(t, 1000*batches+1, s.Stats().Departed)
		require.Zero(t, s.Stats().Keys)
		// The pool keeps 1,024 waiters, and each goroutine that has ended leaves some memory behind.
		require.Less(t, inUse()-before, int64(1<<20))
		require.NoError(t, s.Close())
	})
}

func TestGivingUpMovesTheRestOfTheKeyUp(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "a3", "b1", "b2", "b3")
		g.at(50 * ms)
		g.cancel("a1")
		g.at(10 * time.Second)
		// a2 is the head of a's line since 50 ms, and b1 since it came.
		g.saw("0s z left", "50ms a1 cancelled", "100ms b1 left", "200ms a2 left", "300ms b2 left", "400ms a3 left", "500ms b3 left")
	}, shaper.WithFairQueue(nil))
}

// The first of a line is cheap, and its key has the turn when the dear one before it gives up, even
// if that was the head of no other line.
func TestGivingUpMayChangeTheHeadOfAll(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comesFor("z", 1)
		g.comesFor("a1", 5)
		g.comesFor("b1", 3)
		g.comesFor("a2", 1)
		g.at(50 * ms)
		g.cancel("a1")
		require.Equal(t, []string{"a weight 1: 1 cost 1, 50ms, at 100ms", "b weight 1: 1 cost 3, 50ms, at 200ms"}, g.keys(2))
		g.at(10 * time.Second)
		g.saw("0s z left", "50ms a1 cancelled", "100ms a2 left", "200ms b1 left")
	}, shaper.WithFairQueue(nil))
}

// A newcomer whose turn it is leaves at once if the bucket allows, although a dear one waits.
func TestANewcomerWhoseTurnItIsNeedNotWaitForADearOne(t *testing.T) {
	play(t, "10/s burst 3 depth 20", func(g *stage) {
		g.comesFor("z", 1)
		g.comesFor("a1", 9) // It waits for an empty bucket.
		g.comesFor("b1", 1)
		g.saw("0s z left", "0s b1 left")
		g.at(10 * time.Second)
		g.saw("200ms a1 left")
	}, shaper.WithFairQueue(nil))
}

// A slot that is handed on gives its key the turn back.
func TestAnAbandonedSlotGivesTheTurnBack(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		gone := newLateCancel()
		g.comes("z")
		g.comesWith(gone, "a1", 3)
		g.comes("a2", "b1", "b2", "b3", "b4")
		gone.end()
		g.at(10 * time.Second)
		// a1's slot is a2's. If the key had paid 3 for a1, that slot would be b3's.
		g.saw("0s z left", "100ms b1 left", "200ms b2 left", "300ms a1 cancelled", "300ms a2 left", "400ms b3 left", "500ms b4 left")
	}, shaper.WithFairQueue(nil))
}

// A seat that is freed goes to the key whose turn it is.
func TestAFreedSeatGoesToTheKeyWhoseTurnItIs(t *testing.T) {
	playLimits(t, shaper.Limits{Rate: 1000, Burst: 10, Depth: 20, InFlight: 1}, func(g *stage) {
		for _, name := range []string{"z", "a1", "a2", "b1", "a3"} {
			g.acquiresFor(name, 1)
		}
		g.at(time.Second)
		g.release("z", "a1", "b1", "a2")
		g.saw("0s z left", "1s a1 left", "1s b1 left", "1s a2 left", "1s a3 left")
		require.ErrorContains(t, g.For("a").Wait(context.Background()), "use Acquire")
		g.release("a3")
		require.NoError(t, g.For("a").Do(context.Background(), 1, func(context.Context) error { return nil }))
		require.Zero(t, g.Stats().InFlight)
	}, shaper.WithFairQueue(nil))
}

// SetLimits, a hold and the Burst change when requests leave, and not which.
func TestNothingButCostsAndWeightsTouchesTheOrder(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "a3", "b1", "b2", "c1")
		g.at(150 * ms)
		g.set("100/s burst 2 depth 2")
		g.Hold(50 * ms)
		g.comes("a4") // The line is full, and longer than the Depth; nobody in it is refused for that.
		g.at(10 * time.Second)
		g.saw("0s z left", "100ms a1 left", "150ms b1 left", "150ms a4 full, retry 50ms", "200ms c1 left", "200ms a2 left",
			"210ms b2 left", "220ms a3 left")
	}, shaper.WithFairQueue(nil))
}

func TestShutdownLetsAllKeysLeave(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "b1")
		go func() { g.note("shutdown " + outcome(g.Shutdown(context.Background()))) }()
		synctest.Wait()
		g.comes("c1")
		g.at(10 * time.Second)
		g.saw("0s z left", "0s c1 closed, retry 300ms", "100ms a1 left", "200ms b1 left", "300ms a2 left", "300ms shutdown left")
	}, shaper.WithFairQueue(nil))
}

// The costs of a key may add up to more than an int of 32 bits counts.
func TestTheCostOfALineIsTheGreatestIntAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must(shaper.New(shaper.Limits{Rate: 1e9, Depth: 9}, shaper.WithFairQueue(nil)))
		defer s.Close()
		for range 4 { // The first leaves.
			go func() { _ = s.For("a").WaitN(context.Background(), 1e9) }()
		}
		synctest.Wait()
		require.EqualValues(t, min(int64(3e9), math.MaxInt), s.Keys(1, watch.ByTurn)[0].Cost)
	})
}

// Who looks for the longest lines must find them behind any number of keys that leave before.
func TestTheLongestKeysAreFoundAmongMany(t *testing.T) {
	play(t, "10/s depth 300", func(g *stage) {
		g.comes("z")
		for range 5 {
			g.comes("long1")
		}
		g.comesFor("dear1", 4)
		for i := range 200 {
			key := string([]rune{rune('a' + i%20), rune('A' + i/20)})
			go func() { _ = g.For(key).Wait(context.Background()) }()
			synctest.Wait()
		}
		g.at(50 * ms)
		require.Equal(t, []watch.KeyLine{
			{Key: "long", Weight: 1, Waiting: 5, Cost: 5, OldestWait: 50 * ms},
			{Key: "dear", Weight: 2, Waiting: 1, Cost: 4, OldestWait: 50 * ms},
			{Key: "tJ", Weight: 1, Waiting: 1, Cost: 1, OldestWait: 50 * ms},
		}, g.Keys(3, watch.ByLength))
		require.Len(t, g.Keys(1000, watch.ByLength), 202)
		require.Equal(t, []watch.KeyLine{}, g.Keys(0, watch.ByLength))
		require.NoError(t, g.Close())
		synctest.Wait()
		require.Equal(t, []watch.KeyLine{}, g.Keys(3, watch.ByLength))
	}, shaper.WithFairQueue(func(key string) int { return strings.Count(key, "e") + 1 }))
}

// Departures tell whose requests leave, also of those that came before somebody asked, and of each that
// Stats counts and of no other.
func TestDeparturesTellWhoHasLeft(t *testing.T) {
	long := strings.Repeat("k", 300)
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2", "b1")
		left, all := g.Departures(0)
		require.Empty(t, left, "nobody had asked when z left")
		require.Zero(t, all)
		g.at(350 * ms)
		g.comes("c1")
		g.cancel("c1")
		left, all = g.Departures(all)
		require.EqualValues(t, 3, all)
		require.Equal(t, []watch.Departure{
			{At: g.start.Add(100 * ms), Key: "a", Cost: 1}, {At: g.start.Add(200 * ms), Key: "b", Cost: 1}, {At: g.start.Add(300 * ms), Key: "a", Cost: 1},
		}, left)
		left, _ = g.Departures(2)
		require.Equal(t, []watch.Departure{{At: g.start.Add(300 * ms), Key: "a", Cost: 1}}, left)
		for _, since := range []uint64{all, all + 1, math.MaxUint64} {
			left, same := g.Departures(since)
			require.Empty(t, left)
			require.Equal(t, all, same)
		}
		g.at(time.Second)
		require.NoError(t, g.For(long).WaitN(context.Background(), 2), "the bucket is empty: it does not wait")
		require.False(t, g.For("d").Allow(), "it is refused")
		left, all = g.Departures(all)
		require.EqualValues(t, 4, all)
		require.Equal(t, []watch.Departure{{At: g.start.Add(time.Second), Key: long[:256], Cost: 2}}, left)
		require.EqualValues(t, 5, g.Stats().Departed, "with z")
	}, shaper.WithFairQueue(nil))
	play(t, "10/s depth 20", func(g *stage) {
		_, _ = g.Departures(0)
		g.comes("a1")
		left, all := g.Departures(0)
		require.Empty(t, left, "it knows no keys")
		require.Zero(t, all)
	})
}

// They are kept while somebody asks within a minute. Afterwards each departure costs what it costs without them.
func TestDeparturesAreForgottenAMinuteAfterSomebodyAsked(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		leave := func(key string) {
			t.Helper()
			require.NoError(t, g.For(key).Wait(context.Background()))
		}
		keys := func(since uint64) (keys []string, all uint64) {
			left, all := g.Departures(since)
			for _, d := range left {
				keys = append(keys, d.Key)
			}
			return keys, all
		}
		_, _ = g.Departures(0)
		g.at(time.Minute)
		leave("a")
		got, all := keys(0)
		require.Equal(t, []string{"a"}, got)

		g.at(2*time.Minute + 1)
		leave("b") // Nobody has asked for more than a minute.
		require.False(t, shaper.WatchesDepartures(g.Shaper))
		got, again := keys(0)
		require.Empty(t, got)
		require.Equal(t, all, again)
		leave("c")
		got, all = keys(again)
		require.Equal(t, []string{"c"}, got)
		require.Equal(t, again+1, all)

		g.at(4 * time.Minute)
		got, again = keys(0) // Nothing has left meanwhile, but nobody has asked either.
		require.Empty(t, got)
		require.Equal(t, all, again)
	}, shaper.WithFairQueue(nil))
}

// The memory is bounded: there are the latest 4,096, also in a ring that is begun anew.
func TestDeparturesAreTheLatest(t *testing.T) {
	play(t, "inf", func(g *stage) {
		all := uint64(0)
		for _, n := range []int{4095, 4096, 4097, 9000} {
			g.at(time.Since(g.start) + time.Hour)
			_, begun := g.Departures(0)
			require.Equal(t, all, begun)
			for i := range n {
				require.NoError(t, g.For(strconv.Itoa(i)).Wait(context.Background()))
			}
			left, now := g.Departures(0)
			require.Equal(t, begun+uint64(n), now)
			require.Len(t, left, min(n, 4096))
			for i, d := range left {
				require.Equal(t, strconv.Itoa(n-len(left)+i), d.Key)
			}
			left, _ = g.Departures(now - 2)
			require.Equal(t, strconv.Itoa(n-2), left[0].Key)
			require.Len(t, left, 2)
			all = now
		}
	}, shaper.WithFairQueue(nil))
}

func TestTheOldestWaitIsThatOfAnyKey(t *testing.T) {
	play(t, "10/s depth 20", func(g *stage) {
		g.comes("z", "a1", "a2")
		g.at(110 * ms) // a1 has left.
		g.comes("b1")
		g.at(150 * ms)
		require.Equal(t, 150*ms, g.Stats().OldestWait)
		require.Equal(t, 2, g.Stats().Keys)
		require.NoError(t, g.Close())
	}, shaper.WithFairQueue(nil))
}

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
		s := must(shaper.New(shaper.Limits{Rate: 1000, Depth: 4 * keys}, shaper.WithFairQueue(nil)))
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
