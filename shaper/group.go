package shaper

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime"
	"sync/atomic"

	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper/internal/keyed"
)

// A Group keeps one bucket per key: per user, address, route, or whatever a program chooses. Everything that is said
// of a [Shaper] holds for each of its buckets, and no key delays another.
//
// Make one with [NewGroup]; the zero Group is not usable, and its methods panic. The first call with a key makes the
// key's bucket. It is deleted within a second of being drained: its level is 0, no request waits or is in flight,
// and it is not held. A new one would be just the same, so nothing is lost. One goroutine serves the lines of all
// keys, while a request waits.
//
// At most [WithMaxKeys] keys have a bucket of their own at once. None is deleted to make room, because a client that
// can make up keys could then get a fresh [Limits.Burst] each time. Instead, keys that come when the table is full
// share up to 1,024 buckets, each for one value of Limits, by a hash. Such a key may be refused because of others,
// but keys with a bucket of their own do not notice. When the table has room again, the next call makes a bucket of
// its own, which goes on from where the shared one is; with a cap only once no request waits or is in flight there.
// If no bucket is left to share, a call is refused as if its line was full. A key that does not equal itself, such
// as NaN, always shares. [GroupStats.Overflowed] counts these calls.
//
// The limits function is called for each new bucket, on the goroutine of the call, and at each call of a key that
// shares one. A client that calls more slowly than its rate finds its bucket deleted, so cache a slow look-up. A key
// at [rate.Inf] without a cap has no bucket: the Group remembers its Limits for half a second. The function runs
// outside any lock: if it is slow, only calls with the same key wait for it, even beyond their contexts. It must be
// safe for concurrent use, and must not call the Group with the key that it was called for. If it returns an error
// or invalid Limits, the call returns that error and takes nothing.
type Group[K comparable] struct {
	placement[K]

	// Every call reads these fields, and the ones of placement. None of them changes once the Group is in use.
	limits    func(K) (Limits, error)
	bucketKey func(K) string // of WithBuckets; nil without
	maxKeys   int64

	// reloading has room for one element: a Reload that runs puts it there, and the
	// next Reload waits for it to be taken out. A Mutex would stop the time in a
	// testing/synctest bubble while the limits function runs.
	reloading chan struct{}
	drain     groupDrain
	endless   *plan // of rate.Inf

	// The same for all shards, and apart from the fields that every call reads: calls that wait,
	// are refused, or make or delete a bucket write it.
	_          [cacheLine]byte
	ticker     ticker
	counts     keyed.Counts // heavy: keys that count against maxKeys; light: those with a bucket that need none
	overridden atomic.Int64 // keys with Limits by SetLimits
	refusals   atomic.Uint64
	rings      keyed.Rings[K, flow, *plan] // of each value of Limits the buckets that keys share; the lock of overflow guards it
	limited    keyed.Limited[K]
}

// NewGroup makes a [Group] whose keys have the [Limits] that a function returns.
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
	if err := o.validateLineTimeout("NewGroup"); err != nil {
		return nil, err
	}
	if err := o.validateBlock("NewGroup"); err != nil {
		return nil, err
	}
	switch {
	case o.fair != nil:
		return nil, errFairGroup
	case len(o.meters) > 0:
		return nil, errors.New("shaper: NewGroup: WithMeters is for a Shaper; the keys of a Group have a bucket each")
	}
	g := &Group[K]{limits: limits, maxKeys: int64(o.maxKeys), reloading: make(chan struct{}, 1)}
	g.seed = maphash.MakeSeed()
	g.bucketKey, _ = o.shared.keyOf.(func(K) string)
	g.limited = keyed.NewLimited[K](g.seed)
	g.drain.ended = make(chan struct{})
	g.endless = planOf(Limits{Rate: rate.Inf})
	g.makeShards(o)
	return g, nil
}

// mustBeMade panics if [NewGroup] has not made g.
func (g *Group[K]) mustBeMade() {
	if g == nil || g.overflow == nil {
		panic("shaper: this Group is nil or zero and can't be used; make one with shaper.NewGroup")
	}
}

// A keyedFlow is a flow of a [Group], with its key.
type keyedFlow[K comparable] = keyed.Entry[K, flow]

// A keyShard has a part of the keys of a [Group]: the hash of a key says in which shard it is.
// A shard has a lock, a table, a timing wheel and counts of its own, so that calls with keys of
// different shards have next to nothing to do with each other.
//
// The buckets that keys share are in a shard of their own, [Group].overflow. A call that needs the
// lock of overflow and another shard's lock takes the one of overflow first. All calls of keys that share
// contend for the lock of overflow. As they wait for it without holding another one, a flood of
// them delays no key that has a bucket. No call holds the locks of two shards other than overflow.
type keyShard[K comparable] struct {
	dispatcher
	group *Group[K]

	// The lock of the dispatcher guards these.
	observer
	closedFlow  *keyedFlow[K]        // refuses all calls when the Group is closed; has no key; nil: none has come
	unlimited   *keyedFlow[K]        // lets all calls leave; for keys that need no bucket and find no room for one; has no key; nil: none has come
	table       keyed.Table[K, flow] // light: buckets that need not be remembered; see insertLocked
	limitsCalls map[K]*limitsCall
	peakCalls   int // most calls that limitsCalls has had since it was made
	plans       plans
	unlimitedBy Limits // of the latest call that was given unlimited
	wheel       keyed.Wheel[K, flow]
	sweepTimer  *keyed.Timer
	reloads     int
	overflowed  uint64
	limitErrors uint64
	refusedKeys *[keptRefusals]refusedKey[K] // of refusalRing; nil: none has been refused
	overrides   keyed.Overrides[K, Limits]   // by SetLimits
	isAwaited   bool                         // it counts in groupDrain.awaits
}

