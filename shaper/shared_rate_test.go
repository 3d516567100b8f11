package shaper_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

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
