package adapt

import (
	"math"
	"slices"
	"time"
)

// A curve is how the rate rises between two decreases: as the window of CUBIC (RFC 9438), but in the
// logarithm, so that it works alike at 5 and at 1,000 per second. It comes back fast, lingers near the rate
// that was refused last, and then looks further, faster and faster. Without such a rate it doubles in each step.
//
// Rates are per second here, and times are times in use: a rate that nobody needs teaches nothing.
type curve struct {
	top, low float64       // the rate that was refused last, and that to which it was lowered; top 0: none is known
	used     time.Duration // for how long the rate has been used since
	wish     float64       // the rate that would be in force if every small rise were

	roundTrip time.Duration // the mean latency of good answers of late; 0: there was none
	cost      float64       // the mean cost of a call of late, at least 1
	recent    []forced      // the rates put in force within the last step, and the one before them
}

// forced is a rate that was put in force.
type forced struct {
	at   time.Time
	rate float64
}

// shortestStep is the least time in which the rate doubles.
const shortestStep = time.Second

// meanWeight divides the difference that the latest call makes to a mean, as in the smoothed round-trip time of
// TCP (RFC 6298).
const meanWeight = 8

// start begins at a rate, without a top.
func (c *curve) start(now time.Time, rate float64) {
	c.cost = 1
	c.forced(now, rate)
}

// noteRoundTrip takes the latency of a good answer into the mean.
func (c *curve) noteRoundTrip(latency time.Duration) {
	if c.roundTrip == 0 {
		c.roundTrip = latency
		return
	}
	c.roundTrip += (latency - c.roundTrip) / meanWeight
}

// step returns the time in which a rate at most doubles: the longest of a second, two round trips and
// four calls.
func (c *curve) step(rate float64) time.Duration {
	return max(shortestStep, 2*c.roundTrip, seconds(4*c.cost/rate))
}

// back returns the time in which the rate is back at top after a decrease. A hundred calls bound the share of
// refusals, and five seconds the time to come back.
func (c *curve) back() time.Duration {
	return max(5*time.Second, 10*c.roundTrip, seconds(100*c.cost/c.top))
}

// seconds returns a number of seconds as a duration, at most a year.
func seconds(n float64) time.Duration {
	return time.Duration(min(n, 365*24*3600) * float64(time.Second))
}

// turn notes that the upstream has refused one rate, and that the other one follows it. If lost is true too few calls got
// through for the first to say anything. A lone refusal below top lowers top by only 2 %, lest chance be taken
// for what the upstream bears.
func (c *curve) turn(from, to float64, lost, lone bool) {
	switch {
	case lost:
		c.top = 0
	case lone && from < c.top:
		c.top *= 0.98
	default:
		c.top = from
	}
	c.low, c.wish, c.used = to, to, 0
}

// rise returns the rate that follows a good answer, at a rate in force. The answer came that long after the one
// before, at both of which the rate was used; a longer gap than a step is a pause in its use.
func (c *curve) rise(now time.Time, gap time.Duration, rate float64) float64 {
	step := c.step(rate)
	paused := gap > step
	// While the rate is used, a call of cost n takes n/rate. A dearer one counts at once, lest few calls raise much.
	cost := min(gap, step).Seconds() * rate
	c.cost = max(cost, c.cost+(cost-c.cost)/meanWeight, 1)
	if paused {
		return rate
	}
	step = c.step(rate)
	if c.top == 0 {
		c.wish *= math.Exp2(gap.Seconds() / step.Seconds())
	} else {
		c.used += gap
		back := c.back()
		x := (c.used - back).Seconds() / back.Seconds()
		if x < 0 {
			c.wish = c.top * math.Pow(c.low/c.top, -x*x*x)
		} else {
			c.wish = c.top * math.Exp(x*x*x)
		}
	}
	c.wish = min(c.wish, 2*c.leastSince(now.Add(-step)))
	return c.wish
}

// forced notes that a rate is in force from now on.
func (c *curve) forced(now time.Time, rate float64) {
	c.recent = append(c.recent, forced{now, rate})
	c.wish = rate
}

// leastSince returns the least rate that was in force since an instant, and forgets those from before.
func (c *curve) leastSince(instant time.Time) float64 {
	old := 0
	for old+1 < len(c.recent) && !c.recent[old+1].at.After(instant) {
		old++
	}
	c.recent = slices.Delete(c.recent, 0, old)
	least := c.recent[0].rate
	for _, f := range c.recent {
		least = min(least, f.rate)
	}
	return least
}
