package shaper_test

import (
	"bytes"
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

	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// This file holds what WithMeters promises. Random scripts with several levels are compared with the model
// (TestMetersModel).

// A levelled is a stage on which requests have a cost at each of several levels.
type levelled struct {
	*stage
	settles map[string]func(actual ...int)
}

// playMetered runs a timeline in a bubble of its own.
func playMetered(t *testing.T, limits string, meters []shaper.Meter, timeline func(g *levelled), opts ...shaper.Option) {
	t.Helper()
	opts = append(opts, shaper.WithMeters(meters...))
	play(t, limits, func(g *stage) { timeline(&levelled{g, map[string]func(...int){}}) }, opts...)
}

// each is a call of WaitEach in a goroutine of its own, which cancel can end.
func (g *levelled) each(name string, costs ...int) {
	ctx := g.cancellable(name)
	g.calls(name, func() error { return g.For(teamOf(name)).WaitEach(ctx, costs...) })
}

// reserve is a call of ReserveEach.
func (g *levelled) reserve(name string, estimates ...int) {
	ctx := g.cancellable(name)
	g.calls(name, func() error {
		settle, err := g.For(teamOf(name)).ReserveEach(ctx, estimates...)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.settles[name] = settle
		return err
	})
}

func (g *levelled) settle(name string, actual ...int) {
	g.mu.Lock()
	settle := g.settles[name]
	g.mu.Unlock()
	settle(actual...)
	synctest.Wait()
}

// levels are all levels now, the one of the Limits first.
func (g *levelled) levels() []float64 {
	all := []float64{g.Stats().Level}
	for _, m := range g.Meters() {
		all = append(all, m.Level)
	}
	return all
}

func TestARequestLeavesWhenAllItsLevelsHaveRoom(t *testing.T) {
	meters := []shaper.Meter{{Name: "input", Rate: 100, Burst: 50}, {Name: "output", Rate: 10, Burst: 20}}
	playMetered(t, "2/s burst 2 depth 9", meters, func(g *levelled) {
		g.each("a", 1, 50, 5)
		g.each("b", 1, 10, 5)  // The input is at 50, and 40 at 100 ms.
		g.each("c", 1, 0, 5)   // Its request is too much until 500 ms. The input is not asked.
		g.each("d", 0, 10, 10) // It waits for those before it, and then the output is at 10 at 500 ms.
		g.each("e", 0, 10, 0)  // At the same instant: nothing that it costs is missing.
		g.each("f", 0, 0, 30)  // Above Burst: when the output is empty.
		g.each("g", 1, 1, 1)
		g.at(time.Minute)
		g.saw("0s a left", "100ms b left", "500ms c left", "500ms d left", "500ms e left", "2.5s f left", "3.6s g left")
	})
}

func TestACostOfZeroAtAllLevelsIsNone(t *testing.T) {
	playMetered(t, "1/s", []shaper.Meter{{Name: "bytes", Rate: 1}}, func(g *levelled) {
		g.each("a", 0, 0)
		g.saw("0s a left")
		require.Zero(t, g.Stats().Departed)
		g.each("b", 0, 1) // Any other counts.
		g.saw("0s b left")
		require.Equal(t, uint64(1), g.Stats().Departed)
		require.Equal(t, []float64{0, 1}, g.levels())
		require.ErrorContains(t, g.WaitEach(context.Background(), 1), "has 1 costs, must have 2")
		require.Equal(t, shaper.ErrNegativeCost, g.WaitEach(context.Background(), 1, -1))
		g.each("c", 1, 2)
		g.saw("0s c costly, retry 0s")
		require.Equal(t, uint64(1), g.Stats().Departed)
	})
}

func TestEachLevelSettlesAlone(t *testing.T) {
	meters := []shaper.Meter{{Name: "known", Rate: 10, Burst: 100}, {Name: "returned", Rate: 10, Burst: 100, Returns: true}}
	playMetered(t, "10/s burst 100 depth 9", meters, func(g *levelled) {
		g.reserve("a", 40, 40, 40)
		g.at(2 * time.Second) // All levels are at 20.
		g.each("b", 10, 10, 10)
		g.settle("a", 30, 5, 5) // The known level had 20 of a left just before b.
		require.Equal(t, []float64{20, 10, 0}, g.levels())
		all := g.Meters()
		require.Equal(t, [4]int{0, 20, 0, 15}, [4]int{all[0].Reserved, int(all[0].GivenBack), int(all[0].Charged), int(all[0].Forfeited)})
		require.Equal(t, [4]int{0, 30, 0, 5}, [4]int{all[1].Reserved, int(all[1].GivenBack), int(all[1].Charged), int(all[1].Forfeited)})

		g.reserve("c", 0, 0, 0)
		g.settle("c", 1, 2) // charges; of the third nothing is known
		require.Equal(t, []float64{21, 12, 0}, g.levels())
		g.AtMostEach(math.MaxInt, 60, 99)
		require.Equal(t, []float64{21, 40, 1}, g.levels())
		g.saw("0s a left", "2s b left", "2s c left")
	})
}

func TestSetMetersReTimesTheLine(t *testing.T) {
	playMetered(t, "inf depth 9", []shaper.Meter{{Name: "bytes", Rate: 1, Burst: 1}}, func(g *levelled) {
		g.each("a", 1, 1)
		g.each("b", 1, 1)
		g.each("c", 1, 1)
		g.at(500 * ms)
		require.NoError(t, g.SetMeters(shaper.Meter{Name: "bytes", Rate: 10, Burst: 1}))
		require.Error(t, g.SetMeters(shaper.Meter{Name: "rows", Rate: 10, Burst: 1}))
		require.Error(t, g.SetMeters(shaper.Meter{Name: "bytes", Rate: 10, Returns: true}))
		require.Error(t, g.SetMeters())
		require.Equal(t, rate.Limit(10), g.Meters()[0].Rate)
		g.at(time.Minute)
		g.saw("0s a left", "550ms b left", "650ms c left")
	})
}

func TestAMeteredTurnCostsItsScarcestLevel(t *testing.T) {
	playMetered(t, "10/s burst 1 depth 20", []shaper.Meter{{Name: "bytes", Rate: 100, Burst: 10}}, func(g *levelled) {
		g.each("x1", 1, 10)
		// A turn of a costs 100 ms by its request, and one of b 400 ms by its bytes. At 400 ms b has paid as much as a,
		// and has been at the head of its line for longer. Then 31 bytes have to leak.
		for _, name := range []string{"a1", "a2", "a3", "a4"} {
			g.each(name, 1, 1)
		}
		g.each("b1", 1, 40)
		g.each("b2", 1, 40)
		g.at(time.Minute)
		g.saw("0s x1 left", "100ms a1 left", "200ms a2 left", "300ms a3 left", "400ms b1 left", "710ms a4 left", "810ms b2 left")
	}, shaper.WithFairQueue(nil))
}

// With a Depth of 0 a bucket is a meter: a request that does not fit is refused, and nobody waits.
// The rows are from well-known descriptions, with their own numbers.

// A metered call comes at an instant, and is let through, or refused until the next
// drip.
type metered struct {
	at   time.Duration
	cost int
	want string
}

func TestMeter(t *testing.T) {
	for _, row := range []struct {
		name   string
		limits shaper.Limits
		calls  []metered
	}{
		{"capacity 3, leak 1.5 a second", shaper.Limits{Rate: 1.5, Burst: 3}, []metered{
			{0, 1, "left"}, {0, 1, "left"}, {0, 1, "left"},
			{0, 1, "full, retry 666.666667ms"},
			{500 * ms, 1, "full, retry 166.666667ms"},
			{666666666, 1, "full, retry 1ns"},
			{666666667, 1, "left"},                     // One has dripped,
			{666666667, 1, "full, retry 666.666667ms"}, // and no more (but the part of a nanosecond that was rounded up).
			{2 * time.Second, 1, "left"}, {2 * time.Second, 1, "left"},
			{2 * time.Second, 1, "full, retry 666.666667ms"},
			{time.Minute, 3, "left"}, {time.Minute, 1, "full, retry 666.666667ms"},
		}},
		{"10 calls per 10 s", shaper.Limits{Rate: rate.Every(time.Second), Burst: 10}, []metered{
			{0, 9, "left"}, {100 * ms, 1, "left"}, {100 * ms, 1, "full, retry 900ms"},
			{999 * ms, 1, "full, retry 1ms"}, {time.Second, 1, "left"},
			{5 * time.Second, 5, "full, retry 1s"}, {5 * time.Second, 4, "left"},
			{14 * time.Second, 10, "full, retry 1s"}, {15 * time.Second, 10, "left"},
		}},
		{"10, 1/sec", limitsOf(t, "10, 1/sec"), []metered{
			{0, 10, "left"}, {0, 1, "full, retry 1s"}, {0, 11, "costly, retry 0s"},
			{3500 * ms, 4, "full, retry 500ms"}, {3500 * ms, 3, "left"},
			{3500 * ms, 1, "full, retry 500ms"},
		}},
		{"500, 100/sec", limitsOf(t, "500, 100/sec"), []metered{
			{0, 500, "left"}, {0, 1, "full, retry 10ms"}, {0, 500, "full, retry 5s"},
			{300 * ms, 31, "full, retry 10ms"}, {300 * ms, 30, "left"},
			{300 * ms, 501, "costly, retry 0s"}, {5300 * ms, 500, "left"},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			playLimits(t, row.limits, func(g *stage) {
				for _, c := range row.calls {
					g.at(c.at)
					wait, err := g.Forecast(c.cost)
					require.Equal(t, c.want, outcome(err), "foreseen at %v", c.at)
					require.Zero(t, wait)
					require.Equal(t, c.want, outcome(g.WaitN(context.Background(), c.cost)), "at %v", c.at)
					require.Equal(t, c.at, time.Since(g.start), "nobody waits")
				}
			})
		})
	}
}

// A levelledRun is what became of requests that came at random instants, with random costs at three levels.
type levelledRun struct {
	limits   shaper.Limits
	meters   []shaper.Meter
	costs    [][]int
	comes    []time.Duration
	left     []time.Duration // -1: it was refused
	returned [3][]change     // what came back at each level
	settled  bool            // settle gives back what is too much
}

// A change is what is given back at an instant.
type change struct {
	at    time.Duration
	units float64
}

// randomRun composes a run whose levels have the same burst in time.
func randomRun(seed uint64) *levelledRun {
	chance := rand.New(rand.NewPCG(seed, 41))
	rates := [3]rate.Limit{2, 5, 20}
	run := &levelledRun{limits: shaper.Limits{Rate: rates[0], Burst: 4, Depth: 999}, meters: []shaper.Meter{
		{Name: "input", Rate: rates[1], Burst: 10}, {Name: "output", Rate: rates[2], Burst: 40, Returns: seed%2 == 0},
	}}
	at := time.Duration(0)
	for range 40 {
		costs := []int{chance.IntN(3), chance.IntN(9), chance.IntN(35)}
		if costs[0]+costs[1]+costs[2] == 0 {
			costs[0] = 1
		}
		run.costs, run.comes = append(run.costs, costs), append(run.comes, at)
		if chance.IntN(3) == 0 {
			at += time.Duration(chance.IntN(4000)) * ms
		}
	}
	return run
}

// play lets the requests come. Each has a deadline, or none if that is nil.
func (run *levelledRun) play(t *testing.T, deadlines []time.Duration, opts ...shaper.Option) {
	t.Helper()
	run.left = make([]time.Duration, len(run.costs))
	playMetered(t, run.limits.String(), run.meters, func(g *levelled) {
		var calls sync.WaitGroup
		var mu sync.Mutex
		for i, costs := range run.costs {
			g.at(run.comes[i])
			ctx, cancel := context.Background(), func() {}
			if deadlines != nil {
				ctx, cancel = context.WithDeadline(ctx, g.start.Add(deadlines[i]))
			}
			calls.Go(func() {
				defer cancel()
				settle, err := g.For(string(rune('a'+i%3))).ReserveEach(ctx, costs...)
				mu.Lock()
				if run.left[i] = time.Since(g.start); err != nil {
					run.left[i] = -1
				}
				mu.Unlock()
				if !run.settled || err != nil {
					return
				}
				time.Sleep(time.Duration(1+i%7) * 500 * ms)
				mu.Lock()
				for k := range costs {
					run.returned[k] = append(run.returned[k], change{time.Since(g.start), float64(costs[k] - costs[k]/(1+i%3))})
				}
				mu.Unlock()
				settle(costs[0]/(1+i%3), costs[1]/(1+i%3), costs[2]/(1+i%3))
			})
			synctest.Wait()
		}
		calls.Wait()
	}, opts...)
}

// alone returns when requests leave a bucket of one level. Costs of 0 wait for nothing.
func (run *levelledRun) alone(t *testing.T, l shaper.Limits, cost func(costs []int) int) (left []time.Duration) {
	t.Helper()
	left = make([]time.Duration, len(run.costs))
	play(t, l.String(), func(g *stage) {
		var calls sync.WaitGroup
		for i, costs := range run.costs {
			g.at(run.comes[i])
			calls.Go(func() {
				require.NoError(t, g.WaitN(context.Background(), cost(costs)))
				left[i] = time.Since(g.start)
			})
			synctest.Wait()
		}
		calls.Wait()
	})
	return left
}

// limitsOf returns the rate and the burst of a level.
func (run *levelledRun) limitsOf(level int) shaper.Limits {
	l := run.limits
	if level > 0 {
		l.Rate, l.Burst = run.meters[level-1].Rate, run.meters[level-1].Burst
	}
	return l
}

// While requests wait, one level at least is too high for the head. So all levels together take no longer than one after the
// other; and no request leaves later than from one bucket of which it takes its largest share.
func TestSeveralLevelsTakeAtMostSoManyTimesTheScarcest(t *testing.T) {
	for seed := range uint64(rounds(10, 300, 3000)) {
		run := randomRun(seed)
		clear(run.comes)
		run.play(t, nil)
		scarcest := time.Duration(0)
		for level := range 3 {
			alone := run.alone(t, run.limitsOf(level), func(costs []int) int { return costs[level] })
			scarcest = max(scarcest, slices.Max(alone))
		}
		require.LessOrEqualf(t, slices.Max(run.left), 3*scarcest+3, "seed %d", seed)
		require.GreaterOrEqualf(t, slices.Max(run.left), scarcest, "seed %d", seed)

		// A unit of the one bucket takes 50 ms; each level has a burst of 2 s.
		run = randomRun(seed)
		run.play(t, nil)
		one := run.alone(t, shaper.Limits{Rate: 20, Burst: 40, Depth: 999}, func(costs []int) int { return max(10*costs[0], 4*costs[1], costs[2]) })
		for i := range one {
			require.LessOrEqualf(t, run.left[i], one[i]+time.Duration(i+1), "seed %d: request %d", seed, i)
		}
	}
}

// Of no level leaves more in any window than guarantee 1 allows: counted by settled costs, or with Returns by estimates and
// what came back in the window.
func TestNoWindowOfALevelHoldsMoreThanItsBurst(t *testing.T) {
	for seed := range uint64(rounds(10, 300, 3000)) {
		run := randomRun(seed)
		run.settled = true
		run.play(t, nil)
		order := make([]int, len(run.left))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(i, j int) int { return cmp.Compare(run.left[i], run.left[j]) })
		for level := range 3 {
			l, returns := run.limitsOf(level), level > 0 && run.meters[level-1].Returns
			for from := range order {
				cost := 0
				for _, i := range order[from:] {
					if n := run.costs[i][level]; returns {
						cost += n
					} else {
						cost += n / (1 + i%3)
					}
					begins, ends := run.left[order[from]], run.left[i]
					most := float64(l.Burst) + float64(l.Rate)*(ends-begins+1).Seconds()
					for _, back := range run.returned[level] {
						if returns && begins <= back.at && back.at <= ends {
							most += back.units
						}
					}
					require.LessOrEqualf(t, float64(cost), most, "seed %d, level %d: from %v to %v", seed, level, begins, ends)
				}
			}
		}
	}
}

