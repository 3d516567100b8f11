package keyed

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"example.com/leakybucket/shaper/internal/sketch"
)

// TopCounters is how many keys that meet their limits [Limited] can tell apart.
const TopCounters = 1024

// Limited remembers, in fixed memory, the keys that met their limits, when their entries are
// gone. It has a lock of its own, so that calls that leave at once have nothing to do with it.
type Limited[K comparable] struct {
	mu          sync.Mutex
	seed        maphash.Seed
	mostLimited sketch.TopK[K]
	distinct    sketch.Distinct // of the keys that were refused
}

// NewLimited returns a Limited that hashes keys with a seed.
func NewLimited[K comparable](seed maphash.Seed) Limited[K] {
	return Limited[K]{seed: seed, mostLimited: sketch.NewTopK[K](TopCounters)}
}

// Waited notes a call that has to wait.
func (k *Limited[K]) Waited(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mostLimited.Add(key)
}

// Refused notes a call that is refused.
func (k *Limited[K]) Refused(key K) {
	hash := maphash.Comparable(k.seed, key)
	k.mu.Lock()
	k.mostLimited.Add(key)
	k.distinct.Add(hash)
	k.mu.Unlock()
}

// Top returns the keys that were noted most.
func (k *Limited[K]) Top(count int) []sketch.Count[K] {
	k.mu.Lock()
	most := k.mostLimited.Snapshot()
	k.mu.Unlock()
	return most.Top(count)
}

// All returns all keys that were noted, how many notes there were of all keys, and how many
// there may have been at most of a key that is not among those returned.
func (k *Limited[K]) All() (counts []sketch.Count[K], events, least uint64) {
	k.mu.Lock()
	most := k.mostLimited.Snapshot()
	k.mu.Unlock()
	return most.Top(TopCounters), most.Events(), most.Least()
}

// Merge adds the result of [Limited.All] in another process.
func (k *Limited[K]) Merge(counts []sketch.Count[K], events, least uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mostLimited.Merge(counts, events, least)
}

// RefusedKeys returns about how many different keys were refused.
func (k *Limited[K]) RefusedKeys() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.distinct.Estimate()
}

// Overrides are values that some keys have been given. Several Overrides count together.
type Overrides[K, V comparable] struct {
	of    map[K]V
	count *atomic.Int64
}

// NewOverrides returns Overrides that count in count.
func NewOverrides[K, V comparable](count *atomic.Int64) Overrides[K, V] {
	return Overrides[K, V]{count: count}
}

// Get returns the value of a key; ok reports whether it has one.
func (o *Overrides[K, V]) Get(key K) (value V, ok bool) {
	value, ok = o.of[key]
	return value, ok
}

// Any reports whether there may be one in any of those that count together. The lock need not be
// held.
func (o *Overrides[K, V]) Any() bool { return o.count.Load() > 0 }

// Len returns how many there are.
func (o *Overrides[K, V]) Len() int { return len(o.of) }

// Set gives a key a value. For a key that has none, [TakeBelow] has counted it.
func (o *Overrides[K, V]) Set(key K, value V) {
	if o.of == nil {
		o.of = make(map[K]V)
	}
	o.of[key] = value
}

// Delete undoes Set.
func (o *Overrides[K, V]) Delete(key K) {
	if _, ok := o.of[key]; ok {
		delete(o.of, key)
		o.count.Add(-1)
	}
}

// Differs reports whether a key has another value than it had, if it had one, or has one now if it
// had none.
func (o *Overrides[K, V]) Differs(key K, value V, had bool) bool {
	if !had && len(o.of) == 0 {
		return false
	}
	now, ok := o.of[key]
	return ok != had || ok && now != value
}
