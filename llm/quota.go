package llm

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/shaper"
)

// minute is the number of cost units of a minute's quota.
const minute = 1_000_000

// A Quota has the limits of a provider per minute. 0 means that there is no such limit.
// Convert a limit for another span: 1 request a second is 60 a minute.
type Quota struct {
	Requests int
	Tokens   int // of input and output together
	Input    int // tokens
	Output   int // tokens
}

// Usage has the tokens of a call, estimated or actual.
type Usage struct {
	Input      int // neither read from a cache nor written to one
	Output     int // including thoughts that are not shown
	CacheRead  int // of the input, read from a cache
	CacheWrite int // of the input, written to a cache
}

// Limits returns the limits of a bucket for the quota. Its cost units are millionths of a
// minute's quota, so its Rate is 1e6 per minute. Its Burst is the quota of the span burst, at
// most a minute, because providers have buckets of that size. It comes on top of the rate:
// with 30 s up to 150 % of a minute's quota may leave in a minute. docs/llm.md says how to
// choose burst; with 0 calls leave evenly spaced, and settling gives hardly anything back.
// depth is the number of calls that may wait.
//
// An error is from [Quota.Validate], or from [shaper.Limits.Validate] for a negative depth.
func (q Quota) Limits(burst time.Duration, depth int) (shaper.Limits, error) {
	if err := q.Validate(burst); err != nil {
		return shaper.Limits{}, err
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

// A QuotaError reports a wrong setting of a quota. Its fields let commands and configurations name the setting as
// their users know it.
type QuotaError struct {
	Setting string // "requests", "tokens", "input", "output" or "burst"; "": the quota has no limit
	Value   string // as in "-1", or "2m0s"
	Must    string // as in "must not be negative"
}

func (e *QuotaError) Error() string {
	if e.Setting == "" {
		return "llm: the Quota has no limit"
	}
	return fmt.Sprintf("llm: Quota: %s is %s, %s", e.Setting, e.Value, e.Must)
}

// Validate returns a [*QuotaError] for a quota without any limit, a negative number, and a burst that is not from 0 to a
// minute; see [Quota.Limits].
func (q Quota) Validate(burst time.Duration) error {
	if q == (Quota{}) {
		return new(QuotaError)
	}
	for _, limit := range []struct {
		name string
		n    int
	}{{"requests", q.Requests}, {"tokens", q.Tokens}, {"input", q.Input}, {"output", q.Output}} {
		if limit.n < 0 {
			return &QuotaError{limit.name, strconv.Itoa(limit.n), "must not be negative"}
		}
	}
	if burst < 0 || burst > time.Minute {
		return &QuotaError{"burst", burst.String(), "must be from 0s to 1m"}
	}
	return nil
}

// ParseWeights reads the weights of teams, as commands take them: gold=4,batch=1. A weight is from 1 to 1000, as for
// [shaper.WithFairQueue]; teams that are not named have 1. The name of a team may be empty; an empty text has no weights.
func ParseWeights(text string) (map[string]int, error) {
	weights := map[string]int{}
	if text == "" {
		return weights, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		at := strings.LastIndexByte(part, '=')
		if at < 0 {
			return nil, fmt.Errorf("%q, must be a team, = and a number, as in gold=4", part)
		}
		team := strings.TrimSpace(part[:at])
		n, err := strconv.Atoi(strings.TrimSpace(part[at+1:]))
		switch _, twice := weights[team]; {
		case err != nil || n < 1 || n > 1000:
			return nil, fmt.Errorf("%q, must be a number from 1 to 1000", part)
		case twice:
			return nil, fmt.Errorf("the team %q is said twice", team)
		}
		weights[team] = n
	}
	return weights, nil
}

// ParseAmount reads a number of requests or tokens of at least 1, as pages of providers write it: 500, 400k, 2M, 1.5M.
func ParseAmount(text string) (int, error) {
	digits, unit := strings.TrimRight(text, "kM"), 1.0
	switch text[len(digits):] {
	case "":
	case "k":
		unit = 1e3
	case "M":
		unit = 1e6
	default:
		digits = ""
	}
	n, err := strconv.ParseFloat(digits, 64)
	if n *= unit; err != nil || strings.Trim(digits, "0123456789.") != "" || n < 1 || n > math.MaxInt32 || n != math.Trunc(n) {
		return 0, fmt.Errorf("%q, must be a whole number of at least 1, such as 500, 400k or 2M", text)
	}
	return int(n), nil
}

// ParseModelQuota reads the quota of some models, as commands take it: claude-sonnet-*: 1000 requests, 400k in, 80k out. The
// pattern before the colon may have colons. The words are requests, tokens, in or input, and out or output.
func ParseModelQuota(text string) (pattern string, q Quota, err error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 || strings.TrimSpace(text[:at]) == "" {
		return "", Quota{}, fmt.Errorf("%q, must be a pattern of models, a colon and limits, as in claude-sonnet-*: 1000 requests, 400k in, 80k out", text)
	}
	for part := range strings.SplitSeq(text[at+1:], ",") {
		words := strings.Fields(part)
		if len(words) != 2 {
			return "", Quota{}, fmt.Errorf("%q, must be a number and a word, as in 400k in", strings.TrimSpace(part))
		}
		limit := map[string]*int{
			"requests": &q.Requests, "tokens": &q.Tokens, "in": &q.Input, "input": &q.Input, "out": &q.Output, "output": &q.Output,
		}[words[1]]
		switch {
		case limit == nil:
			return "", Quota{}, fmt.Errorf("%q is no limit; there are requests, tokens, in and out", words[1])
		case *limit != 0:
			return "", Quota{}, fmt.Errorf("%q is said twice", words[1])
		}
		if *limit, err = ParseAmount(words[0]); err != nil {
			return "", Quota{}, err
		}
	}
	return strings.TrimSpace(text[:at]), q, nil
}

// Cost returns the cost of a call in a bucket of [Quota.Limits]: the largest of its shares of the
// quota, in millionths, rounded up, from 1 to 1e6. So the bucket keeps each limit of q. Only a
// call that alone exceeds a minute's quota may exceed it: it costs 1e6, and the provider decides.
// A negative number of tokens counts as 0.
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

// sum adds numbers, the negative ones as 0. It returns at most the largest int.
func sum(numbers ...int) (total int) {
	for _, n := range numbers {
		if n = max(n, 0); total > math.MaxInt-n {
			return math.MaxInt
		}
		total += n
	}
	return total
}
