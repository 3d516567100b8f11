package limitwords

import (
	"math"
	"math/big"
	"time"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/shaper"
)

// horizon is the longest wait that a shaper admits, whatever the limits.
const horizon = 365 * 24 * time.Hour

// A Burst is the outcome for many requests of cost 1 that come at the same instant, if nothing has
// come before them and none of them ends while the others come.
type Burst struct {
	AtOnce  int // leave at once; math.MaxInt if there is no bound
	Waiting int // wait in line

	// LastWait is how long the last one in line waits, to the nanosecond, or with an
	// in-flight cap how long it waits at least: the shaper does not know when requests
	// will end.
	LastWait time.Duration
}

// BurstOf returns the outcome of a burst at limits l, which must be valid.
func BurstOf(l shaper.Limits) Burst {
	capacity := math.MaxInt
	if l.InFlight > 0 {
		capacity = l.InFlight
	}
	if isUnlimited(l) {
		b := Burst{AtOnce: capacity}
		if l.InFlight > 0 {
			b.Waiting = l.Depth
		}
		return b
	}
	level := max(l.Burst, 1) // up to which requests leave at once
	b := Burst{AtOnce: min(level, capacity)}
	// The rate has no need to hold those that only an in-flight cap keeps from
	// leaving at once. The k-th after them waits k intervals.
	held := level - b.AtOnce
	interval := exact.IntervalOf(l.Rate)
	b.Waiting = l.Depth
	if bound := sum(held, intervalsIn(longestWait(l), interval)); bound < b.Waiting {
		b.Waiting = bound
	}
	if k := b.Waiting - held; k > 0 {
		b.LastWait = time.Duration(interval.Times(int64(k)).Ceil())
	}
	return b
}

// Admitted returns how many of the burst are not refused, math.MaxInt if there is no
// bound.
func (b Burst) Admitted() int { return sum(b.AtOnce, b.Waiting) }

// sum returns a + b, or math.MaxInt if that does not fit. Neither may be negative.
func sum(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// isUnlimited reports whether the rate is rate.Inf, which is the largest float64.
func isUnlimited(l shaper.Limits) bool { return float64(l.Rate) == math.MaxFloat64 }

// longestWait returns the longest predicted wait with which a request is admitted.
func longestWait(l shaper.Limits) time.Duration {
	if l.MaxWait == 0 {
		return horizon
	}
	return min(l.MaxWait, horizon)
}

// intervalsIn returns how many whole intervals fit into a wait, at most math.MaxInt.
func intervalsIn(wait time.Duration, interval exact.Interval) int {
	n := new(big.Rat).Quo(new(big.Rat).SetInt64(int64(wait)), interval.Rat())
	whole := new(big.Int).Quo(n.Num(), n.Denom())
	if !whole.IsInt64() || whole.Int64() > math.MaxInt {
		return math.MaxInt
	}
	return int(whole.Int64())
}
