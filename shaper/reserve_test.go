package shaper_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// This file holds what Reserve and settle promise.

// A reserving is a stage on which requests reserve. Their calls of settle are made by name.
type reserving struct {
	*stage
	settles map[string]func(actual int)
}

// playReserving runs a timeline in a bubble of its own.
func playReserving(t *testing.T, limits string, timeline func(g *reserving), opts ...shaper.Option) {
	t.Helper()
	play(t, limits, func(g *stage) { timeline(&reserving{g, map[string]func(int){}}) }, opts...)
}

// reserve is a call of Reserve in a goroutine of its own, which cancel can end.
func (g *reserving) reserve(name string, estimate int) {
	g.reserveWith(g.cancellable(name), name, estimate)
}

func (g *reserving) reserveWith(ctx context.Context, name string, estimate int) {
	g.calls(name, func() error {
		settle, err := g.Reserve(ctx, estimate)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.settles[name] = settle
		return err
	})
}

func (g *reserving) settle(name string, actual int) {
	g.mu.Lock()
	settle := g.settles[name]
	g.mu.Unlock()
	settle(actual)
	synctest.Wait()
}

// figures are those of Stats that tell of reservations.
func figures(st shaper.Stats) [4]int {
	return [4]int{st.Reserved, int(st.GivenBack), int(st.Charged), int(st.Forfeited)}
}

func TestASettleReTimesTheLine(t *testing.T) {
	playReserving(t, "1000/s burst 2000 depth 9", func(g *reserving) {
		g.reserve("a", 2000)
		g.reserve("b", 2000) // It would leave after 2 s.
		g.arrive("c", 1)
		g.at(100 * ms)
		require.Equal(t, [4]int{2000, 0, 0, 0}, figures(g.Stats()))
		g.settle("a", 1240)
		require.InDelta(t, 1140, g.Stats().Level, 1e-9)
		g.at(time.Minute)
		g.saw("0s a left", "1.24s b left", "1.241s c left") // 760 units sooner
		require.Equal(t, [4]int{2000, 760, 0, 0}, figures(g.Stats()))
	})
	playReserving(t, "7/s burst 5 depth 9", func(g *reserving) {
		g.reserve("a", 5)
		g.arriveAll("b", "c")
		g.settle("a", 3) // at once
		g.at(time.Minute)
		g.saw("0s a left", "0s b left", "0s c left")
	})
}

// The level just before each later departure bounds what comes back, and so does the present one.
func TestWhatHasDrainedDoesNotComeBack(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 10)
		g.at(800 * ms) // The level is 2.
		g.arrive("b", 5)
		g.settle("a", 0)
		require.InDelta(t, 5, g.Stats().Level, 1e-9, "2 had been left of a")
		require.Equal(t, [4]int{0, 2, 0, 8}, figures(g.Stats()))

		g.at(10 * time.Second)
		g.reserve("c", 10)
		g.at(12 * time.Second) // It has drained, and the bucket has been used since.
		g.arrive("d", 7)
		g.settle("c", 1)
		require.InDelta(t, 7, g.Stats().Level, 1e-9)
		require.Equal(t, [4]int{0, 2, 0, 17}, figures(g.Stats()))
	})
	playReserving(t, "3/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 10)
		g.at(100 * ms) // The level is 9.7.
		g.settle("a", 0)
		require.Zero(t, g.Stats().Level)
		require.Equal(t, [4]int{0, 9, 0, 1}, figures(g.Stats()), "in whole units")
	})
}

// An earlier reservation that is given back lowers the level just before later departures, too.
func TestAnEarlierRefundLeavesLessForTheOthers(t *testing.T) {
	playReserving(t, "1/s burst 20 depth 9", func(g *reserving) {
		g.reserve("a", 4)
		g.reserve("b", 4)
		g.at(3 * time.Second) // The level is 5.
		g.reserve("c", 10)
		g.settle("b", 0) // All 4: the level was 5 just before c, and is 1 there from now on.
		require.InDelta(t, 11, g.Stats().Level, 1e-9)
		g.settle("a", 0)
		require.InDelta(t, 10, g.Stats().Level, 1e-9)
		g.settle("c", 0)
		require.Zero(t, g.Stats().Level)
		require.Equal(t, [4]int{0, 15, 0, 3}, figures(g.Stats()))
	})
}

