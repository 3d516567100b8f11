package exact

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// These bound the rates that are tested, to those that package shaper allows.
const (
	longest = 365 * 24 * time.Hour
	highest = 1_000_000_000
)

func TestRatesAreReadAsSimpleFractions(t *testing.T) {
	for _, c := range []struct {
		rate rate.Limit
		want Interval
	}{
		{50, Interval{20_000_000, 0, 1}},
		{7, Interval{142_857_142, 6, 7}},
		{1.0 / 3, Interval{3_000_000_000, 0, 1}},
		{rate.Every(3 * time.Second), Interval{3_000_000_000, 0, 1}},
		{20.0 / 60, Interval{3_000_000_000, 0, 1}},
		{0.1, Interval{10_000_000_000, 0, 1}},
		{7.0 / 9, Interval{1_285_714_285, 5, 7}},
		{highest, Interval{1, 0, 1}},
		{rate.Every(longest), Interval{int64(longest), 0, 1}},
		{999_999_999.5, Interval{1, 1, 1_999_999_999}},
		{rate.Inf, Interval{0, 0, 1}},
	} {
		require.Equal(t, c.want, IntervalOf(c.rate), "%v", float64(c.rate))
	}
}

// The parts of an interval must remain far below 64 bits, and the fraction must be as near
// to the rate as is promised.
func TestEveryRateHasAnExactInterval(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for range 1500 {
		low, high := math.Log(1/longest.Seconds()), math.Log(highest)
		requireNear(t, math.Exp(low+r.Float64()*(high-low)))
	}
}

func requireNear(t *testing.T, perSecond float64) {
	t.Helper()
	i := IntervalOf(rate.Limit(perSecond))
	require.Less(t, i.num, i.den)
	require.Less(t, i.den, uint64(1)<<50)
	back := i.Rat()
	back.Quo(big.NewRat(int64(time.Second), 1), back)
	exact := new(big.Rat).SetFloat64(perSecond)
	off := back.Sub(back, exact)
	off.Quo(off.Abs(off), exact)
	require.LessOrEqual(t, off.Cmp(big.NewRat(1, 1<<50)), 0, "%v", perSecond)
}

func TestIntervalArithmeticIsExact(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	for range 1500 {
		i := IntervalOf(rate.Limit(math.Exp(r.Float64()*38 - 17)))
		requireExact(t, i, r.Int64N(1<<r.IntN(40)), r.Int64N(1<<r.IntN(40)))
	}
}

// requireExact compares sums and differences of n and m intervals with package math/big.
func requireExact(t *testing.T, i Interval, n, m int64) {
	t.Helper()
	a, b := i.Times(n), i.Times(m)
	wantA, wantB := times(i, n), times(i, m)
	if a.whole == Forever || b.whole == Forever || a.whole+b.whole < 0 {
		require.Positive(t, new(big.Rat).Add(wantA, wantB).Cmp(new(big.Rat).SetInt64(Forever-1)), "%d and %d times %v", n, m, i)
		return
	}
	require.Zero(t, wantA.Cmp(i.rat(a)), "%d times %v", n, i)
	require.Equal(t, a, i.roundUp(wantA))
	require.Zero(t, new(big.Rat).Add(wantA, wantB).Cmp(i.rat(i.Plus(a, b))), "%v + %v of %v", a, b, i)
	require.Zero(t, new(big.Rat).Sub(wantA, wantB).Cmp(i.rat(i.Minus(a, b))), "%v − %v of %v", a, b, i)
	require.Equal(t, wantA.Cmp(wantB) > 0, a.After(b))
	require.Equal(t, wantA.Cmp(new(big.Rat).SetInt64(b.whole)) > 0, a.Exceeds(time.Duration(b.whole)))
	if later := Later(a, b); wantA.Cmp(wantB) > 0 {
		require.Equal(t, a, later)
	} else {
		require.Equal(t, b, later)
	}
	up := new(big.Int).Quo(new(big.Int).Add(wantA.Num(), new(big.Int).Sub(wantA.Denom(), big.NewInt(1))), wantA.Denom())
	require.Equal(t, up.Int64(), a.Ceil())
	require.InEpsilon(t, float64(max(n, 1)), i.Units(i.Times(max(n, 1))), 1e-14)
}

