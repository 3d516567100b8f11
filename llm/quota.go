package llm

import (
	"fmt"
	"math"
	"math/bits"
	"net/http"
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

// Levels keep a quota as its provider counts it: for each call what it reserves, what is charged while its answer comes, and what
// it settles with. Levels are safe for concurrent use. They must not be changed once they are in use.
type Levels struct {
	Provider  Provider
	Quota     Quota
	Estimates *Estimates // nil: calls reserve what they ask for
	Output    int        // estimate of each answer, where Estimates are nil; 0: what the call asks for
	Unasked   int        // what a call asks for that does not bound its answer; 0: as Provider.Estimate has it
}

// A Call is one call on its way through [Levels]. It is for one goroutine at a time.
type Call struct {
	levels      *Levels
	team, model string
	asked       Usage         // at most
	likely      Usage         // by Levels
	estimate    Usage         // likely, as the provider counts it
	runsModel   bool          // else it costs a request's share
	partial     *http.Request // whose body had not come when the call was estimated; nil: it had
	meter       *Meter
}

// Call returns a new call of a team and a model, "" for unknown. The body of the request stays readable. For an error see
// [Provider].Estimate.
func (l *Levels) Call(team, model string, r *http.Request) (*Call, error) {
	c := &Call{levels: l, team: team, model: model}
	if l.Provider.Estimate == nil {
		return c, nil
	}
	if err := c.estimateFor(r); err != nil {
		return nil, err
	}
	if p, ok := r.Body.(*peeked); ok && !p.whole {
		c.partial = r.Clone(r.Context()) // Handlers behind may rewrite the request.
	}
	return c, nil
}

// estimateFor estimates the call by its request.
func (c *Call) estimateFor(r *http.Request) (err error) {
	l := c.levels
	if c.asked, err = l.Provider.Estimate(r); err != nil {
		return err
	}
	c.runsModel = c.asked.Input > 0 || c.asked.Output > 0
	if c.runsModel && c.asked.Output == 0 && writesAnswer(r) {
		c.asked.Output = l.Unasked
	}
	c.likely = l.likely(c)
	c.estimate = l.Provider.counted(c.likely)
	return nil
}

// likely returns what a call is likely to take.
func (l *Levels) likely(c *Call) Usage {
	u := c.asked
	switch {
	case !c.runsModel:
	case l.Estimates != nil:
		u = l.Estimates.Estimate(c.team, c.model, u)
	case l.Output > 0:
		if u.Output = l.Output; c.asked.Output > 0 {
			u.Output = min(u.Output, c.asked.Output)
		}
	}
	return u
}

// Estimate returns what the call is likely to take. The part that the provider counts is reserved.
func (c *Call) Estimate() Usage { return c.likely }

// RunsModel reports whether the call makes a model run. Any other costs a request's share.
func (c *Call) RunsModel() bool { return c.runsModel }

// Cost returns what the call reserves.
func (c *Call) Cost() int { return c.levels.Quota.Cost(c.estimate) }

// Answers says that the answer to the call begins, and returns its Meter. A second answer, to a call that was sent again,
// takes the place of the first.
func (c *Call) Answers(status int, h http.Header) *Meter {
	if c.partial != nil {
		_ = c.estimateFor(c.partial) // It has not failed the first time. The body has passed by now.
	}
	c.meter = NewMeter(c.levels.Provider, status, h)
	if c.levels.Provider.Estimate != nil {
		c.meter.Asked(c.likely)
	}
	return c.meter
}

// Counted returns what the provider has counted of a call that has ended; known is false if that is the estimate.
func (c *Call) Counted() (u Usage, known bool) {
	if c.meter != nil {
		if u, known = c.meter.Counted(); known {
			return c.weighed(u), true
		}
	}
	return c.estimate, false
}

// weighed counts a token of output as often as the provider does.
func (c *Call) weighed(u Usage) Usage {
	if f := c.levels.Provider.OutputFactor; f != nil {
		u.Output = times(ceiling(u.Output), ceiling(f(c.model)))
	}
	return u
}

// Actual returns what the call settles with when its Meter has ended; below 0: the estimate stands. A call that the provider
// has refused costs nothing.
func (c *Call) Actual() int {
	if c.meter != nil && c.meter.isFree() {
		return 0
	}
	if u, ok := c.Counted(); ok {
		return c.levels.Quota.Cost(u)
	}
	if c.meter != nil && c.partial != nil {
		return c.Cost() // That of the whole body.
	}
	return -1
}

// Learn lets the Estimates learn from the call, if it has come to its end.
func (c *Call) Learn() {
	if c.levels.Estimates == nil || c.meter == nil || !c.runsModel || c.meter.ranNothing() {
		return
	}
	if u, ok := c.meter.Counted(); ok {
		c.levels.Estimates.Learn(c.team, c.model, c.asked, u, 0)
	}
}
