package shaper

import (
	"hash/maphash"
	"slices"
	"sync/atomic"
)

const (
	// maxOverflow is how many buckets are shared by keys that find the table full.
	maxOverflow = 1024
	// reservedOverflow is how many of them are kept for [Limits] that have none yet, so that
	// a flood of keys with the same Limits leaves room for keys with other Limits.
	reservedOverflow = 64
	// homes is how many points there are on a ring.
	homes = maxOverflow - reservedOverflow
)

// overflow holds the buckets that keys share while the [Group] has no bucket of their
// own for them. Each value of [Limits] has a ring of its own: homes points, some of
// which have a bucket. A hash gives each key its home on the ring, and the key uses
// the first bucket at its home or after it (consistent hashing). The hash is seeded
// anew in each process, so that a client cannot choose keys that share a bucket with
// those of another client.
//
// A key makes a bucket at its home while there are fewer than maxOverflow −
// reservedOverflow buckets in all rings, or fewer than maxOverflow and none in its own.
// After that it uses the next bucket of its ring, whose reach then covers its home.
//
// No bucket is ever made on a point that the reach of another one covers. So the
// bucket that a key has used is still the next one after its home for as long as it
// exists. It is deleted only when it is drained, and therefore no key gets a fresh
// Burst by moving from one bucket to another.
//
// Finding a bucket takes a binary search in one ring, however many buckets and Limits
// there are.
//
// The lock of the shard that has these buckets guards it. But whether there are any may be
// asked without the lock.
type overflow[K comparable] struct {
	rings map[*plan][]*keyedFlow[K] // each in the order of homes, never empty
	len   atomic.Int32              // buckets in all rings
}

// homeOf returns the home of a key. All keys that do not equal themselves, such as
// NaN, have one home, because the hash of such a key differs at each call.
func (g *Group[K]) homeOf(key K) int16 {
	if key != key {
		return 0
	}
	return int16(maphash.Comparable(g.seed, key) % homes)
}

// next returns the first bucket of p's ring at a home or after it, and how many points
// after it that is. It returns nil if the ring is empty.
func (o *overflow[K]) next(home int16, p *plan) (kf *keyedFlow[K], distance int16) {
	ring := o.rings[p]
	if len(ring) == 0 {
		return nil, 0
	}
	i, _ := searchRing(ring, home)
	kf = ring[i%len(ring)] // After the last point comes the first.
	return kf, (kf.home - home + homes) % homes
}

// used returns the bucket with plan p that keys with a home have been sharing. It returns
// nil if there is none.
func (o *overflow[K]) used(home int16, p *plan) *keyedFlow[K] {
	if kf, distance := o.next(home, p); kf != nil && distance <= kf.reach {
		return kf
	}
	return nil
}

// find returns the bucket with plan p that a key with a home is to share, and how far it
// is from there. It returns nil if one is to be made at the home; but if full is true,
// there is no room for that. A nil p stands for a plan that no bucket has.
func (o *overflow[K]) find(home int16, p *plan) (kf *keyedFlow[K], distance int16, full bool) {
	kf, distance = o.next(home, p)
	switch {
	case kf != nil && distance <= kf.reach:
		return kf, distance, false
	case o.len.Load() < homes:
		return nil, 0, false
	case kf != nil:
		return kf, distance, false
	}
	return nil, 0, o.len.Load() >= maxOverflow
}

// add puts a new bucket at its home.
func (o *overflow[K]) add(kf *keyedFlow[K]) {
	if o.rings == nil {
		o.rings = make(map[*plan][]*keyedFlow[K])
	}
	p := kf.flow.bucket.plan
	i, _ := searchRing(o.rings[p], kf.home)
	o.rings[p] = slices.Insert(o.rings[p], i, kf)
	o.len.Add(1)
}

// remove deletes a bucket that was added with plan p.
func (o *overflow[K]) remove(kf *keyedFlow[K], p *plan) {
	i, _ := searchRing(o.rings[p], kf.home)
	o.rings[p] = slices.Delete(o.rings[p], i, i+1)
	switch {
	case o.len.Add(-1) == 0:
		o.rings = nil // A map keeps the memory for all entries that it ever had.
	case len(o.rings[p]) == 0:
		delete(o.rings, p)
	}
}

// seatsInUse reports whether there is a cap, and requests are in flight or in line.
func (f *flow) seatsInUse() bool { return f.capped() && (f.seatsTaken() > 0 || f.waiting() > 0) }

// searchRing returns the index in a ring of the first bucket at a home or after it.
func searchRing[K comparable](ring []*keyedFlow[K], home int16) (i int, found bool) {
	return slices.BinarySearchFunc(ring, home, func(kf *keyedFlow[K], home int16) int { return int(kf.home) - int(home) })
}
