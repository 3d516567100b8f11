package keyed

import (
	"slices"
	"sync/atomic"
)

const (
	// MaxShared is how many entries [Rings] hold at most.
	MaxShared = 1024
	// Spare is the number of them that are kept for rings without any, so that a flood of keys
	// of one ring leaves room for the keys of others.
	Spare = 64
	// Homes is how many points there are on a ring.
	Homes = MaxShared - Spare
)

// Rings hold the entries that keys share while a [Table] has no room for them. Each kind of keys P
// has a ring of its own: Homes points, and some of them have an entry. A hash gives each key its
// home on the ring, and the key uses the first entry at its home or after it (consistent hashing).
// The hash is to be seeded anew in each process, so that a client cannot choose keys that share an
// entry with the keys of another client.
//
// A key makes an entry at its home while there are fewer than Homes entries in all rings, or fewer
// than MaxShared and none in its own. After that it uses the next entry of its ring, whose reach
// then covers its home.
//
// No entry is ever made on a point that the reach of another one covers. So the entry that a key
// has used is still the next one after its home for as long as it exists. If it is deleted only
// when it is as good as new, no key gets a new one by moving from one entry to another.
//
// Finding an entry takes a binary search in one ring, however many entries and kinds there are.
// The zero Rings are empty. [Rings.Len] needs no lock.
type Rings[K comparable, V any, P comparable] struct {
	rings map[P][]*Entry[K, V] // each in the order of homes, never empty
	len   atomic.Int32         // entries in all rings
}

// Len returns how many entries there are. The lock need not be held.
func (o *Rings[K, V, P]) Len() int { return int(o.len.Load()) }

// All returns the rings, to be read: of each kind the entries, in the order of their homes.
func (o *Rings[K, V, P]) All() map[P][]*Entry[K, V] { return o.rings }

// Clear deletes all entries.
func (o *Rings[K, V, P]) Clear() {
	o.rings = nil
	o.len.Store(0)
}

// next returns the first entry of p's ring at a home or after it, and how many points
// after it that is. It returns nil if the ring is empty.
func (o *Rings[K, V, P]) next(home int16, p P) (e *Entry[K, V], distance int16) {
	ring := o.rings[p]
	if len(ring) == 0 {
		return nil, 0
	}
	i, _ := searchRing(ring, home)
	e = ring[i%len(ring)] // After the last point comes the first.
	return e, (e.Home - home + Homes) % Homes
}

// Used returns the entry of kind p that keys with a home have been sharing. It returns
// nil if there is none.
func (o *Rings[K, V, P]) Used(home int16, p P) *Entry[K, V] {
	if e, distance := o.next(home, p); e != nil && distance <= e.Reach {
		return e
	}
	return nil
}

// Find returns the entry of kind p that a key with a home is to share, and how far it is from
// there. It returns nil if an entry is to be made at the home; but if full is true, there is no
// room for a new entry.
func (o *Rings[K, V, P]) Find(home int16, p P) (e *Entry[K, V], distance int16, full bool) {
	e, distance = o.next(home, p)
	switch {
	case e != nil && distance <= e.Reach:
		return e, distance, false
	case o.len.Load() < Homes:
		return nil, 0, false
	case e != nil:
		return e, distance, false
	}
	return nil, 0, o.len.Load() >= MaxShared
}

// Add puts a new entry of kind p at its home.
func (o *Rings[K, V, P]) Add(e *Entry[K, V], p P) {
	if o.rings == nil {
		o.rings = make(map[P][]*Entry[K, V])
	}
	i, _ := searchRing(o.rings[p], e.Home)
	o.rings[p] = slices.Insert(o.rings[p], i, e)
	o.len.Add(1)
}

// Remove deletes an entry that was added with kind p.
func (o *Rings[K, V, P]) Remove(e *Entry[K, V], p P) {
	i, _ := searchRing(o.rings[p], e.Home)
	o.rings[p] = slices.Delete(o.rings[p], i, i+1)
	switch {
	case o.len.Add(-1) == 0:
		o.rings = nil // A map keeps the memory for all entries that it ever had.
	case len(o.rings[p]) == 0:
		delete(o.rings, p)
	}
}

// searchRing returns the index in a ring of the first entry at a home or after it.
func searchRing[K comparable, V any](ring []*Entry[K, V], home int16) (i int, found bool) {
	return slices.BinarySearchFunc(ring, home, func(e *Entry[K, V], home int16) int { return int(e.Home) - int(home) })
}
