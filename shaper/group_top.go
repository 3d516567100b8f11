package shaper

import (
	"hash/maphash"
	"sync"

	"example.com/leakybucket/shaper/internal/sketch"
)

// KeyCount is how many calls of one key met its limit: were refused, or had to wait,
// or in a dry run would have. It is as exact as a fixed number m of counters can be.
// With N such calls of all keys together:
//
//   - Count is never below the true number, and above it by at most Error, so
//     that Count − Error calls are certain.
//   - Error is at most N/m, and 0 for all until there have been more than m
//     different keys.
//   - A key with more than N/m such calls has one of the counters.
type KeyCount[K comparable] struct {
	Key   K
	Count uint64
	Error uint64
}

// Top returns the n keys that meet their limits most: those with the most calls that
// were refused or had to wait, or in a dry run would have, most first. It remembers
// keys whose buckets are gone, in fixed memory; [KeyCount] says how exact it is, with
// m = 1,024.
func (g *Group[K]) Top(n int) []KeyCount[K] {
	g.mustBeMade()
	counts := g.limited.top(n)
	if counts == nil {
		return nil
	}
	top := make([]KeyCount[K], len(counts))
	for i, c := range counts {
		top[i] = KeyCount[K](c)
	}
	return top
}

// topCounters is how many keys that meet their limits a [Group] can tell apart.
const topCounters = 1024

// limitedKeys is what a [Group] remembers, in fixed memory, of the keys that met their
// limits, when their buckets are gone. It has a lock of its own, so that calls that
// leave at once have nothing to do with it.
type limitedKeys[K comparable] struct {
	mu          sync.Mutex
	seed        maphash.Seed
	mostLimited sketch.TopK[K]
	distinct    sketch.Distinct // of the keys that were refused
}

func newLimitedKeys[K comparable](seed maphash.Seed) limitedKeys[K] {
	return limitedKeys[K]{seed: seed, mostLimited: sketch.NewTopK[K](topCounters)}
}

// waited notes a call that has to wait.
func (k *limitedKeys[K]) waited(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mostLimited.Add(key)
}

// refused notes a call that is refused.
func (k *limitedKeys[K]) refused(key K) {
	hash := maphash.Comparable(k.seed, key)
	k.mu.Lock()
	k.mostLimited.Add(key)
	k.distinct.Add(hash)
	k.mu.Unlock()
}

// top returns the keys that were noted most.
func (k *limitedKeys[K]) top(count int) []sketch.Count[K] {
	k.mu.Lock()
	most := k.mostLimited.Snapshot()
	k.mu.Unlock()
	return most.Top(count)
}

// all returns all keys that were noted, how many notes there were of all keys, and how many
// there may have been at most of a key that is not among those returned.
func (k *limitedKeys[K]) all() (counts []sketch.Count[K], events, least uint64) {
	k.mu.Lock()
	most := k.mostLimited.Snapshot()
	k.mu.Unlock()
	return most.Top(topCounters), most.Events(), most.Least()
}

// merge adds what all has returned in another process.
func (k *limitedKeys[K]) merge(counts []sketch.Count[K], events, least uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mostLimited.Merge(counts, events, least)
}

// refusedKeys returns about how many different keys were refused.
func (k *limitedKeys[K]) refusedKeys() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.distinct.Estimate()
}
