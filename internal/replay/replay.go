// Package replay computes how requests that arrived at a bucket would have fared under
// other limits. It runs no Shaper: it is a function of the arrivals, in virtual time.
// A [Bucket] replays requests one after another as they come, however many; none gives up. A
// [FairBucket] does so for keys that share one rate.
//
// The replay obeys the one rule by which requests leave, with every instant exact:
//
//	A request of cost n leaves as soon as it is at the head of the line and
//	the level is at most max(0, Burst − n). Leaving raises the level by n.
//
// Events at one instant happen in this order: departures, arrivals. A replay has no holds, no
// changes of the limits, and no late wake-ups. It has no cap on requests in flight either: a
// request that leaves at another instant ends at an unknown one. Tests play the same requests to a
// real Shaper in a testing/synctest bubble.
package replay

import (
	"math"
	"time"
)

// Never is the instant that does not come.
const Never time.Duration = math.MaxInt64

// A Result is the fate of a request.
type Result int

// The zero Result is of a request that is in line.
const (
	Waiting Result = iota
	Departed
	QueueFull
	TooLate
	TooCostly
)

// A Fate is the Result of a request, and how long it waited for it.
type Fate struct {
	Result Result
	Waited time.Duration // 0: it did not wait
}