// exactLevel returns the level as a fraction.
func exactLevel(t *testing.T, s *shaper.Shaper) string {
	t.Helper()
	data, err := s.Snapshot()
	require.NoError(t, err)
	var saved struct{ Level string }
	require.NoError(t, json.Unmarshal(data, &saved))
	return saved.Level
}

// A Shaper that knew the costs (at rates whose slots are at whole nanoseconds, as it is asked then) lets the same requests leave at the same instants, and when all are
// settled its level is the same fraction.
func TestSettledIsAsIfTheCostHadBeenKnown(t *testing.T) {
	for seed := range uint64(rounds(20, 400, 4000)) {
		for _, limits := range []string{"8/s burst 40 depth 99", "1000/min burst 12 depth 99", "0.5/s burst 9 depth 99"} {
			play(t, limits, func(g *stage) {
				chance := rand.New(rand.NewPCG(seed, 1))
				known := must(shaper.New(g.Limits()))
				var calls sync.WaitGroup
				for range 40 {
					estimate := 1 + chance.IntN(12)
					actual, lasts := chance.IntN(estimate+1), time.Duration(chance.IntN(20_000))*ms
					calls.Go(func() {
						settle, err := g.Reserve(context.Background(), estimate)
						require.NoError(t, err)
						require.True(t, known.AllowN(actual), "its level is never higher")
						time.Sleep(lasts)
						settle(actual)
					})
					time.Sleep(time.Duration(chance.IntN(3_000)) * ms / time.Duration(1+chance.IntN(30)))
				}
				calls.Wait()
				require.Equal(t, exactLevel(t, known), exactLevel(t, g.Shaper), "seed %d, %s", seed, limits)
			})
		}
	}
}

// The same while others are open: the levels are equal as soon as the costs of all that are still open were
// estimated rightly.
func TestASettleIsExactWhileOthersAreOpen(t *testing.T) {
	for seed := range uint64(rounds(20, 400, 4000)) {
		play(t, "7/s burst 60 depth 99", func(g *stage) {
			chance := rand.New(rand.NewPCG(seed, 2))
			known := must(shaper.New(g.Limits()))
			var settles []func()
			for range 60 {
				if estimate := 1 + chance.IntN(12); g.Stats().Level+float64(estimate) <= 60 {
					actual := chance.IntN(estimate + 1)
					if chance.IntN(3) == 0 {
						actual = estimate
					}
					settle, err := g.Reserve(context.Background(), estimate)
					require.NoError(t, err)
					require.True(t, known.AllowN(actual))
					if actual == estimate { // It stays open until the end.
						defer settle(actual)
					} else {
						settles = append(settles, func() { settle(actual) })
					}
				}
				time.Sleep(time.Duration(chance.IntN(1000)) * ms)
				for range chance.IntN(3) {
					if len(settles) > 0 {
						i := chance.IntN(len(settles))
						settles[i]()
						settles = append(settles[:i], settles[i+1:]...)
					}
				}
				if len(settles) == 0 {
					require.Equal(t, exactLevel(t, known), exactLevel(t, g.Shaper), "seed %d", seed)
				}
			}
		})
	}
}

// Guarantee 1 holds for settled costs, whatever is settled when.
func TestNoWindowHoldsMoreThanItsSettledCosts(t *testing.T) {
	const perSecond, burst = 5, 30
	for seed := range uint64(rounds(25, 1000, 10_000)) {
		play(t, "5/s burst 30 depth 999", func(g *stage) {
			chance := rand.New(rand.NewPCG(seed, 3))
			type departure struct {
				at   time.Duration
				cost int
			}
			var left []departure // They are woken in order, but may run in any order within an instant.
			var mu sync.Mutex
			var calls sync.WaitGroup
			for range 60 {
				estimate := 1 + chance.IntN(burst)
				actual, lasts := chance.IntN(estimate+1), time.Duration(chance.IntN(9_000))*ms
				calls.Go(func() {
					settle, err := g.Reserve(context.Background(), estimate)
					require.NoError(t, err)
					mu.Lock()
					left = append(left, departure{time.Since(g.start), actual})
					mu.Unlock()
					time.Sleep(lasts)
					settle(actual)
				})
				if chance.IntN(3) == 0 {
					time.Sleep(time.Duration(chance.IntN(12_000)) * ms)
				}
			}
			calls.Wait()
			for i := range left {
				cost := 0
				for j := i; j < len(left); j++ {
					cost += left[j].cost
					window := left[j].at - left[i].at
					require.LessOrEqual(t, float64(cost), burst+perSecond*(window+1).Seconds(), "seed %d: from %v, %v long", seed, left[i].at, window)
				}
			}
		})
	}
}

