package shaper_test

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// groupAtRate makes a Group whose keys share their levels, and whose limits function returns the
// Limits that change was given last.
func groupAtRate(t *testing.T, m *buckettest.Memory, l shaper.Limits, opts ...shaper.GroupOption) (g *shaper.Group[string], change func(shaper.Limits)) {
	t.Helper()
	var now atomic.Pointer[shaper.Limits]
	now.Store(&l)
	g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return *now.Load(), nil }, append(opts, shaper.WithBuckets(m, ownKey))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g, func(to shaper.Limits) {
		now.Store(&to)
		g.Reload()
	}
}

// A process that lifted the limit for itself alone would let everything leave, while the others keep
// to the rate that they share.
func TestNoProcessLiftsASharedLimitForItselfAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unlimited := shaper.Limits{Rate: rate.Inf}
		const refusal = "Limits.Rate is +Inf, must be finite where a Bucket holds the level"
		m := buckettest.NewMemory()
		_, err := shaper.New(unlimited, shaper.WithBucket(m, "key"))
		require.ErrorContains(t, err, refusal)
		s, err := shaper.New(shaper.Limits{Rate: 50}, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer s.Close()
		require.ErrorContains(t, s.SetLimits(unlimited), refusal)
		require.EqualValues(t, 50, s.Stats().Limits.Rate)
		g, _ := groupAtRate(t, m, shaper.Limits{Rate: 50})
		require.ErrorContains(t, g.SetLimits("key", unlimited), refusal)
	})
}

// An answer that was under way when the rate became rate.Inf must not limit it again. Nor must a
// fallback that begins later.
func TestNoAnswerLimitsARateThatHasBecomeInf(t *testing.T) {
	for name, fault := range map[string]buckettest.Fault{"answered": buckettest.NoFault, "failed": buckettest.FailBefore} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.SetDelay(50*ms, 50*ms)
				m.Fail(faultOf(fault))
				g, change := groupAtRate(t, m, shaper.Limits{Rate: 10, Depth: 100}, shaper.WithFallback(shaper.FallbackOpen))
				for range 3 {
					go func() { _ = g.Wait(t.Context(), "key") }()
				}
				time.Sleep(30 * ms)
				change(shaper.Limits{Rate: rate.Inf, Depth: 100})
				for range 100 {
					time.Sleep(30 * ms)
					began := time.Now()
					for range 5 {
						require.NoError(t, g.Wait(t.Context(), "key"))
					}
					require.Zero(t, time.Since(began))
				}
			})
		})
	}
}

func TestTheMeterAtInfAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		g, change := groupAtRate(t, m, shaper.Limits{Rate: 1}, shaper.WithBlock(time.Hour))
		require.True(t, g.Allow("key"))
		require.False(t, g.Allow("key"))
		st, ok := g.StatsOf("key")
		require.True(t, ok)
		require.False(t, st.BlockedUntil.IsZero())
		m.SetDelay(50*ms, 50*ms)
		left := make(chan bool, 1)
		change(shaper.Limits{Rate: rate.Inf})
		require.True(t, g.Allow("key"), "a change to rate.Inf ends a block")
		change(shaper.Limits{Rate: 1})
		go func() { left <- g.Allow("key") }()
		time.Sleep(30 * ms)
		change(shaper.Limits{Rate: rate.Inf})
		require.True(t, <-left)
	})
}

// Totals only grow, whatever the rate is.
func TestRefusalsAreNotForgottenAtInf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		g, change := groupAtRate(t, m, shaper.Limits{Rate: 10})
		for range 5 {
			require.False(t, g.Allow("key"))
		}
		change(shaper.Limits{Rate: rate.Inf})
		require.EqualValues(t, 5, g.Stats().Refused)
		require.EqualValues(t, 5, g.Stats().Unavailable)
	})
}

// A server that is silent is found to be so, even if no caller waits for as long as a call may
// take.
func TestImpatientCallersFindASilentBucketToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(time.Millisecond, time.Millisecond)
		s, err := shaper.New(shaper.Limits{Rate: 1000, Burst: 10}, shaper.WithBucket(m, "key"), shaper.WithFallback(shaper.FallbackOpen))
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.Wait(t.Context()))
		m.Fail(faultOf(buckettest.LoseRequest))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
			require.ErrorIs(t, s.Wait(ctx), context.DeadlineExceeded)
			cancel()
		}
		require.Equal(t, shaper.BucketOpen, s.Stats().Bucket.State)
		time.Sleep(time.Second)
		require.NoError(t, s.Wait(t.Context()))
	})
}

