package shaper_test

import (
	"context"
	"fmt"
	"maps"
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
			plain, err := shaper.New(l, shaper.WithTrace(trace(0)))
			require.NoError(t, err)
			weights := map[string]int{"b": 3, "c": 7}
			fair, err := shaper.New(l, shaper.WithTrace(trace(1)), shaper.WithFairQueue(func(key string) int { return weights[key] }))
			require.NoError(t, err)
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
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 5000}, shaper.WithFairQueue(func(key string) int { return weights[key] }))
		require.NoError(t, err)
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
		s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 50}, shaper.WithFairQueue(nil))
		require.NoError(t, err)
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
		s, err := shaper.New(shaper.Limits{Rate: 100, Depth: 5000}, shaper.WithFairQueue(nil))
		require.NoError(t, err)
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
		s, err := shaper.New(shaper.Limits{Rate: 1e6, Depth: 1 << 20}, shaper.WithFairQueue(nil))
		require.NoError(t, err)
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
