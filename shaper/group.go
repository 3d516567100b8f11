package shaper

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// A Group keeps one bucket per key: per user, address, route, or whatever a program
// chooses. Everything that is said of a [Shaper] holds for each of its buckets, and no
// key delays another.
//
// Make one with [NewGroup]; the zero Group is not usable, and its methods panic. The
// first call with a key makes the key's bucket, from the [Limits] that the function
// given to NewGroup returns for it. The bucket is deleted within a second of being
// drained, and another key may have one instead. A bucket is drained when its level is
// 0, no request waits or is in flight, and it is not held. A new bucket would be just the
// same, so nothing is lost, and a key that is not used takes no memory. One goroutine
// serves the lines of all keys; it runs while a request waits.
//
// A key at rate.Inf without a cap does not count among those that have a bucket, unless it
// is held: the Group remembers only its Limits, for at most half a second.
//
// # When there are too many keys
//
// At most [WithMaxKeys] keys have a bucket of their own at once. A bucket that is not
// drained is never deleted to make room, because then a client that can make up keys could
// get a fresh [Limits.Burst] each time. Instead, keys that come when the table is full share
// buckets. There are up to 1,024 of them, each for one value of Limits. A hash, which
// is seeded anew in each process, decides which keys share one. Such a key may be
// refused for what others do, but keys with a bucket of their own do not notice.
// [GroupStats.Overflowed] counts the calls of keys that share.
//
// When the table has room again, the next call of such a key makes a bucket of its
// own, which goes on from where the shared one is: with its level, behind its line and
// with its hold. If there is a cap, the key goes on sharing until no request waits in
// the shared bucket or is in flight from it.
//
// 64 of the 1,024 are kept for Limits that have no shared bucket yet. If those are
// taken too, a call whose Limits have none is refused as if its line was full. A key
// that does not equal itself, such as NaN, always shares.
//
// # Limits of a key
//
// The function that returns the Limits of a key is called once for each new bucket, and
// once for each call of a key that shares a bucket. A client that calls more slowly than
// its rate finds its bucket deleted, within a second of being drained, so the function is
// called again each time: cache what is slow to look up.
//
// For a key at rate.Inf without a cap it is called at most about twice a second, however
// often the key is used. But if there are more such keys within half a second than
// [WithMaxKeys], it is called at each call of those that came last, and at each call of a
// NaN.
//
// It is called on the goroutine of the call that needs the Limits, outside any lock, so a call
// that makes a bucket may last longer than its context. If it is slow, only calls with the same
// key wait for it. A [Transport] whose request has been answered waits for it until its context
// ends at most: for such a request it is called on a goroutine of its own. It must be safe for concurrent
// use, and must not call the Group with the key that it was called for. If it returns
// an error or invalid Limits, the call returns that error and takes nothing, and the
// next call asks again.
//
// A Group is safe for concurrent use. A hash spreads its keys over several locks, so calls with
// different keys rarely wait for each other.
type Group[K comparable] struct {
	// What every call reads. None of it changes once the Group is in use.
	shards    []*keyShard[K] // as many as a power of 2
	seed      maphash.Seed   // of the hash of a key, which says in which shard it is, and what its home is
	over      *keyShard[K]   // has the buckets that keys share, and no others, unless it is the only shard
	all       []*keyShard[K] // shards and over
	limits    func(K) (Limits, error)
	bucketKey func(K) string // of WithBuckets; nil without
	maxKeys   int64

	// reloading has room for one element: a Reload that runs puts it there, and the
	// next Reload waits for it to be taken out. A Mutex would stop the time in a
	// testing/synctest bubble while the limits function runs.
	reloading chan struct{}
	drain     groupDrain
	endless   *plan // of rate.Inf

	// What is the same for all shards, and apart from what every call reads: calls that wait,
	// are refused, or make or delete a bucket write it.
	_             [cacheLine]byte
	ticker        ticker
	ownKeys       atomic.Int64 // keys that count against maxKeys
	unlimitedKeys atomic.Int64 // keys with a bucket that need none
	overridden    atomic.Int64 // keys with Limits by SetLimits
	refusals      atomic.Uint64
	overflow      overflow[K]
	limited       limitedKeys[K]
}

// NewGroup makes a [Group] whose keys have the [Limits] that the function returns for
// them.
func NewGroup[K comparable](limits func(K) (Limits, error), opts ...GroupOption) (*Group[K], error) {
	if limits == nil {
		return nil, errors.New("shaper: NewGroup: limits is nil, must be a function")
	}
	o := options{maxKeys: DefaultMaxKeys}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.maxKeys < 1 {
		return nil, fmt.Errorf("shaper: WithMaxKeys is %d, must be at least 1", o.maxKeys)
	}
	if err := o.validateShared("NewGroup"); err != nil {
		return nil, err
	}
	if o.shared.asked {
		if f, ok := o.shared.keyOf.(func(K) string); !ok || f == nil {
			return nil, fmt.Errorf("shaper: NewGroup: WithBuckets has a %T, must have a %T (WithBucket is for a Shaper)", o.shared.keyOf, (func(K) string)(nil))
		}
	}
	if err := o.validateBlock("NewGroup"); err != nil {
		return nil, err
	}
	g := &Group[K]{limits: limits, maxKeys: int64(o.maxKeys), seed: maphash.MakeSeed(), reloading: make(chan struct{}, 1)}
	g.bucketKey, _ = o.shared.keyOf.(func(K) string)
	g.limited = newLimitedKeys[K](g.seed)
	g.drain.ended = make(chan struct{})
	g.endless = planOf(Limits{Rate: rate.Inf})
	g.makeShards(o)
	return g, nil
}

// mustBeMade panics if [NewGroup] has not made g.
func (g *Group[K]) mustBeMade() {
	if g == nil || g.over == nil {
		panic("shaper: this Group is nil or zero and can't be used; make one with shaper.NewGroup")
	}
}