func TestAChargeDelaysThoseInLine(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 2 wait 1s", func(g *reserving) {
		g.reserve("a", 10)
		g.arriveAll("b", "c") // after 100 and 200 ms
		g.settle("a", 30)
		require.InDelta(t, 30, g.Stats().Level, 1e-9)
		g.at(time.Minute)
		g.saw("0s a left", "2.1s b left", "2.2s c left") // longer than they may be predicted to wait
		require.Equal(t, [4]int{0, 0, 20, 0}, figures(g.Stats()))
		require.Zero(t, g.Stats().Refused)
	})
}

func TestAnUnknownCostKeepsTheEstimate(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 6)
		g.settle("a", -1)
		require.InDelta(t, 6, g.Stats().Level, 1e-9)
		g.settle("a", 0)
		require.InDelta(t, 6, g.Stats().Level, 1e-9, "settled already")
		require.Equal(t, [4]int{}, figures(g.Stats()))
		g.reserve("b", 4) // and never settles
		g.settle("b", math.MinInt)
		g.reserve("c", 1)
		g.at(time.Minute)
		g.saw("0s a left", "0s b left", "100ms c left")
		require.Equal(t, [4]int{1, 0, 0, 0}, figures(g.Stats()))
	})
}

func TestAnEstimateOfZeroOnlyCharges(t *testing.T) {
	playReserving(t, "10/s burst 2 depth 9 inflight 1", func(g *reserving) {
		g.acquireAll("a") // It has the only seat.
		g.reserve("b", 0)
		g.reserve("c", -1)
		g.reserveWith(closedContext(), "d", 0)
		g.saw("0s a left", "0s b left", "0s c shaper: cost is negative", "0s d cancelled")
		g.settle("c", 5)
		g.settle("d", 5)
		require.InDelta(t, 1, g.Stats().Level, 1e-9, "an error has nothing to settle")
		g.settle("b", 5)
		require.InDelta(t, 6, g.Stats().Level, 1e-9)
		st := g.Stats()
		require.Equal(t, [4]int{0, 0, 5, 0}, figures(st))
		require.Equal(t, 1, st.InFlight)
		require.EqualValues(t, 1, st.Departed)
	})
}

func TestAnEstimateAboveBurstWaitsForAnEmptyBucket(t *testing.T) {
	playReserving(t, "10/s burst 2 depth 9", func(g *reserving) {
		g.arrive("a", 2)
		g.reserve("b", 100)
		g.arriveAll("c")
		g.at(time.Second) // 800 ms after b has left
		g.settle("b", 8)
		g.at(time.Minute)
		g.saw("0s a left", "200ms b left", "1s c left")
	})
}

func TestSettleAfterCloseAndTwice(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 6)
		g.reserve("b", 4)
		g.reserve("c", 1)
		require.NoError(t, g.Close())
		g.saw("0s a left", "0s b left", "0s c closed, retry 0s")
		g.settle("a", 2)
		g.settle("a", 2)
		g.settle("b", 5)
		g.settle("b", 0)
		g.settle("c", 0)
		require.InDelta(t, 7, g.Stats().Level, 1e-9)
		require.Equal(t, [4]int{0, 4, 1, 0}, figures(g.Stats()))
	})
}

// Whoever settles, and how often: once counts.
func TestOneOfManySettlesCounts(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 0.01, Burst: 100_000}))
	var all sync.WaitGroup
	for range 50 {
		settle, err := s.Reserve(context.Background(), 100)
		require.NoError(t, err)
		for range 8 {
			all.Go(func() { settle(40) })
		}
		all.Go(func() { _ = s.AllowN(1) })
	}
	all.Wait()
	require.Equal(t, [4]int{0, 50 * 60, 0, 0}, figures(s.Stats()))
	require.InDelta(t, 50*41, s.Stats().Level, 1)
}

