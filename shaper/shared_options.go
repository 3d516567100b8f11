package shaper

import (
	"errors"
	"fmt"
	"math"
	"time"

	"example.com/leakybucket/shaper/shared"
)

// sharedOptions are the options of a [Shaper] or [Group] whose levels are in a [shared.Bucket].
type sharedOptions struct {
	asked  bool // WithBucket or WithBuckets is among the options
	bucket shared.Bucket
	key    string // of a Shaper
	keyOf  any    // of a Group: func(K) string
	shared.Options
}

type bucketOption sharedOptions

// defaultTimeout bounds a call of the [shared.Bucket]; see [shared.Options.Timeout]. Within it an answer is
// still of use, as slots are leased ahead; and so long does a call at most delay the fallback.
const defaultTimeout = 250 * time.Millisecond

// maxVersion is the greatest version of a rate. No [shared.Bucket] takes a greater one.
const maxVersion = 1 << 53

// mostSeats is the greatest [shared.Options.InFlight].
const mostSeats = math.MaxInt32

func (o bucketOption) apply(to *options) { to.shared = sharedOptions(o) }

// WithBucket makes a [Shaper] share its level with all processes whose Shapers have the same [shared.Bucket] and
// key. [Limits.Rate] and [Limits.Burst] then hold for all of them together; [Limits.Slack] is for how long a slot
// may be used after its instant. A [Shaper.Hold] is of all of them too. Everything else is each process's own, with
// its line, which is strictly first in first out. docs/shared-guarantees.md has what is promised.
//
// A request that finds an idle bucket waits for one round trip; in a busy bucket slots are taken ahead. Requests for
// which the level has room take no place in line meanwhile, so the line may have up to Burst requests more than
// Depth. With a Depth of 0, and for [Shaper.AllowN], each call is a round trip. Predictions assume that this process
// goes on getting its share of slots.
//
// The estimate of a request of [Shaper.Reserve] stands, and [Shaper.AtMost] does nothing. A Rate of rate.Inf can't
// be shared, and is an error of [New], [Shaper.SetLimits] and [Group.SetLimits]. New and [NewGroup] return an error
// for [WithDryRun] beside it, a nil Bucket, an empty key, and Options out of their ranges.
func WithBucket(b shared.Bucket, key string, o shared.Options) Option {
	return common{bucketOption{asked: true, bucket: b, key: key, Options: o}}
}

// WithBuckets is [WithBucket] for each key of a [Group]: key returns the [shared.Bucket]'s key for a key of the
// Group, and must not return "". K must be the key type of the Group; if it is not, [NewGroup] returns an error.
//
// Keys that come when [WithMaxKeys] keys have a bucket of their own share buckets, by the name of the Group
// ([WithName]) in all processes, but not the same keys there: such a key may get its rate in each process until
// there is room for it.
func WithBuckets[K comparable](b shared.Bucket, key func(K) string, o shared.Options) GroupOption {
	return bucketOption{asked: true, bucket: b, keyOf: key, Options: o}
}

// errSharedInf is for a process that would lift the limit of a level for itself alone.
var errSharedInf = errors.New("shaper: Limits.Rate is +Inf, must be finite where a Bucket holds the level: " +
	"the rate goes for all processes that share it, and without one this process would share nothing")

// validateShared returns an error if the options of shared levels are invalid. constructor is
// [New] or [NewGroup].
func (o *options) validateShared(constructor string) error {
	s := o.shared
	switch {
	case !s.asked:
		return nil
	case s.bucket == nil:
		return fmt.Errorf("shaper: %s: the Bucket is nil", constructor)
	case o.dryRun:
		return fmt.Errorf("shaper: %s: WithDryRun can't be combined with a Bucket, as a shadow must not take what others need", constructor)
	case s.Fallback < 0:
		return fmt.Errorf("shaper: %s: Options.Fallback is FallbackLocal(%d), must be of at least 1", constructor, s.Fallback+1)
	case s.Patience > horizon:
		return fmt.Errorf("shaper: %s: Options.Patience is %v, must be at most 365 days, or negative for no bound", constructor, s.Patience)
	case s.RateVersion < 0 || s.RateVersion > maxVersion:
		return fmt.Errorf("shaper: %s: Options.RateVersion is %d, must be from 1 to 2⁵³, or 0 for the time", constructor, s.RateVersion)
	case s.Timeout != 0 && (s.Timeout < time.Millisecond || s.Timeout > 10*time.Second):
		return fmt.Errorf("shaper: %s: Options.Timeout is %v, must be from 1ms to 10s, or 0 for %v", constructor, s.Timeout, defaultTimeout)
	case s.InFlight < 0 || s.InFlight > mostSeats:
		return fmt.Errorf("shaper: %s: Options.InFlight is %d, must be from 1 to %d, or 0 for no cap of all processes", constructor, s.InFlight, mostSeats)
	case s.ColdGuard < 0 || s.ColdGuard > time.Minute:
		return fmt.Errorf("shaper: %s: Options.ColdGuard is %v, must be from 0 to 1m", constructor, s.ColdGuard)
	}
	if _, ok := s.bucket.(shared.Seater); !ok && s.InFlight > 0 {
		return fmt.Errorf("shaper: %s: Options.InFlight is %d, but a %T is no shared.Seater, and can't count the requests in flight", constructor, s.InFlight, s.bucket)
	}
	return nil
}
