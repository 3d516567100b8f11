package llm

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"example.com/leakybucket/shaper"
)

// Levels keep a quota as its provider counts it: a level of a [shaper.Shaper] for each limit, and for each call what it
// reserves there, what is charged while its answer comes, and what it settles with.
//
//	levels := llm.Levels{Provider: llm.Anthropic, Quota: q, Estimates: new(llm.Estimates)}
//	limits, meters, err := levels.Limits(30*time.Second, 1000)
//	...
//	s, err := shaper.New(limits, shaper.WithMeters(meters...))
//
// Where the line is a Shaper without meters, whose limits are from [Quota.Limits], a call has one cost, its largest share.
// Levels are safe for concurrent use. They must not be changed or copied once they are in use.
type Levels struct {
	Provider  Provider
	Quota     Quota
	Estimates *Estimates // nil: calls reserve what they ask for
	Output    int        // estimate of each answer, where Estimates are nil; 0: what the call asks for
	Unasked   int        // what a call asks for that does not bound its answer; 0: as Provider.Estimate has it

	// chargesAsked says that an answer of an API that counts AtStart had rate-limit headers, as Azure's have: it charges what is asked.
	chargesAsked atomic.Bool
}

// Kinds returns the limits of a quota in the order of its [Levels]: the first is that of the Limits of the Shaper, and the others
// have a meter each. There are two at least: a second one that the quota does not have lets all pass. So a line of Levels has a
// meter, which tells it from one bucket.
func (q Quota) Kinds() (kinds []Kind) {
	for _, k := range []Kind{Requests, Tokens, Input, Output} {
		if q.of(k) > 0 {
			kinds = append(kinds, k)
		}
	}
	switch {
	case len(kinds) > 1:
	case q.Requests > 0:
		kinds = append(kinds, Tokens)
	default:
		kinds = append(kinds, Requests)
	}
	return kinds
}

// Limits returns the limits of the first level, and the meters of the others ([Quota.Kinds]). burst is the time whose quota may
// be used at once, from 0 to a minute; see [Quota.Limits].
func (l *Levels) Limits(burst time.Duration, depth int) (shaper.Limits, []shaper.Meter, error) {
	if err := l.Quota.Validate(burst); err != nil {
		return shaper.Limits{}, nil, err
	}
	limits, meters := shaper.Limits{}, []shaper.Meter(nil)
	for i, k := range l.Quota.Kinds() {
		of, err := l.limit(l.Quota.of(k), burst)
		if err != nil {
			return shaper.Limits{}, nil, fmt.Errorf("llm: Quota: %s: %w", k, err)
		}
		if i == 0 {
			limits = of
			continue
		}
		meters = append(meters, shaper.Meter{Name: string(k), Rate: of.Rate, Burst: of.Burst, Returns: l.Provider.Counts == Returned})
	}
	limits.Depth = depth
	return limits, meters, limits.Validate()
}

// infinite is rate.Inf of x/time, which lets all pass.
const infinite = math.MaxFloat64

// setPerMinute sets a rate, whose type is x/time's, to n a minute.
func setPerMinute[R ~float64](to *R, n int) { *to = R(n) / 60 }

// limit returns the limits of n a minute; 0: there is none.
func (l *Levels) limit(n int, burst time.Duration) (shaper.Limits, error) {
	if n == 0 {
		return shaper.Limits{Rate: infinite}, nil
	}
	atOnce := int(float64(n) * burst.Minutes())
	if l.Provider.Counts != Rolling {
		limits := shaper.Limits{Burst: atOnce}
		setPerMinute(&limits.Rate, n)
		return limits, nil
	}
	if n == 1 {
		return shaper.Limits{Rate: 1. / 61}, nil
	}
	return shaper.Window(n, time.Minute, min(atOnce, n-1))
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
	charged     int  // tokens of output beyond the estimate
	abandoned   bool // its caller has left
	told        bool // its input has been reported
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
	if l.Unasked > 0 && c.runsModel && writesAnswer(r) {
		if _, a, err := asked(r, anthropicTariff); err == nil && a.most == 0 {
			c.asked.Output = times(ceiling(l.Unasked), a.times)
		}
	}
	c.likely = l.likely(c)
	c.estimate = l.Provider.counted(c.likely)
	return nil
}