// A deadline just after the departure refuses nobody, as a request is never predicted to leave later than it does.
func TestNoneIsRefusedThatLeavesInTime(t *testing.T) {
	for seed := range uint64(rounds(10, 300, 3000)) {
		for _, opts := range [][]shaper.Option{nil, {shaper.WithFairQueue(nil)}} {
			run := randomRun(seed)
			run.play(t, nil, opts...)
			left := run.left
			deadlines := make([]time.Duration, len(left))
			for i := range left {
				deadlines[i] = left[i] + 2 // It finds a line, so it is predicted to wait for a nanosecond at least.
			}
			run.play(t, deadlines, opts...)
			require.Equalf(t, left, run.left, "seed %d", seed)
		}
	}
}

// Whatever calls meet, each has one outcome, and nothing stays reserved.
func TestMetersInAStorm(t *testing.T) {
	for _, opts := range [][]shaper.Option{nil, {shaper.WithFairQueue(nil)}, {shaper.WithLineTimeout(300 * ms)}} {
		meters := []shaper.Meter{{Name: "input", Rate: 5000, Burst: 500}, {Name: "output", Rate: 900, Burst: 200, Returns: true}}
		playMetered(t, "400/s burst 20 depth 40 inflight 9", meters, func(g *levelled) {
			var calls, others sync.WaitGroup
			done := make(chan struct{})
			for k := range 2 {
				others.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-done:
							return
						case <-time.After(time.Duration(7+k) * ms):
						}
						meters := slices.Clone(meters)
						meters[0].Rate = rate.Limit(4000 + 100*(i%20))
						require.NoError(t, g.SetMeters(meters...))
						g.AtMostEach(15, math.MaxInt, 120)
						if g.Hold(time.Duration(i%3) * ms); i%5 == 0 {
							data, err := g.Snapshot()
							require.NoError(t, err)
							require.NoError(t, g.Restore(data))
						}
						_ = g.Meters()
					}
				})
			}
			const callers, each = 16, 60
			for k := range callers {
				calls.Go(func() {
					chance := rand.New(rand.NewPCG(uint64(k), 41))
					for range each {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+chance.IntN(400))*ms)
						costs := []int{1, chance.IntN(60), chance.IntN(20)}
						settle, err := g.For(string(rune('a'+k%4))).ReserveEach(ctx, costs...)
						if err == nil {
							time.Sleep(time.Duration(chance.IntN(30)) * ms)
						}
						settle(1, chance.IntN(80), chance.IntN(20)-1)
						cancel()
					}
				})
			}
			calls.Wait()
			close(done)
			others.Wait()
			st := g.Stats()
			require.Equal(t, callers*each, int(st.Departed+st.Refused+st.Abandoned)+st.Waiting)
			require.Zero(t, st.Waiting+st.InFlight+st.Reserved)
			require.Greater(t, st.Departed, uint64(callers))
			for _, m := range g.Meters() {
				require.Zero(t, m.Reserved)
				require.Zero(t, m.Missed)
			}
			time.Sleep(time.Minute)
			require.Equal(t, []float64{0, 0, 0}, g.levels())
		}, opts...)
	}
}

