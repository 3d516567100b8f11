package shaper

import (
	"errors"
	"fmt"
	"math"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// Package shared describes a Bucket for authors of one.
type (
	// A Bucket holds levels that several processes share: [shared.Bucket].
	Bucket = shared.Bucket
	// Take is a question to a [Bucket]: [shared.Take].
	Take = shared.Take
	// Taken is the answer of a [Bucket]: [shared.Taken].
	Taken = shared.Taken
	// BucketLevel is the state of one key of a [Bucket]: [shared.BucketLevel].
	BucketLevel = shared.BucketLevel
	// BucketRate is the rate and the burst at which a level is shared: [shared.BucketRate].
	BucketRate = shared.BucketRate
	// Instant is a moment on the clock of a [Bucket]: [shared.Instant].
	Instant = shared.Instant
)

// MaxAhead is the greatest [Take.Ahead]: [shared.MaxAhead].
const MaxAhead = shared.MaxAhead

// sharedOptions are the options of a [Shaper] or [Group] whose levels are in a [Bucket].
type sharedOptions struct {
	asked     bool // WithBucket or WithBuckets is among the options
	bucket    Bucket
	key       string // of a Shaper
	keyOf     any    // of a Group: func(K) string
	fallback  Fallback
	version   int64
	versioned bool // WithRateVersion is among the options
	guard     time.Duration
	timeout   time.Duration // 0: the default
	timed     bool          // WithBucketTimeout is among the options
	patience  time.Duration
	patient   bool // WithPatience has set it
}

type bucketOption struct {
	bucket Bucket
	key    string
}

func (o bucketOption) apply(to *options) {
	to.shared.asked, to.shared.bucket, to.shared.key, to.shared.keyOf = true, o.bucket, o.key, nil
}

// WithBucket makes a [Shaper] share its level with all processes whose Shapers have the
// same [Bucket] and key. [Limits.Rate] and [Limits.Burst] then hold for all of them
// together. [Limits.Depth], [Limits.MaxWait] and [Limits.InFlight] are each process's own:
// each has a line of its own, which is strictly first in first out, and there is no
// promised order among lines. [Limits.Slack] is for how long a slot may be used after its
// instant. docs/shared.md lists the guarantees, and their limits.
//
// Requests for which the level has room take no place in line while the Bucket is asked: as many
// as Burst leave an idle Bucket at once, whatever Depth is. If other processes have taken the
// room meanwhile, the line has up to Burst requests more than Depth, until they have left.
//
// A request that finds an idle bucket waits for one round trip; in a busy bucket slots are
// taken ahead. With a Depth of 0, and for [Shaper.AllowN], each call is one round trip; those that
// come while it is under way share the next. What predicts a wait ([Shaper.Forecast],
// [RejectError.RetryAfter], MaxWait, deadlines) is an estimate: it takes the share of slots that
// this process has had of late.
//
// A call of the Bucket may take 250 ms ([WithBucketTimeout]); then it has failed. [Shaper.Hold]
// and [WithBlock] are each process's own. A Rate of rate.Inf can't be shared, and is an error of
// [New], [Shaper.SetLimits] and [Group.SetLimits]. [Shaper.Snapshot] has the level as this process knows it; the Bucket
// keeps the one that counts. Of a request of [Shaper.Reserve] the estimate stands, and settle only releases its seat;
// [Shaper.AtMost] does nothing.
//
// WithBucket can't be combined with [WithDryRun], and is for a Shaper: a [Group] has
// [WithBuckets]. Both are errors of [New] and [NewGroup], as are a nil Bucket and an empty key.
func WithBucket(b Bucket, key string) Option { return common{bucketOption{b, key}} }

type bucketsOption struct {
	bucket Bucket
	keyOf  any
}

func (o bucketsOption) apply(to *options) {
	to.shared.asked, to.shared.bucket, to.shared.key, to.shared.keyOf = true, o.bucket, "", o.keyOf
}

// WithBuckets makes a [Group] share the level of each of its keys with all processes: key
// returns the [Bucket]'s key for a key of the Group, and must not return "". Everything else
// is as with [WithBucket]. K must be the key type of the Group; if it is not, [NewGroup]
// returns an error.
//
// Keys that come when [WithMaxKeys] keys have a bucket of their own share buckets, as in
// every Group. Those are shared with the Groups of the same name in other processes, so give
// different Groups on one Bucket different names ([WithName]). But they are not shared by the
// same keys there; so such a key may get its rate in each process until there is room for it.
func WithBuckets[K comparable](b Bucket, key func(K) string) GroupOption {
	return bucketsOption{b, key}
}

// A Fallback is the behaviour of a process while it can't ask its [Bucket].
type Fallback int

const (
	// FallbackClosed lets no request leave. Requests in line wait on until their patience ends
	// ([WithPatience]). Newcomers are refused with [ErrUnavailable].
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

type fallbackOption Fallback

func (o fallbackOption) apply(to *options) { to.shared.fallback = Fallback(o) }

// WithFallback says what happens while the [Bucket] of [WithBucket] or [WithBuckets] can't
// be asked; the default is [FallbackClosed]. It never means that there is no limit.
//
// The Bucket counts as unavailable after three failures in a row; each takes 250 ms at most
// ([WithBucketTimeout]). It is asked again after about 50 ms, and after each further failure about
// twice as late, up to 2 s later. Each of these times is changed by up to a quarter, at random, so
// that processes do not ask together. The first answer ends the fallback. If one key fails three
// times in a row while others are answered, as with a row that stays locked, the Bucket counts as
// unavailable for this key alone.
func WithFallback(f Fallback) Option { return common{fallbackOption(f)} }

type rateVersionOption int64

func (o rateVersionOption) apply(to *options) {
	to.shared.version, to.shared.versioned = int64(o), true
}

// WithRateVersion sets the version of the rates of this process, from 1 to 2⁵³. Processes that
// share a bucket may have different rates, as during a deployment. Then the rate with the
// greatest version is in force for all of them, and until all use it they are together
// never above the greatest of their rates. Rates that differ in nothing but their versions are one
// rate, and no process has to learn the greater version.
//
// Without this option the version is the time, in microseconds, at which [New] or [NewGroup] was
// called, or [Shaper.SetLimits] or [Group.Reload] later. So the rate that was set last is in
// force, even if it is that of an old program which is started again while a new one runs. Where
// that may happen, give each release a version of its own. Each SetLimits and Reload is then
// a version too: one more than the latest. No version is greater than 2⁵³, so a rate with that
// version stays in force.
func WithRateVersion(v int64) Option { return common{rateVersionOption(v)} }

type coldGuardOption time.Duration

func (o coldGuardOption) apply(to *options) { to.shared.guard = time.Duration(o) }

// WithColdGuard lets no request leave for a time d, up to a minute, when the [Bucket] has
// no state for a key. It is for a Bucket that has lost its data. Other processes then still hold
// slots that the lost state knew of, up to two batches each. By default these are used beside the
// new ones. With a guard as long as two batches take, no slot is given twice.
//
// There is no state either for a new key, and for one that has not been used for a minute or more:
// their first requests wait for the time d, too. The guard does not help if the Bucket gets an older
// state back, as that is a state, nor if the rate is changed at about the same time, as slots of
// both rates may then be in use.
func WithColdGuard(d time.Duration) Option { return common{coldGuardOption(d)} }

type bucketTimeoutOption time.Duration

func (o bucketTimeoutOption) apply(to *options) {
	to.shared.timeout, to.shared.timed = time.Duration(o), true
}

// WithBucketTimeout sets how long a call of the [Bucket] may take, from 1 ms to 10 s; the default
// is 250 ms. A call that takes longer has failed, and after three in a row the Bucket counts as
// unavailable ([WithFallback]): an outage is noticed after 3 d at most. A caller of a meter waits
// for two calls at most, 2 d. Requests in line leave by slots that are leased ahead, so a long
// answer delays them only if there are none. Without a Bucket the option changes nothing; a d
// outside of the range is an error of [New] and [NewGroup] with one.
//
// A Bucket that has to connect first goes on when a call has failed, so that a later one finds the
// connection. But where a server is so far away that this takes longer than d (some five to seven
// round trips by way of TLS), calls fail meanwhile; then set d above it.
func WithBucketTimeout(d time.Duration) Option { return common{bucketTimeoutOption(d)} }

// errSharedInf is for a process that would lift the limit of a level for itself alone.
var errSharedInf = errors.New("shaper: Limits.Rate is +Inf, must be finite where a Bucket holds the level: " +
	"the rate goes for all processes that share it, and without one this process would share nothing")

// validateShared returns an error if the options of shared levels are invalid. constructor is
// [New] or [NewGroup].
func (o *options) validateShared(constructor string) error {
	s := o.shared
	switch {
	case s.patience < 0 || s.patience > horizon:
		return fmt.Errorf("shaper: %s: WithPatience is %v, must be from 0 to 365 days", constructor, s.patience)
	case !s.asked:
		return nil
	case s.bucket == nil:
		return fmt.Errorf("shaper: %s: the Bucket is nil", constructor)
	case o.dryRun:
		return fmt.Errorf("shaper: %s: WithDryRun can't be combined with a Bucket, as a shadow must not take what others need", constructor)
	case s.fallback < 0:
		return fmt.Errorf("shaper: %s: WithFallback is FallbackLocal(%d), must be of at least 1", constructor, s.fallback+1)
	case s.versioned && (s.version < 1 || s.version > maxVersion):
		return fmt.Errorf("shaper: %s: WithRateVersion is %d, must be from 1 to 2⁵³", constructor, s.version)
	case s.timed && (s.timeout < time.Millisecond || s.timeout > 10*time.Second):
		return fmt.Errorf("shaper: %s: WithBucketTimeout is %v, must be from 1ms to 10s", constructor, s.timeout)
	case s.guard < 0 || s.guard > time.Minute:
		return fmt.Errorf("shaper: %s: WithColdGuard is %v, must be from 0 to 1m", constructor, s.guard)
	}
	return nil
}

// DefaultPatience is for how long a request in line waits through an outage of its [Bucket],
// unless [WithPatience] sets another time.
const DefaultPatience = 5 * time.Second

type patienceOption time.Duration

func (o patienceOption) apply(to *options) {
	to.shared.patience, to.shared.patient = time.Duration(o), true
}

// WithPatience bounds how long a request in line waits through an outage of its [Bucket], with
// [FallbackClosed]: after d, up to 365 days, it is refused with [ErrUnavailable]. d counts while
// the request is in line and the Bucket counts as unavailable ([BucketDown]): from the start of
// the outage, or from its own entry if that is later. Each outage counts anew. The others keep
// their order, and if the Bucket can be asked again in time, nobody has lost a place.
//
// With 0 requests wait until the Bucket can be asked again, or their contexts end. The default
// is [DefaultPatience]. Without a Bucket, and with another [Fallback], which lets requests leave
// meanwhile, the option changes nothing. A negative d, or one above 365 days, is an error of
// [New] and [NewGroup].
func WithPatience(d time.Duration) Option { return common{patienceOption(d)} }