// A key that calls rarely, so that its bucket is forgotten meanwhile, has its rate in a fallback.
func TestARareKeyLeavesInAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.Fail(faultOf(buckettest.FailBefore))
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) { return shaper.Limits{Rate: 5, Burst: 3}, nil },
			shaper.WithBuckets(m, func(key string) string { return key }), shaper.WithFallback(shaper.FallbackOpen))
		require.NoError(t, err)
		defer g.Close()
		for range 3 {
			g.Allow("other")
		}
		for range 3 {
			time.Sleep(2500 * ms)
			require.True(t, g.Allow("rare"))
		}
	})
}

// groupOn returns a Group whose levels are in a Bucket, with a rate for each key.
func groupOn(t *testing.T, b shaper.Bucket, rates map[string]rate.Limit, opts ...shaper.GroupOption) *shaper.Group[string] {
	t.Helper()
	g, err := shaper.NewGroup(func(key string) (shaper.Limits, error) { return shaper.Limits{Rate: rates[key]}, nil },
		append(opts, shaper.WithBuckets(b, func(key string) string { return key }))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// All processes but the one that was started last would pay two round trips for each new key.
func TestANewerVersionOfTheSameRateCostsNoRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		rates := map[string]rate.Limit{"a": 12.345, "b": 12.345, "c": 9}
		older := groupOn(t, m, rates)
		time.Sleep(time.Second)
		newer := groupOn(t, m, rates)
		for i, g := range []*shaper.Group[string]{newer, older, newer, older} {
			time.Sleep(time.Second)
			for n, key := range []string{"a", "b", "c"} {
				require.True(t, g.Allow(key))
				require.EqualValues(t, 3*(i/2)+n+1, g.Stats().Bucket.RoundTrips)
			}
		}
	})
}

