package llm

import "net/http"

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
		partial := *r
		c.partial = &partial
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
