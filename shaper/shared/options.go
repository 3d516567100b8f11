package shared

import (
	"math"
	"time"
)

// Options are the numbers with which a process uses a [Bucket]. The zero Options are what most programs want.
// A number out of its range is an error of shaper.New and shaper.NewGroup.
type Options struct {
	// Fallback says what happens while the Bucket can't be asked. The zero Fallback is [FallbackClosed].
	// None means that there is no limit.
	//
	// The Bucket counts as unavailable after three failures in a row. It is asked again after about
	// 50 ms, and after each further failure about twice as late, up to 2 s later; each time is changed
	// by up to a quarter, at random, so that processes do not ask together. The first answer ends the
	// fallback. If one key fails three times in a row while others are answered, as with a row
	// that stays locked, the Bucket counts as unavailable for this key alone.
	Fallback Fallback

	// Patience is for how long a request in line waits through an outage with FallbackClosed, up to 365
	// days: then it is refused with shaper.ErrUnavailable. 0 means [DefaultPatience]; if it is
	// negative, requests wait until the Bucket can be asked again or their contexts end.
	//
	// It counts while the request is in line and the Bucket is down ([StateDown]): from the start of the
	// outage, or from its own entry if that is later. Each outage counts anew. The others keep their
	// order, and if the Bucket can be asked again in time, no request has lost its place.
	Patience time.Duration

	// Timeout is how long a call of the Bucket may take, from 1 ms to 10 s; 0 means 250 ms. A call that takes
	// longer has failed: an outage is noticed after three times as long at most, and a call that must not
	// wait in line (Depth 0, AllowN) waits twice as long at most. Requests in line leave by slots that are
	// leased ahead, so a long answer delays them only if there are none.
	//
	// A Bucket that has to connect first goes on when a call has failed, so that a later one finds the
	// connection. Where a server is so far away that connecting takes longer than Timeout (some five to seven
	// round trips by way of TLS), calls fail meanwhile; then set it above that.
	Timeout time.Duration

	// ColdGuard is for how long no request leaves, up to a minute, when the Bucket has no state for a key. It is for
	// a Bucket that has lost its data: other processes then still hold slots that the lost state knew of, up to two
	// batches each. With a guard as long as two batches take, no slot is given twice; by default these are
	// used beside the new ones.
	//
	// There is no state either for a new key, and for one that has not been used for a minute or more:
	// their first requests wait as long. The guard does not help if the Bucket gets an older state back, nor if the
	// rate is changed at about the same time, as slots of both rates may then be in use.
	ColdGuard time.Duration

	// InFlight is how many requests of all processes together may be under way, for each key of a Group; 0: there is no
	// such cap. shaper.Limits.InFlight stays each process's own, and the lesser of both holds. A Bucket that is no
	// [Seater] is an error.
	//
	// A process leases seats for 10 s and needs no round trip while it has some. A key that is new, or has not been used
	// for a day, waits 3.6 s for its first seat: if the Bucket has lost its data, all processes say in this time what
	// they hold. docs/shared-guarantees.md has what is promised.
	InFlight int

	// RateVersion is the version of the rates of this process, from 1 to 2⁵³. Processes that share a bucket may
	// have different rates, as during a deployment. Then the rate with the greatest version is in force for
	// all of them, and until all use it they are together never above the greatest of their rates.
	//
	// 0 means the time, in microseconds, at which the Shaper or Group was made or its limits were set later.
	// So the rate that was set last is in force, even if it is that of an old program which is started again while
	// a new one runs. Where that may happen, give each release a version. Each SetLimits and Reload
	// is then a version too: one more than the latest. No version is greater than 2⁵³, so a rate with that
	// version stays in force. Two rates with one version are a mistake: then the first stays in force.
	RateVersion int64
}

// DefaultPatience is for how long a request in line waits through an outage, unless [Options.Patience] says
// another time.
const DefaultPatience = 5 * time.Second

// A Fallback is the behaviour of a process while it can't ask its [Bucket].
type Fallback int

const (
	// FallbackClosed lets no request leave. Requests in line wait on until their patience ends
	// ([Options.Patience]). Newcomers are refused with shaper.ErrUnavailable.
	FallbackClosed Fallback = 0

	// FallbackOpen lets each process use the whole rate. So n processes that are cut off
	// let through n times the rate together.
	FallbackOpen Fallback = 1
)

// FallbackLocal lets each process use an equal part of the rate and of the burst (at least
// 1): Rate / instances, but no less than 1 per 365 days, as there is no slower rate. It begins after
// the last slot that the process has had from the [Bucket].
// instances is how many processes there are, at least 1. If some of them can still ask the
// Bucket, they go on with the whole rate: with m of n cut off, all together let through
// 1 + m/n times the rate.
func FallbackLocal(instances int) Fallback {
	if instances < 1 {
		return Fallback(max(instances, math.MinInt+1) - 1) // Below 0, so that it is told from FallbackClosed.
	}
	return Fallback(instances)
}

// State says how requests leave that share a level.
type State string

const (
	StateShared State = "shared" // at the slots of the Bucket
	StateDown   State = "down"   // not at all: it can't be asked (FallbackClosed)
	StateLocal  State = "local"  // at a part of the rate: it can't be asked (FallbackLocal)
	StateOpen   State = "open"   // at the whole rate in each process: it can't be asked (FallbackOpen)
)

// Stats tell about the [Bucket] that a level is in. Those of a shaper.Group have only the State,
// Err and the totals of all keys together, with the state of a server that can't be
// asked if there is one.
type Stats struct {
	State State // "" without a Bucket
	Err   error // the latest failure; nil if the latest call succeeded

	RTT   time.Duration // the shortest round trip of late; 0 if there was none
	Share float64       // the part of the slots that this process has had of late, from 0 to 1; 0 if that is not known

	Lateness time.Duration // for how long after its instant a slot may be used

	// HoldsAlone says that the Bucket knows of no holds ([Taken.Hold]): those of this process are its own.
	HoldsAlone bool

	Held        int64 // cost units that are leased and not used yet
	Ahead       int64 // the most cost units that may be leased ahead, as round trips and costs have been so far: L in docs/shared-guarantees.md
	Seats       int   // with [Options.InFlight], how many requests may be in flight by the seats that this process has leased; if it has none, by the fallback
	SeatsTarget int   // to how many it is to come down as its calls end, as others wait; the InFlight if nobody waits
	InFlight    int   // [Options.InFlight]; a Group has it too

	RoundTrips uint64 // calls of Take, of GiveBack, and of Seats
	Failures   uint64 // calls that failed
	Leased     uint64 // cost units taken
	Dropped    uint64 // cost units whose slots have passed unused
	GivenBack  uint64 // cost units given back
}

// An Event reports that a [Bucket] can't be asked any more, or can be again: for all keys of
// one of its servers, or for a single key that fails while others are answered. A shaper.Group that
// forgets such a key reports that it can be asked for again.
type Event struct {
	Name  string // the name of the Shaper or Group
	Shard string // which of the Bucket's servers, if it tells; see [Bucket]
	State State  // from now on
	At    time.Time
	Err   error // the failure; nil if it can be asked again
}