// times returns n intervals in nanoseconds.
func times(i Interval, n int64) *big.Rat {
	span := i.Rat()
	return span.Mul(span, new(big.Rat).SetInt64(n))
}

// An instant and its excess together are the exact instant, wherever it lies: between
// multiples of 1/den, before 0, or centuries away.
func TestAnInstantAndItsExcessAreExact(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 10))
	for range 800 {
		from := IntervalOf(rate.Limit(math.Exp(r.Float64()*38 - 17)))
		to := IntervalOf(rate.Limit(math.Exp(r.Float64()*38 - 17)))
		requireRescaled(t, from, to, r.Int64N(1<<r.IntN(62)), r.Int64N(1<<r.IntN(40)), r.Int64N(1<<r.IntN(40)))
	}
}

// requireRescaled lets n intervals begin at one instant, and changes their length at a later
// one. It requires that as many intervals remain as before, and that the way back is exact.
func requireRescaled(t *testing.T, from, to Interval, n, began, now int64) {
	t.Helper()
	start, seen := new(big.Rat).SetInt64(began), new(big.Rat).SetInt64(now)
	first, excess := from.Add(At(began), nil, n)
	want := times(from, n)
	want.Add(want, start)
	require.Zero(t, want.Cmp(from.exact(first, excess)))

	at, excess := from.Rescale(first, excess, now, to)
	units := new(big.Rat).Sub(want, seen)
	units.Quo(units, from.Rat())
	want.Mul(units, to.Rat())
	want.Add(want, seen)
	require.Zero(t, want.Cmp(to.exact(at, excess)), "%d intervals of %v seen as %v", n, from, to)
	float, _ := units.Float64()
	require.Equal(t, float, to.UnitsSince(now, at, excess))
	if excess != nil && want.Sign() >= 0 && at.whole < Forever {
		require.Positive(t, excess.Sign(), "an instant is rounded up")
		require.Negative(t, excess.Cmp(new(big.Rat).SetFrac(big.NewInt(1), new(big.Int).SetUint64(to.den))))
	}

	at, excess = to.Rescale(at, excess, now, from)
	at, excess = from.Add(at, excess, -n)
	require.Equal(t, At(began), at)
	require.Nil(t, excess)
}

// In words an instant is rescaled as it is in numbers of any size, and at everyday rates nothing else is
// needed, however often they change.
func TestEverydayRatesNeedNoLongNumbers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(13, 14))
	rates := []rate.Limit{0.1, 1.0 / 3, 1, 5.0 / 60, 7, 9.5, 50, 60, 100, 128, 1000, 12_345}
	inWords := 0
	for k := range 5000 {
		i, to := IntervalOf(rates[r.IntN(len(rates))]), IntervalOf(rates[r.IntN(len(rates))])
		if k%4 == 0 { // Rates that nobody writes.
			to = IntervalOf(rate.Limit(math.Exp(r.Float64()*38 - 17)))
		}
		at, excess, now := At(r.Int64N(1<<40)), (*big.Rat)(nil), r.Int64N(1<<40)
		at = i.Plus(at, i.Times(r.Int64N(1000)))
		for range 3 {
			moved, above, ok := i.rescaleInWords(at, excess, now, to)
			want, wantAbove := i.rescale(at, excess, now, to)
			if ok {
				require.Equal(t, want, moved, "%v, %v above, seen at %d: %v becomes %v", at, excess, now, i, to)
				require.Equal(t, wantAbove == nil, above == nil)
				if above != nil {
					require.Zero(t, wantAbove.Cmp(above))
				}
			}
			if k%4 != 0 && at.whole >= now && excess == nil {
				require.True(t, ok, "%v seen at %d: %v becomes %v", at, now, i, to)
			}
			if ok && excess != nil {
				inWords++
			}
			at, excess, now, i, to = want, wantAbove, now+r.Int64N(1<<30), to, i
		}
	}
	require.Greater(t, inWords, 1250)
}