// likely returns what a call is likely to take.
func (l *Levels) likely(c *Call) Usage {
	u := c.asked
	switch {
	case !c.runsModel, l.chargesAsked.Load():
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

// Costs returns what the call reserves in a line.
func (c *Call) Costs(s *shaper.Shaper) []int { return c.levels.costs(s, 1, c.estimate) }

// costs returns so many requests and a usage as costs in a line. Tokens below 0 stay so: what was reserved there stands.
func (l *Levels) costs(s *shaper.Shaper, requests int, u Usage) []int {
	input := u.Input
	if input >= 0 {
		input = sum(u.Input, u.CacheRead, u.CacheWrite)
	}
	tokens := -1
	if input >= 0 && u.Output >= 0 {
		tokens = sum(input, u.Output)
	}
	if !hasMeters(s) {
		switch {
		case tokens < 0:
			return []int{-1}
		case requests == 0:
			return []int{max(share(tokens, l.Quota.Tokens), share(input, l.Quota.Input), share(u.Output, l.Quota.Output))}
		}
		return []int{l.Quota.Cost(Usage{Input: input, Output: u.Output})}
	}
	var costs []int
	for _, k := range l.Quota.Kinds() {
		n := map[Kind]int{Requests: requests, Tokens: tokens, Input: input, Output: u.Output}[k]
		if l.Quota.of(k) == 0 {
			n = 0
		}
		costs = append(costs, min(n, mostCost))
	}
	return costs
}

// mostCost bounds the cost of a call. A larger number is no number of tokens.
const mostCost = math.MaxInt32

func hasMeters(s *shaper.Shaper) bool { return len(s.Meters()) > 0 }

// Answers says that the answer to the call begins, and returns its Meter. A second answer, to a call that was sent again,
// takes the place of the first.
func (c *Call) Answers(status int, h http.Header) *Meter {
	if c.partial != nil {
		_ = c.estimateFor(c.partial) // It has not failed the first time. The body has passed by now.
	}
	c.meter, c.charged = NewMeter(c.levels.Provider, status, h), 0
	if c.levels.Provider.Estimate != nil {
		c.meter.Asked(c.likely)
	}
	if c.chargesAsked() {
		c.levels.chargesAsked.Store(true)
	}
	return c.meter
}

// Abandon says that the caller has left, before the Meter ends. Of a stream what was seen counts then.
func (c *Call) Abandon() { c.abandoned = true }

// Charge charges a line the output that has come beyond the estimate, where the provider counts output as it is produced. At the
// end the call settles with the rest.
func (c *Call) Charge(s *shaper.Shaper) {
	by := c.levels.Provider.Counts
	if e := c.levels.Estimates; e != nil && c.meter != nil && c.runsModel && !c.told {
		if _, u, ok := c.meter.Seen(); ok && sum(u.Input, u.CacheRead, u.CacheWrite) > 0 {
			c.told = true
			e.begun(c.model, c.asked, c.levels.Provider.counted(u))
		}
	}
	if c.meter == nil || !c.runsModel || c.estimate.Output == 0 || by != AsUsed && by != AtStart || c.chargesAsked() {
		return
	}
	text, _, _ := c.meter.Seen()
	over := c.tokensOf(text) - c.estimate.Output - c.charged
	if text == 0 || over <= 0 {
		return
	}
	c.charged += over
	costs := c.levels.costs(s, 0, Usage{Output: over})
	if settle, err := s.ReserveEach(context.Background(), make([]int, len(costs))...); err == nil {
		settle(costs...)
	}
}

// chargesAsked reports whether the provider has charged what the call asks for, and gives nothing back.
func (c *Call) chargesAsked() bool {
	return c.levels.Provider.Counts == AtStart && c.meter.countsItself
}

// tokensOf returns how many tokens a text of so many bytes is likely to be.
func (c *Call) tokensOf(text int) int {
	if c.levels.Estimates != nil {
		return c.levels.Estimates.tokensOf(c.team, c.model, text)
	}
	return (text + bytesOfToken - 1) / bytesOfToken
}

// seen returns what a stream has used so far that has come to its end, or whose caller has left, without its usage: the input as
// it was reported at the start, or as it was estimated, and the text that has come, which is none if an error has come in its place.
// ok is false if the estimate stands.
func (c *Call) seen() (u Usage, ok bool) {
	text, reported, known := c.meter.Seen()
	if text == 0 && c.meter.complaint == nil || c.meter.lost || !c.abandoned && !c.meter.whole || c.chargesAsked() {
		return Usage{}, false
	}
	if u = c.likely; known && sum(reported.Input, reported.CacheRead, reported.CacheWrite) > 0 {
		u = reported
	}
	u.Output = c.tokensOf(text)
	if known {
		u.Output = max(u.Output, reported.Output)
	}
	return c.levels.Provider.counted(u), true
}

// Counted returns what the provider has counted of a call that has ended: by what its response reports; of a stream that has not,
// or whose caller has left, by what was seen. known is false if that is the estimate.
func (c *Call) Counted() (u Usage, known bool) {
	if c.meter == nil {
		return c.estimate, false
	}
	if u, known = c.meter.Counted(); !known {
		if u, known = c.seen(); !known {
			return c.estimate, false
		}
	}
	return c.weighed(u), true
}

// weighed counts a token of output as often as the provider does.
func (c *Call) weighed(u Usage) Usage {
	if f := c.levels.Provider.OutputFactor; f != nil {
		u.Output = times(ceiling(u.Output), ceiling(f(c.model)))
	}
	return u
}

// IsFree reports whether the provider has refused the call by its response, so that it costs nothing.
func (c *Call) IsFree() bool { return c.meter != nil && c.meter.isFree() }

// Actual returns what the call settles with in the line that it has left, when its Meter has ended; below 0 where the
// estimate stands. A call that the provider has refused costs nothing.
func (c *Call) Actual(s *shaper.Shaper) []int {
	stands := Usage{Input: -1, Output: -1}
	switch {
	case c.meter == nil:
		return c.levels.costs(s, 1, stands)
	case c.meter.isFree():
		return c.levels.costs(s, 0, Usage{})
	}
	u, ok := c.Counted()
	if !ok && c.partial == nil { // Else the estimate is that of the whole body.
		return c.levels.costs(s, 1, stands)
	}
	if c.charged > 0 && u.Output > c.estimate.Output {
		u.Output = max(c.estimate.Output, u.Output-c.charged)
	}
	return c.levels.costs(s, 1, u)
}

// Learn lets the Estimates learn from the call, if it has come to its end.
func (c *Call) Learn() {
	if c.levels.Estimates == nil || c.meter == nil || !c.runsModel || c.meter.ranNothing() || c.meter.complaint != nil {
		return
	}
	text, _, _ := c.meter.Seen()
	u, reported := c.meter.Counted()
	if !reported && !c.abandoned {
		u, reported = c.seen()
		text = 0 // It says nothing of the tokens of a text.
	}
	if reported {
		c.levels.Estimates.Learn(c.team, c.model, c.asked, u, text)
	}
}

// Left tells a line what an answer says is left, limit by limit, where it speaks of the limits of the quota. A line without
// meters is told the smallest part that is left of any ([Quota.Scarcest]).
func (l *Levels) Left(s *shaper.Shaper, h http.Header) {
	if l.Provider.Left == nil {
		return
	}
	if !hasMeters(s) {
		if n, ok := l.Quota.Scarcest(l.Provider.Left(h)); ok {
			s.AtMost(n)
		}
		return
	}
	var most []int
	known := false
	for _, k := range l.Quota.Kinds() {
		n := math.MaxInt
		for _, left := range l.Provider.Left(h) {
			// Another limit than the quota's is another model's, or a day's.
			if limit := l.Quota.of(k); left.Kind == k && left.Remaining >= 0 && limit > 0 && (left.Limit == limit || left.Limit == 0) {
				n, known = min(n, left.Remaining), true
			}
		}
		most = append(most, n)
	}
	if known {
		s.AtMostEach(most...)
	}
}
