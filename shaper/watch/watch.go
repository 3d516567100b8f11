// Package watch has what programs show to people of a shaper.Shaper or shaper.Group: who is in line, which requests
// were refused and which have left, how long they have waited, and which keys meet their limits most. The methods
// that return these values are those of the Shaper and the Group.
package watch

import (
	"time"

	"example.com/leakybucket/internal/histogram"
)

// A Waiter is a request in the line, as Line of a Shaper shows it.
type Waiter struct {
	Key  string // of a Shaper WithFairQueue, else empty
	Cost int
	// Since is when the request entered the line.
	Since time.Time
	// Leaves is when the request is predicted to leave, if all requests ahead of it stay
	// and nothing changes, as Forecast predicts for newcomers. With
	// Limits.InFlight it is an estimate for all that stand behind the free seats.
	Leaves time.Time
}

// A KeyLine is the line of a key in a Shaper WithFairQueue.
type KeyLine struct {
	Key        string
	Weight     int
	Waiting    int
	Cost       int           // of all its requests in line; the greatest int if that is exceeded
	OldestWait time.Duration // of a request in line; a retry of a Transport starts at 0
	Leaves     time.Time     // of its first request, as Waiter.Leaves
}

// A KeyOrder is the order in which Keys of a Shaper returns keys, and so which of them if not all are wanted.
type KeyOrder int

const (
	// ByTurn has the keys first whose first request leaves next, as predicted in [KeyLine.Leaves]. It takes less than a
	// microsecond for each request that leaves before the first one of the last of these keys.
	ByTurn KeyOrder = iota

	// ByLength has the keys first whose latest request would leave last. It takes less than a microsecond for
	// each key, however many keys and requests there are. [KeyLine.Leaves] is zero, as predicting it takes a look at
	// each key.
	ByLength
)

// A Refusal is a request that was refused.
type Refusal struct {
	At         time.Time
	Reason     error         // ErrQueueFull, ErrTooLate, ErrTooCostly, ErrClosed or ErrUnavailable
	RetryAfter time.Duration // as in the RejectError
	Cost       int
	Key        any // the request's key in a Group, or in a Shaper WithFairQueue (a string); nil in another Shaper
}

// A Departure is a request that has left a Shaper WithFairQueue, as Departures shows it.
type Departure struct {
	At   time.Time // when its slot was handed out
	Key  string    // at most 256 bytes: the rest of a longer key is cut off
	Cost int
}

// KeyCount is how many calls of one key met its limit: were refused, or had to wait,
// or in a dry run would have. There is a fixed number m of counters, whatever the number of
// keys, so a count may be too high, but never too low:
//
//   - The true number is at least Count − Error and at most Count.
//   - Error is 0 for all keys until more than m different keys have met their limits. From
//     then on it is at most N/m, where N is the number of such calls of all keys together.
//   - A key with more than N/m such calls always has a counter.
type KeyCount[K comparable] struct {
	Key   K
	Count uint64 // calls that met the limit, at most
	Error uint64 // how many of Count may be those of other keys
}

// A Histogram counts values in buckets whose bounds grow by 9 %. Its methods are Count, Sum, Quantile, Buckets and Sub.
type Histogram = histogram.Histogram

// Histograms says how long requests have waited, and how evenly they have left.
type Histograms struct {
	// Wait counts how long the requests that left have waited, in seconds. They are
	// the requests of Stats.Departed. A request that left at once has waited for 0.
	Wait Histogram
	// Spacing says how evenly requests have left a line. For each departure out of a line it
	// counts a ratio: the time since the departure before it from the same bucket, divided by
	// the time that the schedule puts between the two. 1 is on schedule. A departure is
	// above 1 if it is late, or had to wait for a seat or for the end of a hold, and below 1 if
	// it makes up lateness. The first departure out of a line makes up none: it is
	// scheduled from the departure before it, late or not.
	//
	// For requests of cost 1 the scheduled time is the interval, 1/Limits.Rate. In general
	// it is the time in which max(Limits.Burst, m) − max(0, Burst − n) cost units leak,
	// where m is the cost of the earlier request and n of the later. For the first departure
	// out of a line, the level just after the departure before it takes the place of
	// max(Burst, m), as that departure may have left the level below Burst.
	//
	// Not counted are
	//   - departures of requests that found no line, as they may be as close together as
	//     Burst allows;
	//   - the first departure out of a line that began while the level was 0, because of a
	//     hold or the cap;
	//   - the departure of a request that was due already and was only kept by a costlier
	//     one ahead of it, and the departure after that;
	//   - the first departure after something else than time and departures has changed the level, or the
	//     rate, while requests waited: SetLimits, a settle (Reserve), AtMost,
	//     Restore, or a slot that was given back;
	//   - all departures at rate.Inf.
	//
	// A request that was given up just after its slot had come counts as a departure here.
	Spacing Histogram
}
