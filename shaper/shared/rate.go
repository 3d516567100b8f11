package shared

import (
	"math/big"
	"math/bits"
)

// MaxParts bounds [BucketRate.Parts], so that sums of two parts, and of a part and a whole
// number of microseconds, are exact in a float64.
const MaxParts = 1_000_000_000_000

// longestMicros bounds the spans that an instant moves by, in microseconds: 71 years, as
// no limits allow more than one for a burst or for a cost. The sum of the present and of two
// such spans is exact in a float64 too.
const longestMicros = 1 << 51

// A BucketRate is the rate and the burst at which a level is shared.
//
// Version orders the rates of processes which do not agree, as during a deployment: the
// rate with the greatest version is in force for all. Rates that differ in nothing but their
// versions are the same rate.
type BucketRate struct {
	Version int64 // from 0 to 2⁵³

	// Micros and Part are the time that one cost unit takes, which is above 0. Part is
	// less than Parts, which is from 1 to 10¹². A sum of two parts is therefore exact in a float64, which
	// is the only number that scripts of Redis know.
	Micros, Part, Parts int64

	Burst int64 // at least 1
}

// valid reports whether all numbers are within their ranges.
func (r BucketRate) valid() bool {
	return 0 <= r.Version && r.Version <= 1<<53 && r.Burst >= 1 &&
		1 <= r.Parts && r.Parts <= MaxParts && 0 <= r.Part && r.Part < r.Parts &&
		0 <= r.Micros && r.Micros <= longestMicros && r.Micros+r.Part > 0
}

// Agrees reports whether two rates differ in their versions at most.
func (r BucketRate) Agrees(other BucketRate) bool {
	r.Version = other.Version
	return r == other
}

// Times returns the time of n ≥ 0 cost units, but at most 71 years (2⁵¹ µs).
func (r BucketRate) Times(n int64) Instant {
	high, low := bits.Mul64(uint64(n), uint64(r.Part))
	carry, part := bits.Div64(high, low, uint64(r.Parts)) // n·Part/Parts < n, as Part < Parts: the quotient fits.
	high, low = bits.Mul64(uint64(n), uint64(r.Micros))
	if high > 0 || low >= longestMicros || carry >= longestMicros-low {
		return Instant{Micros: longestMicros}
	}
	return Instant{Micros: int64(low + carry), Part: int64(part)}
}

// Plus returns a + b, in parts of the rate.
func (r BucketRate) Plus(a, b Instant) Instant {
	sum := Instant{a.Micros + b.Micros, a.Part + b.Part}
	if sum.Part >= r.Parts {
		sum.Micros, sum.Part = sum.Micros+1, sum.Part-r.Parts
	}
	return sum
}

// Minus returns a − b, in parts of the rate.
func (r BucketRate) Minus(a, b Instant) Instant {
	diff := Instant{a.Micros - b.Micros, a.Part - b.Part}
	if diff.Part < 0 {
		diff.Micros, diff.Part = diff.Micros-1, diff.Part+r.Parts
	}
	return diff
}

// Later returns the later of two instants of one rate.
func (a Instant) Later(b Instant) Instant {
	if b.Micros > a.Micros || b.Micros == a.Micros && b.Part > a.Part {
		return b
	}
	return a
}

// Rescale returns the instant at which the level reaches 0 once r has come into force in place of
// old. With old it would have been the instant empty. Both now and the result are readings of the
// [Bucket]'s clock. The level stays the same in cost units, so that the rest of its time is stretched or
// shortened:
//
//	now + (empty − now) · (time of a unit at r) / (time of a unit at old)
//
// That alone would let too much leave, as other processes may still hold slots of the old rate. So
// these slots are left to them. next is the instant at which the next request of cost 1 would
// have left at the old rate; no process holds a slot that is as late:
//
//	next = min(empty − (old burst − 1) · (time of a unit at old), now + MaxAhead)
//
// If next is after now, the result is no earlier than either of
//
//	next + (empty − next) · (time of a unit at r) / (time of a unit at old)
//	next + (Burst − 1) · (time of a unit at r)
//
// The first keeps the level as it is at next, and by the second no request of cost 1 leaves before
// next. Then all processes together are never above the greater of both rates and bursts.
//
// The result is a whole number of microseconds. It is never earlier than exact, and at most 2 µs
// later, or a part in 10¹⁴ where the level lasts for years. It is at most 71 years (2⁵¹ µs) after now.
func (r BucketRate) Rescale(old BucketRate, empty Instant, now int64) Instant {
	span := old.Rat(old.Minus(empty, Instant{Micros: now}))
	if span.Sign() <= 0 {
		return Instant{Micros: now}
	}
	ratio := new(big.Rat).Quo(r.Rat(Instant{r.Micros, r.Part}), old.Rat(Instant{old.Micros, old.Part}))
	scaled := new(big.Rat).Mul(span, ratio)

	next := new(big.Rat).Sub(span, old.Rat(old.Times(old.Burst-1)))
	if most := new(big.Rat).SetInt64(MaxAhead.Microseconds()); next.Cmp(most) > 0 {
		next = most
	}
	if next.Sign() > 0 {
		rest := new(big.Rat).Sub(span, next)
		scaled = longer(scaled, rest.Mul(rest, ratio).Add(rest, next))
		scaled = longer(scaled, next.Add(next, r.Rat(r.Times(r.Burst-1))))
	}
	micros, rest := new(big.Int).QuoRem(scaled.Num(), scaled.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		micros.Add(micros, big.NewInt(1))
	}
	if !micros.IsInt64() || micros.Int64() > longestMicros {
		return Instant{Micros: now + longestMicros}
	}
	return Instant{Micros: now + micros.Int64()}
}

// Rat returns a span in microseconds.
func (r BucketRate) Rat(a Instant) *big.Rat {
	parts := new(big.Rat).SetFrac64(a.Part, r.Parts)
	return parts.Add(parts, new(big.Rat).SetInt64(a.Micros))
}

// longer returns the longer of two spans.
func longer(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}
