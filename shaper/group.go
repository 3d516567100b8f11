package shaper

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"golang.org/x/time/rate"
)

// A Group is a bucket for each key: for each user, address, route, or what a
// program likes. All that is true of a Shaper is true of each of its buckets, and
// no key keeps another waiting.
//
// A bucket is made by the first call with its key, from what the function given
// to NewGroup says of it, and deleted within a second of being drained: when it is
// empty, nobody waits, none of its requests is in flight, and it is not held.
// From then on it would be as a new one, so that nothing is lost by it, and a key
// that nobody uses takes no memory. One goroutine lets the lines of all keys leave,
// while somebody waits; the deleting is done by a timer, while some bucket is not
// drained.
//
// # When there are too many keys
//
// No more than WithMaxKeys keys have a bucket of their own at once. A bucket that
// is not drained is never deleted to make room, as whoever can make up keys could
// get himself a full Burst by that. Rather the keys that come when the table is
// full share buckets: up to 1,024, each for one value of Limits and for those keys
// that a hash, seeded anew in each process, puts there. So they may be refused for
// what others do, and nobody who has a bucket notices; GroupStats.Overflowed counts
// their calls. They get buckets of their own when some are drained, which go on from
// where the shared ones are. 64 of the 1,024 are for Limits that have none yet; if
// those are taken too, the calls of a key whose Limits have none are refused as if its
// line was full. A key that does not equal itself, as a NaN, always shares.
//
// # Limits of a key
//
// The function is called once for each new bucket, and once for each call of a key
// that shares one, on the goroutine of that call and outside any lock: it may be
// slow, and delays those with the same key only. For a client who is slower than his
// rate the bucket is new at every call, but for those within a second; so keep what
// is slow to find out. The function must be safe for concurrent use, and must not
// call the Group with the key that it is asked for. If it returns an error, or Limits
// that are not valid, the call gets that error and takes nothing, and the next call
// asks again.
//
// A Group is safe for concurrent use. Make one with NewGroup; the zero Group is not
// usable, and its methods panic.
type Group[K comparable] struct {
	dispatcher
	limits     func(K) (Limits, error)
	maxKeys    int
	closedFlow keyedFlow[K] // has no key: who comes when the Group is closed is refused by it

	// reloading has room for one Reload, before the lock. It is no Mutex, as the
	// function runs meanwhile: in a testing/synctest bubble time would stand still.
	reloading chan struct{}
	limited   limitedKeys[K]

	// The lock of the dispatcher guards these.
	table       map[K]*keyedFlow[K]
	peakKeys    int // keys in the table, since it was made
	limitsCalls map[K]*limitsCall
	peakCalls   int // since it was made
	plans       map[Limits]*plan
	peakPlans   int   // since it was made
	unused      *plan // of plans: the last that nobody used any more, nor maybe since
	overflow    overflow[K]
	wheel       wheel[K]
	reloads     int
	overflowed  uint64
	limitErrors uint64
}

// NewGroup makes a Group whose keys have the Limits that the function says.
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
	g := &Group[K]{limits: limits, maxKeys: o.maxKeys, reloading: make(chan struct{}, 1)}
	g.prepare(o)
	g.keyed = true
	g.sweepTimer.sweep, g.drop = g.sweep, g.dropAllLocked
	g.overflow.seed = maphash.MakeSeed()
	g.limited = newLimitedKeys[K](g.overflow.seed)
	g.closedFlow.flow = flow{bucket: newBucket(Limits{Rate: rate.Inf}), entered: -1}
	g.dropAllLocked()
	return g, nil
}

// Shutdown is Shaper.Shutdown for the lines of all keys.
func (g *Group[K]) Shutdown(ctx context.Context) error {
	g.mustBeMade()
	return g.shutdown(ctx)
}

// Close is Shaper.Close for the lines of all keys. All buckets are deleted.
func (g *Group[K]) Close() error {
	g.mustBeMade()
	g.close()
	return nil
}

// mustBeMade panics if NewGroup has not made g.
func (g *Group[K]) mustBeMade() {
	if g == nil || g.run == nil {
		panic("shaper: this Group is nil or zero and can't be used; make one with shaper.NewGroup")
	}
}
