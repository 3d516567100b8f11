package shaper

import (
	"hash/maphash"
	"sync"
)

// counters is how many keys notes can tell apart that meet their limits.
const counters = 1024

// notes are what a Group remembers of keys when their buckets are gone: which met
// their limits, in fixed memory. It has a lock of its own, so that whoever leaves at
// once has nothing to do with it.
type limitedKeys[K comparable] struct {
	mu          sync.Mutex
	seed        maphash.Seed
	mostLimited spaceSaving[K]
	distinct    hyperLogLog // of those that were refused
}

func newLimitedKeys[K comparable](seed maphash.Seed) limitedKeys[K] {
	return limitedKeys[K]{seed: seed, mostLimited: newSpaceSaving[K](counters)}
}

// waited notes a call that has to wait.
func (n *limitedKeys[K]) waited(key K) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mostLimited.add(key)
}

// refused notes a call that is refused.
func (n *limitedKeys[K]) refused(key K) {
	hash := maphash.Comparable(n.seed, key)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mostLimited.add(key)
	n.distinct.add(hash)
}

// top is which keys were noted most.
func (n *limitedKeys[K]) top(count int) []KeyCount[K] {
	n.mu.Lock()
	most := n.mostLimited.snapshot()
	n.mu.Unlock()
	return most.top(count)
}

// refusedKeys is about how many different keys were refused.
func (n *limitedKeys[K]) refusedKeys() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.distinct.estimate()
}
