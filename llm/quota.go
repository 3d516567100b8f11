package llm

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"example.com/leakybucket/shaper"
)

// minute is how many cost units a minute's quota has.
const minute = 1_000_000

// A Quota is what a provider allows in a minute. 0 means that there is no such limit.
// A limit that a provider states for another span can be converted: 1 request a second is
// 60 a minute.
type Quota struct {
	Requests int
	Tokens   int // of input and output together
	Input    int // tokens
	Output   int // tokens
}

// Usage is what a call takes, or has taken, in tokens.
type Usage struct {
	Input      int // neither read from a cache nor written to one
	Output     int // with those of thoughts that are not shown
	CacheRead  int // of the input, read from a cache
	CacheWrite int // of the input, written to a cache
}

// Limits returns the limits of a bucket for the quota. Its cost units are millionths of a
// minute's quota, so its Rate is 1e6 per minute. Its Burst is what the quota allows in
// the span burst: a minute at most, because providers have buckets of that size. docs/llm.md says
// how to choose burst; with 0 calls leave evenly spaced, and settling gives hardly anything back.
// depth is how many calls may wait.
//
// A quota without any limit gives an error, and so does a negative number.
func (q Quota) Limits(burst time.Duration, depth int) (shaper.Limits, error) {
	if q == (Quota{}) {
		return shaper.Limits{}, errors.New("llm: the Quota has no limit")
	}
	for _, limit := range []struct {
		name string
		n    int
	}{{"Requests", q.Requests}, {"Tokens", q.Tokens}, {"Input", q.Input}, {"Output", q.Output}} {
		if limit.n < 0 {
			return shaper.Limits{}, fmt.Errorf("llm: Quota.%s is %d, must not be negative", limit.name, limit.n)
		}
	}
	if burst < 0 || burst > time.Minute {
		return shaper.Limits{}, fmt.Errorf("llm: the burst is %v, must be from 0 to a minute", burst)
	}
	l := shaper.Limits{
		Rate:  minute / 60.0,
		Burst: int(int64(burst) * minute / int64(time.Minute)),
		Depth: depth,
	}
	if err := l.Validate(); err != nil {
		return shaper.Limits{}, err
	}
	return l, nil
}

// Cost returns what a call costs in a bucket of [Quota.Limits]: the largest of its shares of the
// quota, in millionths, rounded up, from 1 to 1e6. So no limit of q is exceeded, except by a
// call that alone takes more than a minute's quota: it costs 1e6, and the provider decides
// about it. A negative number of tokens counts as 0.
func (q Quota) Cost(u Usage) int {
	input := sum(u.Input, u.CacheRead, u.CacheWrite)
	return max(1,
		share(1, q.Requests),
		share(sum(input, u.Output), q.Tokens),
		share(input, q.Input),
		share(u.Output, q.Output))
}

// share returns n of limit in millionths, rounded up, at most 1e6. It is 0 if there is no limit.
func share(n, limit int) int {
	switch {
	case limit <= 0 || n <= 0:
		return 0
	case n >= limit:
		return minute
	}
	// The product may exceed 64 bits, the quotient is below 1e6.
	hi, lo := bits.Mul64(uint64(n), minute)
	quotient, rest := bits.Div64(hi, lo, uint64(limit))
	if rest > 0 {
		quotient++
	}
	return int(quotient)
}

// sum adds numbers of which the negative ones count as 0. A sum that is too large for an int
// becomes the largest int.
func sum(numbers ...int) (total int) {
	for _, n := range numbers {
		if n = max(n, 0); total > math.MaxInt-n {
			return math.MaxInt
		}
		total += n
	}
	return total
}