// A deployment that changes the rate of one key and not of the other: what an old process hears
// of the new ones at the key that has not changed must not make its old rate of the other newer.
func TestTheOldRateOfAKeyDoesNotWinBecauseAnotherKeyKeepsItsRate(t *testing.T) {
	for name, opts := range map[string][2][]shaper.GroupOption{
		"versions by time": {},
		"WithRateVersion":  {{shaper.WithRateVersion(1)}, {shaper.WithRateVersion(5)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				older := groupOn(t, m, map[string]rate.Limit{"stays": 10, "changes": 10}, opts[0]...)
				time.Sleep(time.Second)
				newer := groupOn(t, m, map[string]rate.Limit{"stays": 10, "changes": 5}, opts[1]...)
				require.True(t, newer.Allow("stays"))
				time.Sleep(time.Second)
				require.True(t, older.Allow("stays"))
				require.True(t, older.Allow("changes"))
				time.Sleep(time.Second)
				for _, g := range []*shaper.Group[string]{newer, older} {
					require.True(t, g.Allow("changes"))
					require.EqualValues(t, 200_000, m.Level("changes").Rate.Micros, "5/s is in force")
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// What the Bucket has told a meter, and that it can't be asked, is foreseen.
func TestForecastsKnowWhatTheBucketSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := shaper.Limits{Rate: 0.01, Burst: 5}
		a, err := shaper.New(limits, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer a.Close()
		b, err := shaper.New(limits, shaper.WithBucket(m, "key"), shaper.WithRateVersion(1))
		require.NoError(t, err)
		defer b.Close()
		for range 5 {
			require.True(t, a.Allow())
		}
		require.False(t, b.Allow())
		_, err = b.Forecast(1)
		require.ErrorIs(t, err, shaper.ErrQueueFull)
		require.InDelta(t, 5, b.Stats().Level, 0.01)

		m.Fail(faultOf(buckettest.FailBefore))
		for range 3 {
			require.False(t, b.Allow())
		}
		_, err = b.Forecast(1)
		require.ErrorIs(t, err, shaper.ErrUnavailable)
	})
}

// farAway is a Bucket whose way takes longer by a random time, up to jitter in each direction.
// It counts the calls that are under way at once.
type farAway struct {
	*buckettest.Memory
	base, jitter time.Duration

	mu             sync.Mutex
	random         *rand.Rand
	underway, most int
}

func newFarAway(m *buckettest.Memory, seed uint64, base, jitter time.Duration) *farAway {
	return &farAway{Memory: m, base: base, jitter: jitter, random: rand.New(rand.NewPCG(seed, 0))}
}

// way returns how long one way takes: half of base, up or down by half of jitter.
func (b *farAway) way() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.base / 2
	if b.jitter > 0 {
		d += time.Duration(b.random.Int64N(int64(b.jitter))) - b.jitter/2
	}
	return d
}

func (b *farAway) add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underway += n
	b.most = max(b.most, b.underway)
}

// mostAtOnce returns how many calls there were at a time, at most.
func (b *farAway) mostAtOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

func (b *farAway) Take(ctx context.Context, t shaper.Take) (shaper.Taken, error) {
	b.add(1)
	defer b.add(-1)
	time.Sleep(b.way())
	taken, err := b.Memory.Take(ctx, t)
	time.Sleep(b.way())
	return taken, err
}

// Four processes reach the rate together, in equal shares, with few round trips, whatever the
// way to the Bucket takes.
func TestProcessesReachTheRateInEqualShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate         rate.Limit
		burst        int
		base, jitter time.Duration
		callers      int
	}{
		{3, 0, 200 * us, 0, 100},
		{100, 0, 200 * us, 0, 100}, {100, 0, 20 * ms, 10 * ms, 100}, {100, 10, 2 * ms, 0, 20}, {100, 0, 2 * ms, 0, 2},
		{1000, 0, 200 * us, 0, 100}, {1000, 0, 2 * ms, 0, 100}, {1000, 0, 20 * ms, 0, 100}, {1000, 0, 20 * ms, 10 * ms, 100}, {1000, 50, 20 * ms, 10 * ms, 100},
		{10000, 0, 200 * us, 0, 800}, {10000, 0, 2 * ms, 0, 800}, {10000, 0, 20 * ms, 0, 800}, {10000, 0, 20 * ms, 10 * ms, 800},
	} {
		if c.rate == 10000 && c.jitter == 0 && !long {
			continue // They take most of the processor time of all.
		}
		t.Run(fmt.Sprintf("%v per s, burst %d, %v ± %v, %d callers", c.rate, c.burst, c.base, c.jitter, c.callers), func(t *testing.T) {
			t.Parallel()
			share(t, 0, fmt.Sprintf("%v/s burst %d depth 9999", float64(c.rate), max(c.burst, 1)), 0, func(p *processes) {
				var ways []*farAway
				for i := range 4 {
					ways = append(ways, newFarAway(p.Memory, uint64(i), c.base, c.jitter))
					p.add(ways[i])
				}
				stop := p.saturate(c.callers)
				defer stop()
				p.at(time.Second)
				p.ClearLog()
				span := max(4*time.Second, time.Duration(float64(10_000*time.Second)/float64(c.rate)))
				p.at(time.Second + span)
				takes, _ := p.takes()
				each, all := p.between(time.Second, time.Second+span)
				dropped := uint64(0)
				for i, s := range p.all {
					dropped += s.Stats().Bucket.Dropped
					require.Equal(t, 1, ways[i].mostAtOnce(), "one call at a time")
				}
				whole := float64(c.rate) * span.Seconds()
				t.Logf("%.2f %% of the rate, %v, %.3f round trips per departure, dropped %d", 100*float64(all)/whole, each, float64(len(takes))/float64(all), dropped)
				require.InDelta(t, whole, all, max(2, 0.01*whole))
				batch := takes[len(takes)/2].Take.Cost
				for _, n := range each {
					require.InDelta(t, float64(all)/4, n, max(0.02*float64(all)/4, 1.2*float64(batch)), "%v", each)
				}
				if c.rate == 1000 {
					require.LessOrEqual(t, float64(len(takes)), 0.15*float64(all))
				}
				stop()
				p.check()
			})
		})
	}
}

