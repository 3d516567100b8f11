package replay

import (
	"math"
	"math/bits"
	"time"
)

// An int128 is a time in parts of a nanosecond, or a sum of costs. With 2⁵⁰ parts, which
// is the most that a rate needs, 128 bits reach 2⁷⁷ nanoseconds. A sum or a product that
// does not fit becomes forever, which is later than anything that a replay asks for.
type int128 struct {
	high int64
	low  uint64
}

var forever = int128{math.MaxInt64, math.MaxUint64}

// wide returns a whole number as an int128.
func wide[T ~int | ~int64](n T) int128 { return int128{int64(n) >> 63, uint64(n)} }

func (a int128) plus(b int128) int128 {
	low, carry := bits.Add64(a.low, b.low, 0)
	high := a.high + b.high + int64(carry)
	if a.high >= 0 && b.high >= 0 && high < 0 {
		return forever
	}
	return int128{high, low}
}

// minus returns a − b, neither of which is below −2¹²⁶.
func (a int128) minus(b int128) int128 {
	low, borrow := bits.Sub64(a.low, b.low, 0)
	return int128{a.high - b.high - int64(borrow), low}
}

// times returns a · n, neither of which is negative.
func (a int128) times(n uint64) int128 {
	over, high := bits.Mul64(uint64(a.high), n)
	carried, low := bits.Mul64(a.low, n)
	high, carry := bits.Add64(high, carried, 0)
	if over != 0 || carry != 0 || high > math.MaxInt64 {
		return forever
	}
	return int128{int64(high), low}
}

// after reports whether a is above b.
func (a int128) after(b int128) bool {
	return a.high > b.high || a.high == b.high && a.low > b.low
}

// isZero reports whether a is 0.
func (a int128) isZero() bool { return a == int128{} }

// ceil returns a/den rounded up, as a time: at least 0, and at most [Never].
func (a int128) ceil(den uint64) time.Duration {
	if a.high < 0 {
		return 0
	}
	if a.high > math.MaxInt64/2 {
		return Never
	}
	a = a.plus(int128{0, den - 1})
	if uint64(a.high) >= den {
		return Never
	}
	whole, _ := bits.Div64(uint64(a.high), a.low, den)
	return time.Duration(min(whole, uint64(Never)))
}

// later returns the later of two instants.
func later(a, b int128) int128 {
	if a.after(b) {
		return a
	}
	return b
}
