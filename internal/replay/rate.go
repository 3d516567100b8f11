package replay

import (
	"math/big"
	"time"

	"golang.org/x/time/rate"
)

// intervalOf returns the time that one cost unit takes at a rate, num/den nanoseconds.
// The rate is read as the simplest fraction within one part in 2⁵⁰ of it, which is how
// package shaper reads it. At [rate.Inf] num is 0.
//
// From one in 365 days to 10⁹ per second den is below 2⁵⁰, and num below 2⁸⁰.
func intervalOf(r rate.Limit) (num int128, den uint64) {
	if r == rate.Inf {
		return int128{}, 1
	}
	exact := new(big.Rat).SetFloat64(float64(r))
	slip := new(big.Rat).Mul(exact, big.NewRat(1, 1<<50))
	perSecond := simplest(new(big.Rat).Sub(exact, slip), new(big.Rat).Add(exact, slip))
	interval := perSecond.Quo(big.NewRat(int64(time.Second), 1), perSecond)
	return narrow(interval.Num()), interval.Denom().Uint64()
}

// narrow returns a whole number, which is not negative, as an int128.
func narrow(n *big.Int) int128 {
	if n.BitLen() > 127 {
		return forever
	}
	high := new(big.Int).Rsh(n, 64)
	low := new(big.Int).Sub(n, new(big.Int).Lsh(high, 64))
	return int128{high.Int64(), low.Uint64()}
}

// big returns a as a big number.
func (a int128) big() *big.Int {
	n := new(big.Int).Lsh(big.NewInt(a.high), 64)
	return n.Add(n, new(big.Int).SetUint64(a.low))
}

// simplest returns the fraction with the smallest denominator from low to high, which
// are above 0. If no whole number lies between them, both begin with the same one, and
// the rest is found between the reciprocals of what remains.
func simplest(low, high *big.Rat) *big.Rat {
	whole := new(big.Rat).SetInt(new(big.Int).Quo(low.Num(), low.Denom()))
	if whole.Cmp(low) == 0 {
		return whole
	}
	if next := new(big.Rat).Add(whole, big.NewRat(1, 1)); next.Cmp(high) <= 0 {
		return next
	}
	above, below := new(big.Rat).Sub(low, whole), new(big.Rat).Sub(high, whole)
	rest := simplest(below.Inv(below), above.Inv(above))
	return whole.Add(whole, rest.Inv(rest))
}
