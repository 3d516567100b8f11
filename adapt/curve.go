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
	cost      float64       // the mean cost of a call of late
	dearest   float64       // no less than cost: a dearer call counts at once, lest few calls raise the rate much
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
	c.cost, c.dearest = 1, 1
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
	return max(shortestStep, 2*c.roundTrip, seconds(4*c.dearest/rate))
}

// scale returns by how much time the rate comes back to top after a decrease, or looks beyond it: 5.5 seconds, ten round
// trips, or the time that so many calls take at top, whichever is longest. The seconds bound how long it takes, and
// the number of calls what share of them is refused.
func (c *curve) scale(calls float64) float64 {
	return max(5500*time.Millisecond, 10*c.roundTrip, seconds(calls*max(c.cost, 1)/c.top)).Seconds()
}

// The numbers of calls for scale. Beyond top they are fewer, so that slow clients find a capacity that has come back.
const (
	callsBack   = 90
	callsBeyond = 50
)

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

// noteAnswer notes that an answer came so long after the one before. While a rate is used, a call of cost n takes
// n/rate.
func (c *curve) noteAnswer(gap time.Duration, rate float64) {
	cost := min(gap, c.step(rate)).Seconds() * rate
	c.cost += (cost - c.cost) / meanWeight
	c.dearest = max(cost, c.dearest+(cost-c.dearest)/meanWeight, 1)
}

// rise returns the rate that follows a good answer, at a rate in force that has been used for a time since
// the last one that counted. A longer time than a step was a pause.
func (c *curve) rise(now time.Time, gap time.Duration, rate float64) float64 {
	step := c.step(rate)
	if gap > step {
		return rate
	}
	if c.top == 0 {
		c.wish *= math.Exp2(gap.Seconds() / step.Seconds())
	} else {
		c.used += gap
		used, back := c.used.Seconds(), c.scale(callsBack)
		if used < back {
			c.wish = c.top * math.Pow(c.low/c.top, cube((back-used)/back))
		} else {
			c.wish = c.top * math.Exp(cube((used-back)/c.scale(callsBeyond)))
		}
	}
	c.wish = min(c.wish, 2*c.leastSince(now.Add(-step)))
	return c.wish
}

func cube(x float64) float64 { return x * x * x }

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