// A Nanos cannot represent an instant before the epoch, so the excess holds all of it.
func TestAnInstantBeforeTheEpochIsKept(t *testing.T) {
	i := IntervalOf(7)
	at, excess := i.Add(At(0), nil, -3)
	require.Equal(t, Nanos{}, at)
	require.Zero(t, excess.Cmp(times(i, 3)))
	at, excess = i.Add(at, excess, 3)
	require.Equal(t, Nanos{}, at)
	require.Nil(t, excess)
}

func TestSumsSaturate(t *testing.T) {
	require.Equal(t, int64(Forever), Sum(Forever, 1))
	require.Equal(t, int64(math.MinInt64), Sum(math.MinInt64, -1))
	require.Equal(t, int64(-1), Sum(Forever, math.MinInt64))
	require.Equal(t, int64(Forever), Interval{whole: 3, den: 1}.Times(math.MaxInt64).whole)
	require.Equal(t, int64(Forever), Nanos{whole: Forever, part: 1}.Ceil())
}

// The memory of an instant is bounded, even if its interval changes again and again.
func TestEndlessChangesStayCheap(t *testing.T) {
	t.Parallel()
	i := IntervalOf(1.0 / 3)
	at, excess := i.Times(1000), (*big.Rat)(nil)
	greatest, whole := 0, 0
	r := rand.New(rand.NewPCG(11, 12))
	for k := range 1000 {
		to := IntervalOf(rate.Limit(1 + r.Float64()))
		at, excess = i.Rescale(at, excess, int64(k), to)
		i = to
		if excess != nil {
			greatest = max(greatest, excess.Denom().BitLen())
		} else {
			whole++
		}
	}
	require.LessOrEqual(t, greatest, maxExcess)
	require.Greater(t, greatest, maxExcess/2, "it has come near the bound")
	require.Greater(t, whole, 1, "some but the first have been forgotten")
	require.InDelta(t, 1000, i.UnitsSince(1000, at, excess), 1e-4, "a µs is 2 millionths of a unit at most")
}

// FuzzArithmetic compares every operation with package math/big.
func FuzzArithmetic(f *testing.F) {
	f.Add(7.0, 1.0/3, int64(1000), int64(3))
	f.Add(999_999_999.5, 1/longest.Seconds(), int64(math.MaxInt64), int64(0))
	f.Add(47.799999999999955, 1.1999998828000002e+08, int64(1)<<40, int64(1)<<62) // just above 239/5
	f.Add(0.1, 1e9, int64(1)<<40, int64(1)<<62)
	f.Fuzz(func(t *testing.T, first, second float64, n, m int64) {
		for _, r := range []float64{first, second} {
			if !(r >= 1/longest.Seconds() && r <= highest) {
				t.Skip("no rate of a shaper")
			}
		}
		n, m = n&math.MaxInt64, m&math.MaxInt64
		requireNear(t, first)
		requireExact(t, IntervalOf(rate.Limit(first)), n, m)
		requireRescaled(t, IntervalOf(rate.Limit(first)), IntervalOf(rate.Limit(second)), n, m, m/2+n/4)
	})
}

// A number of units after an instant, and back, is the same number, whatever fraction it is.
func TestUnitsAfterAnInstantAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 1000 {
		i := IntervalOf(rate.Limit(math.Exp(r.Float64()*38 - 17)))
		now, units := r.Int64N(1<<r.IntN(62)), big.NewRat(r.Int64N(1<<40), 1+r.Int64N(1<<30))
		at, excess := i.InstantAfter(now, units)
		require.Zero(t, units.Cmp(i.UnitsAfter(now, at, excess)))
		later, more := i.InstantAfter(now, new(big.Rat).Add(units, big.NewRat(1, 1<<50)))
		require.Equal(t, -1, i.Compare(at, excess, later, more))
		require.Equal(t, 1, i.Compare(later, more, at, excess))
		require.Zero(t, i.Compare(at, excess, at, excess))
	}
}