// A process alone reaches the rate too, even where a round trip takes longer than a batch may be
// otherwise; and at most two batches are held.
func TestLoneProcessReachesTheRate(t *testing.T) {
	for _, rtt := range []time.Duration{200 * us, 20 * ms, 60 * ms, 150 * ms} {
		share(t, 1, "1000/s depth 9999", rtt, func(p *processes) {
			stop := p.saturate(1000)
			defer stop()
			p.at(2 * time.Second)
			most := int64(0)
			for i := range 2000 {
				p.at(2*time.Second + time.Duration(i)*ms)
				most = max(most, p.all[0].Stats().Bucket.Held)
			}
			p.at(4 * time.Second)
			_, all := p.between(2*time.Second, 4*time.Second)
			require.InDelta(t, 2000, all, 5, rtt)
			batch := int64(0)
			for _, e := range p.Log() {
				batch = max(batch, e.Take.Cost)
			}
			require.LessOrEqual(t, most, 2*batch)
			require.LessOrEqual(t, time.Duration(batch)*ms, max(50*ms, 4*rtt))
			stop()
			p.check()
		})
	}
}

// At slow rates only one slot at a time can be leased. A process whose way to the Bucket is longer
// must get its turn all the same.
func TestFarProcessGetsItsTurnAtSlowRates(t *testing.T) {
	for _, limits := range []string{"1/s depth 99", "6/min depth 99"} {
		share(t, 0, limits, 0, func(p *processes) {
			for i, way := range []time.Duration{200 * us, 2 * ms, 10 * ms, 30 * ms} {
				p.add(newFarAway(p.Memory, uint64(i), way, 0))
			}
			stop := p.saturate(5)
			defer stop()
			span := time.Duration(200 / float64(p.limits.Rate) * float64(time.Second))
			p.at(span)
			each, all := p.between(0, span)
			t.Logf("%s: %v", limits, each)
			require.InDelta(t, 200, all, 2)
			for _, n := range each {
				require.InDelta(t, 50, n, 5, "%s: %v", limits, each)
			}
			stop()
			p.check()
		})
	}
}

// Skewed arrivals: a light process waits for its turn, not for the lines of the others.
func TestLightProcessIsNotStarved(t *testing.T) {
	share(t, 4, "1000/s depth 9999", 2*ms, func(p *processes) {
		stop := p.saturate(500, 0, 1, 2)
		defer stop()
		p.at(time.Second)
		for range 50 {
			began := time.Now()
			require.NoError(t, p.wait(p.t.Context(), 3, 1))
			require.Less(t, time.Since(began), 250*ms)
			time.Sleep(13 * ms)
		}
		stop()
		synctest.Wait()
		p.check()
	})
}

// in returns an instant or a span, in microseconds.
func in(r shaper.BucketRate, a shaper.Instant) *big.Rat {
	part := big.NewRat(a.Part, r.Parts)
	return part.Add(part, new(big.Rat).SetInt64(a.Micros))
}

// unitOf returns the time of a cost unit, in microseconds.
func unitOf(r shaper.BucketRate) *big.Rat {
	return in(r, shaper.Instant{Micros: r.Micros, Part: r.Part})
}

func TestABucketRateIsExactlyTheRateThatPeopleWrite(t *testing.T) {
	for _, c := range []struct {
		rate  rate.Limit
		exact *big.Rat // time of a unit in microseconds
	}{
		{1e9, big.NewRat(1, 1000)},
		{30_000, big.NewRat(100, 3)},
		{10, big.NewRat(100_000, 1)},
		{3, big.NewRat(1_000_000, 3)},
		{1, big.NewRat(1_000_000, 1)},
		{7. / 9, big.NewRat(9_000_000, 7)},
		{0.1, big.NewRat(10_000_000, 1)},
		{1. / 3, big.NewRat(3_000_000, 1)},
		{100. / 60, big.NewRat(600_000, 1)},
		{999_999_937, big.NewRat(1_000_000, 999_999_937)}, // the greatest denominator there is: a prime
		{1. / (365 * 24 * 60 * 60), big.NewRat(365*24*60*60*1_000_000, 1)},
	} {
		r := shaper.BucketRateOf(shaper.Limits{Rate: c.rate, Burst: 5}, 42)
		require.Zerof(t, unitOf(r).Cmp(c.exact), "%v per second: %+v", float64(c.rate), r)
		require.Equal(t, int64(42), r.Version)
		require.Equal(t, int64(5), r.Burst)
	}
	require.Equal(t, int64(1), shaper.BucketRateOf(shaper.Limits{Rate: 1}, 0).Burst)
}