func TestReserveGivesItsSeatBack(t *testing.T) {
	playReserving(t, "100/s burst 10 depth 9 inflight 1", func(g *reserving) {
		g.reserve("a", 4)
		g.reserve("b", 4)
		g.reserve("c", 4)
		g.at(time.Second)
		g.settle("a", 9)
		g.settle("a", 9)
		g.at(2 * time.Second)
		g.settle("b", -1)
		g.at(3 * time.Second)
		g.saw("0s a left", "1s b left", "2s c left")
		require.Equal(t, 1, g.Stats().InFlight)
		g.settle("c", 4)
		require.Zero(t, g.Stats().InFlight)
	})
}

// However a function ends, its seat is free once, and without a cost its estimate stands.
func TestSpendSettlesWhateverHappens(t *testing.T) {
	failed := errors.New("upstream is down")
	playReserving(t, "10/s burst 100 inflight 1", func(g *reserving) {
		ctx := context.Background()
		require.NoError(t, g.Spend(ctx, 10, func(context.Context) (int, error) { return 4, nil }))
		require.Equal(t, failed, g.Spend(ctx, 10, func(context.Context) (int, error) { return 5, failed }))
		require.Panics(t, func() { _ = g.Spend(ctx, 10, func(context.Context) (int, error) { panic("f") }) })
		var gone sync.WaitGroup
		gone.Go(func() {
			_ = g.Spend(ctx, 10, func(context.Context) (int, error) {
				runtime.Goexit()
				return 0, nil
			})
		})
		gone.Wait()
		require.ErrorIs(t, g.Spend(ctx, -1, nil), shaper.ErrNegativeCost)
		require.Equal(t, context.Canceled, g.Spend(closedContext(), 1, nil))
		st := g.Stats()
		require.InDelta(t, 4+5+10+10, st.Level, 1e-9)
		require.Equal(t, [4]int{0, 11, 0, 0}, figures(st))
		require.Zero(t, st.InFlight)
	})
}

func TestAtMostOnlyRaises(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 6)
		g.AtMost(4)
		g.AtMost(5)
		g.AtMost(math.MaxInt)
		require.InDelta(t, 6, g.Stats().Level, 1e-9)
		g.arrive("b", 6) // after 200 ms
		g.at(100 * ms)
		g.AtMost(1) // It may leave 400 ms later than now + 100 ms.
		require.InDelta(t, 9, g.Stats().Level, 1e-9)
		g.at(200 * ms)
		g.settle("a", 1) // All that had not drained when the upstream told: its 5 are there in the 8.
		require.InDelta(t, 9, g.Stats().Level, 1e-9, "3 are left of a's, so b has left")
		g.at(time.Minute)
		g.saw("0s a left", "200ms b left")
		g.AtMost(-7)
		require.InDelta(t, 10, g.Stats().Level, 1e-9)
		require.Zero(t, g.Stats().Charged)
	})
}

// What leaves no trace in the level leaves none in memory: of a million requests that are never settled a few
// thousand are remembered, and they get back what they should.
// Of a unit that takes a year all but a nanosecond comes back, which is none, though a float takes it for one.
func TestOnlyWholeUnitsComeBack(t *testing.T) {
	playReserving(t, "1 per 8760h", func(g *reserving) {
		settle, err := g.Reserve(context.Background(), 1)
		require.NoError(t, err)
		g.at(time.Nanosecond)
		settle(0)
		require.Equal(t, [4]int{0, 0, 0, 1}, figures(g.Stats()))
	})
}

func TestForgottenReservationsAreBounded(t *testing.T) {
	s := must(shaper.New(shaper.Limits{Rate: 40, Burst: 1 << 30}))
	first, err := s.Reserve(context.Background(), 100)
	require.NoError(t, err)
	before := heapInUse()
	forgotten := rounds(200_000, 1_000_000, 1_000_000)
	for range forgotten {
		if _, err := s.Reserve(context.Background(), 1); err != nil {
			require.NoError(t, err)
		}
	}
	grown := heapInUse() - before
	require.Less(t, grown, int64(512<<10), "bytes of heap")
	first(0)
	require.Equal(t, [4]int{forgotten, 0, 0, 100}, figures(s.Stats()), "the oldest of more than 4,096 gets nothing back")
	var settles []func(int)
	for range 4096 {
		settle, err := s.Reserve(context.Background(), 10)
		require.NoError(t, err)
		settles = append(settles, settle)
	}
	for _, settle := range settles {
		settle(1)
	}
	require.EqualValues(t, 9*4096, s.Stats().GivenBack)
	runtime.KeepAlive(s)
}

