package shaper

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/exact"
)

// DefaultSlack is the lateness that may be made up if [Limits.Slack] is 0. A goroutine
// that does not yield is preempted by the Go runtime only after 10 to 20 ms. With much
// less slack, a process whose cores are all busy could therefore not keep its rate.
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
	// Rate is how many cost units leave per second: from 1 per 365 days to 1e9. At
	// [rate.Inf] every request leaves at once, except while the line is held or the
	// in-flight cap is reached. A rate is read as the simplest fraction within one
	// part in 2⁵⁰ of it, so rate.Every(3*time.Second) means exactly one per three
	// seconds.
	Rate rate.Limit

	// Burst is the level, in cost units, up to which requests leave at once.
	// 0 means 1.
	Burst int

	// Depth is the largest number of requests that may wait. With 0 none wait: a
	// request that cannot leave at once is refused. Retries of a [Transport] may
	// exceed Depth, because they were admitted before; and with a [Bucket] so may
	// requests that its room covers, up to Burst of them ([WithBucket]).
	Depth int

	// MaxWait is the longest predicted wait with which a request is admitted. 0
	// means 365 days. With InFlight, the prediction assumes that a seat becomes free
	// at once: no request is refused because of an estimate, and an admitted request
	// may wait longer. MaxWait does not apply to retries of a [Transport]. It is compared
	// once, when a request enters: a lower Rate, a [Shaper.Hold], retries that enter at the
	// head, and with a [Bucket] other processes and outages may make it wait longer then. [WithLineTimeout]
	// bounds that real wait.
	MaxWait time.Duration

	// Slack is how much of the lateness of a wake-up may be made up, by requests that
	// leave closer together (guarantee 1). 0 means [DefaultSlack].
	Slack time.Duration

	// InFlight is how many requests, whatever their cost, may be in flight, which means
	// that they have left and have not ended yet. Rate bounds how often requests leave,
	// InFlight how many are upstream at once. 0 means no cap. With a cap, requests enter
	// only by [Shaper.Acquire], [Shaper.Do], [Middleware] or [Transport], which know when
	// a request ends. [Shaper.SetLimits] may change InFlight to another number, but not
	// from or to 0. While the cap keeps requests waiting, [Shaper.Forecast] and
	// [RejectError.RetryAfter] are estimates.
	InFlight int
}

// Validate returns nil if [New] and [Shaper.SetLimits] accept l, else an error that
// names the field and quotes its value.
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
	if float64(l.burst())/float64(l.Rate) < 0.999*horizon.Seconds() {
		return nil // So far from the bound there is no need for the exact interval, which takes 15 µs.
	}
	if exact.IntervalOf(l.Rate).Times(l.burst()).Exceeds(horizon) {
		return fmt.Errorf("shaper: Limits.Burst is %d, which at Limits.Rate %v takes more than 365 days to drain", l.Burst, float64(l.Rate))
	}
	return nil
}

// Window returns Limits with which at most n cost units leave in any window of length w, both ends
// included, however requests arrive. That is what an upstream asks for that counts a rolling minute:
//
//	l, err := shaper.Window(100, time.Minute, 20) // 20 at once after a pause, 100 in any minute
//	l.Depth = 50
//
// Burst is burst, where 0 means 1, and Rate is (n − burst)/(w + Slack): Burst comes on top of what
// the rate lets leave within w, and so does what a late wake-up may make up. Slack is [DefaultSlack],
// written out, because with a [Bucket] a Slack of 0 may mean more. Depth, MaxWait and InFlight are 0, and may
// be set afterwards. Limits with another Rate, Burst or Slack do not keep the promise.
//
// It does not promise everything. If a request costs more than burst, the largest cost takes the place
// of burst. What left under other Limits, or before a restart without [Shaper.Restore], counts in no
// window. What a settle of [Shaper.Reserve] charges comes on top, and so do the exceptions that docs/shared.md
// names. Departures are counted when their slots are handed out: for an upstream that counts arrivals, make
// w longer by as much as the way there varies, as in time.Minute + time.Second.
//
// n must be at least 2 (if only one may leave in w, take the Rate rate.Every(w + time.Second) and no burst),
// burst below n, and w above 0. The error for other arguments, and where [Limits.Validate] rejects the result,
// names the argument.
func Window(n int, w time.Duration, burst int) (Limits, error) {
	l := Limits{Burst: burst, Slack: DefaultSlack}
	var err error
	switch {
	case n < 2:
		err = fmt.Errorf("n is %d, must be at least 2", n)
	case w <= 0:
		err = fmt.Errorf("w is %v, must be above 0", w)
	case burst < 0:
		err = fmt.Errorf("burst is %d, must not be negative", burst)
	case burst >= n:
		err = fmt.Errorf("burst is %d, must be below n, which is %d", burst, n)
	default:
		l.Rate = l.rateIn(n, w)
		if wrong := l.Validate(); wrong != nil {
			why := strings.TrimPrefix(wrong.Error(), "shaper: ")
			switch {
			case l.Rate > maxRate:
				err = fmt.Errorf("n is %d, too many for w: %s", n, why)
			case (Limits{Rate: l.Rate}).Validate() != nil:
				err = fmt.Errorf("w is %v, too long for n: %s", w, why)
			default:
				err = fmt.Errorf("burst is %d, too much for n and w: %s", burst, why)
			}
		}
	}
	if err != nil {
		return Limits{}, fmt.Errorf("shaper: Window: %w", err)
	}
	return l, nil
}

// rateIn returns the rate at which n units leave in a window of w at most, with the Burst and Slack of l.
func (l Limits) rateIn(n int, w time.Duration) rate.Limit {
	paced := int64(n) - l.burst()
	// A rate is read to one part in 2⁵⁰, which of so many units could be one too many.
	paced -= paced >> 48
	ns := new(big.Int).SetUint64(uint64(w) + uint64(l.slack())) // An int64 may be too short for the sum.
	perSecond, _ := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(paced), big.NewInt(int64(time.Second))), ns).Float64()
	return rate.Limit(perSecond)
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