// Engines are never faster than the process's own bucket would be; and they can hold each
// number that they are given.
func TestABucketRateIsNeverAboveTheRate(t *testing.T) {
	t.Parallel()
	count := rounds(2_000, 10_000, 20_000)
	random := rand.New(rand.NewPCG(1, 2))
	for range count {
		r := rate.Limit(math.Exp(math.Log(1./(365*24*60*60)) + random.Float64()*math.Log(365*24*60*60*1e9)))
		if (shaper.Limits{Rate: r}).Validate() != nil {
			continue
		}
		got := shaper.BucketRateOf(shaper.Limits{Rate: r}, 1)
		require.True(t, got.Parts >= 1 && got.Parts <= 1e12 && got.Part >= 0 && got.Part < got.Parts && got.Micros >= 0)

		exact := new(big.Rat).SetFloat64(float64(r))
		exact.Mul(exact.Inv(exact), big.NewRat(1_000_000, 1))
		reading := new(big.Rat).Mul(exact, big.NewRat(1, 1<<49)) // A float stands for the simplest fraction beside it.
		late := new(big.Rat).Sub(unitOf(got), exact)
		require.LessOrEqualf(t, late.Cmp(new(big.Rat).Add(reading, big.NewRat(1, 1e12))), 0, "%v: %+v", float64(r), got)
		require.GreaterOrEqualf(t, late.Cmp(reading.Neg(reading)), 0, "%v: %+v", float64(r), got)
	}
}

// bucketRates are rates whose arithmetic is hard in some way.
var bucketRates = []shaper.BucketRate{
	{Version: 1, Micros: 333_333, Part: 1, Parts: 3, Burst: 1},
	{Version: 1, Micros: 33, Part: 1, Parts: 3, Burst: 7},
	{Version: 1, Micros: 1_285_714, Part: 2, Parts: 7, Burst: 2},
	{Version: 1, Part: 1, Parts: 1000, Burst: 1_000_000},
	{Version: 1, Micros: 100, Parts: 1, Burst: 1},
	{Version: 1, Micros: 314, Part: 159_265_358_979, Parts: 1e12, Burst: 3},
	{Version: 1, Micros: 2, Part: 999_999_999_999, Parts: 1e12, Burst: 100},
	{Version: 1, Part: 1, Parts: 1e12, Burst: 5},
	{Version: 1, Micros: 365 * 24 * 60 * 60 * 1_000_000, Part: 999, Parts: 1000, Burst: 1},
}

func TestRiseAndRoomAreExact(t *testing.T) {
	longest := new(big.Rat).SetInt64(1 << 51)
	random := rand.New(rand.NewPCG(3, 4))
	check := func(r shaper.BucketRate, n int64, got shaper.Instant, what string) {
		want := new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(n))
		if want.Cmp(longest) > 0 {
			want = longest
		}
		require.Zerof(t, want.Cmp(in(r, got)), "%s of %d units at %+v: %+v, must be %s µs", what, n, r, got, want.FloatString(12))
		require.True(t, got.Part >= 0 && got.Part < r.Parts)
	}
	for _, r := range bucketRates {
		for i := range 1000 {
			n := max(1, random.Int64()>>random.IntN(63))
			switch i {
			case 0:
				n = math.MaxInt64
			case 1:
				n = 1
			}
			check(r, n, shaper.Take{Cost: n, First: 1, Rate: r}.Rise(), "rise")
			check(r, max(0, r.Burst-n), shaper.Take{Cost: 1, First: n, Rate: r}.Room(), "room")
			r.Burst = max(1, random.Int64()>>random.IntN(63))
			check(r, max(0, r.Burst-n), shaper.Take{Cost: 1, First: n, Rate: r}.Room(), "room")
		}
	}
}