// What two requests have reserved may be more than an int holds.
func TestReservedIsAtMostTheGreatestInt(t *testing.T) {
	l := shaper.Limits{Rate: rate.Inf}
	s := must(shaper.New(l))
	g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }))
	var settles []func(int)
	for range 2 {
		one, err := s.Reserve(t.Context(), math.MaxInt)
		require.NoError(t, err)
		other, err := g.Limiter("key").Reserve(t.Context(), math.MaxInt)
		require.NoError(t, err)
		settles = append(settles, one, other)
	}
	require.Equal(t, math.MaxInt, s.Stats().Reserved)
	require.Equal(t, math.MaxInt, g.Stats().Reserved)
	for _, settle := range settles {
		settle(-1)
	}
	require.Zero(t, s.Stats().Reserved)
	require.Zero(t, g.Stats().Reserved)
	require.NoError(t, g.Close())
}

// A request that gives up, or whose slot is handed on, reserves nothing.
func TestOneThatGivesUpReservesNothing(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 10)
		g.reserve("b", 10) // after 1 s
		g.reserve("c", 10) // after 2 s
		g.cancel("b")
		late := newLateCancel()
		g.reserveWith(late, "d", 10)
		late.end()
		g.arriveAll("e")
		g.at(time.Minute)
		g.saw("0s a left", "0s b cancelled", "1s c left", "2s d cancelled", "2s e left")
		require.Equal(t, 20, g.Stats().Reserved)
	})
}

// A change of the rate keeps what may come back as so many units.
func TestAChangedRateKeepsWhatMayComeBack(t *testing.T) {
	playReserving(t, "7/s burst 30 depth 9", func(g *reserving) {
		g.reserve("a", 20)
		g.at(time.Second) // 13
		g.arrive("b", 3)  // 16
		g.set("13/min burst 30 depth 9")
		g.at(time.Second + 3*time.Minute/13) // 13
		g.set("3/s burst 30 depth 9")
		g.settle("a", 0)
		require.InDelta(t, 0, g.Stats().Level, 1e-6)
		require.Equal(t, 13, figures(g.Stats())[1])
		g.set("inf depth 9")
		g.reserve("c", 20)
		g.settle("c", 0)
		require.Equal(t, 7+20, figures(g.Stats())[3], "at rate.Inf all has drained at once")
	})
}

// A snapshot does not know of what is open, so after a restart estimates stand.
func TestASnapshotHasTheEstimates(t *testing.T) {
	playReserving(t, "10/s burst 10 depth 9", func(g *reserving) {
		g.reserve("a", 6)
		data, err := g.Snapshot()
		require.NoError(t, err)
		g.settle("a", 0)
		require.Zero(t, g.Stats().Level)
		require.NoError(t, g.Restore(data))
		require.InDelta(t, 6, g.Stats().Level, 1e-9)
		g.reserve("b", 2)
		g.at(500 * ms)
		other, err := shaper.New(g.Limits())
		require.NoError(t, err)
		require.True(t, other.AllowN(9))
		data, err = other.Snapshot()
		require.NoError(t, err)
		require.NoError(t, g.Restore(data))
		g.settle("b", 0)
		require.InDelta(t, 7, g.Stats().Level, 1e-9, "it gets back its 2, though the level has been raised since")
	})
}

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
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 10, Burst: 10, Depth: 9}, nil }))
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
		g := must(shaper.NewGroup(func(string) (shaper.Limits, error) { return l, nil }))
		a := g.Limiter("a")
		require.NoError(t, a.Do(ctx, 2, func(context.Context) error { return nil }))
		require.True(t, a.AllowN(1))
		require.NoError(t, g.Limiter("a").Spend(ctx, 3, func(context.Context) (int, error) { return 1, nil }))
		require.ErrorIs(t, g.Limiter("a").Spend(ctx, -1, nil), shaper.ErrNegativeCost)
		require.InDelta(t, 4, a.Stats().Level, 1e-9)
		require.Zero(t, g.Limiter("b").Stats().Level)

		s := must(shaper.New(l, shaper.WithFairQueue(nil)))
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
		requests := must(shaper.New(shaper.Limits{Rate: 1, Burst: 10}))
		tokens := must(shaper.New(shaper.Limits{Rate: 10, Burst: 100}))
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
