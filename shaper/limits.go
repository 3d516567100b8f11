package shaper

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

// DefaultSlack is the Slack of [Limits] that have none. With much less, a process whose cores are all busy could not
// keep its rate, as a goroutine that does not yield is preempted only after 10 to 20 ms.
const DefaultSlack = 20 * time.Millisecond

// horizon bounds every time that the schedule looks ahead: the interval between two
// departures, the time in which a full Burst drains, the time that one request's cost
// takes, and a predicted wait.
const horizon = 365 * 24 * time.Hour

// maxRate is the highest finite rate: one unit per nanosecond, the smallest step of a
// [time.Duration].
const maxRate rate.Limit = 1e9

// Limits are the numbers of a [Shaper]. They may change while requests wait, by
// [Shaper.SetLimits].
type Limits struct {
	// Rate is how many cost units leave per second: from 1 per 365 days to 1e9. At [rate.Inf] every request leaves at once,
	// except while the line is held or all seats are taken. A rate is read as the simplest fraction within one part in 2⁵⁰
	// of it, so rate.Every(3*time.Second) means exactly one per three seconds.
	Rate rate.Limit

	// Burst is the level, in cost units, up to which requests leave at once. 0 means 1.
	Burst int

	// Depth is the largest number of requests that may wait. With 0 none wait: a request that cannot leave at once is refused.
	Depth int

	// MaxWait is the longest predicted wait with which a request is admitted; 0 means 365 days. It is compared once, when a
	// request enters: a lower Rate, a hold, retries, taken seats, other processes and outages may make it wait longer then.
	// [WithLineTimeout] bounds that real wait. MaxWait does not apply to retries of a [Transport].
	MaxWait time.Duration

	// Slack is how much of the lateness of a wake-up may be made up, by requests that leave closer together; 0 means
	// [DefaultSlack]. Lateness beyond it is lost, in [Stats.Missed]: the schedule goes on from now − Slack. So while requests
	// wait, cost departed + Missed is Rate × time, to within Burst + Rate × Slack. Only requests that were in line when they
	// were due make up anything. Time in which a hold or the cap kept the line waiting is no lateness.
	Slack time.Duration

	// InFlight is how many requests, whatever their cost, may be in flight: each has a seat from when it leaves until it ends.
	// 0 means no cap, and can't be changed to or from. With a cap, requests enter only by [Shaper.Acquire], [Shaper.Do],
	// [Shaper.Reserve], [Middleware] or [Transport], which know when a request ends. That is unknown beforehand, so
	// admission assumes that a seat becomes free at once, and refuses no request that might leave in time. Unless seats are
	// free for a request and all ahead, [Shaper.Forecast] and [RejectError.RetryAfter] are estimates: for each
	// request that has to end first at least the mean time in flight of late, divided by InFlight, and at least 1 ms.
	InFlight int
}

// Validate returns nil if [New] and [Shaper.SetLimits] accept l, else an error that
// names the field and quotes its value.
func (l Limits) Validate() error { return l.validate("Limits.") }

// validate is Validate for fields whose names begin with a text.
func (l Limits) validate(of string) error {
	switch r := l.Rate; {
	case r == rate.Inf:
	case math.IsNaN(float64(r)) || r <= 0:
		return fmt.Errorf("shaper: %sRate is %v, must be above 0", of, float64(r))
	case r > maxRate:
		return fmt.Errorf("shaper: %sRate is %v, must be at most 1e9 per second (or rate.Inf)", of, float64(r))
	case r < rate.Limit(1/horizon.Seconds()):
		return fmt.Errorf("shaper: %sRate is %v, must be at least 1 per 365 days", of, float64(r))
	}
	switch {
	case l.Burst < 0:
		return fmt.Errorf("shaper: %sBurst is %d, must not be negative", of, l.Burst)
	case l.Depth < 0:
		return fmt.Errorf("shaper: %sDepth is %d, must not be negative", of, l.Depth)
	case l.MaxWait < 0:
		return fmt.Errorf("shaper: %sMaxWait is %v, must not be negative", of, l.MaxWait)
	case l.Slack < 0:
		return fmt.Errorf("shaper: %sSlack is %v, must not be negative", of, l.Slack)
	case l.InFlight < 0:
		return fmt.Errorf("shaper: %sInFlight is %d, must not be negative", of, l.InFlight)
	}
	if float64(l.burst())/float64(l.Rate) < 0.999*horizon.Seconds() {
		return nil // So far from the bound there is no need for the exact interval, which takes 15 µs.
	}
	if exact.IntervalOf(l.Rate).Times(l.burst()).Exceeds(horizon) {
		return fmt.Errorf("shaper: %sBurst is %d, which at %sRate %v takes more than 365 days to drain", of, l.Burst, of, float64(l.Rate))
	}
	return nil
}

// burst returns Burst, or its default.
func (l Limits) burst() int64 { return int64(max(l.Burst, 1)) }

// slack returns Slack, or its default, in nanoseconds.
func (l Limits) slack() int64 {
	if l.Slack == 0 {
		return int64(DefaultSlack)
	}
	return int64(l.Slack)
}
