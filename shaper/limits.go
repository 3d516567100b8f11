package shaper

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// DefaultSlack is the lateness that may be made up if Limits.Slack is 0. The Go
// runtime preempts a goroutine that does not yield after 10 to 20 ms, so with
// much less a process whose cores are all busy could not hold its rate.
const DefaultSlack = 20 * time.Millisecond

// horizon is the longest time that anything may reach ahead: the interval
// between two departures, the draining of a full Burst, the time for which one
// cost holds the bucket, a predicted wait.
const horizon = 365 * 24 * time.Hour

// maxRate is the highest finite rate: one unit per nanosecond, which is how
// finely a time.Duration tells instants apart.
const maxRate rate.Limit = 1e9

// Limits are a shaper's numbers. They may change while requests wait.
type Limits struct {
	// Rate is how many cost units leave per second: from 1 per 365 days to
	// 1e9, or rate.Inf, at which everything leaves at once, but for a hold or
	// a cap. It is read as the
	// simplest fraction within one part in 2⁵⁰, so that
	// rate.Every(3*time.Second) means exactly one per three seconds.
	Rate rate.Limit

	// Burst is the level, in cost units, up to which requests leave at once.
	// 0 means 1.
	Burst int

	// Depth is the largest number of requests that may wait. With 0 none
	// waits: what can't leave at once is refused. Retries of a Transport wait
	// beyond it, as they were admitted before.
	Depth int

	// MaxWait is the longest predicted wait with which a request is admitted.
	// 0 means no bound (but 365 days). With InFlight the prediction that counts
	// here goes as if a seat became free at once, so that no request is refused
	// which might leave in time, and an admitted one may wait longer; what
	// Forecast and RetryAfter tell is an estimate. Retries of a Transport
	// it does not bind.
	MaxWait time.Duration

	// Slack is the lateness that a late wake-up may make up (guarantee 1).
	// 0 means DefaultSlack.
	Slack time.Duration

	// InFlight is how many requests, whatever their cost, may have left and not
	// yet given their place back: beside how often they leave, how many are
	// upstream at once. 0 means no cap. With one, requests enter by Acquire, Do,
	// Middleware or Transport only, which know when they end; SetLimits changes
	// it to another number, but not from or to 0. While the cap keeps requests
	// waiting, Forecast and RetryAfter are estimates.
	InFlight int
}

// Validate returns nil if New and SetLimits take l, else an error that names
// the field and quotes its value.
func (l Limits) Validate() error {
	switch r := l.Rate; {
	case r == rate.Inf:
	case math.IsNaN(float64(r)) || r <= 0:
		return fmt.Errorf("shaper: Limits.Rate is %v, must be above 0", float64(r))
	case r > maxRate:
		return fmt.Errorf("shaper: Limits.Rate is %v, must be at most 1e9 per second (or rate.Inf)", float64(r))
	case r < rate.Limit(1/horizon.Seconds()):
		return fmt.Errorf("shaper: Limits.Rate is %v, must be at least 1 per 365 days", float64(r))
	}
	switch {
	case l.Burst < 0:
		return fmt.Errorf("shaper: Limits.Burst is %d, must not be negative", l.Burst)
	case l.Depth < 0:
		return fmt.Errorf("shaper: Limits.Depth is %d, must not be negative", l.Depth)
	case l.MaxWait < 0:
		return fmt.Errorf("shaper: Limits.MaxWait is %v, must not be negative", l.MaxWait)
	case l.Slack < 0:
		return fmt.Errorf("shaper: Limits.Slack is %v, must not be negative", l.Slack)
	case l.InFlight < 0:
		return fmt.Errorf("shaper: Limits.InFlight is %d, must not be negative", l.InFlight)
	}
	if intervalOf(l.Rate).times(l.burst()).beyond(horizon) {
		return fmt.Errorf("shaper: Limits.Burst is %d, which at Limits.Rate %v takes more than 365 days to drain", l.Burst, float64(l.Rate))
	}
	return nil
}

// burst is Burst with its default.
func (l Limits) burst() int64 { return int64(max(l.Burst, 1)) }

// slack is Slack with its default, in nanoseconds.
func (l Limits) slack() int64 {
	if l.Slack == 0 {
		return int64(DefaultSlack)
	}
	return int64(l.Slack)
}

// maxWait is MaxWait with its default and its bound, in nanoseconds.
func (l Limits) maxWait() int64 {
	if l.MaxWait == 0 {
		return int64(horizon)
	}
	return int64(min(l.MaxWait, horizon))
}