// A level that the snapshot does not have is left alone, and one that the Shaper does not have is not needed.
func TestASnapshotHasEachLevelByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := made.Shaper(t, "1/s burst 99", shaper.WithMeters(shaper.Meter{Name: "input", Rate: 10, Burst: 99}, shaper.Meter{Name: "output", Rate: 3, Burst: 99}))
		_, err := from.ReserveEach(t.Context(), 20, 50, 30) // What is open is in it.
		require.NoError(t, err)
		data, err := from.Snapshot()
		require.NoError(t, err)
		time.Sleep(time.Second)

		to := made.Shaper(t, "1/s burst 99", shaper.WithMeters(shaper.Meter{Name: "rows", Rate: 1, Burst: 99}, shaper.Meter{Name: "output", Rate: 6, Burst: 99}))
		require.NoError(t, to.WaitEach(t.Context(), 0, 7, 1))
		require.NoError(t, to.Restore(data))
		require.InDelta(t, 19, to.Stats().Level, 1e-9)
		require.InDelta(t, 7, to.Meters()[0].Level, 1e-9)
		require.InDelta(t, 27, to.Meters()[1].Level, 1e-9, "it leaks at the lower of the rates")

		alone := made.Shaper(t, "1/s burst 99")
		require.NoError(t, alone.Restore(data))
		require.InDelta(t, 19, alone.Stats().Level, 1e-9)
		damaged := bytes.Replace(data, []byte(`"level":"30"`), []byte(`"level":"x"`), 1)
		require.ErrorContains(t, to.Restore(damaged), "damaged")
	})
}

