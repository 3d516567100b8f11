package model

import (
	"math"
	"math/big"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

const year = 365 * 24 * time.Hour // the horizon

// valid reports whether shaper.New takes l.
func valid(l shaper.Limits) bool {
	r := float64(l.Rate)
	if math.IsNaN(r) || r <= 0 || l.Rate != rate.Inf && r > 1e9 {
		return false
	}
	if l.Burst < 0 || l.Depth < 0 || l.MaxWait < 0 || l.Slack < 0 || l.InFlight < 0 {
		return false
	}
	drain := new(big.Rat).Mul(new(big.Rat).SetInt64(int64(max(l.Burst, 1))), intervalOf(l.Rate))
	return drain.Cmp(instant(year)) <= 0
}

// intervalOf returns the time that one cost unit takes at rate r, which is read
// as the simplest fraction within 2⁻⁵⁰ of it.
func intervalOf(r rate.Limit) *big.Rat {
	if r == rate.Inf {
		return new(big.Rat)
	}
	exact := new(big.Rat).SetFloat64(float64(r))
	slip := new(big.Rat).Mul(exact, big.NewRat(1, 1<<50))
	perSecond := simplest(new(big.Rat).Sub(exact, slip), new(big.Rat).Add(exact, slip))
	return new(big.Rat).Quo(big.NewRat(int64(time.Second), 1), perSecond)
}

// simplest returns the fraction from low to high, both above 0, that has the
// smallest denominator.
func simplest(low, high *big.Rat) *big.Rat {
	whole := new(big.Rat).SetInt(new(big.Int).Quo(low.Num(), low.Denom()))
	if whole.Cmp(low) == 0 {
		return whole
	}
	if next := new(big.Rat).Add(whole, big.NewRat(1, 1)); next.Cmp(high) <= 0 {
		return next
	}
	low, high = new(big.Rat).Sub(low, whole), new(big.Rat).Sub(high, whole)
	rest := simplest(high.Inv(high), low.Inv(low))
	return whole.Add(whole, rest.Inv(rest))
}

// instant returns a whole number of nanoseconds as a fraction.
func instant(d time.Duration) *big.Rat { return new(big.Rat).SetInt64(int64(d)) }

// seen returns the first whole nanosecond that is not before r.
func seen(r *big.Rat) *big.Int {
	up := new(big.Int).Add(r.Num(), r.Denom())
	up.Sub(up, big.NewInt(1))
	return up.Div(up, r.Denom())
}

// saturated returns n as a duration, or the longest duration.
func saturated(n *big.Int) time.Duration {
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(n.Int64())
}

// later returns the later of two instants.
func later(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) > 0 {
		return a
	}
	return b
}