// A million departures at 3/s take 333,333 s and a third. What is rounded in each of them
// would be seen after them all.
func TestAMillionSharedSlotsDoNotDrift(t *testing.T) {
	t.Parallel()
	rates := append([]shaper.BucketRate{}, bucketRates[:8]...)
	for _, r := range []rate.Limit{3, 30_000, 7. / 9, math.Pi, 0.1 + 0.2, 1e9 / 7, rate.Limit(math.Nextafter(1, 2)), 12345.6789} {
		rates = append(rates, shaper.BucketRateOf(shaper.Limits{Rate: r}, 1))
	}
	const start = 1_800_000_000_000_000
	for i, r := range rates {
		slots := 50_000
		if i < 3 || longest {
			slots = 1_000_000
		}
		t.Run(fmt.Sprintf("%d.%d of %d", r.Micros, r.Part, r.Parts), func(t *testing.T) {
			level, now, units := shaper.BucketLevel{}, int64(start), int64(0)
			for i := range slots {
				cost := int64(i%3 + 1)
				taken := shaper.Taken{}
				level, taken = shaper.Take{Key: "k", Cost: cost, First: cost, Ahead: shaper.MaxAhead, Rate: r}.Apply(level, now)
				if !taken.OK {
					t.Fatalf("slot %d was refused", i)
				}
				if i%1000 == 0 || i == slots-1 {
					want := new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(units))
					want.Add(want, new(big.Rat).SetInt64(start))
					if in(r, taken.Empty).Cmp(want) != 0 {
						t.Fatalf("after %d units the level reaches 0 at %+v, must be at %s", units, taken.Empty, want.FloatString(12))
					}
				}
				units += cost
				now = max(now, level.Empty.Micros-1_000_000) // behind what is taken, so that the bucket is never empty
			}
		})
	}
}

// The most that a bucket can hold must fit, with room to spare: what is beyond any Limits
// counts as 71 years, and no sum wraps around.
func TestExtremeSharedLevelsDoNotOverflow(t *testing.T) {
	year := shaper.BucketRate{Version: 1, Micros: 365 * 24 * 60 * 60 * 1_000_000, Parts: 1, Burst: 1}
	fast := shaper.BucketRate{Version: 1, Part: 1, Parts: 1000, Burst: 365 * 24 * 60 * 60 * 1e9}
	const now = 1_800_000_000_000_000
	never := year
	never.Burst = math.MaxInt64
	for _, r := range []shaper.BucketRate{year, fast, never} {
		level, taken := shaper.BucketLevel{}, shaper.Taken{}
		for _, cost := range []int64{1, 1_000_000, math.MaxInt64, math.MaxInt64} {
			before := level
			level, taken = shaper.Take{Key: "k", Cost: cost, First: cost, Rate: r}.Apply(level, now)
			require.GreaterOrEqual(t, taken.Empty.Micros, int64(now))
			require.GreaterOrEqual(t, level.Empty.Micros, before.Empty.Micros)
			require.LessOrEqual(t, level.Empty.Micros, int64(1<<53))
		}
		require.Greater(t, level.Empty.Micros, int64(now))
		for _, to := range []shaper.BucketRate{year, fast, never} {
			rescaled := to != r
			to.Version = 2
			next, taken := shaper.Take{Key: "k", Cost: math.MaxInt64, First: math.MaxInt64, Rate: to}.Apply(level, now)
			require.Equal(t, to, next.Rate)
			require.GreaterOrEqual(t, taken.Empty.Micros, int64(now))
			if rescaled {
				require.LessOrEqual(t, taken.Empty.Micros, int64(now+1<<51))
			}
			require.LessOrEqual(t, next.Empty.Micros, int64(1<<53))
		}
	}

	// Where the whole burst is a year's, all of it may leave at once.
	taken := shaper.Taken{}
	_, taken = shaper.Take{Key: "k", Cost: fast.Burst, First: fast.Burst, Rate: fast}.Apply(shaper.BucketLevel{}, now)
	require.True(t, taken.OK)
	level, _ := shaper.Take{Key: "k", Cost: fast.Burst - 1, First: 1, Rate: fast}.Apply(shaper.BucketLevel{}, now)
	level, taken = shaper.Take{Key: "k", Cost: 1, First: 1, Rate: fast}.Apply(level, now)
	require.True(t, taken.OK)
	_, taken = shaper.Take{Key: "k", Cost: 1, First: 1, Rate: fast}.Apply(level, now)
	require.False(t, taken.OK)
}