// shards are the shards of a [Group], with or without overflow.
type shards[K comparable] []*keyShard[K]

const (
	// shardsPerProc is how many shards there are for each P that may run goroutines. A call
	// holds a shard's lock for about half of its time, as keys are mostly not in the cache. So
	// on two Ps, with 16 shards, one call of 32 finds the lock taken. That costs more than the
	// call itself: while other goroutines can run, a Mutex does not spin, but parks. With 4 in
	// place of 8, 64 goroutines take a quarter longer (BenchmarkGroupManyKeys).
	shardsPerProc = 8
	// maxShards bounds the memory of a [Group] that is hardly used: a shard has some 1.4 KiB.
	maxShards = 32
	// cacheLine is the most that a write of one processor takes away from the others.
	cacheLine = 64
)

// shardsFor returns how many shards a [Group] has on so many Ps: a power of 2, without overflow.
func shardsFor(procs int) int {
	return 1 << bits.Len(uint(min(procs*shardsPerProc, maxShards)-1))
}

// A placement says where the bucket of a key is.
type placement[K comparable] struct {
	shards   shards[K]    // as many as a power of 2
	seed     maphash.Seed // of the hash of a key, which chooses its shard and its home
	overflow *keyShard[K] // has the buckets that keys share, and no others, unless it is the only shard
	all      shards[K]    // shards and overflow
}

// shardOf returns the shard that a key is in. It panics for a key that can't be compared,
// such as an interface with a slice in it, as a map would: but while no lock is held.
func (p *placement[K]) shardOf(key K) *keyShard[K] {
	return p.shards[maphash.Comparable(p.seed, key)>>32&uint64(len(p.shards)-1)]
}

// homeOf returns the home of a key. All keys that do not equal themselves, such as
// NaN, have one home, because the hash of such a key differs at each call.
func (p *placement[K]) homeOf(key K) int16 {
	if key != key {
		return 0
	}
	return int16(maphash.Comparable(p.seed, key) % keyed.Homes)
}

// mayDryRun reports whether this is a dry run. It is a method, so that a type that embeds a [*Group]
// has it too.
func (p *placement[K]) mayDryRun() bool { return p.overflow.letsAllThrough() }

// makeShards makes the shards of a Group. With a [shared.Bucket] there is one: the round trips take
// the time there, and one place knows the Bucket's servers.
func (g *Group[K]) makeShards(o options) {
	n := 1
	if !o.shared.asked {
		n = shardsFor(runtime.GOMAXPROCS(0))
		g.all = make([]*keyShard[K], n+1) // The last shard has the buckets that keys share.
	} else {
		g.all = make([]*keyShard[K], 1)
	}
	for i := range g.all {
		g.all[i] = g.newShard(o)
	}
	g.shards, g.overflow = g.all[:n], g.all[len(g.all)-1]
}

// newShard makes a shard.
func (g *Group[K]) newShard(o options) *keyShard[K] {
	s := &keyShard[K]{group: g, table: keyed.NewTable[K, flow](&g.counts), overrides: keyed.NewOverrides[K, Limits](&g.overridden)}
	s.prepare(o, &g.ticker, &s.observer)
	s.host, s.totals = s, new(totals)
	s.waiters.most = int32(maxSpares / len(g.all))
	s.sweepTimer = keyed.NewTimer(s.sweep)
	s.dropAllLocked()
	return s
}

// endlessLocked returns the flow at rate.Inf in a field of the shard, and makes it if there is
// none.
func (s *keyShard[K]) endlessLocked(field **keyedFlow[K]) *keyedFlow[K] {
	if *field == nil {
		*field = &keyedFlow[K]{Value: flow{bucket: bucket{plan: s.group.endless}, entered: -1}, Home: keyed.Own}
	}
	return *field
}

// tableFull reports whether no further key may have a bucket of its own now.
func (g *Group[K]) tableFull() bool { return g.counts.Heavy.Load() >= g.maxKeys }

// errEmptyBucketKey is for a key function of [WithBuckets] that breaks its contract.
var errEmptyBucketKey = errors.New("the key function of WithBuckets has returned an empty key")

// bucketKey returns the [shared.Bucket]'s key of a key; none without a Bucket. The lock is not
// held.
func (s *keyShard[K]) bucketKey(key K) (levelKey, error) {
	g := s.group
	if g.bucketKey == nil {
		return levelKey{}, nil
	}
	name := g.bucketKey(key)
	if name == "" {
		return levelKey{}, &limitsError{errEmptyBucketKey}
	}
	return g.overflow.levels.keyOf(name), nil
}

// leaseLocked makes the level of a bucket that has none, if levels are shared. A bucket that
// several keys share here is shared with the one of the same number in other processes.
//
// It is not inlined, so that its callers need no stack for it.
//
//go:noinline
func (s *keyShard[K]) leaseLocked(kf *keyedFlow[K], key levelKey) {
	if kf.Value.remote() != nil || kf == s.closedFlow || kf == s.unlimited {
		return
	}
	if kf.Home != keyed.Own {
		l := kf.Value.bucket.limits
		// The Bucket can't be asked for its backend here, so such keys have a circuit breaker of their own.
		key = levelKey{key: fmt.Sprintf("overflow/%s/%g/%d/%d", s.name, float64(l.Rate), l.burst(), kf.Home)}
	}
	s.levels.add(&kf.Value, key)
}
