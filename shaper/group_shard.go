package shaper

import (
	"hash/maphash"
	"math/bits"
	"runtime"

	"example.com/leakybucket/internal/exact"
)

// A keyShard has a part of the keys of a [Group]: the hash of a key says in which shard it is.
// A shard has a lock, a table, a timing wheel and counts of its own, so that calls with keys of
// different shards have next to nothing to do with each other.
//
// The buckets that keys share are in a shard of their own, [Group].over. A call that needs the
// lock of over and that of another shard takes that of over first. All calls of keys that share
// contend for the lock of over. As they wait for it without holding another one, a flood of
// them delays no key that has a bucket. No call holds the locks of two shards other than over.
type keyShard[K comparable] struct {
	dispatcher
	group *Group[K]

	// The lock of the dispatcher guards these.
	closedFlow    *keyedFlow[K] // refuses all calls when the Group is closed; has no key; nil: none has come
	unlimited     *keyedFlow[K] // lets all calls leave; for keys that need no bucket and find no room for one; has no key; nil: none has come
	table         map[K]*keyedFlow[K]
	lastTable     map[K]*keyedFlow[K] // for Snapshot: the table when the Group was closed; nil before
	peakKeys      int                 // most keys that table has had since it was made
	unlimitedKeys int                 // keys in table that need no bucket
	limitsCalls   map[K]*limitsCall
	peakCalls     int // most calls that limitsCalls has had since it was made
	plans         planSet
	unused        *plan  // the latest of plans that lost its last user; it may have one again
	unlimitedBy   Limits // of the latest call that was given unlimited
	wheel         wheel[K]
	reloads       int
	overflowed    uint64
	limitErrors   uint64
	refusedKeys   *[keptRefusals]refusedKey[K] // of refusalRing; nil: none has been refused
	recordingsOf  map[K][]*Recording
	overrides     map[K]Limits // by SetLimits
	drains        bool         // it counts in groupDrain.awaits
}

const (
	// shardsPerProc is how many shards there are for each P that may run goroutines. A call
	// holds a shard's lock for about half of its time, as keys are mostly not in the cache. So
	// on two Ps, with 16 shards, one call of 32 finds the lock taken. That costs more than the
	// call itself: while other goroutines can run, a Mutex does not spin, but parks. With 4 in
	// place of 8, 64 goroutines take a quarter longer (BenchmarkGroupManyKeys).
	shardsPerProc = 8
	// maxShards bounds what a [Group] takes that is hardly used: a shard has some 1.4 KiB.
	maxShards = 32
	// cacheLine is the most that a write of one processor takes away from the others.
	cacheLine = 64
)

// shardsFor returns how many shards a [Group] has on so many Ps: a power of 2. That of the
// buckets that keys share is not among them.
func shardsFor(procs int) int {
	return 1 << bits.Len(uint(min(procs*shardsPerProc, maxShards)-1))
}

// makeShards makes the shards of a Group. With a [Bucket] there is one: the round trips take
// the time there, and one place says what is known of the Bucket's servers.
func (g *Group[K]) makeShards(o options) {
	n := 1
	if !o.shared.asked {
		n = shardsFor(runtime.GOMAXPROCS(0))
		g.all = make([]*keyShard[K], n+1) // The last one is that of the buckets that keys share.
	} else {
		g.all = make([]*keyShard[K], 1)
	}
	for i := range g.all {
		g.all[i] = g.newShard(o)
	}
	g.shards, g.over = g.all[:n], g.all[len(g.all)-1]
}

// newShard makes a shard.
func (g *Group[K]) newShard(o options) *keyShard[K] {
	s := &keyShard[K]{group: g}
	s.prepare(o, &g.ticker)
	s.keyed, s.totals = true, new(totals)
	s.waiters.most = int32(maxSpares / len(g.all))
	s.sweepTimer = &sweepTimer{sweep: s.sweep, at: exact.Forever, next: exact.Forever}
	s.drain = s.drainLocked
	s.dropAllLocked()
	return s
}

// endlessLocked returns the flow at rate.Inf in a field of the shard, and makes it if there is
// none.
func (s *keyShard[K]) endlessLocked(field **keyedFlow[K]) *keyedFlow[K] {
	if *field == nil {
		*field = &keyedFlow[K]{flow: flow{bucket: bucket{plan: s.group.endless}, entered: -1}, home: ownBucket}
	}
	return *field
}

// shardOf returns the shard that a key is in. It panics for a key that can't be compared,
// such as an interface with a slice in it, as a map would: but while no lock is held.
func (g *Group[K]) shardOf(key K) *keyShard[K] {
	return g.shards[maphash.Comparable(g.seed, key)>>32&uint64(len(g.shards)-1)]
}

// full reports whether no further key may have a bucket of its own now.
func (g *Group[K]) full() bool { return g.ownKeys.Load() >= g.maxKeys }

// mayDryRun is that of a dispatcher. It is a method, so that a type that embeds a [*Group]
// has it too.
func (g *Group[K]) mayDryRun() bool { return g.over.isDryRun() }
