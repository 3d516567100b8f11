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
type notes[K comparable] struct {
	mu   sync.Mutex
	seed maphash.Seed
	most heavy[K]
	all  distinct // of those that were refused
}

func newNotes[K comparable](seed maphash.Seed) notes[K] {
	return notes[K]{seed: seed, most: newHeavy[K](counters)}
}

// waited notes a call that has to wait.
func (n *notes[K]) waited(key K) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.most.add(key)
}

// refused notes a call that is refused.
func (n *notes[K]) refused(key K) {
	hash := maphash.Comparable(n.seed, key)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.most.add(key)
	n.all.add(hash)
}

// top is which keys were noted most.
func (n *notes[K]) top(count int) []KeyCount[K] {
	n.mu.Lock()
	most := n.most.snapshot()
	n.mu.Unlock()
	return most.top(count)
}

// refusedKeys is about how many different keys were refused.
func (n *notes[K]) refusedKeys() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all.estimate()
}
