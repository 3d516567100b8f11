package shaper

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// KeyCount says how many calls of one key met its limit: were refused, or had to
// wait, or in a dry run would have. It is as exact as a fixed number m of counters
// can be. With N such calls of all keys together:
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

// heavy finds the keys that occur most in a stream of them, in fixed memory: the
// Space-Saving algorithm of Metwally, Agrawal and El Abbadi ("Efficient
// Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005). There
// are at most m counters. A key that has none takes over that of the key with
// the least count, and its count too, which from then on is its error: it may
// have occurred so often before. The counts add up to the number of events N, so
// the least of m is at most N/m, and so are the errors.
//
// One is made by newHeavy. It holds no memory before the first event, grows with
// the number of different keys up to m, and then allocates nothing. Keys are
// found by a seeded hash, so that nobody who chooses keys can make them collide.
// Whoever owns it guards it with a lock.
type spaceSaving[K comparable] struct {
	events uint64 // N

	capacity int // m
	seed     maphash.Seed
	counters []counter[K]

	// chains are the counters by the low bits of their hash. A map would not do:
	// it can't delete a key that does not equal itself, such as NaN, and may
	// allocate while keys come and go.
	chains []link

	// least holds the counters as a binary heap by count. It is made when they
	// are all taken, as before nobody needs to know the least. (The paper's list
	// of groups of equal counts takes O(1) instead of O(log m), for more links
	// and more code. With 1,024 the worst case, all keys new, is 100 ns.)
	least []int32
}

// counter is what heavy knows of one key.
type counter[K comparable] struct {
	key       K
	hash      uint64
	count     uint64
	overcount uint64 // the part of count that was taken over, its error
	since     uint64 // the event that brought the key here

	next link  // in its chain
	at   int32 // in least
}

// link is the index of a counter, plus 1. 0: none.
type link int32

// newHeavy returns one with m counters, m > 0.
func newSpaceSaving[K comparable](m int) spaceSaving[K] {
	return spaceSaving[K]{capacity: m, seed: maphash.MakeSeed()}
}

// add counts an event of key. A key that does not equal itself, such as NaN, is
// a new one each time.
func (h *spaceSaving[K]) add(key K) {
	h.events++
	hash := maphash.Comparable(h.seed, key)
	if i := h.find(key, hash); i >= 0 {
		h.counters[i].count++
		h.siftDown(i)
		return
	}
	if len(h.counters) < h.capacity {
		h.append(counter[K]{key: key, hash: hash, count: 1, since: h.events})
		return
	}
	i := h.least[0]
	c := &h.counters[i]
	h.unlink(i)
	c.key, c.hash, c.since = key, hash, h.events
	c.overcount = c.count
	c.count++
	h.link(i)
	h.siftDown(i)
}

// top returns the n keys with the largest counts, or all that have a counter if
// they are fewer, largest first. Of equal counts that comes first which got its
// counter first; it has the smaller error, as the least count never falls. There
// are none for n ≤ 0.
func (h *spaceSaving[K]) top(n int) []KeyCount[K] {
	n = min(n, len(h.counters))
	if n <= 0 {
		return nil
	}
	sorted := slices.Clone(h.counters)
	slices.SortFunc(sorted, func(a, b counter[K]) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.since, b.since))
	})
	top := make([]KeyCount[K], n)
	for i, c := range sorted[:n] {
		top[i] = KeyCount[K]{Key: c.key, Count: c.count, Error: c.overcount}
	}
	return top
}

// snapshot returns a copy to ask top of. It takes some 20 µs where top takes 120
// (m = 1,024), which the owner's lock then need not be held for. Nothing may be
// added to the copy.
func (h *spaceSaving[K]) snapshot() spaceSaving[K] {
	return spaceSaving[K]{events: h.events, capacity: h.capacity, counters: slices.Clone(h.counters)}
}

// find returns the index of the counter of key, or −1.
func (h *spaceSaving[K]) find(key K, hash uint64) int32 {
	if len(h.chains) == 0 {
		return -1
	}
	for l := *h.chain(hash); l != 0; {
		c := &h.counters[l-1]
		if c.hash == hash && c.key == key {
			return int32(l - 1)
		}
		l = c.next
	}
	return -1
}

// chain is where the counters of a hash begin. The number of chains is a power
// of two.
func (h *spaceSaving[K]) chain(hash uint64) *link { return &h.chains[hash&uint64(len(h.chains)-1)] }

// link puts a counter in front of its chain.
func (h *spaceSaving[K]) link(i int32) {
	chain := h.chain(h.counters[i].hash)
	h.counters[i].next, *chain = *chain, link(i+1)
}

// unlink takes a counter out of its chain. It looks for the counter, not for the
// key, which may not equal itself.
func (h *spaceSaving[K]) unlink(i int32) {
	l := h.chain(h.counters[i].hash)
	for *l != link(i+1) {
		l = &h.counters[*l-1].next
	}
	*l = h.counters[i].next
}

// append adds a counter. There are at least as many chains as counters. With
// the last counter comes the heap.
func (h *spaceSaving[K]) append(c counter[K]) {
	if len(h.counters) == cap(h.counters) {
		grown := make([]counter[K], len(h.counters), min(max(8, 2*len(h.counters)), h.capacity))
		copy(grown, h.counters)
		h.counters = grown
	}
	h.counters = append(h.counters, c)
	if len(h.counters) > len(h.chains) {
		h.chains = make([]link, max(8, 2*len(h.chains)))
		for i := range h.counters {
			h.link(int32(i))
		}
	} else {
		h.link(int32(len(h.counters) - 1))
	}
	if len(h.counters) < h.capacity {
		return
	}
	h.least = make([]int32, h.capacity)
	for i := range h.least {
		h.least[i], h.counters[i].at = int32(i), int32(i)
	}
	for at := h.capacity/2 - 1; at >= 0; at-- {
		h.siftDown(h.least[at])
	}
}

// sink moves a counter whose count has grown down the heap, to where it belongs,
// if there is a heap yet.
func (h *spaceSaving[K]) siftDown(i int32) {
	if h.least == nil {
		return
	}
	at, count := int(h.counters[i].at), h.counters[i].count
	for {
		child := 2*at + 1
		if child >= len(h.least) {
			break
		}
		below := h.counters[h.least[child]].count
		if child+1 < len(h.least) {
			if right := h.counters[h.least[child+1]].count; right < below {
				child, below = child+1, right
			}
		}
		if count <= below {
			break
		}
		h.least[at] = h.least[child]
		h.counters[h.least[at]].at = int32(at)
		at = child
	}
	h.least[at] = i
	h.counters[i].at = int32(at)
}
