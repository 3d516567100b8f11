package exact

import (
	"cmp"
	"math"
	"math/big"
	"math/bits"
)

// A [Nanos] is a multiple of 1/den of a nanosecond. After a change of the rate, or
// beyond 292 years, the exact instant need not be such a multiple. The Nanos is then the
// next multiple above the exact instant. The excess says how far above: it is kept beside
// the Nanos as a *big.Rat, where nil means 0. If the exact instant is too far away for a
// Nanos, the Nanos is the latest one there is, and the excess is negative.

// maxExcess bounds the memory of an excess, in bits of its denominator. A larger
// denominator can only come from rates that change again and again; the excess is
// then forgotten, which makes the instant later by less than 1/den of a nanosecond.
const maxExcess = 4096

// Add returns at, which lies excess above the exact instant, moved by n intervals,
// and the new excess. n may be negative. Unlike [Interval.Plus] it never saturates.
func (i Interval) Add(at Nanos, excess *big.Rat, n int64) (Nanos, *big.Rat) {
	exact := i.exact(at, excess)
	span := i.Rat()
	return i.round(exact.Add(exact, span.Mul(span, new(big.Rat).SetInt64(n))))
}

// Rescale returns the instant that is as many intervals of to after now as the exact
// instant is intervals of i after now, and the new excess. at lies excess above the exact
// instant. Neither interval may be 0.
func (i Interval) Rescale(at Nanos, excess *big.Rat, now int64, to Interval) (Nanos, *big.Rat) {
	if moved, above, ok := i.rescaleInWords(at, excess, now, to); ok {
		return moved, above
	}
	return i.rescale(at, excess, now, to)
}

// rescaleInWords is Rescale where all numbers fit into words, as they do at everyday rates; ok reports
// whether they do. A reload of limits rescales the bucket of every key in use.
func (i Interval) rescaleInWords(at Nanos, excess *big.Rat, now int64, to Interval) (moved Nanos, above *big.Rat, ok bool) {
	above0, below := uint64(0), uint64(1) // excess is above0/below
	if excess != nil {
		if !excess.Num().IsUint64() || !excess.Denom().IsUint64() {
			return moved, nil, false
		}
		above0, below = excess.Num().Uint64(), excess.Denom().Uint64()
	}
	if now < 0 || at.whole < now {
		return moved, nil, false
	}
	// In parts of 1/i.den the span is (span − above0·i.den/below), and so many units of i. As many units
	// of to are, in parts of 1/to.den, (span·below − above0·i.den)·length/(unit·below).
	var all words
	span := all.sum(all.product(uint64(at.whole-now), i.den), at.part)
	unit := all.sum(all.product(uint64(i.whole), i.den), i.num)
	length := all.sum(all.product(uint64(to.whole), to.den), to.num)
	span, less := all.product(span, below), all.product(above0, i.den)
	unit = all.product(unit, below)
	high, low := bits.Mul64(span-less, length)
	denominator := all.product(unit, to.den)
	if all.overflow || less > span || high >= unit || denominator > math.MaxInt64 {
		return moved, nil, false
	}
	parts, rest := bits.Div64(high, low, unit)
	if parts >= Forever {
		return moved, nil, false
	}
	if rest > 0 {
		parts++
		above = big.NewRat(int64(unit-rest), int64(denominator))
	}
	whole := Sum(now, int64(parts/to.den))
	return Nanos{whole, parts % to.den}, above, whole < Forever
}

// words calculates with numbers of 64 bits, and notes whether a result does not fit.
type words struct{ overflow bool }

func (w *words) product(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	w.overflow = w.overflow || high != 0
	return low
}

func (w *words) sum(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	w.overflow = w.overflow || carry != 0
	return sum
}

// rescale is Rescale for numbers of any size.
func (i Interval) rescale(at Nanos, excess *big.Rat, now int64, to Interval) (Nanos, *big.Rat) {
	if excess == nil {
		return to.instantAfter(now, i.partsAfter(now, at), i.parts(Nanos{i.whole, i.num}))
	}
	begin := new(big.Rat).SetInt64(now)
	exact := i.exact(at, excess)
	exact.Sub(exact, begin)
	exact.Mul(exact, to.Rat())
	exact.Quo(exact, i.Rat())
	return to.round(exact.Add(exact, begin))
}

// UnitsSince returns how many cost units take the span from now until the exact instant.
// at lies excess above the exact instant. The interval must not be 0.
func (i Interval) UnitsSince(now int64, at Nanos, excess *big.Rat) float64 {
	units, _ := i.UnitsAfter(now, at, excess).Float64()
	return units
}