func TestMetersThatAreWrongMakeNoShaper(t *testing.T) {
	right := shaper.Meter{Name: "input", Rate: 1}
	eight := make([]shaper.Meter, 8)
	for i := range eight {
		eight[i] = shaper.Meter{Name: string(rune('a' + i)), Rate: 1}
	}
	for _, test := range []struct {
		meters []shaper.Meter
		opt    shaper.Option
		says   string
	}{
		{[]shaper.Meter{{Rate: 1}}, nil, "Meter.Name of meter 1 is empty"},
		{[]shaper.Meter{right, right}, nil, `Meter.Name is "input" for two meters`},
		{[]shaper.Meter{{Name: "a", Rate: rate.Limit(math.NaN())}}, nil, `Meter "a": Rate is NaN`},
		{[]shaper.Meter{{Name: "a"}}, nil, `Meter "a": Rate is 0, must be above 0`},
		{[]shaper.Meter{{Name: "a", Rate: -2}}, nil, `Meter "a": Rate is -2`},
		{[]shaper.Meter{{Name: "a", Rate: 2e9}}, nil, `Meter "a": Rate is 2e+09, must be at most 1e9`},
		{[]shaper.Meter{{Name: "a", Rate: 1, Burst: -1}}, nil, `Meter "a": Burst is -1`},
		{[]shaper.Meter{{Name: "a", Rate: 1e-6, Burst: 99}}, nil, "more than 365 days to drain"},
		{eight, nil, "8 meters, must be at most 7"},
		{[]shaper.Meter{right}, shaper.WithDryRun(), "WithDryRun"},
		{[]shaper.Meter{right}, shaper.WithBlock(time.Second), "WithBlock"},
		{[]shaper.Meter{right}, shaper.WithBucket(buckettest.NewMemory(), "a", shared.Options{}), "WithBucket"},
	} {
		opts := []shaper.Option{shaper.WithMeters(test.meters...)}
		if test.opt != nil {
			opts = append(opts, test.opt)
		}
		_, err := shaper.New(shaper.Limits{Rate: 1}, opts...)
		require.ErrorContains(t, err, test.says)
	}
	_, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 1}, nil }, shaper.WithMeters(right))
	require.ErrorContains(t, err, "WithMeters")
	require.Equal(t, 0, len(made.Shaper(t, "1/s", shaper.WithMeters()).Meters()))
}

