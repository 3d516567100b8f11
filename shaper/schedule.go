package shaper

import (
	"math"
	"math/big"
	"math/bits"
	"time"

	"golang.org/x/time/rate"
)

// nanos is a number of nanoseconds, exactly: whole ones and part/den of one
// more, den being that of the interval in force. It serves as a span of time
// and as an instant, counted from the making of the shaper. Additions that do
// not fit saturate.
type nanos struct {
	whole int64
	part  uint64
}

// forever is the longest span, 292 years: what does not fit becomes this.
const forever = math.MaxInt64

// beyond says whether a is longer than d.
func (a nanos) beyond(d time.Duration) bool { return a.after(nanos{whole: int64(d)}) }

// after says whether a is later, or longer, than b.
func (a nanos) after(b nanos) bool {
	return a.whole > b.whole || a.whole == b.whole && a.part > b.part
}

// ceil is the first whole nanosecond that is not before a: a clock that counts
// nanoseconds can see a's passing no sooner.
func (a nanos) ceil() int64 {
	if a.part > 0 {
		return sum(a.whole, 1)
	}
	return a.whole
}

// later returns the later of two instants.
func later(a, b nanos) nanos {
	if b.after(a) {
		return b
	}
	return a
}

// sum adds two integers, saturating.
func sum(a, b int64) int64 {
	switch c := a + b; {
	case a > 0 && b > 0 && c < 0:
		return forever
	case a < 0 && b < 0 && c >= 0:
		return math.MinInt64
	default:
		return c
	}
}

// interval is 1/Rate, the time for which one cost unit holds the bucket: whole
// nanoseconds and num/den of one more, in lowest terms. At rate.Inf it is 0.
type interval struct {
	whole    int64
	num, den uint64
}

// intervalOf reads a rate as the simplest fraction p/q within one part in 2⁵⁰
// of it, and returns 10⁹·q/p nanoseconds. The rate must be valid.
func intervalOf(r rate.Limit) interval {
	if r == rate.Inf {
		return interval{den: 1}
	}
	if r >= 1 && r == rate.Limit(math.Trunc(float64(r))) {
		// A whole number is the simplest fraction, and no other is so near.
		return interval{whole: int64(time.Second) / int64(r)}.with(uint64(time.Second)%uint64(r), uint64(r))
	}
	exact := new(big.Rat).SetFloat64(float64(r))
	if exact == nil || exact.Sign() <= 0 {
		return interval{den: 1} // Validate has refused it before.
	}
	tolerance := new(big.Rat).Mul(exact, big.NewRat(1, 1<<50))
	simple := simplest(new(big.Rat).Sub(exact, tolerance), new(big.Rat).Add(exact, tolerance))
	ns := simple.Mul(simple.Inv(simple), big.NewRat(int64(time.Second), 1))

	// For rates within the horizon p and q stay below 2⁴⁰ or so: the simplest
	// fraction within ε·r of r has a denominator of at most about 1/√(ε·r).
	whole, rest := new(big.Int).QuoRem(ns.Num(), ns.Denom(), new(big.Int))
	return interval{whole: whole.Int64(), num: rest.Uint64(), den: ns.Denom().Uint64()}
}

// with returns i and num/den of a nanosecond, in lowest terms.
func (i interval) with(num, den uint64) interval {
	a, b := den, num // Euclid's algorithm
	for b != 0 {
		a, b = b, a%b
	}
	i.num, i.den = num/a, den/a
	return i
}

// simplest returns the fraction of smallest denominator in [lo, hi], 0 < lo ≤ hi,
// by walking down their common continued fraction (Stern–Brocot tree).
func simplest(lo, hi *big.Rat) *big.Rat {
	floor := new(big.Rat).SetInt(new(big.Int).Quo(lo.Num(), lo.Denom()))
	if floor.Cmp(lo) == 0 {
		return floor
	}
	if next := new(big.Rat).Add(floor, big.NewRat(1, 1)); next.Cmp(hi) <= 0 {
		return next
	}
	below := new(big.Rat).Sub(hi, floor)
	above := new(big.Rat).Sub(lo, floor)
	rest := simplest(below.Inv(below), above.Inv(above))
	return floor.Add(floor, rest.Inv(rest))
}

// none says whether the interval is 0: the rate is rate.Inf.
func (i interval) none() bool { return i.whole == 0 && i.num == 0 }

// rat is the interval in nanoseconds.
func (i interval) rat() *big.Rat { return i.exactly(nanos{i.whole, i.num}) }

// times is n intervals, n ≥ 0, saturating.
func (i interval) times(n int64) nanos {
	if n == 1 {
		return nanos{i.whole, i.num}
	}
	high, low := bits.Mul64(uint64(n), uint64(i.whole))
	if high != 0 || low > forever {
		return nanos{whole: forever}
	}
	if i.num == 0 {
		return nanos{whole: int64(low)}
	}
	// n·num/den < n, as num < den: the quotient fits.
	high2, low2 := bits.Mul64(uint64(n), i.num)
	carry, part := bits.Div64(high2, low2, i.den)
	return nanos{sum(int64(low), int64(carry)), part}
}

// plus is a + b.
func (i interval) plus(a, b nanos) nanos {
	whole, part := sum(a.whole, b.whole), a.part+b.part
	if part >= i.den {
		whole, part = sum(whole, 1), part-i.den
	}
	return nanos{whole, part}
}

// minus is a − b.
func (i interval) minus(a, b nanos) nanos {
	whole, part := sum(a.whole, -b.whole), a.part
	if part < b.part {
		whole, part = sum(whole, -1), part+i.den
	}
	return nanos{whole, part - b.part}
}

// units is how many cost units leak in a span: span / interval.
func (i interval) units(span nanos) float64 {
	if i.none() {
		return 0
	}
	return i.float(span) / i.float(nanos{i.whole, i.num})
}

// float is a span in 1/den of a nanosecond, which is exact while it is below
// 2⁵³, so that a level which is a whole number is shown as one.
func (i interval) float(a nanos) float64 {
	return float64(a.whole)*float64(i.den) + float64(a.part)
}

// exactly is a span in nanoseconds.
func (i interval) exactly(a nanos) *big.Rat {
	r := new(big.Rat).SetFrac(new(big.Int).SetUint64(a.part), new(big.Int).SetUint64(i.den))
	return r.Add(r, new(big.Rat).SetInt64(a.whole))
}

// roundUp is the first multiple of 1/den that is not below exact, saturating,
// and 0 if exact is negative.
func (i interval) roundUp(exact *big.Rat) nanos {
	if exact.Sign() < 0 {
		return nanos{}
	}
	den := new(big.Int).SetUint64(i.den)
	scaled := new(big.Int).Mul(exact.Num(), den)
	quotient, rest := scaled.QuoRem(scaled, exact.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	whole, part := quotient.QuoRem(quotient, den, new(big.Int))
	if !whole.IsInt64() {
		return nanos{whole: forever}
	}
	return nanos{whole.Int64(), part.Uint64()}
}