// UnitsAfter returns how many intervals after now the exact instant is. at lies excess above
// the exact instant. The interval must not be 0.
func (i Interval) UnitsAfter(now int64, at Nanos, excess *big.Rat) *big.Rat {
	if excess == nil { // Both are multiples of 1/den, which cancels.
		return new(big.Rat).SetFrac(i.partsAfter(now, at), i.parts(Nanos{i.whole, i.num}))
	}
	exact := i.exact(at, excess)
	exact.Sub(exact, new(big.Rat).SetInt64(now))
	return exact.Quo(exact, i.Rat())
}

// InstantAfter returns the instant that is so many intervals after now, and its excess.
func (i Interval) InstantAfter(now int64, units *big.Rat) (at Nanos, excess *big.Rat) {
	return i.instantAfter(now, units.Num(), units.Denom())
}

// instantAfter is InstantAfter for num/den units.
func (i Interval) instantAfter(now int64, num, den *big.Int) (at Nanos, excess *big.Rat) {
	// Mostly the span is a multiple of 1/i.den, as its units are of the same interval.
	span := i.parts(Nanos{i.whole, i.num})
	span.Mul(span, num)
	if whole, rest := new(big.Int).QuoRem(span, den, new(big.Int)); rest.Sign() == 0 {
		if at, ok := i.ofParts(whole.Add(whole, i.parts(At(now)))); ok {
			return at, nil
		}
	}
	scale := new(big.Int).SetUint64(i.den)
	exact := new(big.Rat).SetFrac(span, scale.Mul(scale, den))
	return i.round(exact.Add(exact, new(big.Rat).SetInt64(now)))
}

// Compare returns -1, 0 or 1 as the exact instant of a is before, at or after the one of b.
func (i Interval) Compare(a Nanos, aExcess *big.Rat, b Nanos, bExcess *big.Rat) int {
	if aExcess == nil && bExcess == nil {
		return cmp.Or(cmp.Compare(a.whole, b.whole), cmp.Compare(a.part, b.part))
	}
	return i.exact(a, aExcess).Cmp(i.exact(b, bExcess))
}

// Difference returns the span from b until a, two exact instants or spans, and its excess. aExcess and
// bExcess are how far a and b lie above the exact ones.
func (i Interval) Difference(a Nanos, aExcess *big.Rat, b Nanos, bExcess *big.Rat) (span Nanos, excess *big.Rat) {
	from := i.exact(a, aExcess)
	return i.round(from.Sub(from, i.exact(b, bExcess)))
}

// exact returns the exact instant that at lies excess above, in nanoseconds.
func (i Interval) exact(at Nanos, excess *big.Rat) *big.Rat {
	exact := i.rat(at)
	if excess != nil {
		exact.Sub(exact, excess)
	}
	return exact
}

// round returns the Nanos for an exact instant, and the excess.
func (i Interval) round(exact *big.Rat) (at Nanos, excess *big.Rat) {
	at = i.roundUp(exact)
	excess = i.rat(at)
	excess.Sub(excess, exact)
	if excess.Sign() == 0 || excess.Denom().BitLen() > maxExcess {
		return at, nil
	}
	return at, excess
}

// rat returns a in nanoseconds.
func (i Interval) rat(a Nanos) *big.Rat {
	if a.part == 0 {
		return new(big.Rat).SetInt64(a.whole)
	}
	return new(big.Rat).SetFrac(i.parts(a), new(big.Int).SetUint64(i.den))
}

// parts returns a in 1/den of a nanosecond.
func (i Interval) parts(a Nanos) *big.Int {
	n := new(big.Int).Mul(big.NewInt(a.whole), new(big.Int).SetUint64(i.den))
	return n.Add(n, new(big.Int).SetUint64(a.part))
}

// partsAfter returns the span from now until at, in 1/den of a nanosecond.
func (i Interval) partsAfter(now int64, at Nanos) *big.Int {
	span := i.parts(at)
	return span.Sub(span, i.parts(At(now)))
}

// ofParts returns the Nanos of so many 1/den of a nanosecond; ok reports whether there is one. It
// changes n.
func (i Interval) ofParts(n *big.Int) (a Nanos, ok bool) {
	if n.Sign() < 0 {
		return a, false
	}
	whole, part := n.QuoRem(n, new(big.Int).SetUint64(i.den), new(big.Int))
	if !whole.IsInt64() {
		return a, false
	}
	return Nanos{whole.Int64(), part.Uint64()}, true
}

// roundUp returns the first multiple of 1/den that is not below exact, at most
// [Forever], and 0 if exact is negative.
func (i Interval) roundUp(exact *big.Rat) Nanos {
	if exact.Sign() < 0 {
		return Nanos{}
	}
	den := new(big.Int).SetUint64(i.den)
	scaled := new(big.Int).Mul(exact.Num(), den)
	quotient, rest := scaled.QuoRem(scaled, exact.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	if at, ok := i.ofParts(quotient); ok {
		return at
	}
	return Nanos{whole: Forever}
}
