// Package exact counts time without rounding. A [Nanos] is an instant or a span
// of nanoseconds and a fraction of one more; an [Interval] is the time that one
// cost unit takes at a rate, as a fraction of whole numbers. A schedule made of
// both never drifts: the millionth departure is at the nanosecond at which the
// rate puts it. The everyday operations use integers and are inlined. Package math/big
// is needed only to read a rate, after a change of the rate, and beyond 292 years.
package exact

import (
	"math"
	"math/big"
	"math/bits"
	"time"

	"golang.org/x/time/rate"
)

// Nanos is a number of nanoseconds: whole ones, and part/den of one more, where
// den is the denominator of the [Interval] that it is used with. It serves as a
// span of time and as an instant, which counts from an epoch of the caller's.
// Additions that do not fit saturate. The zero Nanos is 0.
type Nanos struct {
	whole int64
	part  uint64
}

// Forever is the longest span, 292 years. A sum that does not fit becomes this.
const Forever = math.MaxInt64

// At returns the instant, or the span, of ns whole nanoseconds.
func At(ns int64) Nanos { return Nanos{whole: ns} }

// Of returns the instant, or the span, of so many whole nanoseconds and part/den of one
// more, where den is the denominator of the [Interval] that it is used with.
func Of(whole int64, part uint64) Nanos { return Nanos{whole, part} }

// Whole returns a rounded down to a nanosecond.
func (a Nanos) Whole() int64 { return a.whole }

// Exceeds reports whether the span a is longer than d.
func (a Nanos) Exceeds(d time.Duration) bool { return a.After(Nanos{whole: int64(d)}) }

// After reports whether the instant a is later, or the span a longer, than b.
func (a Nanos) After(b Nanos) bool {
	return a.whole > b.whole || a.whole == b.whole && a.part > b.part
}

// Ceil returns a rounded up to a nanosecond. A clock that counts nanoseconds shows that reading
// first after the instant a has come.
func (a Nanos) Ceil() int64 {
	if a.part > 0 {
		return Sum(a.whole, 1)
	}
	return a.whole
}

// Later returns the later of two instants.
func Later(a, b Nanos) Nanos {
	if b.After(a) {
		return b
	}
	return a
}

// Sum returns a + b, or the nearest int64 if that does not fit.
func Sum(a, b int64) int64 {
	switch c := a + b; {
	case a > 0 && b > 0 && c < 0:
		return Forever
	case a < 0 && b < 0 && c >= 0:
		return math.MinInt64
	default:
		return c
	}
}

// Interval is 1/rate, the time that one cost unit takes: whole nanoseconds, and
// num/den of one more, in lowest terms. At [rate.Inf] it is 0.
type Interval struct {
	whole    int64
	num, den uint64
}

// IntervalOf returns the interval of a rate per second, which must be positive.
//
// A float64 cannot hold a third. So the rate is read as the fraction p/q with
// the smallest denominator within one part in 2⁵⁰ of it, and the interval is
// 10⁹·q/p nanoseconds, exactly.
func IntervalOf(r rate.Limit) Interval {
	if r == rate.Inf {
		return Interval{den: 1}
	}
	if r >= 1 && r == rate.Limit(math.Trunc(float64(r))) {
		// A whole number is the simplest fraction, and no other is so near.
		return Interval{whole: int64(time.Second) / int64(r)}.with(uint64(time.Second)%uint64(r), uint64(r))
	}
	exact := new(big.Rat).SetFloat64(float64(r))
	if exact == nil || exact.Sign() <= 0 {
		return Interval{den: 1} // The caller should not have passed this rate.
	}
	tolerance := new(big.Rat).Mul(exact, big.NewRat(1, 1<<50))
	simple := simplest(new(big.Rat).Sub(exact, tolerance), new(big.Rat).Add(exact, tolerance))
	ns := simple.Mul(simple.Inv(simple), big.NewRat(int64(time.Second), 1))

	// From one in 365 days to 10⁹ per second p and q stay below 2⁵⁰. A span of length
	// 2ε·r holds a multiple of 1/n for every n ≥ 1/(2ε·r), so q is at most 2⁴⁹/r + 1,
	// and p at most 2⁴⁹ + r. Below one per second the same holds for 1/r = q/p.
	whole, rest := new(big.Int).QuoRem(ns.Num(), ns.Denom(), new(big.Int))
	return Interval{whole: whole.Int64(), num: rest.Uint64(), den: ns.Denom().Uint64()}
}

// IntervalOfFraction returns the interval of so many whole nanoseconds and num/den of one
// more. It keeps the denominator as it is.
func IntervalOfFraction(whole int64, num, den uint64) Interval { return Interval{whole, num, den} }

// with returns i with the fraction num/den, in lowest terms. Their greatest
// common divisor is found by Euclid's algorithm (Elements VII, 2).
func (i Interval) with(num, den uint64) Interval {
	a, b := den, num
	for b != 0 {
		a, b = b, a%b
	}
	i.num, i.den = num/a, den/a
	return i
}

// simplest returns the fraction with the smallest denominator in [lo, hi], where
// 0 < lo ≤ hi. It walks down the Stern–Brocot tree along the terms that the
// continued fractions of lo and hi have in common: if a whole number lies between
// the two, the smallest such one is the answer; otherwise both begin with the
// same whole number, and the answer continues with the simplest fraction between
// the reciprocals of the remainders. (Graham, Knuth, Patashnik: Concrete
// Mathematics, section 4.5.)
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

// IsZero reports whether the interval is 0, because the rate is [rate.Inf].
func (i Interval) IsZero() bool { return i.whole == 0 && i.num == 0 }

// Whole returns the interval rounded down to a nanosecond.
func (i Interval) Whole() int64 { return i.whole }

// Rat returns the interval in nanoseconds.
func (i Interval) Rat() *big.Rat { return i.rat(Nanos{i.whole, i.num}) }

// Times returns n intervals, where n ≥ 0, or at least [Forever] if that is longer.
func (i Interval) Times(n int64) Nanos {
	if n == 1 {
		return Nanos{i.whole, i.num}
	}
	high, low := bits.Mul64(uint64(n), uint64(i.whole))
	if high != 0 || low > Forever {
		return Nanos{whole: Forever}
	}
	if i.num == 0 {
		return Nanos{whole: int64(low)}
	}
	// n·num/den < n, as num < den: the quotient fits.
	high2, low2 := bits.Mul64(uint64(n), i.num)
	carry, part := bits.Div64(high2, low2, i.den)
	return Nanos{Sum(int64(low), int64(carry)), part}
}

// Plus returns a + b.
func (i Interval) Plus(a, b Nanos) Nanos {
	whole, part := Sum(a.whole, b.whole), a.part+b.part
	if part >= i.den {
		whole, part = Sum(whole, 1), part-i.den
	}
	return Nanos{whole, part}
}

// Minus returns a − b.
func (i Interval) Minus(a, b Nanos) Nanos {
	whole, part := Sum(a.whole, -b.whole), a.part
	if part < b.part {
		whole, part = Sum(whole, -1), part+i.den
	}
	return Nanos{whole, part - b.part}
}

// Units returns how many cost units take a span: span / i, or 0 if i is 0.
func (i Interval) Units(span Nanos) float64 {
	if i.IsZero() {
		return 0
	}
	return i.float(span) / i.float(Nanos{i.whole, i.num})
}

// float returns a in parts of 1/den of a nanosecond. It is exact below 2⁵³, so
// that a span of a whole number of cost units is shown as a whole number.
func (i Interval) float(a Nanos) float64 {
	return float64(a.whole)*float64(i.den) + float64(a.part)
}
