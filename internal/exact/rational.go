package exact

import "math/big"

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
	exact := i.exact(at, excess)
	exact.Sub(exact, new(big.Rat).SetInt64(now))
	return exact.Quo(exact, i.Rat())
}

// InstantAfter returns the instant that is so many intervals after now, and its excess.
func (i Interval) InstantAfter(now int64, units *big.Rat) (at Nanos, excess *big.Rat) {
	exact := i.Rat()
	exact.Mul(exact, units)
	return i.round(exact.Add(exact, new(big.Rat).SetInt64(now)))
}

// Compare returns -1, 0 or 1 as the exact instant of a is before, at or after that of b.
func (i Interval) Compare(a Nanos, aExcess *big.Rat, b Nanos, bExcess *big.Rat) int {
	return i.exact(a, aExcess).Cmp(i.exact(b, bExcess))
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
	r := new(big.Rat).SetFrac(new(big.Int).SetUint64(a.part), new(big.Int).SetUint64(i.den))
	return r.Add(r, new(big.Rat).SetInt64(a.whole))
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
	whole, part := quotient.QuoRem(quotient, den, new(big.Int))
	if !whole.IsInt64() {
		return Nanos{whole: Forever}
	}
	return Nanos{whole.Int64(), part.Uint64()}
}
