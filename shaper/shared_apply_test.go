package shaper_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/shared"
)

// in returns an instant or a span, in microseconds.
func in(r shared.BucketRate, a shared.Instant) *big.Rat {
	part := big.NewRat(a.Part, r.Parts)
	return part.Add(part, new(big.Rat).SetInt64(a.Micros))
}

// unitOf returns the time of a cost unit, in microseconds.
func unitOf(r shared.BucketRate) *big.Rat {
	return in(r, shared.Instant{Micros: r.Micros, Part: r.Part})
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
	count := rounds(700, 10_000, 20_000)
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
var bucketRates = []shared.BucketRate{
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

// A state with numbers at the ends of their ranges is sound, and one beyond them is none.
func TestAStateIsDamagedOnlyBeyondItsRanges(t *testing.T) {
	take := shared.Take{Key: "k", Cost: 1, First: 1, Rate: bucketRates[0]}
	for _, c := range []struct {
		name      string
		empty, at int64
		cold      bool
	}{
		{"it reached 0 at the beginning of 1970", 0, 1, false},
		{"it reached 0 before 1970", -1, 1, true},
		{"it was never written", 0, 0, true},
		{"the latest that there is", 1 << 53, 1 << 53, false},
		{"it reaches 0 too late", 1<<53 + 1, 1 << 53, true},
		{"it was written too late", 1 << 53, 1<<53 + 1, true},
	} {
		l := shared.BucketLevel{Empty: shared.Instant{Micros: c.empty}, Rate: take.Rate, At: c.at}
		_, taken := take.Apply(l, max(1, c.at))
		require.Equal(t, c.cold, taken.Cold, c.name)
	}
}

// A change of the rate keeps the level in cost units, and lets nobody leave before those who
// may hold slots of the old rate.
func TestANewRateBeginsBehindTheSlotsOfTheOld(t *testing.T) {
	const now = 1_800_000_000_000_000
	old := shared.BucketRate{Version: 1, Micros: 100_000, Parts: 1, Burst: 1} // 10/s
	for _, c := range []struct {
		name      string
		oldBurst  int64
		micros    int64 // time of a unit at the new rate
		burst     int64
		empty     int64 // of the old rate, from now
		want      int64 // of the new rate, from now
		nextAtOld int64 // when the next request of cost 1 could have left at the old rate, from now
	}{
		{"nothing is taken", 1, 1000, 5, 0, 0, 0},
		{"the level was 0 long ago", 1, 1000, 5, -7_000_000, 0, 0},
		{"slower: the level is kept", 1, 200_000, 1, 300_000, 600_000, 300_000},
		{"the same rate", 1, 100_000, 1, 300_000, 300_000, 300_000},
		{"faster: slots at 0, 100 and 200 ms may be held", 1, 1000, 1, 300_000, 300_000, 300_000},
		{"faster, with a burst", 1, 1000, 5, 300_000, 304_000, 300_000},
		{"faster, and nobody holds a slot: the level of 3 is kept", 5, 1000, 5, 300_000, 3000, 0},
		{"faster, and the burst is spent: 4 of it are left at 100 ms", 5, 1000, 1, 500_000, 104_000, 100_000},
		{"a request of cost 1000 leaves at 2 s", 1, 1000, 1, 102_000_000, 2_000_000 + 1_000_000, 2_000_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, next := old, shared.BucketRate{Version: 2, Micros: c.micros, Parts: 1, Burst: c.burst}
			old.Burst = c.oldBurst
			got := next.Rescale(old, shared.Instant{Micros: now + c.empty}, now)
			require.Equal(t, shared.Instant{Micros: now + c.want}, got)
			if c.nextAtOld > 0 {
				require.GreaterOrEqual(t, c.want-(c.burst-1)*c.micros, c.nextAtOld)
			}
		})
	}
}

// A rescaling is exact to the microsecond for every rate.
func TestRescaleIsNeverEarly(t *testing.T) {
	const now = 1_800_000_000_000_000
	random := rand.New(rand.NewPCG(5, 6))
	longest := new(big.Rat).SetInt64(1 << 51)
	for _, old := range bucketRates {
		for _, next := range bucketRates {
			for range 100 {
				old.Burst, next.Burst = 1+random.Int64N(50), 1+random.Int64N(50)
				empty := shared.Instant{Micros: now + random.Int64N(1<<52)>>random.IntN(52) - 1000, Part: random.Int64N(old.Parts)}
				late := new(big.Rat).Sub(in(next, next.Rescale(old, empty, now)), rescaled(next, old, in(old, empty), now, longest))
				require.Truef(t, late.Sign() >= 0 && late.Cmp(big.NewRat(1, 1)) < 0,
					"%+v to %+v, empty at %+v: %s µs late", old, next, empty, late.FloatString(6))
			}
		}
	}
}

// rescaled returns what [shared.BucketRate.Rescale] does, exactly.
func rescaled(r, old shared.BucketRate, empty *big.Rat, now int64, longest *big.Rat) *big.Rat {
	at := new(big.Rat).SetInt64(now)
	if empty.Cmp(at) <= 0 {
		return at
	}
	units := func(n int64, r shared.BucketRate) *big.Rat {
		return earlier(new(big.Rat).Mul(new(big.Rat).SetInt64(n), unitOf(r)), longest)
	}
	ratio := new(big.Rat).Quo(unitOf(r), unitOf(old))
	asOf := func(when *big.Rat) *big.Rat { // The level as of when stays what it is in cost units.
		span := new(big.Rat).Sub(empty, when)
		return span.Add(span.Mul(span, ratio), when)
	}
	result := asOf(at)
	next := earlier(new(big.Rat).Sub(empty, units(old.Burst-1, old)), new(big.Rat).SetInt64(now+shared.MaxAhead.Microseconds()))
	if next.Cmp(at) > 0 {
		result = later(result, asOf(next))
		result = later(result, new(big.Rat).Add(next, units(r.Burst-1, r)))
	}
	return earlier(result, new(big.Rat).Add(at, longest))
}

func earlier(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func later(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}

// During a deployment processes with an old and with a new rate share a level. Whatever
// both rates are, nobody may see more than the greater one lets leave.
func TestTwoRatesTogetherAreNeverAboveTheGreater(t *testing.T) {
	t.Parallel()
	for seed := range uint64(rounds(100, 2_000, 20_000)) {
		random := rand.New(rand.NewPCG(seed, 7))
		var rates []shared.BucketRate
		for version := range int64(2 + random.IntN(2)) {
			rates = append(rates, shared.BucketRate{
				Version: version, Micros: 1 + random.Int64N(1_000_000)>>random.IntN(19), Part: random.Int64N(3), Parts: 3,
				Burst: 1 + random.Int64N(30)>>random.IntN(5),
			})
		}
		slots := deploy(random, rates)
		greatest, burst := rates[0], rates[0].Burst
		for _, r := range rates {
			if unitOf(r).Cmp(unitOf(greatest)) < 0 {
				greatest = r
			}
			burst = max(burst, r.Burst)
		}
		greatest.Burst = burst
		require.NoErrorf(t, conforms(slots, greatest), "seed %d: %+v", seed, rates)
	}
}

// A sharedSlot is a departure: its instant in microseconds, and its cost.
type sharedSlot struct {
	at   *big.Rat
	cost int64
}

// deploy plays processes that share a level, with one more for each new rate, and returns
// the slots that they have had. Each of them uses all slots at once that come within
// MaxAhead.
func deploy(random *rand.Rand, rates []shared.BucketRate) (slots []sharedSlot) {
	now := int64(1_800_000_000_000_000)
	level, newest := shared.BucketLevel{}, 0
	for range 60 {
		now += random.Int64N(1_000_000) >> random.IntN(20)
		if newest+1 < len(rates) && random.IntN(20) == 0 {
			newest++
		}
		r := rates[random.IntN(newest+1)]
		var costs []int64
		sum := int64(0)
		for range 1 + random.IntN(5) {
			cost := 1 + random.Int64N(60)>>random.IntN(7)
			costs, sum = append(costs, cost), sum+cost
		}
		take := shared.Take{Key: "k", Cost: sum, First: costs[0], Ahead: time.Duration(random.Int64N(2_000_001)) * time.Microsecond, Rate: r}
		next, taken := take.Apply(level, now)
		level = next
		if !taken.OK {
			continue
		}
		empty := in(r, taken.Empty)
		for _, cost := range costs {
			at := new(big.Rat).Sub(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(max(0, r.Burst-cost))))
			at = later(at, new(big.Rat).SetInt64(now))
			empty = new(big.Rat).Add(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(cost)))
			if at.Cmp(new(big.Rat).SetInt64(now+shared.MaxAhead.Microseconds())) <= 0 {
				slots = append(slots, sharedSlot{at, cost})
			}
		}
	}
	return slots
}

// conforms returns an error if one bucket of a rate would not have let the slots leave.
func conforms(slots []sharedSlot, r shared.BucketRate) error {
	slices.SortStableFunc(slots, func(a, b sharedSlot) int { return a.at.Cmp(b.at) })
	empty := new(big.Rat)
	for i, s := range slots {
		due := new(big.Rat).Sub(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(max(0, r.Burst-s.cost))))
		if due.Cmp(s.at) > 0 {
			return fmt.Errorf("slot %d of %d, of cost %d, is %s µs early", i, len(slots), s.cost, due.Sub(due, s.at).FloatString(3))
		}
		empty = later(empty, s.at)
		empty = new(big.Rat).Add(empty, new(big.Rat).Mul(unitOf(r), new(big.Rat).SetInt64(s.cost)))
	}
	return nil
}