// Where there is one level, one cost is meant for it.
func TestOneLevelTakesOneCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s, g := made.Shaper(t, "1/s burst 9"), made.Group[string](t, "1/s burst 9")
		for _, l := range []interface {
			WaitEach(ctx context.Context, costs ...int) error
			ReserveEach(ctx context.Context, estimates ...int) (settle func(actual ...int), err error)
			AtMostEach(left ...int)
			Stats() shaper.Stats
		}{made.Shaper(t, "1/s burst 9"), s.For("a"), g.Limiter("a")} {
			require.NoError(t, l.WaitEach(ctx, 2))
			require.ErrorContains(t, l.WaitEach(ctx, 1, 1), "has 2 costs, must have 1")
			require.ErrorContains(t, l.WaitEach(ctx), "has 0 costs, must have 1")
			settle, err := l.ReserveEach(ctx)
			require.ErrorContains(t, err, "has 0 costs, must have 1")
			settle(1)
			settle, err = l.ReserveEach(ctx, 4)
			require.NoError(t, err)
			require.InDelta(t, 6, l.Stats().Level, 1e-9)
			settle(1, 99)
			require.InDelta(t, 3, l.Stats().Level, 1e-9)
			settle, err = l.ReserveEach(ctx, 1)
			require.NoError(t, err)
			settle() // The estimate stands.
			l.AtMostEach()
			require.InDelta(t, 4, l.Stats().Level, 1e-9)
			l.AtMostEach(2, 1)
			require.InDelta(t, 7, l.Stats().Level, 1e-9)
			require.Equal(t, uint64(3), l.Stats().Departed)
		}
		capped := made.Shaper(t, "1/s burst 9 inflight 1", shaper.WithMeters(shaper.Meter{Name: "bytes", Rate: 1, Burst: 9}))
		require.ErrorContains(t, capped.WaitEach(ctx, 1, 1), "use Acquire")
		settle, err := capped.ReserveEach(ctx, 1, 1)
		require.NoError(t, err)
		require.Equal(t, 1, capped.Stats().InFlight)
		settle(0, 0, 7)
		require.Zero(t, capped.Stats().InFlight)
		require.Zero(t, capped.Meters()[0].Level)
	})
}

// The head has paid nothing yet, so it is the one to go. Whoever comes need not wait for it.
func TestAHeadThatIsPushedOutIsNotAwaited(t *testing.T) {
	playMetered(t, "1/s depth 2", []shaper.Meter{{Name: "bytes", Rate: 1}}, func(g *levelled) {
		g.each("x", 5, 100)
		g.each("c", 2, 0)
		g.each("a", 0, 4) // at 100 s
		g.at(5 * time.Second)
		g.each("b", 2, 0) // Its tag is the one of a, who has twice as much to pay until then.
		ctx, cancel := context.WithDeadline(context.Background(), g.start.Add(9*time.Second+1))
		defer cancel()
		g.calls("d", func() error { return g.For("d").WaitEach(ctx, 2, 0) })
		g.at(time.Minute)
		g.saw("0s x left", "5s c left", "5s a full, retry 2s", "7s b left", "9s d left")
	}, shaper.WithFairQueue(nil))
}
